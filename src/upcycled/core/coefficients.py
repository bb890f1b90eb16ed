"""How far an upcycled iteration goes: the paper's forms of rho_m, and the contract of richer rules.

The paper prints forms that it does not reconcile; all are here, and a run records which it used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from upcycled.core.algorithm import Server
from upcycled.core.errors import InputError, check_number

Schedule: TypeAlias = float | Sequence[float] | Callable[[int], float]
"""A number, one number per data round (the last one is kept), or a function of m = 1, 2, ..."""

RuleState: TypeAlias = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Seen:
    """All that an upcycled iteration may look at: iterates already released, and public numbers."""

    iterates: tuple[Server, ...]
    """Oldest first; the last two are w(2m-2) and w(2m-1)."""
    data_round: int
    """m, counted from 1."""
    horizon: int | None
    """M, the data rounds planned; None when open-ended."""
    phase: int
    """Upcycled iterations already made since the last data round."""
    noise_std: float
    """Known std per coordinate of the privacy noise in the last aggregate; zero without."""


@dataclass(frozen=True)
class Move:
    """The next iterate and, where the rule is a scalar one, the coefficient that gave it."""

    server: Server
    rho: float | None


class Rule(Protocol):
    """A pure function (own state, what was seen) -> (next iterate, own state)."""

    @property
    def depth(self) -> int:
        """How many iterates it needs to see, at least 2."""

    def start(self) -> RuleState:
        """Return the rule's own state before the first round."""

    def move(self, own: RuleState, seen: Seen, moves: tuple[str, ...]) -> tuple[Move, RuleState]:
        """Return the next iterate; ``moves`` names the server vectors that go along with the model."""


class Coefficient(Protocol):
    """A scalar schedule rho_m."""

    def rho(self, data_round: int, horizon: int | None) -> float:
        """Return rho_m for m = data_round."""


def extrapolate(seen: Seen, rho: float, moves: tuple[str, ...]) -> Server:
    """Return w(2m) = w(2m-1) + rho (w(2m-1) - w(2m-2)), for the model and the vectors that move with it.

    rho = 0 gives back the very same iterate, so that it reproduces a vanilla run bit for bit.
    """
    before, now = seen.iterates[-2], seen.iterates[-1]
    if rho == 0:
        return now
    ratio = np.float32(rho)
    moved = {name: now.vectors[name] + ratio * (now.vectors[name] - before.vectors[name]) for name in moves}
    return Server(now.model + ratio * (now.model - before.model), {**now.vectors, **moved})


@dataclass(frozen=True)
class ScalarRule:
    """The paper's rule: extrapolate by a scheduled coefficient, no state of its own."""

    coefficient: Coefficient

    @property
    def depth(self) -> int:
        """The last two iterates."""
        return 2

    def start(self) -> RuleState:
        """Nothing."""
        return {}

    def move(self, own: RuleState, seen: Seen, moves: tuple[str, ...]) -> tuple[Move, RuleState]:
        """Extrapolate."""
        rho = self.coefficient.rho(seen.data_round, seen.horizon)
        return Move(extrapolate(seen, rho, moves), rho), own


@dataclass(frozen=True)
class Constant:
    """rho_m = c, as in the official experiments (grid 0.1 .. 0.9)."""

    c: float

    def __post_init__(self) -> None:
        check_number("upcycle coefficient c", self.c, at_least=0)

    def rho(self, data_round: int, horizon: int | None) -> float:
        """Return c."""
        return float(self.c)


@dataclass(frozen=True)
class LambdaHalf:
    """rho_m = lambda_m / 2, as in the paper's Algorithm 1."""

    lam: Schedule

    def __post_init__(self) -> None:
        _check_schedule("upcycle lam", self.lam)

    def rho(self, data_round: int, horizon: int | None) -> float:
        """Return lambda_m / 2."""
        return _at("upcycle lam", self.lam, data_round) / 2


@dataclass(frozen=True)
class Proximal:
    """rho_m = mu / (mu + lambda_m), the paper's Eq. (even-lbd): what its theory is about.

    >>> Proximal(mu=0.5, lam=[0.5, 1.5]).rho(2, None)
    0.25
    """

    mu: float
    lam: Schedule = 0.0

    def __post_init__(self) -> None:
        check_number("upcycle mu", self.mu, above=0)
        _check_schedule("upcycle lam", self.lam)

    def rho(self, data_round: int, horizon: int | None) -> float:
        """Return mu / (mu + lambda_m)."""
        return self.mu / (self.mu + _at("upcycle lam", self.lam, data_round))


@dataclass(frozen=True)
class Decaying:
    """rho_m = c / sqrt(M) over M planned data rounds (the paper's corollary), or c / sqrt(m) when open-ended."""

    c: float
    open_ended: bool = False

    def __post_init__(self) -> None:
        check_number("upcycle coefficient c", self.c, at_least=0)

    def rho(self, data_round: int, horizon: int | None) -> float:
        """Return c / sqrt(M) or c / sqrt(m)."""
        rounds = data_round if self.open_ended or horizon is None else horizon
        return float(self.c / np.sqrt(rounds))


def as_rule(value: object) -> Rule:
    """Turn what a user passes as ``upcycle=`` into a rule: a number, a coefficient, or a rule."""
    if isinstance(value, Real) and not isinstance(value, bool):
        return ScalarRule(Constant(float(value)))
    if hasattr(value, "rho"):
        return ScalarRule(value)
    if hasattr(value, "move") and hasattr(value, "depth"):
        rule: Rule = value  # type: ignore[assignment]
        return rule
    raise InputError(
        f"upcycle is {value!r}, but it must be None, a number >= 0, or one of up.coefficients "
        "(Constant, LambdaHalf, Proximal, Decaying)"
    )


def _check_schedule(field: str, schedule: Schedule) -> None:
    if callable(schedule):
        return
    values = schedule if isinstance(schedule, Sequence) else [schedule]
    if not values:
        raise InputError(f"{field} is empty, but a schedule needs at least one number")
    for value in values:
        check_number(field, value, at_least=0)


def _at(field: str, schedule: Schedule, data_round: int) -> float:
    if callable(schedule):
        value = schedule(data_round)
        check_number(f"{field}({data_round})", value, at_least=0)
        return float(value)
    if isinstance(schedule, Sequence):
        return float(schedule[min(data_round, len(schedule)) - 1])
    return float(schedule)
