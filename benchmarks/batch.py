"""Many runs at once: 64 runs of W2 (16 settings x 4 seeds), wall time and how busy the cores are.

Once in threads, as the first batch of a process does it, and once with worker processes that are there already.

python -m benchmarks.batch
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

import upcycled as up
from benchmarks.measure import explain_if_asked, keep
from benchmarks.workloads import w2
from upcycled.engines.processes import worker_pool


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
    found = {"runs": len(runs), **_measured(runs, "")}
    cores = len(os.sched_getaffinity(0))
    list(worker_pool(cores).map(time.sleep, [2.0] * cores))
    up.train_many(runs, progress=False)
    keep("batch", found | _measured(runs, " with warm workers"))


def _measured(runs: list[dict[str, Any]], how: str) -> dict[str, float]:
    walls, busy = [], []
    for _ in range(5):
        wall, cpu = time.perf_counter(), _cpu_seconds()
        results = up.train_many(runs, progress=False)
        wall, cpu = time.perf_counter() - wall, _cpu_seconds() - cpu
        assert all(result.error is None for result in results)
        walls.append(wall)
        busy.append(cpu / wall / len(os.sched_getaffinity(0)))
    return {f"seconds{how}": statistics.median(walls), f"cores busy{how}": statistics.median(busy)}


def _cpu_seconds() -> float:
    """Return what this process and its living workers have computed."""
    workers = [f"/proc/{pid}/stat" for pid in worker_pool(len(os.sched_getaffinity(0)))._processes]
    ticks = sum(sum(map(int, Path(one).read_text().rpartition(")")[2].split()[11:13])) for one in workers)
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    explain_if_asked(__doc__)
    main()
