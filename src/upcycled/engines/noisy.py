"""DP-SGD's local work: per-sample gradients by torch.func, any module without batch norm."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from upcycled.core.engine import Task, Work
from upcycled.core.mechanism import NoiseSource, Trained
from upcycled.core.solvers import MoreauSGD, NoisySGD
from upcycled.core.streams import Purpose, client_keys
from upcycled.core.vectors import Ints, Real, grid_step
from upcycled.engines.determinism import to_torch

Gradients: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

_CHUNK = 1 << 23
"""Numbers of per-sample gradients held at a time."""


def per_sample_gradients(task: Task) -> Gradients:
    """Return (flat parameters, x, y) -> gradients of each sample's loss, (samples, D).

    Modules that torch cannot differentiate for a stack of samples are done one sample at a time.
    """

    def loss(flat: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = functional_call(task.module, task.layout.split(flat), (x[None],))
        return cross_entropy(logits, y[None])

    stacked = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")

    def one_by_one(flat: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            at = flat.detach().requires_grad_()
            return torch.stack([torch.autograd.grad(loss(at, a, b), at)[0] for a, b in zip(x, y, strict=True)])

    trial, label = to_torch(task.train.x[:1]), to_torch(task.train.y[:1])
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            # torch warns where it would go sample by sample itself, which is slower still.
            warnings.simplefilter("error")
            stacked(torch.zeros(task.layout.size), torch.zeros_like(trial), label)
    except (RuntimeError, UserWarning):
        return one_by_one
    return stacked


def train_noisy(task: Task, solver: NoisySGD, gradients: Gradients, work: Work) -> Trained:
    """Do a cohort's local work with noisy gradients in the place of minibatch gradients."""
    assert work.noise is not None  # the round loop brings it
    cohort, local = work.cohort, solver.local
    start = to_torch(work.model)
    steps = local.num_steps(task.train.sizes_of(cohort.rows), cohort.epochs)
    dropout = client_keys(task.seed, Purpose.DROPOUT, work.round, cohort.clients, work.attempt)
    models = np.empty((cohort.clients.size, task.layout.size), dtype=np.float32)
    private = np.empty_like(models) if isinstance(solver.plain, MoreauSGD) else None
    task.module.train()
    with torch.random.fork_rng(devices=[]):
        for i, (client, row) in enumerate(zip(cohort.clients.tolist(), cohort.rows.tolist(), strict=True)):
            torch.manual_seed(int(dropout[i]) >> 1)
            x, y = task.train.client(row)
            noisy = NoisyGradient(solver, gradients, x, y, client, float(solver.noise_std[row]), work.noise)
            b = None if work.problem.b is None else to_torch(work.problem.b[i])
            if isinstance(solver.plain, MoreauSGD):
                model, theta = _moreau(noisy, solver.plain, int(steps[i]), start, work.problem.a, b)
                private[i] = theta.numpy()  # type: ignore[index]
            else:
                model = _sgd(noisy, solver, int(steps[i]), start, work.problem.a, b)
            models[i] = model.numpy()
    return Trained(models, steps, private)


class NoisyGradient:
    """A client's noisy gradients, one after the other: fresh coins and fresh noise each time."""

    def __init__(
        self,
        solver: NoisySGD,
        gradients: Gradients,
        x: NDArray[Any],
        y: Ints,
        client: int,
        std: float,
        noise: NoiseSource,
    ) -> None:
        self.clip_norm, self.gradients, self.noise = solver.clip_norm, gradients, noise
        self.x, self.y, self.client = to_torch(x), to_torch(y), np.array([client])
        self.rate, self.std = solver.rate_for(len(y)), std
        self.step = float(grid_step(np.array([self.std]))[0])
        self.taken = 0

    def __call__(self, at: torch.Tensor) -> torch.Tensor:
        """Return (sum of clipped gradients + noise) / (q n), on the grid of the noise."""
        samples, size = len(self.y), at.numel()
        coins = self.noise.uniforms(self.client, samples, Purpose.POISSON, start=self.taken * samples)[0]
        rows = torch.from_numpy(np.flatnonzero(coins < self.rate))
        total, at_once = np.zeros(size), max(1, _CHUNK // size)
        for first in range(0, rows.numel(), at_once):
            total += self._clipped_sum(at, rows[first : first + at_once])
        if self.std > 0:
            start, scale = self.taken * (size + size % 2), np.array([self.std / self.step])
            total = self.step * (total + self.noise.gaussian_steps(self.client, size, scale, start=start)[0])
        self.taken += 1
        return torch.from_numpy((total / (self.rate * samples)).astype(np.float32))

    def _clipped_sum(self, at: torch.Tensor, rows: torch.Tensor) -> Real:
        """Return the sum of clipped gradients, in units of the grid: each is rounded, so that the sum is exact."""
        each = self.gradients(at, self.x[rows], self.y[rows]).numpy().astype(np.float64)
        norms = np.sqrt(np.einsum("sd,sd->s", each, each))
        wrong = ~np.isfinite(norms)
        each[wrong], norms[wrong] = 0.0, 0.0
        norms *= 1 + each.shape[1] * 2.0**-52
        each /= np.maximum(1.0, norms / self.clip_norm)[:, None]
        total: Real = (np.rint(each / self.step) if self.std > 0 else each).sum(axis=0)
        return total


def _corrected(g: torch.Tensor, x: torch.Tensor, start: torch.Tensor, a: float, b: torch.Tensor | None) -> torch.Tensor:
    if a != 0:
        g = g + a * (x - start)
    return g if b is None else g + b


def _sgd(
    noisy: NoisyGradient, solver: NoisySGD, steps: int, start: torch.Tensor, a: float, b: torch.Tensor | None
) -> torch.Tensor:
    local, x, v = solver.local, start.clone(), torch.zeros_like(start)
    for _ in range(steps):
        v = local.momentum * v + _corrected(noisy(x), x, start, a, b)
        x = x - local.lr * v
    return x


def _moreau(
    noisy: NoisyGradient, plain: MoreauSGD, steps: int, start: torch.Tensor, a: float, b: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    x, theta = start.clone(), start.clone()
    for _ in range(steps):
        for _ in range(plain.inner_steps):
            g = _corrected(noisy(theta), theta, start, a, b) + plain.lam * (theta - x)
            theta = theta - plain.inner_lr * g
        x = x - plain.local.lr * plain.lam * (x - theta)
    return x, theta
