"""How a client minimises F_i(x) + a/2 ||x - w||^2 + <b, x>: descriptions that every engine carries out.

What the round loop needs to know of local work, and the part of a local objective that is not data.

The optimisers that a user may ask clients for, and learning rates over data rounds.

Solvers that algorithms and mechanisms put in the place of a user's: the Moreau envelope's, and DP-SGD.

Solvers in float64 that privacy proofs count on: nothing in them is adaptive.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Protocol, TypeAlias

import numpy as np

from upcycled.core.errors import FRACTION, MACHINE_COUNT, NOT_NEGATIVE, POSITIVE, InputError, check_fields
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

    def at(self, round: int, rounds: int) -> Solver:
        """Return it as it is in data round ``round`` of ``rounds``: with a learning rate that is a number."""


Schedule: TypeAlias = Callable[[int, int], float]
"""(data round m = 1 .. M, M) -> the learning rate of that round."""


def rate_at(lr: float | Schedule, round: int, rounds: int) -> float:
    """Return the learning rate of a data round."""
    if not callable(lr):
        return lr
    return float(POSITIVE.check("lr", lr(round, rounds), f"the schedule in data round {round} of {rounds}"))


@dataclass(frozen=True)
class LocalSGD:
    """Minibatch SGD: every epoch a fresh permutation, the last batch may be short, ``v = momentum v + g``.

    The momentum buffer starts at zero in every round. Weight decay, Nesterov's step and the largest norm are torch's:
    the gradient of the whole local objective, proximal and linear terms included, is scaled down to norm
    ``max_grad_norm``, then weight_decay x joins it.

    Args:
        lr: a number, or a schedule over data rounds: one of ``up.schedules`` or any function (m, M) -> number.
        momentum: what stays of v from step to step.
        epochs: passes over a client's samples in a data round.
        batch_size: samples in a minibatch; None is one full-batch step an epoch.
        weight_decay: what x is multiplied by before it joins the gradient.
        nesterov: take Nesterov's step, g + momentum v.
        max_grad_norm: the largest norm of a gradient; None leaves all as they are.

    >>> LocalSGD(lr=0.1, epochs=2, batch_size=32).num_steps(np.array([33, 32]), np.array([2, 1])).tolist()
    [4, 1]
    >>> LocalSGD(lr=lambda m, M: 0.1 / m).at(2, 10).lr
    0.05
    """

    lr: Annotated[float, POSITIVE] | Schedule = 0.01
    momentum: Annotated[float, FRACTION] = 0.0
    epochs: Annotated[int, MACHINE_COUNT] = 1
    batch_size: Annotated[int, MACHINE_COUNT] | None = 32
    weight_decay: Annotated[float, NOT_NEGATIVE] = 0.0
    nesterov: bool = False
    max_grad_norm: Annotated[float, POSITIVE] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.nesterov and self.momentum == 0:
            raise InputError(field="nesterov", of="LocalSGD", value=True, but="it needs a momentum above 0")

    @property
    def local(self) -> LocalSGD:
        return self

    @property
    def is_plain(self) -> bool:
        """Whether it is SGD with momentum at one rate and no more: what proofs and other solvers are made for."""
        return not self.has_extras and not callable(self.lr)

    @property
    def has_extras(self) -> bool:
        """Whether a step does more than v = momentum v + g, x = x - lr v."""
        return self.weight_decay != 0 or self.nesterov or self.max_grad_norm is not None

    @property
    def rate(self) -> float:
        """The learning rate, where it is a number."""
        if callable(self.lr):
            raise InputError(
                field="local.lr", value=self.lr, but="a schedule is not possible here: it must be a number"
            )
        return self.lr

    def at(self, round: int, rounds: int) -> LocalSGD:
        return replace(self, lr=rate_at(self.lr, round, rounds)) if callable(self.lr) else self

    @property
    def gradients_per_step(self) -> int:
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

        From x_K = w - lr sum_k sum_{j<=k} m^(k-j) g_j: step j enters with weight (1 - m^(K-j+1))/(1 - m). Nesterov's
        step is g_k + m v_k, so its sum is lr (K + m times that without lr).

        >>> LocalSGD(lr=0.5, momentum=0.5).step_sum(np.array([1, 2])).tolist()
        [0.5, 1.25]
        >>> LocalSGD(lr=0.5, momentum=0.5, nesterov=True).step_sum(np.array([1, 2])).tolist()
        [0.75, 1.625]
        """
        k, m = num_steps.astype(np.float64), self.momentum
        if m == 0:
            return self.rate * k
        # sum_{s=1..K} m^s = m (1 - m^K) / (1 - m)
        total: Real = self.rate * (k - m * (1 - m**k) / (1 - m)) / (1 - m)
        return self.rate * k + m * total if self.nesterov else total


@dataclass(frozen=True)
class LocalAdam:
    """Adam on minibatches, torch's; its moments start at zero in every round.

    Args:
        lr: a number or a schedule, as for :class:`LocalSGD`.
        betas: what stays of the two moments from step to step.
        eps: what is added to the root of the second one.
        weight_decay: what x is multiplied by before it joins the gradient.
        epochs: passes over a client's samples in a data round.
        batch_size: samples in a minibatch; None is one full-batch step an epoch.
        max_grad_norm: the largest norm of a gradient; None leaves all as they are.
        decoupled: let weight_decay shrink x by lr weight_decay x instead, apart from the moments: AdamW.

    >>> LocalAdam(lr=0.01, epochs=2).local.num_steps(np.array([33]), np.array([2])).tolist()
    [4]
    """

    lr: Annotated[float, POSITIVE] | Schedule = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: Annotated[float, POSITIVE] = 1e-8
    weight_decay: Annotated[float, NOT_NEGATIVE] = 0.0
    epochs: Annotated[int, MACHINE_COUNT] = 1
    batch_size: Annotated[int, MACHINE_COUNT] | None = 32
    max_grad_norm: Annotated[float, POSITIVE] | None = None
    decoupled: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "betas", _betas(self.betas))

    @property
    def local(self) -> LocalSGD:
        """Epochs and batches of the local work."""
        return LocalSGD(lr=self.lr, epochs=self.epochs, batch_size=self.batch_size)

    @property
    def gradients_per_step(self) -> int:
        return 1

    def at(self, round: int, rounds: int) -> LocalAdam:
        return replace(self, lr=rate_at(self.lr, round, rounds)) if callable(self.lr) else self

    def step_sum(self, num_steps: Ints) -> Real:
        """Adam's steps are no multiples of gradients: Scaffold refuses it."""
        return np.full(num_steps.shape, np.nan)


def LocalAdamW(lr: float | Schedule = 0.001, *, weight_decay: float = 0.01, **options: Any) -> LocalAdam:
    """Return AdamW, torch's: Adam whose ``weight_decay`` shrinks x by lr weight_decay x, apart from the moments.

    Args:
        lr: a number or a schedule, as for :class:`LocalSGD`.
        weight_decay: how fast x shrinks.
        **options: the other arguments of :class:`LocalAdam`.

    Returns:
        The local work.

    Raises:
        InputError: for a value that it cannot have.

    >>> LocalAdamW(lr=0.01, epochs=2).decoupled
    True
    """
    return LocalAdam(lr, weight_decay=weight_decay, decoupled=True, **options)


def _betas(given: object) -> tuple[float, float]:
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise InputError(field="betas", of="local", value=given, must="a pair of numbers >= 0 and < 1")
    first, second = (float(FRACTION.check("betas", value, "local")) for value in given)
    return first, second


@dataclass(frozen=True)
class LocalOptimizer:
    """Any optimiser of torch's, made anew for every client and round; the sequential engine has it.

    Args:
        make: parameters -> a torch optimiser, such as ``lambda p: torch.optim.Adagrad(p, lr=0.1)``.
        epochs: passes over a client's samples in a data round.
        batch_size: samples in a minibatch; None is one full-batch step an epoch.
        max_grad_norm: the largest norm of a gradient; None leaves all as they are.

    >>> import torch, upcycled as up
    >>> adagrad = up.LocalOptimizer(lambda p: torch.optim.Adagrad(p, lr=0.1), epochs=2)
    >>> data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    >>> up.train(data, algorithm=up.FedAvg(), local=adagrad, iterations=5, progress=False).accuracy > 0.5
    True
    """

    make: Callable[[Any], Any]
    epochs: Annotated[int, MACHINE_COUNT] = 1
    batch_size: Annotated[int, MACHINE_COUNT] | None = 32
    max_grad_norm: Annotated[float, POSITIVE] | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def local(self) -> LocalSGD:
        """Epochs and batches of the local work."""
        return LocalSGD(epochs=self.epochs, batch_size=self.batch_size)

    @property
    def gradients_per_step(self) -> int:
        return 1

    def at(self, round: int, rounds: int) -> LocalOptimizer:
        return self

    def step_sum(self, num_steps: Ints) -> Real:
        """Its steps are no multiples of gradients: Scaffold refuses it."""
        return np.full(num_steps.shape, np.nan)


Local: TypeAlias = LocalSGD | LocalAdam | LocalOptimizer
"""What a user may ask for as ``local=``."""


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


__all__ = [
    "CertifiedGD",
    "CertifiedMinimiser",
    "Local",
    "LocalAdam",
    "LocalAdamW",
    "LocalOptimizer",
    "LocalSGD",
    "MoreauSGD",
    "NoisySGD",
    "NominalSGD",
    "Problem",
    "Schedule",
    "ShiftedMinimiser",
    "Solver",
    "rate_at",
]
