"""What pFedMe costs: a data round of W3 by pFedMe with five inner steps over one by FedAvg, in turns.

python -m benchmarks.moreau
"""

from __future__ import annotations

import statistics
from typing import Any

import upcycled as up
from benchmarks.measure import explain_if_asked, keep
from benchmarks.workloads import w3

ROUNDS, REPEATS = 5, 3


def seconds(algorithm: up.Algorithm, momentum: float) -> float:
    """Return the seconds of the rounds of one run."""
    workload = w3()
    local = up.LocalSGD(lr=0.01, momentum=momentum, epochs=10, batch_size=32)
    changed: dict[str, Any] = {"algorithm": algorithm, "local": local, "iterations": ROUNDS, "eval_every": ROUNDS}
    history = up.train(workload.data, progress=False, **(workload.arguments | changed)).history
    return sum(record.seconds or 0.0 for record in history)


def main() -> None:
    pfedme = up.PFedMe(lam=15.0, inner_steps=5)
    seconds(pfedme, 0.0)
    ratios = [seconds(pfedme, 0.0) / seconds(up.FedAvg(), 0.5) for _ in range(REPEATS)]
    keep("moreau", {"pFedMe / FedAvg": statistics.median(ratios)})


if __name__ == "__main__":
    explain_if_asked(__doc__)
    main()
