"""W1, W2 and W3: our engines against a plain torch loop (b), our own reference (a) and the GEMM limit (c).

python -m benchmarks.rounds [w1 w2 w3]
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import upcycled as up
from benchmarks import official_manner
from benchmarks.measure import explain_if_asked, gemm_rate, interleaved, keep
from benchmarks.workloads import Workload, w1, w2, w3

# The slow ones are measured on a tenth of the rounds and multiplied; the fast ones run whole.
PART = 10
REPEATS = 5


def train(workload: Workload, engine: str, **changes: Any) -> up.Result:
    return up.train(workload.data, engine=engine, progress=False, **(workload.arguments | changes))


def shortened(workload: Workload) -> Workload:
    rounds = max(1, workload.rounds // PART)
    changed = {"iterations": rounds, "eval_every": min(workload.arguments.get("eval_every", 1), rounds)}
    return replace(workload, arguments=workload.arguments | changed)


def small(workload: Workload) -> dict[str, float]:
    """Seconds of W1 or W2 under each system."""
    short = shortened(workload)
    factor = workload.rounds / short.rounds
    jobs: dict[str, Callable[[], object]] = {
        "fused": functools.partial(train, workload, "fused"),
        "sequential (a)": functools.partial(train, short, "sequential"),
        "official manner (b)": functools.partial(official_manner.run, short, short.rounds),
    }
    seconds = interleaved(jobs, REPEATS)
    return {name: s if name == "fused" else s * factor for name, s in seconds.items()}


def private_overhead() -> float:
    """W1 with output perturbation over W1 without."""
    jobs = {"with": functools.partial(train, w1(), "fused"), "without": functools.partial(train, w1(False), "fused")}
    seconds = interleaved(jobs, 15)
    return seconds["with"] / seconds["without"]


def large() -> dict[str, float]:
    """Seconds of W3, training only, and what its matrix products would take alone."""
    workload = w3()
    short = replace(workload, arguments=workload.arguments | {"iterations": 2, "eval_every": 2})

    def training(engine: str, rounds: int) -> float:
        result = train(workload, engine, iterations=rounds, eval_every=rounds)
        return float(sum(result.history.column("seconds")))

    jobs: dict[str, Callable[[], object]] = {
        "fused": functools.partial(training, "fused", workload.rounds),
        "vectorised": functools.partial(training, "vectorised", workload.rounds),
        "sequential (a)": functools.partial(training, "sequential", 2),
        "official manner (b)": functools.partial(official_manner.run, short, 2, evaluate=False),
    }
    seconds = interleaved(jobs, 3)
    # The first two rounds are not average ones: scale by gradient steps, not by rounds.
    steps = train(workload, "fused").history.column("gradient_steps")
    scale = sum(steps) / sum(steps[:2])
    found = {name: s * scale if "(" in name else s for name, s in seconds.items()}
    found["GEMM limit (c)"] = gemm_limit(workload, sum(steps))
    return found


def gemm_limit(workload: Workload, steps: int) -> float:
    """Seconds of the five products of a step (forward, weights and hidden gradients) at the rate measured here."""
    batch, inputs, hidden, classes = 32, 784, 196, 10
    shapes = [
        (batch, inputs, hidden),
        (batch, hidden, classes),
        (hidden, batch, inputs),
        (classes, batch, hidden),
        (batch, classes, hidden),
    ]
    each = sum(m * k * n / gemm_rate(m, k, n, threads=2) for m, k, n in shapes)
    # Short last batches: count samples rather than steps.
    samples = batch * steps * _fill(workload)
    return float(each * samples / batch)


def _fill(workload: Workload) -> float:
    sizes = workload.data.sizes.astype(float)
    batches = np.ceil(sizes / 32)
    return float(sizes.sum() / (32 * batches.sum()))


def ratios(seconds: dict[str, float], ours: str) -> dict[str, float]:
    return {f"{name} / {ours}": s / seconds[ours] for name, s in seconds.items() if name != ours}


def main(wanted: list[str]) -> None:
    for name, make in (("w1", w1), ("w2", w2)):
        if name in wanted:
            seconds = small(make())
            found: dict[str, Any] = {"seconds": seconds, "ratios": ratios(seconds, "fused")}
            if name == "w1":
                found["with privacy / without"] = private_overhead()
            keep(name, found)
    if "w3" in wanted:
        seconds = large()
        of = {"fused": ratios(seconds, "fused"), "vectorised": ratios(seconds, "vectorised")}
        keep(
            "w3", {"seconds": seconds, "ratios": of, "fused / GEMM limit": seconds["fused"] / seconds["GEMM limit (c)"]}
        )


if __name__ == "__main__":
    explain_if_asked(__doc__)
    main(sys.argv[1:] or ["w1", "w2", "w3"])
