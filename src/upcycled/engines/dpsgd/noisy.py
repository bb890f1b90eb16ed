"""DP-SGD's local work: per-sample gradients, clipped and summed on the grid of the noise."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from upcycled.core.engine import Task
from upcycled.core.mechanism import Ask, NoiseSource, Trained
from upcycled.core.randomness import Purpose, client_keys, keys_within
from upcycled.core.solvers import MoreauSGD, NoisySGD
from upcycled.core.vectors import Ints, Real, Vector, grid_step
from upcycled.engines.determinism import one_thread, to_torch
from upcycled.engines.dpsgd.ghost import Ghost
from upcycled.engines.dpsgd.per_sample import PerSample
from upcycled.engines.thread_pool import ThreadPool

_BLOCK = 1 << 17
"""Float64 numbers that are clipped at a time: they stay in the processor's cache."""


def train_noisy(
    task: Task,
    solver: NoisySGD,
    lanes: Sequence[PerSample | Ghost],
    threads: ThreadPool,
    asked: Ask,
    noise: NoiseSource | None,
) -> Trained:
    """Do a cohort's local work with noisy gradients in the place of minibatch gradients.

    Clients are shared out between as many threads as there are lanes, if noise is a function of the client: fresh noise
    is drawn in one order, client by client.
    """
    assert noise is not None  # the round loop brings it
    cohort, local = asked.cohort, solver.local
    start = to_torch(asked.model)
    steps = local.num_steps(task.train.sizes_of(cohort.rows), cohort.epochs)
    dropout = client_keys(task.seed, Purpose.DROPOUT, asked.round, cohort.clients, asked.attempt)
    models = np.empty((cohort.clients.size, task.layout.size), dtype=np.float32)
    private = np.empty_like(models) if isinstance(solver.plain, MoreauSGD) else None

    def train_client(i: int, gradients: PerSample | Ghost) -> None:
        client, row = int(cohort.clients[i]), int(cohort.rows[i])
        x, y = task.train.client(row)
        noisy = NoisyGradient(solver, gradients, x, y, client, float(solver.noise_std[row]), noise, dropout[i])
        b = None if asked.problem.b is None else to_torch(asked.problem.b[i])
        if isinstance(solver.plain, MoreauSGD):
            model, theta = _moreau(noisy, solver.plain, int(steps[i]), start, asked.problem.a, b)
            private[i] = theta.numpy()  # type: ignore[index]
        else:
            model = _sgd(noisy, solver, int(steps[i]), start, asked.problem.a, b)
        models[i] = model.numpy()

    # The longest first: whoever is ready takes the next.
    waiting = iter(np.argsort(-steps, kind="stable").tolist())
    turn = Lock()

    def next_client() -> int | None:
        with turn:
            return next(waiting, None)

    def take_clients(thread: int) -> None:
        with one_thread(), torch.no_grad():
            try:
                while (i := next_client()) is not None:
                    train_client(i, lanes[thread])
            finally:  # Whoever fails, or is interrupted, leaves nothing for the others to go on with.
                while next_client() is not None:
                    pass

    if noise.round_key(Purpose.NOISE) is None:
        for i in range(cohort.clients.size):
            train_client(i, lanes[0])
    else:
        threads.run(take_clients)
    return Trained(models, steps, private)


class NoisyGradient:
    """A client's noisy gradients, one after the other: fresh coins and fresh noise each time."""

    def __init__(
        self,
        solver: NoisySGD,
        gradients: PerSample | Ghost,
        x: NDArray[Any],
        y: Ints,
        client: int,
        std: float,
        noise: NoiseSource,
        dropout: np.uint64,
    ) -> None:
        self.clip_norm, self.gradients, self.noise, self.dropout = solver.clip_norm, gradients, noise, dropout
        self.x, self.y, self.client = to_torch(x), to_torch(y), np.array([client])
        self.rate, self.std = solver.rate_for(len(y)), std
        self.step = float(grid_step(np.array([self.std]))[0])
        self.taken = 0

    def __call__(self, at: torch.Tensor) -> torch.Tensor:
        """Return (sum of clipped gradients + noise) / (q n), on the grid of the noise."""
        samples, size = len(self.y), at.numel()
        coins = self.noise.uniforms(self.client, samples, Purpose.POISSON, start=self.taken * samples)[0]
        total = self._clipped_sum(at, np.flatnonzero(coins < self.rate))
        if self.std > 0:
            start, scale = self.taken * (size + size % 2), np.array([self.std / self.step])
            total = self.step * (total + self.noise.gaussian_steps(self.client, size, scale, start=start)[0])
        self.taken += 1
        return torch.from_numpy((total / (self.rate * samples)).astype(np.float32))

    def _clipped_sum(self, at: torch.Tensor, rows: Ints) -> Real:
        """Return the sum of the rows' clipped gradients, in units of the grid."""
        keys = keys_within(keys_within(self.dropout, [self.taken]), rows)  # of a row in a step, wherever it stands
        drawn = torch.from_numpy(rows)
        if isinstance(self.gradients, Ghost):
            found = self.gradients.clipped_sum(at, self.x[drawn], self.y[drawn], keys, self.clip_norm, len(self.y))
            return np.rint(found / self.step) if self.step > 0 else found
        total = np.zeros(at.numel())
        for each in self.gradients.chunks(at, self.x[drawn], self.y[drawn], keys):
            add_clipped(total, each.numpy(), self.clip_norm, self.step, self.gradients.rows)
        return total


def add_clipped(total: Real, each: Vector, clip_norm: float, step: float, most: int) -> None:
    """Add gradients (samples, D), ``most`` at most: clipped, and in whole steps of the grid unless ``step`` is 0.

    All in float64 and sums of integers are exact, so that it does not matter in which order samples come. One that is
    not finite counts as zero. What is left of a sample's gradient is a function of that gradient alone: blocks have one
    shape, and rows begin alike in memory.
    """
    size = each.shape[1]
    at_once = max(1, min(most, _BLOCK // size))
    wide = np.zeros((at_once, -(-size // 8) * 8))
    for first in range(0, len(each), at_once):
        some = each[first : first + at_once]
        wide[: len(some), :size], wide[len(some) :] = some, 0.0
        norms = np.sqrt(np.einsum("sd,sd->s", wide, wide))
        wide[~np.isfinite(norms)] = 0.0  # before anything is multiplied: zero times infinity is no number
        # The norm may have been rounded down, and so may what it divides: both within this.
        norms = np.where(np.isfinite(norms), norms, 0.0) * (1 + (size + 8) * 2.0**-52)
        wide *= (1 / (np.maximum(1.0, norms / clip_norm) * (step or 1.0)))[:, None]
        if step > 0:
            np.rint(wide, out=wide)
        total += wide[:, :size].sum(axis=0)


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
        x = x - local.rate * v
    return x


def _moreau(
    noisy: NoisyGradient, plain: MoreauSGD, steps: int, start: torch.Tensor, a: float, b: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    x, theta = start.clone(), start.clone()
    for _ in range(steps):
        for _ in range(plain.inner_steps):
            g = _corrected(noisy(theta), theta, start, a, b) + plain.lam * (theta - x)
            theta = theta - plain.inner_rate * g
        x = x - plain.local.rate * plain.lam * (x - theta)
    return x, theta
