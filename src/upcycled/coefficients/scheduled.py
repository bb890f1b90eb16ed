"""Coefficients that are scheduled beforehand: the paper's kind of rule.

The paper's kind of rule: a coefficient that is scheduled beforehand.

The paper's forms of rho_m, which it does not reconcile; all are here, and a run records which it used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Protocol, TypeAlias, runtime_checkable

import numpy as np

from upcycled.core.errors import FINITE, NOT_NEGATIVE, POSITIVE, InputError, check_fields
from upcycled.core.upcycling import Move, Observed, RuleState, extrapolate


@runtime_checkable
class Coefficient(Protocol):
    """A scalar schedule rho_m.

    One's own is passed as ``upcycle=``:

    >>> import upcycled as up
    >>> class Late:
    ...     def coefficient_at(self, data_round, horizon):
    ...         return 0.0 if data_round < 2 else 0.5
    >>> data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    >>> run = up.train(data, algorithm=up.FedAvg(), upcycle=Late(), iterations=4, progress=False)
    >>> [record.coefficient for record in run.history]
    [None, 0.0, None, 0.5]
    """

    def coefficient_at(self, data_round: int, horizon: int | None) -> float:
        """Return rho_m for m = data_round."""


@dataclass(frozen=True)
class ScalarRule:
    """The paper's rule: extrapolate by a scheduled coefficient, no state of its own."""

    coefficient: Coefficient

    depth: ClassVar[int] = 2
    uses_spread: ClassVar[bool] = False

    def start(self) -> RuleState:
        return {}

    def move(self, own: RuleState, seen: Observed, moves: tuple[str, ...]) -> tuple[Move, RuleState]:
        asked = f"coefficient_at({seen.data_round}, {seen.horizon})"
        rho = FINITE.check(asked, self.coefficient.coefficient_at(seen.data_round, seen.horizon), "upcycle")
        return Move(extrapolate(seen, rho, moves), rho), own


Schedule: TypeAlias = float | Sequence[float] | Callable[[int], float]
"""A number, one number per data round (the last one is kept), or a function of m = 1, 2, ..."""


@dataclass(frozen=True)
class Constant:
    """rho_m = c, as in the official experiments (grid 0.1 .. 0.9).

    Args:
        coefficient: c.

    >>> Constant(0.5).coefficient_at(data_round=3, horizon=None)
    0.5
    """

    coefficient: Annotated[float, NOT_NEGATIVE]

    def __post_init__(self) -> None:
        check_fields(self)

    def coefficient_at(self, data_round: int, horizon: int | None) -> float:
        return float(self.coefficient)


@dataclass(frozen=True)
class Auto:
    """``upcycle="auto"``: the package's own choice, a small constant.

    docs/coefficients.md says why it is this one.

    >>> Auto().coefficient_at(data_round=3, horizon=None)
    0.1
    """

    def coefficient_at(self, data_round: int, horizon: int | None) -> float:
        return 0.1


@dataclass(frozen=True)
class LambdaHalf:
    """rho_m = lambda_m / 2, as in the paper's Algorithm 1.

    Args:
        lam: lambda_m: a number, one for each data round (the last one is kept), or a function of m.

    >>> LambdaHalf([1.0, 0.5]).coefficient_at(data_round=2, horizon=None)
    0.25
    """

    lam: Schedule

    def __post_init__(self) -> None:
        check_fields(self)
        _settle_schedule(self)

    def coefficient_at(self, data_round: int, horizon: int | None) -> float:
        return _at(self.lam, data_round) / 2


@dataclass(frozen=True)
class Proximal:
    """rho_m = mu / (mu + lambda_m), the paper's Eq. (even-lbd): what its theory is about.

    Args:
        mu: FedProx's mu; with FedProx a run refuses another.
        lam: lambda_m: a number, one for each data round (the last one is kept), or a function of m.

    >>> Proximal(mu=0.5, lam=[0.5, 1.5]).coefficient_at(2, None)
    0.25
    """

    mu: Annotated[float, POSITIVE]
    lam: Schedule = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        _settle_schedule(self)

    def coefficient_at(self, data_round: int, horizon: int | None) -> float:
        return self.mu / (self.mu + _at(self.lam, data_round))


@dataclass(frozen=True)
class Decaying:
    """rho_m = c / sqrt(M) over M planned data rounds (the paper's corollary), or c / sqrt(m) when open-ended.

    Args:
        coefficient: c, above the root.
        open_ended: whether the root is of m, the round, also where M is known.

    >>> Decaying(1.0).coefficient_at(data_round=4, horizon=16)
    0.25
    >>> Decaying(1.0, open_ended=True).coefficient_at(data_round=4, horizon=16)
    0.5
    """

    coefficient: Annotated[float, NOT_NEGATIVE]
    open_ended: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    def coefficient_at(self, data_round: int, horizon: int | None) -> float:
        rounds = data_round if self.open_ended or horizon is None else horizon
        return float(self.coefficient / np.sqrt(rounds))


def _at(schedule: Schedule, data_round: int) -> float:
    if callable(schedule):
        return float(NOT_NEGATIVE.check(f"lam({data_round})", schedule(data_round), "upcycle"))
    if isinstance(schedule, Sequence):
        return float(schedule[min(data_round, len(schedule)) - 1])
    return float(schedule)


def _settle_schedule(made: LambdaHalf | Proximal) -> None:
    """Check the numbers of a schedule, and make them Python's own."""
    lam, of = made.lam, type(made).__name__
    if callable(lam):
        return
    if not isinstance(lam, Sequence) or isinstance(lam, str):
        plain: Schedule = NOT_NEGATIVE.check("lam", lam, of)
    elif lam:
        numbers = [NOT_NEGATIVE.check("lam", value, of) for value in lam]
        plain = tuple(numbers) if isinstance(lam, tuple) else numbers
    else:
        raise InputError("is empty, but a schedule needs at least one number", field="lam", of=of)
    object.__setattr__(made, "lam", plain)
