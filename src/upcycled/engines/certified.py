"""Certified local solvers for linear models: plain NumPy in float64, one client after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from upcycled.core.engine import Task
from upcycled.core.mechanism import Ask, Trained
from upcycled.core.objective import PROVEN_LOSSES
from upcycled.core.randomness import Purpose, client_keys, permutations
from upcycled.core.solvers import CertifiedGD, CertifiedMinimiser, LocalSGD, NominalSGD, ShiftedMinimiser
from upcycled.core.vectors import Real
from upcycled.engines.determinism import one_blas_thread
from upcycled.losses import proven_loss
from upcycled.models.linear import linear_model_of

Certified: TypeAlias = CertifiedGD | CertifiedMinimiser | ShiftedMinimiser | NominalSGD
CERTIFIED: tuple[type, ...] = (CertifiedGD, CertifiedMinimiser, ShiftedMinimiser, NominalSGD)

GradientSum: TypeAlias = Callable[[Real, Real, NDArray[Any]], Real]
"""(parameters, x, y) -> the sum of the samples' gradients."""


def refuses_certified(task: Task) -> str | None:
    """Return why a certified solver cannot work on this task, in one sentence, or None."""
    if _gradient_sum_of(task) is not None:
        return None
    return (
        f"{type(task.solver).__name__} solves linear models with the loss {PROVEN_LOSSES} only, and the loss is "
        f"{task.objective.name}"
    )


def train_certified(task: Task, solver: Certified, asked: Ask) -> Trained:
    """Do a cohort's local work in float64; the vectors stay in float64 until the mechanism has added its noise."""
    gradient_sum, cohort = _gradient_sum_of(task), asked.cohort
    assert gradient_sum is not None  # as the engine said when it took the task
    start, a = asked.model.astype(np.float64), asked.problem.a
    keys = client_keys(task.seed, Purpose.BATCHES, asked.round, cohort.clients, asked.attempt)
    models = np.empty((cohort.clients.size, task.layout.size))
    with one_blas_thread():
        for i, row in enumerate(cohort.rows.tolist()):
            x, y = task.train.client(row)
            exact: Real = x.reshape(len(y), -1).astype(np.float64)
            b: Any = 0.0 if asked.problem.b is None else asked.problem.b[i].astype(np.float64)
            if isinstance(solver, NominalSGD):
                orders = _orders(solver.local, int(keys[i]), len(y), int(cohort.epochs[i]))
                models[i] = _sgd(gradient_sum, solver.local, exact, y, orders, start, a, b)
            else:
                count = int(cohort.epochs[i])
                if isinstance(solver, CertifiedMinimiser):
                    count = solver.steps_for(float(np.linalg.norm(b)))
                point = start - b / a if isinstance(solver, ShiftedMinimiser) else start.copy()
                models[i] = _descend(gradient_sum, solver.local.rate, count, exact, y, point, start, a, b)
    return Trained(models, solver.local.num_steps(task.train.sizes_of(cohort.rows), cohort.epochs))


def _descend(
    gradient_sum: GradientSum,
    lr: float,
    steps: int,
    x: Real,
    y: NDArray[Any],
    point: Real,
    start: Real,
    a: float,
    b: Any,
) -> Real:
    """Take full-batch steps from a point, in place."""
    for _ in range(steps):
        point -= lr * (gradient_sum(point, x, y) / len(y) + a * (point - start) + b)
    return point


def _sgd(
    gradient_sum: GradientSum,
    local: LocalSGD,
    x: Real,
    y: NDArray[Any],
    orders: Iterable[NDArray[np.int64]],
    start: Real,
    a: float,
    b: Any,
) -> Real:
    """Take minibatch steps from w; a short batch divides by the nominal one."""
    point, batch = start.copy(), local.batch_for(len(y))
    for order in orders:
        for first in range(0, len(y), batch):
            rows = order[first : first + batch]
            point -= local.rate * (gradient_sum(point, x[rows], y[rows]) / batch + a * (point - start) + b)
    return point


def _orders(local: LocalSGD, key: int, samples: int, epochs: int) -> Iterator[NDArray[np.int64]]:
    for epoch in range(epochs):  # one order at a time: all of them may not fit into memory
        yield np.arange(samples) if local.batch_size is None else permutations(key, samples, 1, epoch)[0]


def _gradient_sum_of(task: Task) -> GradientSum | None:
    """Return the gradients of a task's model and loss in closed form; None where they have no proof."""
    model = linear_model_of(task.module, task.layout)
    proven = None if model is None else proven_loss(task.objective, model.num_outputs)
    if model is None or proven is None:
        return None
    return partial(model.gradient_sum, slopes=proven.slopes)
