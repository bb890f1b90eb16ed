"""The reference: plain torch, one client after the other, any module. Faster engines are held to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

from upcycled.core.layout import Layout
from upcycled.core.release import Trained
from upcycled.core.solvers import LocalSGD, MoreauSGD
from upcycled.core.streams import Purpose, client_keys, permutations
from upcycled.core.vectors import Ints, Vector
from upcycled.core.work import EngineKind, Scores, Task, Work
from upcycled.engines.scoring import score_module, score_personal_modules


@dataclass(frozen=True)
class FlatModule:
    """A module whose trainable parameters and gradients are views of two flat tensors."""

    module: nn.Module
    values: torch.Tensor
    gradient: torch.Tensor

    def gradient_at(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the mean cross-entropy on a batch, at the current values (overwritten each time)."""
        self.gradient.zero_()
        with torch.enable_grad():
            cross_entropy(self.module(x), y).backward()  # type: ignore[no-untyped-call]
        return self.gradient


def flat_module(module: nn.Module, layout: Layout, device: str) -> FlatModule:
    """Move a module to ``device`` and re-seat its trainable parameters in one flat tensor."""
    module = module.to(device)
    values = torch.zeros(layout.size, device=device)
    gradient = torch.zeros(layout.size, device=device)
    named_values, named_gradients = layout.split(values), layout.split(gradient)
    for name, parameter in module.named_parameters():
        if name in named_values:
            named_values[name].copy_(parameter.data)
            parameter.data = named_values[name]
            parameter.grad = named_gradients[name]
    return FlatModule(module, values, gradient)


@dataclass(frozen=True)
class Sequential:
    """One client after the other, in plain torch."""

    task: Task
    flat: FlatModule
    name: str = "sequential"
    way: str = "one by one"

    @torch.no_grad()
    def train(self, work: Work) -> Trained:
        """Do a cohort's local work."""
        task, cohort = self.task, work.cohort
        device = self.flat.values.device
        start = torch.from_numpy(np.array(work.model)).to(device)
        b = None if work.problem.b is None else torch.from_numpy(np.array(work.problem.b)).to(device)
        orders = client_keys(task.seed, Purpose.BATCHES, work.round, cohort.clients, work.attempt)
        dropout = client_keys(task.seed, Purpose.DROPOUT, work.round, cohort.clients, work.attempt)
        models = np.empty((cohort.clients.size, task.layout.size), dtype=np.float32)
        private = np.empty_like(models) if isinstance(task.solver, MoreauSGD) else None
        steps = np.zeros(cohort.clients.size, dtype=np.int64)
        self.flat.module.train()
        # Layers that draw (dropout) read torch's generator: each client gets its own seed, the caller's state returns.
        with torch.random.fork_rng(devices=[]):
            for i, client in enumerate(cohort.clients.tolist()):
                torch.manual_seed(int(dropout[i]) >> 1)
                x, y = task.train.client(client)
                batches = _batches(x, y, int(cohort.epochs[i]), task.solver.local, int(orders[i]), device)
                self.flat.values.copy_(start)
                b_i = 0.0 if b is None else b[i]
                steps[i] = len(batches)
                if isinstance(task.solver, MoreauSGD):
                    model = self._moreau(batches, task.solver, start, work.problem.a, b_i)
                    private[i] = self.flat.values.cpu().numpy()  # type: ignore[index]
                else:
                    model = self._sgd(batches, task.solver.local, start, work.problem.a, b_i)
                models[i] = model.cpu().numpy()
        return Trained(models, steps, private)

    def _sgd(
        self, batches: list[Any], local: LocalSGD, start: torch.Tensor, a: float, b: torch.Tensor | float
    ) -> torch.Tensor:
        """Run v <- momentum v + g, x <- x - lr v, with g the gradient of F_i + a/2 ||x - w||^2 + <b, x>."""
        x, v = self.flat.values, torch.zeros_like(start)
        for features, labels in batches:
            g = self.flat.gradient_at(features, labels) + a * (x - start) + b
            v = local.momentum * v + g
            x -= local.lr * v
        return x

    def _moreau(
        self, batches: list[Any], solver: MoreauSGD, start: torch.Tensor, a: float, b: torch.Tensor | float
    ) -> torch.Tensor:
        """Approximate theta, the proximal point of a minibatch loss at x, then move x towards it."""
        theta, x = self.flat.values, start.clone()
        for features, labels in batches:
            for _ in range(solver.inner_steps):
                g = self.flat.gradient_at(features, labels) + a * (theta - start) + b
                theta -= solver.inner_lr * (g + solver.lam * (theta - x))
            x = x - solver.local.lr * solver.lam * (x - theta)
        return x

    def score(self, model: Vector) -> Scores:
        """Score the global model on all test samples."""
        return score_module(self.flat.module, self.flat.values, model, self.task.test)

    def score_personal(self, model: Vector, clients: Ints, personal: Vector) -> Scores:
        """Score each client's own model on its own test samples."""
        return score_personal_modules(self.flat.module, self.flat.values, model, clients, personal, self.task.test)

    def close(self) -> None:
        """Nothing to give back."""


def _batches(
    x: NDArray[Any], y: Ints, epochs: int, local: LocalSGD, key: int, device: torch.device
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the minibatches of a client's local work in order; the last one of an epoch may be short."""
    features, labels = torch.from_numpy(np.array(x)).to(device), torch.from_numpy(np.array(y)).to(device)
    size = local.batch_for(len(y))
    if local.batch_size is None:
        return [(features, labels)] * epochs
    found = []
    for order in torch.from_numpy(permutations(key, len(y), epochs)).to(device):
        for first in range(0, len(y), size):
            rows = order[first : first + size]
            found.append((features[rows], labels[rows]))
    return found


def _refuses(task: Task) -> str | None:
    if not isinstance(task.solver, LocalSGD | MoreauSGD):
        return f"the sequential engine has no {type(task.solver).__name__}"
    return None


def _open(task: Task, threads: int | None) -> Sequential:
    return Sequential(task, flat_module(task.module, task.layout, task.device))


SEQUENTIAL = EngineKind("sequential", _refuses, _open)
