"""Certified local solvers for softmax regression: plain NumPy in float64, one client after the other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import nn

from upcycled.core.release import Trained
from upcycled.core.solvers import CertifiedGD, CertifiedMinimiser, LocalSGD, NominalSGD
from upcycled.core.streams import Purpose, client_keys, permutations
from upcycled.core.vectors import Ints, Real
from upcycled.core.work import Task, Work

Certified: TypeAlias = CertifiedGD | CertifiedMinimiser | NominalSGD
CERTIFIED: tuple[type, ...] = (CertifiedGD, CertifiedMinimiser, NominalSGD)


@dataclass(frozen=True)
class Softmax:
    """Softmax regression's weight and bias as slices of a flat vector; one of them may be frozen."""

    weight: Real | slice
    bias: Real | slice | None
    classes: int

    def gradient_sum(self, flat: Real, x: Real, y: Ints) -> Real:
        """Return the sum of the samples' gradients of the cross-entropy at ``flat``."""
        weight = flat[self.weight] if isinstance(self.weight, slice) else self.weight
        logits = x @ weight.reshape(self.classes, -1).T
        if self.bias is not None:
            logits += flat[self.bias] if isinstance(self.bias, slice) else self.bias
        logits -= logits.max(axis=1, keepdims=True)
        np.exp(logits, out=logits)
        logits /= logits.sum(axis=1, keepdims=True)
        logits[np.arange(len(y)), y] -= 1.0
        found = np.empty_like(flat)
        if isinstance(self.weight, slice):
            found[self.weight] = (logits.T @ x).ravel()
        if isinstance(self.bias, slice):
            found[self.bias] = logits.sum(axis=0)
        return found


def softmax_of(task: Task) -> Softmax | None:
    """Describe the task's module as softmax regression, or return None if it is something else."""
    parts = list(task.module) if isinstance(task.module, nn.Sequential) else [task.module]
    linears = [part for part in parts if not isinstance(part, nn.Flatten | nn.Identity)]
    if len(linears) != 1 or type(linears[0]) is not nn.Linear:
        return None
    linear = linears[0]
    places = {
        name.rpartition(".")[2]: slice(task.layout.offsets[i], task.layout.offsets[i + 1])
        for i, name in enumerate(task.layout.names)
    }
    frozen = {name: p.detach().double().cpu().numpy() for name, p in linear.named_parameters()}
    bias = None if linear.bias is None else places.get("bias", frozen["bias"])
    return Softmax(places.get("weight", frozen["weight"]), bias, linear.out_features)


def refuses_certified(task: Task) -> str | None:
    """Return why a certified solver cannot work on this task, in one sentence, or None."""
    return None if softmax_of(task) is not None else f"{type(task.solver).__name__} solves softmax regression only"


def train_certified(task: Task, solver: Certified, work: Work) -> Trained:
    """Do a cohort's local work in float64; the vectors stay in float64 until the mechanism has added its noise."""
    model, cohort = softmax_of(task), work.cohort
    assert model is not None  # as the engine said when it took the task
    start, a = work.model.astype(np.float64), work.problem.a
    keys = client_keys(task.seed, Purpose.BATCHES, work.round, cohort.clients, work.attempt)
    models = np.empty((cohort.clients.size, task.layout.size))
    with _one_blas_thread():
        for i, client in enumerate(cohort.clients.tolist()):
            x, y = task.train.client(client)
            exact: Real = x.reshape(len(y), -1).astype(np.float64)
            b: Any = 0.0 if work.problem.b is None else work.problem.b[i].astype(np.float64)
            if isinstance(solver, NominalSGD):
                orders = _orders(solver.local, int(keys[i]), len(y), int(cohort.epochs[i]))
                models[i] = _sgd(model, solver.local, exact, y, orders, start, a, b)
            else:
                count = int(cohort.epochs[i])
                if isinstance(solver, CertifiedMinimiser):
                    count = solver.steps_for(float(np.linalg.norm(b)))
                models[i] = _descend(model, solver.local.lr, count, exact, y, start, a, b)
    return Trained(models, solver.local.num_steps(task.train.sizes_of(cohort.clients), cohort.epochs))


def _descend(model: Softmax, lr: float, steps: int, x: Real, y: Ints, start: Real, a: float, b: Any) -> Real:
    """Take full-batch steps from w."""
    point = start.copy()
    for _ in range(steps):
        point -= lr * (model.gradient_sum(point, x, y) / len(y) + a * (point - start) + b)
    return point


def _sgd(
    model: Softmax, local: LocalSGD, x: Real, y: Ints, orders: NDArray[np.int64], start: Real, a: float, b: Any
) -> Real:
    """Take minibatch steps from w; a short batch divides by the nominal one."""
    point, batch = start.copy(), local.batch_for(len(y))
    for order in orders:
        for first in range(0, len(y), batch):
            rows = order[first : first + batch]
            point -= local.lr * (model.gradient_sum(point, x[rows], y[rows]) / batch + a * (point - start) + b)
    return point


def _orders(local: LocalSGD, key: int, samples: int, epochs: int) -> NDArray[np.int64]:
    if local.batch_size is None:
        return np.tile(np.arange(samples), (epochs, 1))
    return permutations(key, samples, epochs)


@cache
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _one_blas_thread() -> Any:
    """Let BLAS use one thread: sums split between threads round differently from machine to machine."""
    return _blas().limit(limits=1, user_api="blas")
