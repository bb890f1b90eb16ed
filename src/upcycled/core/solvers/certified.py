"""Solvers in float64 that privacy proofs count on: nothing in them is adaptive."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from upcycled.core.solvers.local import LocalSGD
from upcycled.core.vectors import Ints, Real


@dataclass(frozen=True)
class CertifiedGD:
    """Full-batch gradient descent from w in float64, step 1/(S + a), with a number of steps fixed in advance.

    For a convex loss of a linear model on projected features (S its smoothness) and a > 0: how far one record moves the
    result is known for every data set, and a straggler that stops early moves less.
    """

    smoothness: float
    a: float
    steps: int

    @property
    def local(self) -> LocalSGD:
        """One full-batch step an epoch."""
        return LocalSGD(lr=1 / (self.smoothness + self.a), epochs=self.steps, batch_size=None)

    @property
    def gradients_per_step(self) -> int:
        return 1

    def at(self, round: int, rounds: int) -> CertifiedGD:
        return self

    def step_sum(self, num_steps: Ints) -> Real:
        """Return 1/a: at the minimiser a (w - x) is the gradient of F_i + <b, x>."""
        return np.full(num_steps.shape, 1 / self.a)


@dataclass(frozen=True)
class CertifiedMinimiser:
    """Full-batch gradient descent from w in float64 until the gradient norm is ``gamma`` at most, for every data set.

    w is within (L + ||b||)/a of the minimiser and each step shrinks that by S/(S + a), so the steps follow from ||b||
    alone. What a client reports as its steps is the public number for b = 0.
    """

    lipschitz: float
    smoothness: float
    a: float
    gamma: float

    @property
    def local(self) -> LocalSGD:
        """One full-batch step an epoch."""
        return LocalSGD(lr=1 / (self.smoothness + self.a), epochs=self.steps_for(0.0), batch_size=None)

    @property
    def gradients_per_step(self) -> int:
        return 1

    def steps_for(self, linear_norm: float) -> int:
        """Return the least T with (S + a) ((L + ||b||)/a) (S/(S + a))^T <= gamma.

        >>> CertifiedMinimiser(lipschitz=2, smoothness=1, a=0.5, gamma=1e-10).steps_for(0.0)
        62
        """
        return _steps_within((self.lipschitz + linear_norm) / self.a, self.smoothness, self.a, self.gamma)

    def at(self, round: int, rounds: int) -> CertifiedMinimiser:
        return self

    def step_sum(self, num_steps: Ints) -> Real:
        """Return 1/a: at the minimiser a (w - x) is the gradient of F_i + <b, x>."""
        return np.full(num_steps.shape, 1 / self.a)


@dataclass(frozen=True)
class ShiftedMinimiser:
    """Full-batch gradient descent in float64 from w - b/a, in as many steps for every b.

    For a convex loss and a > 0: w - b/a is where the objective without data is least. The data's gradient has norm
    L at most there, so the minimiser is within L/a, and each step shrinks that by S/(S + a): the gradient norm is
    ``gamma`` at most after a number of steps that says nothing about b, which may be secret.
    """

    lipschitz: float
    smoothness: float
    a: float
    gamma: float

    @property
    def local(self) -> LocalSGD:
        """One full-batch step an epoch."""
        return LocalSGD(lr=1 / (self.smoothness + self.a), epochs=self.steps, batch_size=None)

    @property
    def gradients_per_step(self) -> int:
        return 1

    @property
    def steps(self) -> int:
        """The least T >= 1 with (S + a) (L/a) (S/(S + a))^T <= gamma.

        >>> ShiftedMinimiser(lipschitz=2, smoothness=1, a=0.5, gamma=1e-10).steps
        62
        """
        return _steps_within(self.lipschitz / self.a, self.smoothness, self.a, self.gamma)

    def at(self, round: int, rounds: int) -> ShiftedMinimiser:
        return self

    def step_sum(self, num_steps: Ints) -> Real:
        """Return 1/a: at the minimiser a (w - x) is the gradient of F_i + <b, x>."""
        return np.full(num_steps.shape, 1 / self.a)


@dataclass(frozen=True)
class NominalSGD:
    """Minibatch SGD in float64 without momentum, whose short batches divide by the nominal batch.

    So every record weighs 1/batch, whichever batch it falls into.
    """

    local: LocalSGD

    @property
    def gradients_per_step(self) -> int:
        return 1

    def at(self, round: int, rounds: int) -> NominalSGD:
        return self

    def step_sum(self, num_steps: Ints) -> Real:
        return self.local.step_sum(num_steps)


def _steps_within(distance: float, smoothness: float, a: float, gamma: float) -> int:
    """Return the steps of 1/(S + a) after which a gradient norm is ``gamma`` at most, from a ``distance`` away."""
    total = smoothness + a
    return max(1, math.ceil(math.log(total * distance / gamma) / math.log(total / smoothness)))
