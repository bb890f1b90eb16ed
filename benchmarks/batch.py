"""Many runs at once: 64 runs of W2 (16 settings x 4 seeds), wall time and how busy the cores are.

python -m benchmarks.batch
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

import upcycled as up
from benchmarks.measure import explain_if_asked, keep
from benchmarks.workloads import w2


def runs_of_w2() -> list[dict[str, Any]]:
    """16 settings, each with 4 seeds."""
    workload = w2()
    base = {"data": workload.data, "engine": "fused", **workload.arguments}
    return [
        base
        | {"seed": seed, "algorithm": algorithm, "local": up.LocalSGD(lr=lr, momentum=0.5, epochs=10, batch_size=32)}
        for seed in range(4)
        for lr in (0.03, 0.1, 0.3, 1.0)
        for algorithm in (up.FedAvg(), up.FedProx(mu=0.1), up.FedProx(mu=1.0), up.FedAvgM())
    ]


def main() -> None:
    runs = runs_of_w2()
    up.train_many(runs[:4], progress=False)
    walls, busy = [], []
    for _ in range(5):
        wall, cpu = time.perf_counter(), time.process_time()
        results = up.train_many(runs, progress=False)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        assert all(result.error is None for result in results)
        walls.append(wall)
        busy.append(cpu / wall / len(os.sched_getaffinity(0)))
    keep("batch", {"runs": len(runs), "seconds": statistics.median(walls), "cores busy": statistics.median(busy)})


if __name__ == "__main__":
    explain_if_asked(__doc__)
    main()
