"""Large models: one client after another in each of several single-threaded processes, the longest first.

A worker is the sequential engine itself on the same task, so the result has the same bits with any number of
processes, and with none: then the work is done here.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from upcycled.core.engine import Scores, Task
from upcycled.core.errors import UpcycledError
from upcycled.core.mechanism import Ask, NoiseSource, Trained
from upcycled.core.vectors import Ints, Outputs, Shards, Vector
from upcycled.engines.determinism import one_thread
from upcycled.engines.processes import ScratchFolder, let_go, receive, send, worker_pool
from upcycled.engines.scoring import Tally, in_place, outputs_of, pieces, scores_of, tally
from upcycled.engines.sequential import Sequential, open_sequential

FEW_GRADIENTS, FEW_VALUES = 32, 2**22
"""A round with fewer gradients, and fewer values in all of them, is done here sooner than elsewhere."""
FEW_PRODUCTS = 2**30
"""Scores with fewer multiplications by a parameter likewise."""
BUNDLES_EACH = 16
"""Bundles of clients per process and round, at most: small enough to even out, large enough to be worth a message."""


@dataclass(frozen=True)
class Workers:
    """One client after the other in each process."""

    task: Task
    here: Sequential
    """The same engine in this process."""
    processes: int
    folder: ScratchFolder | None
    """Where the task lies for the workers; None when all is done here."""
    name: str = "vectorised"
    way: str = "workers"

    def train(self, asked: Ask, noise: NoiseSource | None = None) -> Trained:
        clients, solver = asked.cohort.clients, self.task.solver
        steps = solver.local.num_steps(self.task.train.sizes_of(asked.cohort.rows), asked.cohort.epochs)
        gradients = int(steps.sum()) * solver.gradients_per_step
        few = gradients < FEW_GRADIENTS and gradients * self.task.layout.size < FEW_VALUES
        if self.folder is None or clients.size == 1 or few:
            return self.here.train(asked, noise)
        bundles = bundles_of(steps, self.processes)
        parts: list[Trained] = self._all(train_part, [(asked[places],) for places in bundles])
        back = np.argsort(np.concatenate(bundles))
        private = [part.private for part in parts if part.private is not None]
        return Trained(
            vectors=np.concatenate([part.vectors for part in parts])[back],
            num_steps=steps,
            private=np.concatenate(private)[back] if private else None,
        )

    def score(self, model: Vector, statistics: Vector | None = None) -> Scores:
        test = self.task.test
        if test is None or self._is_soon_done(test):
            return self.here.score(model)
        found: list[Tally] = self._all(score_part, [(model, rows) for rows in pieces(test.num_rows)])
        return scores_of(found, test.num_rows)

    def score_personal(self, model: Vector, clients: Ints, personal: Vector) -> Scores:
        return self.here.score_personal(model, clients, personal)

    def outputs(self, model: Vector, statistics: Vector | None = None) -> Outputs:
        test = self.task.test
        if test is None or self._is_soon_done(test):
            return self.here.outputs(model)
        parts = pieces(test.num_rows)
        found: list[Outputs] = self._all(outputs_part, [(model, rows) for rows in parts])
        return in_place(zip(parts, found, strict=True), test)

    def outputs_personal(self, model: Vector, clients: Ints, personal: Vector) -> Outputs:
        return self.here.outputs_personal(model, clients, personal)

    def _is_soon_done(self, test: Shards) -> bool:
        """Say whether a model's outputs are there sooner when they are computed here."""
        return self.folder is None or test.num_rows * self.task.layout.size < FEW_PRODUCTS

    def close(self) -> None:
        """Remove the files; idle processes end by themselves, or serve the next run."""
        if self.folder is not None:
            self.folder.close()

    def _all(self, job: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run a job on each of the arguments in the workers; processes that died are replaced once."""
        assert self.folder is not None
        for _ in range(2):
            futures = []
            try:
                pool = worker_pool(self.processes)
                futures = [pool.submit(job, self.folder.path, *each) for each in arguments]
                return [future.result() for future in futures]
            except BrokenProcessPool:
                continue
            finally:
                for future in futures:
                    future.cancel()
        raise UpcycledError(
            f"a worker process of the vectorised engine died twice in one round ({self.processes} processes): most "
            "often the memory is too small, and fewer threads or engine='sequential' need less"
        )


def bundles_of(steps: Ints, processes: int) -> list[Ints]:
    """Cut a cohort into bundles of places, longest client first; only short clients share a bundle.

    >>> [places.tolist() for places in bundles_of(np.array([1, 90, 1, 40, 1]), processes=1)]
    [[1], [3], [0, 2, 4]]
    """
    longest_first = np.argsort(-steps, kind="stable")
    fair = steps.sum() / (processes * BUNDLES_EACH)
    bundles, bundle, load = [], list[int](), 0
    for place in longest_first.tolist():
        bundle.append(place)
        load += int(steps[place])
        if load >= fair:
            bundles.append(np.array(bundle))
            bundle, load = [], 0
    return [*bundles, np.array(bundle)] if bundle else bundles


def open_workers(task: Task, processes: int) -> Workers:
    """Get a task ready for this many processes; with one, all is done here."""
    folder = None
    if processes > 1:
        # Before the parameters become views of one tensor: a pickled view takes the whole tensor along.
        folder = ScratchFolder()
        send(task, folder.path)
    return Workers(task, open_sequential(task, 1), processes, folder)


# What runs in a worker.


@lru_cache(maxsize=2)
def _engine(folder: Path) -> Sequential:
    """Open the engine of a run once in each worker."""
    engine = open_sequential(receive(folder), 1)
    # The pool collects garbage every second: what stays anyway need not be searched each time.
    gc.freeze()
    return engine


def train_part(folder: Path, asked: Ask) -> Trained:
    engine = _engine(folder)
    trained = engine.train(asked)
    let_go(engine.task.train)
    return trained


def score_part(folder: Path, model: Vector, rows: slice) -> Tally:
    engine = _engine(folder)
    test = engine.task.test
    assert test is not None
    with one_thread():
        found = tally(engine.flat, model, test.x[rows], test.y[rows])
    let_go(test)
    return found


def outputs_part(folder: Path, model: Vector, rows: slice) -> Outputs:
    engine = _engine(folder)
    test = engine.task.test
    assert test is not None
    with one_thread():
        found: Outputs = outputs_of(engine.flat, model, test.x[rows]).cpu().numpy()
    let_go(test)
    return found
