"""The certified solvers against their own float64 products, and what the rest of their time is spent on.

    python -m benchmarks.certified [REPEATS]

W1's data and rounds with ErmOutput (80 rounds of 30 clients, 50 full gradient steps each, a linear model 20-2), and a
round of five clients with FEMNIST's 784 features and 10 classes. The limit are the products alone, X W^T and G^T X once
for every step that was taken, per client, in float64 and with as many threads: by BLAS, one thread for each client, and
by a compiled loop in the manner of the kernel; the fastest counts. Parts are found by leaving them out: the compiled
loop with and without its exponentials; the clock around the solver, releases, scores and charges within the run. The
features are projected to their norm bound while the run is planned.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numba
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

import upcycled as up
from benchmarks.measure import explain_if_asked, keep
from benchmarks.workloads import FOLDER, w1
from upcycled.core.mechanism import Ask, NoiseSource
from upcycled.core.vectors import Shards
from upcycled.engines.fused.blocks import listed_tile, wide_dots
from upcycled.engines.fused.certified_kernel import _KEPT, passes_of
from upcycled.engines.fused.engine import FusedEngine
from upcycled.engines.fused.network import softmax_slopes
from upcycled.engines.fused.simd import take
from upcycled.engines.fused.workspace import TILE
from upcycled.engines.thread_pool import ThreadPool, cores
from upcycled.privacy.ledger.ledger import Ledger
from upcycled.privacy.mechanisms.gaussian_noise import GaussianNoise

REPEATS = 11
NORM_BOUND, NOISE, PROX = 1.0, 0.5, 0.5


@numba.njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})  # type: ignore[untyped-decorator]
def _products(
    queue: Any, lanes: Any, x: Any, y: Any, offsets: Any, passes: Any, point: Any, features: int, with_slopes: bool
) -> None:
    """Do what the kernel does, but for bias, step and, if so asked, exponentials: the logits stand in for slopes."""
    outputs, room, padded = point.size // features, max(1, _KEPT // (features * TILE)), (features + 3) // 4 * 4
    tiles, labels = np.zeros((room, padded, TILE)), np.zeros((room, TILE))
    scores, sums, slots = np.zeros((outputs, TILE)), np.zeros(padded), np.zeros(point.size, dtype=np.int64)
    for i in range(point.size):
        slots[i] = i % features * TILE
    while True:
        turn = take(queue)
        if turn >= lanes.size:
            break
        first = offsets[lanes[turn]]
        samples = offsets[lanes[turn] + 1] - first
        kept = samples <= room * TILE
        for step in range(passes[lanes[turn]]):
            for begin in range(0, samples, TILE):
                place = begin // TILE if kept else 0
                tile = tiles[place]
                if not (kept and step > 0):
                    here = min(TILE, samples - begin)
                    for s in range(here):
                        for j in range(features):
                            tile[j, s] = x[(first + begin + s) * features + j]
                    for s in range(here, TILE):
                        for j in range(features):
                            tile[j, s] = 0.0
                    for s in range(TILE):
                        labels[place, s] = y[first + begin + s] if s < here else -1.0
                for k in range(outputs):
                    listed_tile(scores, k * TILE, False, point, slots, k * features, features, tile, 0)
                if with_slopes:
                    softmax_slopes(scores, labels, place * TILE, outputs)
                for k in range(outputs):
                    wide_dots(sums, 0, padded, scores, k * TILE, tile, 0, TILE)


@dataclass
class Clock:
    """Seconds within a run by where they were spent, and the steps that each solve took."""

    seconds: dict[str, float] = field(default_factory=dict)
    solves: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=list)

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **more: Any) -> Any:
            began = time.perf_counter()
            found = function(*args, **more)
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
            return found

        return timed

    @contextmanager
    def running(self) -> Iterator[None]:
        train = self.around("solver", FusedEngine.train)

        def solve(engine: FusedEngine, asked: Ask, noise: NoiseSource | None = None) -> Any:
            self.solves.append((asked.cohort.rows, passes_of(engine._task, asked)))
            return train(engine, asked, noise)

        places: list[tuple[type, str, str]] = [
            (GaussianNoise, "release", "noise"),
            (FusedEngine, "score", "scores"),
            (Ledger, "charge", "charges"),
        ]
        with mock.patch.object(FusedEngine, "train", solve):
            patches = [mock.patch.object(of, name, self.around(words, getattr(of, name))) for of, name, words in places]
            for patch in patches:
                patch.start()
            try:
                yield
            finally:
                for patch in patches:
                    patch.stop()


@dataclass(frozen=True)
class Case:
    """A run, and its products as they are done again and again."""

    data: up.FederatedData
    rounds: int
    classes: int
    participation: float = 1.0

    def run(self) -> tuple[float, Clock]:
        clock = Clock()
        privacy = up.privacy.ErmOutput(norm_bound=NORM_BOUND, noise_std=NOISE, prox_mu=PROX)
        arguments: dict[str, Any] = {
            "algorithm": up.FedAvg(),
            "iterations": self.rounds,
            "privacy": privacy,
            "participation": self.participation,
        }
        with clock.running():
            began = time.perf_counter()
            up.train(self.data, engine="fused", progress=False, **arguments)
            return time.perf_counter() - began, clock


def compiled_products(train: Shards, clock: Clock, pool: ThreadPool, classes: int, with_slopes: bool) -> float:
    """Seconds of the products of a run in the kernel's own manner."""
    x, y = np.ascontiguousarray(train.x, dtype=np.float32).reshape(-1), np.ascontiguousarray(train.y)
    features = x.size // len(y)
    point = np.random.default_rng(0).standard_normal(classes * features) / features
    began = time.perf_counter()
    for rows, passes in clock.solves:
        every = np.zeros(train.num_clients, dtype=np.int64)
        every[rows] = passes
        lanes, queue = rows[np.argsort(-every[rows] * train.sizes_of(rows), kind="stable")], np.zeros(1, dtype=np.int64)
        given = (queue, lanes, x, y, train.offsets, every, point, features, with_slopes)
        pool.run(lambda thread, given=given: _products(*given))  # type: ignore[misc]
    return time.perf_counter() - began


def blas_products(train: Shards, clock: Clock, threads: int, classes: int) -> float:
    """Seconds of the same products by NumPy, whose BLAS has one thread for each client."""
    xs = [np.asarray(train.client(i)[0], dtype=np.float64).reshape(n, -1) for i, n in enumerate(train.sizes.tolist())]
    weights = np.random.default_rng(0).standard_normal((classes, xs[0].shape[1]))

    def work(left: deque[tuple[int, int]]) -> None:
        while True:
            try:
                row, steps = left.popleft()
            except IndexError:
                return
            x, slopes, gradient = xs[row], np.empty((len(xs[row]), classes)), np.empty_like(weights)
            for _ in range(steps):
                np.dot(x, weights.T, out=slopes)
                np.dot(slopes.T, x, out=gradient)

    began = time.perf_counter()
    with threadpool_limits(1):
        for rows, passes in clock.solves:
            order = np.argsort(-passes * train.sizes_of(rows), kind="stable")
            left = deque(zip(rows[order].tolist(), passes[order].tolist(), strict=True))
            helpers = [threading.Thread(target=work, args=(left,)) for _ in range(threads - 1)]
            for helper in helpers:
                helper.start()
            work(left)
            for helper in helpers:
                helper.join()
    return time.perf_counter() - began


def measured(case: Case, repeats: int) -> dict[str, Any]:
    train, threads = case.data.train, cores()
    pool = ThreadPool(threads - 1)
    rows: list[dict[str, float]] = []
    for _ in range(repeats + 1):
        whole, clock = case.run()
        found = {"run": whole, **clock.seconds}
        found["compiled products"] = compiled_products(train, clock, pool, case.classes, False)
        found["with exponentials"] = compiled_products(train, clock, pool, case.classes, True)
        found["BLAS, all cores"] = blas_products(train, clock, threads, case.classes)
        # Where a product takes a microsecond, two threads wait for each other's turn at Python more than they gain.
        found["BLAS, one core"] = blas_products(train, clock, 1, case.classes)
        rows.append(found)
    pool.close()
    rows = rows[1:]  # the first one compiles
    seconds = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    ways = ("compiled products", "BLAS, all cores", "BLAS, one core")

    def ratio(name: str) -> float:
        # Of what was measured one after the other: what else the machine did is in both.
        return statistics.median(row[name] / min(row[way] for way in ways) for row in rows)

    named = ("solver", "noise", "scores", "charges")
    parts = {
        "products": seconds["compiled products"],
        "exponentials": statistics.median(row["with exponentials"] - row["compiled products"] for row in rows),
        "bias, steps, waking threads": statistics.median(row["solver"] - row["with exponentials"] for row in rows),
        **{name: seconds[name] for name in named[1:]},
        "planning, and Python between": statistics.median(
            row["run"] - sum(row[name] for name in named) for row in rows
        ),
    }
    return {
        "seconds": seconds,
        "products": min(ways, key=lambda way: seconds[way]),
        "solver / products": ratio("solver"),
        "run / products": ratio("run"),
        "seconds by part": parts,
    }


def main(repeats: int) -> None:
    base = w1()
    cases = {
        "linear 20-2": Case(base.data, base.rounds, 2),
        "linear 784-10": Case(up.data.load(FOLDER / "femnist10_50dev_wrap.npz"), 1, 10, 0.1),
    }
    keep("certified", {name: measured(case, repeats) for name, case in cases.items()})


if __name__ == "__main__":
    explain_if_asked(__doc__)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else REPEATS)
