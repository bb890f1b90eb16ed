"""Timing that can be trusted on a shared machine: interleaved repeats, medians, ratios from one run."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"


def explain_if_asked(doc: str | None) -> None:
    """Print what a benchmark does, and end, if its command says ``--help``: all of them take long."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print((doc or "").strip())
        raise SystemExit(0)


def interleaved(jobs: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Run every job once to warm up, then all of them in turn; return the median seconds of each."""
    for job in jobs.values():
        job()
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(repeats):
        for name, job in jobs.items():
            began = time.perf_counter()
            job()
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(found) for name, found in times.items()}


def gemm_rate(m: int, k: int, n: int, threads: int = 1, seconds: float = 0.3) -> float:
    """Return multiply-adds per second of float32 products of this shape, one BLAS thread on each of ``threads``."""
    import threading

    from threadpoolctl import threadpool_limits

    def loop(out: list[float]) -> None:
        a, b, c = (np.ones(shape, dtype=np.float32) for shape in ((m, k), (k, n), (m, n)))
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            for _ in range(20):
                np.dot(a, b, out=c)
            done += 20
        out.append(done * m * k * n / (time.perf_counter() - began))

    with threadpool_limits(1):
        rates: list[float] = []
        workers = [threading.Thread(target=loop, args=(rates,)) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    return sum(rates)


def machine() -> dict[str, Any]:
    """Say what this was measured on."""
    import numba
    import torch

    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0] if names else cpu
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "numba": numba.__version__,
    }


def code() -> dict[str, str]:
    """Say which code was measured, and when."""
    asked = ["git", "describe", "--always", "--dirty"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False, cwd=RESULTS.parent)
    return {"commit": found.stdout.strip(), "date": time.strftime("%Y-%m-%d")}


def keep(name: str, found: dict[str, Any]) -> None:
    """Write a benchmark's numbers where the documentation's table is made from."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), "code": code(), **found}, indent=2) + "\n")
    print(json.dumps(found, indent=2))
