"""The optimisers that a user may ask clients for, and learning rates over data rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias

import numpy as np

from upcycled.core.errors import FRACTION, MACHINE_COUNT, NOT_NEGATIVE, POSITIVE, InputError, check_fields
from upcycled.core.vectors import Ints, Real

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
