"""What real noise costs: nanoseconds a draw on one core, entropy included, and W1 with it over W1 without.

python -m benchmarks.noise
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable

import numpy as np

import upcycled as up
from benchmarks.measure import explain_if_asked, interleaved, keep
from benchmarks.workloads import w1
from upcycled.privacy.noise.sources import SeededNoise, SystemNoise

REPEATS = 9
SHAPES = {"30 clients of 610 numbers": (30, 610), "1 client of 155,800 numbers": (1, 155_800)}


def draws() -> dict[str, float]:
    """Return nanoseconds of this core's own time a draw."""
    found = {}
    for shape, (clients, count) in SHAPES.items():
        who, scale = np.arange(clients), np.linspace(1.0, 1.99, clients) * 2**20
        for source in (SystemNoise(), SeededNoise(0, 1)):
            for kind, draw in (("gaussian", source.gaussian_steps), ("laplace", source.laplace_steps)):
                draw(who, count, scale)
                times = []
                for _ in range(REPEATS):
                    began = time.thread_time()
                    draw(who, count, scale)
                    times.append(time.thread_time() - began)
                found[f"{kind}, {source.name}, {shape}"] = 1e9 * statistics.median(times) / (clients * count)
    return found


def runs() -> dict[str, float]:
    """Return W1's seconds with real noise, with simulated noise, and without any."""
    private, plain = w1(), w1(private=False)
    data = dataclasses.replace(private.data, public=True)  # generated numbers: real noise asks for the word
    jobs: dict[str, Callable[[], object]] = {
        noise: lambda noise=noise: up.train(data, progress=False, noise=noise, **private.arguments)  # type: ignore[misc]
        for noise in ("system", "seeded")
    }
    jobs["none"] = lambda: up.train(plain.data, progress=False, **plain.arguments)
    return interleaved(jobs, REPEATS)


def main() -> None:
    seconds = runs()
    keep(
        "noise",
        {
            "nanoseconds a draw": {name: round(value, 1) for name, value in draws().items()},
            "W1 with real noise / with simulated noise": seconds["system"] / seconds["seeded"],
            "W1 with real noise / without noise": seconds["system"] / seconds["none"],
        },
    )


if __name__ == "__main__":
    explain_if_asked(__doc__)
    main()
