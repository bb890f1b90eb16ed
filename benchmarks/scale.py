"""Scale: ten million memory-mapped clients against ten thousand, a large cohort, and how CPU time grows with the work.

python -m benchmarks.scale [folder]     (the folder takes about 2 GB; default: a temporary one)

The ten million are files with holes: samples that nobody has touched take no room on the disk, and those that a round
touches are read like any others that lie in the system's memory for files.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import upcycled as up
from benchmarks.measure import explain_if_asked, keep
from upcycled.core.vectors import Shards

FEATURES, SAMPLES, COHORT = 20, 20, 1000
FEW, MANY, LARGE_COHORT = 10_000, 10_000_000, 100_000
PAIRS, ROUNDS = 9, 25


def generate(folder: Path, clients: int) -> up.FederatedData:
    """Make files of zeros with holes, some random samples in front, and open them memory-mapped."""
    rows = clients * SAMPLES
    x_path, y_path = folder / f"x{clients}.npy", folder / f"y{clients}.npy"
    x = np.lib.format.open_memmap(x_path, mode="w+", dtype=np.float32, shape=(rows, FEATURES))
    y = np.lib.format.open_memmap(y_path, mode="w+", dtype=np.int64, shape=(rows,))
    block = np.random.default_rng(0).standard_normal((min(rows, 200_000), FEATURES), dtype=np.float32)
    x[: len(block)], y[: len(block)] = block, block @ np.linspace(-1, 1, FEATURES, dtype=np.float32) > 0
    del x, y
    train = Shards(np.load(x_path, mmap_mode="r"), np.load(y_path, mmap_mode="r"), np.arange(0, rows + 1, SAMPLES))
    # Not by from_flat, which looks at every sample once: that would fill the holes.
    return up.FederatedData(train=train, test=None, num_classes=2, has_copies=False)


def trained(data: up.FederatedData, rounds: int, cohort: int = COHORT, **asked: Any) -> up.Result:
    usual: dict[str, Any] = {"algorithm": up.Scaffold(), "local": up.LocalSGD(lr=0.1, epochs=10, batch_size=10)}
    share = cohort / data.num_clients
    return up.train(data, iterations=rounds, participation=share, engine="fused", progress=False, **usual | asked)


def per_round(data: up.FederatedData, asked: dict[str, Any]) -> float:
    """Median seconds of a data round once warm."""
    return float(statistics.median(trained(data, ROUNDS, **asked).history.column("seconds")[5:]))


class Watch:
    """The most anonymous memory of this process while it is entered, looked at every hundredth of a second."""

    def __init__(self) -> None:
        self.most = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.01):
            self.most = max(self.most, anonymous_memory())


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


def populations(folder: Path) -> dict[str, Any]:
    """Rounds among ten million clients against rounds among ten thousand, without privacy and with it."""
    small, large = generate(folder, FEW), generate(folder, MANY)
    private = {"algorithm": up.FedAvg(), "privacy": up.privacy.ModelClipping(clip_norm=1.0, noise_std=1.0)}
    cases: dict[str, dict[str, Any]] = {"without privacy": {}, "with a ledger": private}
    found: dict[str, Any] = {}
    for name, asked in cases.items():
        with Watch() as watch:
            # What is read for the first time costs what the disk costs: that pair is left out.
            pairs = [(per_round(small, asked), per_round(large, asked)) for _ in range(PAIRS + 1)][1:]
        few, many = (statistics.median(each) for each in zip(*pairs, strict=True))
        found[name] = {
            "seconds per round": {f"{FEW:,} clients": few, f"{MANY:,} clients": many},
            # Of two runs that follow each other: what else the machine did is in both.
            "many / few": statistics.median(many / few for few, many in pairs),
            "most anonymous GB": watch.most,
        }
    with Watch() as watch:
        seconds_of_all = trained(large, 1, cohort=LARGE_COHORT).history[0].seconds
    found["a cohort of 100,000"] = {"seconds": seconds_of_all, "most anonymous GB": watch.most}
    return found


def main(folder: Path) -> None:
    found = populations(folder)
    keep("scale", {**found, "CPU growth": growth()})


if __name__ == "__main__":
    explain_if_asked(__doc__)
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
