"""Solvers that algorithms and mechanisms put in the place of a user's: the Moreau envelope's, and DP-SGD."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from upcycled.core.solvers.local import LocalSGD
from upcycled.core.vectors import Ints, Real


@dataclass(frozen=True)
class MoreauSGD:
    """pFedMe's local work: each step approximates the proximal point theta of one minibatch loss, then moves x.

    ``inner_steps`` times theta <- theta - inner_lr (g(theta) + lam (theta - x)), then x <- x - lr lam (x - theta).
    theta starts at w and goes on from step to step; it never leaves the client.
    """

    local: LocalSGD
    lam: float
    inner_steps: int
    inner_lr: float | None
    """None is the local learning rate, where that has a schedule."""

    @property
    def inner_rate(self) -> float:
        """The learning rate of the inner steps."""
        return self.local.rate if self.inner_lr is None else self.inner_lr

    @property
    def gradients_per_step(self) -> int:
        return self.inner_steps

    def at(self, round: int, rounds: int) -> MoreauSGD:
        if not callable(self.local.lr):
            return self
        return replace(self, local=self.local.at(round, rounds))

    def step_sum(self, num_steps: Ints) -> Real:
        """Return K lr: x moves by lr lam (x - theta), the gradient of the Moreau envelope."""
        return self.local.rate * num_steps.astype(np.float64)


@dataclass(frozen=True, eq=False)
class NoisySGD:
    """DP-SGD: every minibatch gradient of ``plain`` becomes a noisy one.

    Records enter by secret Poisson draws with q_i = min(1, batch/n_i), per-sample gradients are clipped to
    ``clip_norm``, noise of ``noise_std`` (one entry a client) joins their sum, and the sum is divided by q_i n_i.
    Corrections are added afterwards. An empty batch is a step of noise alone.
    """

    plain: LocalSGD | MoreauSGD
    clip_norm: float
    noise_std: Real

    @property
    def local(self) -> LocalSGD:
        """Epochs and batches of the local work."""
        return self.plain.local

    @property
    def gradients_per_step(self) -> int:
        return self.plain.gradients_per_step

    def rate_for(self, samples: int) -> float:
        """Return q_i.

        >>> NoisySGD(LocalSGD(batch_size=8), 1.0, np.zeros(1)).rate_for(32)
        0.25
        """
        return self.local.batch_for(samples) / samples

    def at(self, round: int, rounds: int) -> NoisySGD:
        return self if not callable(self.local.lr) else replace(self, plain=self.plain.at(round, rounds))

    def step_sum(self, num_steps: Ints) -> Real:
        return self.plain.step_sum(num_steps)
