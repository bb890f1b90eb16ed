"""How a client minimises F_i(x) + a/2 ||x - w||^2 + <b, x>: descriptions that every engine carries out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from upcycled.core.errors import check_number
from upcycled.core.vectors import Ints, Real, Vector


@dataclass(frozen=True)
class Problem:
    """The part of a cohort's local objectives that is not data: the number a and the vectors b.

    ``b`` is (cohort, D), or None for zero.
    """

    a: float = 0.0
    b: Vector | None = None


class Solver(Protocol):
    """What the round loop needs to know of a local solver; engines know the concrete classes."""

    @property
    def local(self) -> LocalSGD:
        """Epochs and batches of the local work."""

    @property
    def gradients_per_step(self) -> int:
        """Minibatch gradients that one local step takes."""

    def step_sum(self, num_steps: Ints) -> Real:
        """D_i with (w - x_K) / D_i = an average of the corrected gradients: Scaffold's divisor."""


@dataclass(frozen=True)
class LocalSGD:
    """Minibatch SGD: every epoch a fresh permutation, the last batch may be short, ``v = momentum v + g``.

    ``batch_size=None`` is one full-batch step an epoch. The momentum buffer starts at zero in every round.

    >>> LocalSGD(lr=0.1, epochs=2, batch_size=32).num_steps(np.array([33, 32]), np.array([2, 1])).tolist()
    [4, 1]
    """

    lr: float = 0.01
    momentum: float = 0.0
    epochs: int = 1
    batch_size: int | None = 32

    def __post_init__(self) -> None:
        check_number("local.lr", self.lr, above=0)
        check_number("local.momentum", self.momentum, at_least=0, below=1)
        check_number("local.epochs", self.epochs, at_least=1, integer=True)
        if self.batch_size is not None:
            check_number("local.batch_size", self.batch_size, at_least=1, integer=True)

    @property
    def local(self) -> LocalSGD:
        """Itself."""
        return self

    @property
    def gradients_per_step(self) -> int:
        """One."""
        return 1

    def batch_for(self, samples: int) -> int:
        """Return the nominal batch of a client with this many samples."""
        return samples if self.batch_size is None else min(self.batch_size, samples)

    def num_steps(self, samples: Ints, epochs: Ints) -> Ints:
        """Return K_i: epochs times ceil(n_i / batch)."""
        if self.batch_size is None:
            return epochs.astype(np.int64)
        return epochs * -(-samples // self.batch_size)

    def step_sum(self, num_steps: Ints) -> Real:
        """Return lr * sum_{s=1..K} (1 - m^s)/(1 - m), which is K lr without momentum.

        From x_K = w - lr sum_k sum_{j<=k} m^(k-j) g_j: step j enters with weight (1 - m^(K-j+1))/(1 - m).

        >>> LocalSGD(lr=0.5, momentum=0.5).step_sum(np.array([1, 2])).tolist()
        [0.5, 1.25]
        """
        k, m = num_steps.astype(np.float64), self.momentum
        if m == 0:
            return self.lr * k
        # sum_{s=1..K} m^s = m (1 - m^K) / (1 - m)
        total: Real = self.lr * (k - m * (1 - m**k) / (1 - m)) / (1 - m)
        return total


@dataclass(frozen=True)
class MoreauSGD:
    """pFedMe's local work: each step approximates the proximal point theta of one minibatch loss, then moves x.

    ``inner_steps`` times theta <- theta - inner_lr (g(theta) + lam (theta - x)), then x <- x - lr lam (x - theta).
    theta starts at w and goes on from step to step; it never leaves the client.
    """

    local: LocalSGD
    lam: float
    inner_steps: int
    inner_lr: float

    @property
    def gradients_per_step(self) -> int:
        """The inner steps."""
        return self.inner_steps

    def step_sum(self, num_steps: Ints) -> Real:
        """Return K lr: x moves by lr lam (x - theta), the gradient of the Moreau envelope."""
        return self.local.lr * num_steps.astype(np.float64)
