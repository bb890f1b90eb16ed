"""Scale: a million memory-mapped clients against ten thousand, and how CPU time grows with the work.

python -m benchmarks.scale [folder]     (the folder takes about 2 GB; default: a temporary one)
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import upcycled as up
from benchmarks.measure import keep

FEATURES, SAMPLES, COHORT = 20, 20, 1000


def generate(folder: Path, clients: int) -> up.FederatedData:
    """Write features and labels to disk in blocks, and open them memory-mapped."""
    rows = clients * SAMPLES
    x_path, y_path = folder / f"x{clients}.npy", folder / f"y{clients}.npy"
    x = np.lib.format.open_memmap(x_path, mode="w+", dtype=np.float32, shape=(rows, FEATURES))
    y = np.lib.format.open_memmap(y_path, mode="w+", dtype=np.int64, shape=(rows,))
    rng, direction = np.random.default_rng(0), np.linspace(-1, 1, FEATURES, dtype=np.float32)
    for start in range(0, rows, 1_000_000):
        block = rng.standard_normal((min(1_000_000, rows - start), FEATURES), dtype=np.float32)
        x[start : start + len(block)] = block
        y[start : start + len(block)] = block @ direction > 0
    del x, y
    offsets = np.arange(0, rows + 1, SAMPLES)
    return up.FederatedData.from_flat(np.load(x_path, mmap_mode="r"), np.load(y_path, mmap_mode="r"), offsets)


def per_round(data: up.FederatedData, rounds: int = 30) -> float:
    """Median seconds of a data round once warm."""
    result = up.train(
        data,
        algorithm=up.Scaffold(),
        iterations=rounds,
        local=up.LocalSGD(lr=0.1, epochs=10, batch_size=10),
        participation=COHORT / data.num_clients,
        engine="fused",
        progress=False,
    )
    return float(statistics.median(result.history.column("seconds")[5:]))


def anonymous_memory() -> float:
    """This process's RssAnon in GB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1e6
    return float("nan")


def growth() -> dict[str, float]:
    """CPU seconds as epochs, samples or cohort double, over the linear expectation."""

    def cpu(clients: int, samples: int, epochs: int) -> float:
        rng = np.random.default_rng(0)
        x = rng.standard_normal((clients * samples, 50), dtype=np.float32)
        y = (x[:, 0] > 0).astype(np.int64)
        data = up.FederatedData.from_flat(x, y, np.arange(0, len(y) + 1, samples))
        arguments: dict[str, Any] = {
            "algorithm": up.FedAvg(),
            "iterations": 80,
            "local": up.LocalSGD(lr=0.1, momentum=0.5, epochs=epochs, batch_size=32),
            "engine": "fused",
            "progress": False,
        }
        up.train(data, **(arguments | {"iterations": 1}))
        began = time.process_time()
        up.train(data, **arguments)
        return time.process_time() - began

    base = statistics.median(cpu(100, 640, 10) for _ in range(3))
    found = {"base": base}
    for name, arguments in {"epochs": (100, 640, 20), "samples": (100, 1280, 10), "cohort": (200, 640, 10)}.items():
        found[f"{name} x2 / (2 base)"] = statistics.median(cpu(*arguments) for _ in range(3)) / (2 * base)
    return found


def main(folder: Path) -> None:
    small, large = generate(folder, 10_000), generate(folder, 1_000_000)
    seconds: dict[str, list[float]] = {"10,000 clients": [], "1,000,000 clients": []}
    for _ in range(3):
        seconds["10,000 clients"].append(per_round(small))
        seconds["1,000,000 clients"].append(per_round(large))
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    keep(
        "scale",
        {
            "seconds per round": medians,
            "million / ten thousand": medians["1,000,000 clients"] / medians["10,000 clients"],
            "anonymous GB": anonymous_memory(),
            "CPU growth": growth(),
        },
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
