"""What it costs to keep a run on the disk: with checkpoints over without, both in one run, in turns.

python -m benchmarks.checkpoints [repeats]
"""

from __future__ import annotations

import functools
import itertools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import upcycled as up
from benchmarks.batch import runs_of_w2
from benchmarks.measure import RESULTS, explain_if_asked, interleaved, keep
from benchmarks.workloads import Workload, w1, w3

REPEATS = 5


def single(workload: Workload, folders: Callable[[], Path] | None, **changes: Any) -> None:
    kept = {} if folders is None else {"checkpoint": folders()}
    up.train(workload.data, engine="fused", progress=False, **(workload.arguments | changes | kept))


def batch(runs: list[dict[str, Any]], folders: Callable[[], Path] | None) -> None:
    kept = [run if folders is None else run | {"checkpoint": folders()} for run in runs]
    assert all(result.error is None for result in up.train_many(kept, progress=False))


def main(repeats: int) -> None:
    many = runs_of_w2()
    # Beside the results: the folder for temporary files may lie in memory, where flushing costs nothing.
    with tempfile.TemporaryDirectory(dir=RESULTS.parent) as temporary:
        numbers = itertools.count()

        def folders() -> Path:
            return Path(temporary) / f"{next(numbers)}"

        def ledgers() -> Path:
            return folders() / "ledger.jsonl"

        private = functools.partial(single, w1())
        jobs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "W3": (functools.partial(single, w3(), folders), functools.partial(single, w3(), None)),
            f"{len(many)} runs of W2": (functools.partial(batch, many, folders), functools.partial(batch, many, None)),
            # Both have their ledger on the disk, a flush a round.
            "W1 with a ledger": (lambda: private(folders), lambda: private(None, ledger=ledgers())),
        }
        seconds, ratios = {}, {}
        for name, (with_, without) in jobs.items():
            found = interleaved({"with": with_, "without": without}, repeats)
            seconds[name], ratios[name] = found, found["with"] / found["without"]
    keep("checkpoints", {"repeats": repeats, "seconds": seconds, "ratios": ratios})


if __name__ == "__main__":
    explain_if_asked(__doc__)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else REPEATS)
