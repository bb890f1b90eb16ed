"""Engines, data and noise in the place of the plan's own: clients that bring what a probe wants, records alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from upcycled.auditing.worlds import Silence
from upcycled.core.engine import Engine, Work
from upcycled.core.mechanism import Trained
from upcycled.core.shards import Shards
from upcycled.core.solvers import Solver
from upcycled.core.streams import Purpose
from upcycled.core.vectors import Ints, Real, Vector
from upcycled.runtime.plan import Plan


class Bringing:
    """An engine whose clients train nothing: each brings the model it received, moved by its own vector."""

    def __init__(self, engine: Engine, plan: Plan, moves: Mapping[int, Vector]) -> None:
        self._engine, self._solver, self._train = engine, plan.solver, plan.task.train
        self._is_personal, self._moves = plan.strategy.algorithm.is_personal, moves

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def train(self, work: Work) -> Trained:
        """Bring what was wanted; steps are counted as if they had been taken."""
        model = work.model.astype(np.float32)
        vectors = np.stack([model + self._moves.get(client, np.float32(0)) for client in work.cohort.clients.tolist()])
        steps = steps_of(self._solver, self._train, work.cohort.rows, work.cohort.epochs)
        return Trained(vectors.astype(np.float32), steps, vectors.copy() if self._is_personal else None)


def steps_of(solver: Solver, train: Shards, rows: Ints, epochs: Ints) -> Ints:
    """Return how many local steps a cohort takes."""
    return solver.local.num_steps(train.sizes_of(rows), epochs)


def without_content(train: Shards) -> Shards:
    """Return as many records that say nothing: no feature is a number, so that each counts as zero."""
    return replace(train, x=np.full(train.x.shape, np.nan, dtype=train.x.dtype))


def alike(train: Shards) -> Shards:
    """Return the data with every record of a client replaced by its first one."""
    first = np.repeat(train.offsets[:-1], train.sizes)
    return replace(train, x=train.x[first], y=train.y[first])


@dataclass(frozen=True, kw_only=True, eq=False)
class FirstStep(Silence):
    """Silence, with coins that take records into the first step of a round only."""

    sizes: Ints
    """How many records of each client are taken at most."""

    def uniforms(self, clients: Ints, count: int, purpose: Purpose = Purpose.NOISE, start: int = 0) -> Real:
        """Return coins that say no after the first step."""
        is_first = start + np.arange(count) < self.sizes[clients][:, None]
        return np.where(is_first, 0.0, 1.0)
