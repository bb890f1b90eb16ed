"""What charges add up to: the one place where epsilon is composed, for ledgers that are written and for those read.

Gaussian releases compose by the sum of (sensitivity / noise_std)^2, exactly; pure ones by their plain sum (delta = 0)
or optimally (delta > 0); sampled ones by (steps, rate, noise multiplier). Draws of real noise add up, and what they
cost comes off delta.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from upcycled.core.errors import InputError
from upcycled.core.mechanism import Charge
from upcycled.core.vectors import Ints, Real
from upcycled.privacy.accounting import gdp_epsilon, gdp_mu, pure_composition_epsilon, sampled_gaussian_epsilon
from upcycled.privacy.accounting.discrete_noise import epsilon_of_draws, most_draws
from upcycled.privacy.accounting.gaussian import squared_ratio
from upcycled.privacy.accounting.sampled import quick_sampled_epsilon
from upcycled.privacy.ledger.budget import Budget, set_aside

Point: TypeAlias = tuple[float, ...]
"""All that the epsilon of a client depends on; more of any coordinate is worse."""


class Spent:
    """What every client has spent so far. Queries change nothing: they may come from another thread than charges."""

    def __init__(self, num_clients: int) -> None:
        # Zeros take memory only where a client's are written: of a large population it is those who took part.
        self.rounds: Ints = np.zeros(num_clients, dtype=np.int64)
        """Data rounds each client was charged for."""
        self._has_paid = np.zeros(num_clients, dtype=bool)
        self.kind: str | None = None
        """The kind of all charges; None before the first."""
        self._squares, self._pure = np.zeros(num_clients), np.zeros(num_clients)
        self._most = np.zeros(num_clients)
        self._steps = np.zeros(num_clients, dtype=np.int64)
        self._rates = np.zeros(num_clients)
        self._draws = np.zeros(num_clients, dtype=np.int64)
        self._charges: list[Charge] = []

    @cached_property
    def _least(self) -> Real:
        """The smallest charge of each client; made when there is a pure one."""
        return np.full(self.rounds.size, np.inf)

    @cached_property
    def _multipliers(self) -> Real:
        """The smallest noise multiplier of each client; made when there is a sampled charge."""
        return np.full(self.rounds.size, np.inf)

    def copied(self) -> Spent:
        """Return the same, to add other charges to."""
        found = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray | list):
                setattr(found, name, value.copy())
        return found

    def check(self, charge: Charge) -> None:
        """Refuse a charge of another kind than those before: no theorem here composes them."""
        if self.kind not in (None, charge.kind):
            raise InputError(
                f"a charge is '{charge.kind}', but it must be '{self.kind}' like those before it in the ledger"
            )

    def add(self, charge: Charge, rounds: int | Ints = 1) -> None:
        """Count a charge for so many data rounds: for all of its clients, or for each."""
        self.check(charge)
        clients, columns = charge.clients, charge.columns
        if charge.kind == "gaussian":
            self._squares[clients] += squared_ratio(charge)
        elif charge.kind == "pure":
            self._pure[clients] += columns["epsilon"]
            self._least[clients] = np.minimum(self._least[clients], columns["epsilon"])
            self._most[clients] = np.maximum(self._most[clients], columns["epsilon"])
        elif charge.kind == "sampled":
            # Should rates or noise ever differ between rounds, the worst of them counts for all: an upper bound.
            self._steps[clients] += columns["steps"]
            self._rates[clients] = np.maximum(self._rates[clients], columns["sampling_rate"])
            multipliers = charge.noise_std / charge.sensitivity
            self._multipliers[clients] = np.minimum(self._multipliers[clients], multipliers)
        elif charge.kind != "none":
            raise _no_rule(charge.kind)
        self.kind = charge.kind
        self._charges.append(charge)
        if charge.draws is not None:
            self._draws[clients] += charge.draws
        self._has_paid[clients] = True
        self.rounds[clients] += rounds

    def fits(self, charge: Charge, budget: Budget, planned_draws: int) -> NDArray[np.bool_]:
        """Return which of the charge's clients stay within the budget if they pay: a filter, whatever they paid for.

        With real noise the part of delta is set aside that ``planned_draws`` need, which bounds the draws. It is the
        same for every charge, or the filter would hold to none.
        """
        clients, most = charge.clients, 1 + 1e-12
        if charge.kind == "pure":
            spent: Real = self._pure[clients] + charge.columns["epsilon"]
            within: NDArray[np.bool_] = spent <= budget.epsilon * most
            return within
        if charge.kind != "gaussian":
            raise _no_rule(charge.kind)
        squares = self._squares[clients] + squared_ratio(charge)
        if charge.draws is None or not clients.size:
            return squares <= _most_squares(budget.epsilon, budget.delta) * most
        part = set_aside(budget, planned_draws)
        draws = self._draws[clients] + charge.draws
        return (squares <= _most_squares(budget.epsilon, budget.delta * (1 - part)) * most) & (
            draws <= most_draws(epsilon=budget.epsilon, delta=budget.delta, part=part)
        )

    def epsilon(self, delta: float) -> Real:
        """Return the epsilon of every client; infinite where none is provable."""
        took_part = self._has_paid
        found: Real = np.where(took_part, np.inf, 0.0)
        if self.kind == "gaussian":
            paying = took_part & np.isfinite(self._squares)
            found[paying] = _gaussian_epsilon(self._squares[paying], self._draws[paying], delta)
        elif self.kind in ("pure", "sampled"):
            points = self._points()
            values = dict(zip(distinct := list(set(points.values())), self.values(distinct, delta), strict=True))
            for client, point in points.items():
                found[client] = values[point]
        return found

    def worst(self, delta: float) -> float:
        """Return the worst client's epsilon; where one number takes long, only clients that no other exceeds count."""
        if self.kind in ("pure", "sampled"):
            return max(self.values(self.worst_points(), delta), default=0.0)
        return float(self.epsilon(delta).max())

    def worst_points(self) -> list[Point]:
        """Return what the worst client's epsilon follows from: points that no client exceeds in every coordinate."""
        if self.kind in (None, "none"):
            return [()] if self._has_paid.any() else []
        if self.kind == "gaussian":
            paying = np.flatnonzero(self._has_paid)  # whoever did not exceeds nobody, and may be millions
            return pareto(set(zip(self._squares[paying].tolist(), self._draws[paying].tolist(), strict=True)))
        points = set(self._points().values())
        if self.kind == "pure":
            # A point is (epsilon, rounds), or all epsilons of a client that has unequal ones: those compare with none.
            equal = {point for point in points if len(point) == 2}
            return [*pareto(equal), *(points - equal)]
        return pareto(points)

    def values(self, points: Iterable[Point], delta: float) -> list[float]:
        """Return the epsilons of points."""
        if self.kind == "gaussian":
            squares, draws = np.array([*points], dtype=np.float64).reshape(-1, 2).T
            found, finite = np.full(squares.size, np.inf), np.isfinite(squares)
            found[finite] = _gaussian_epsilon(squares[finite], draws[finite].astype(np.int64), delta)
            return list(found.tolist())
        if self.kind == "pure":
            return [_pure_epsilon(point, delta) for point in points]
        if self.kind == "sampled":
            return [_sampled_epsilon(steps, q, -less, draws, delta) for steps, q, less, draws in points]
        if self.kind not in (None, "none"):
            raise _no_rule(self.kind)
        return [float("inf") for _ in points]

    def most(self, points: Iterable[Point], delta: float) -> float:
        """Return the largest epsilon of sampled points, an upper bound: for curves, where each number must be quick."""
        # Rough bounds say which points can be the largest: few need a closer look.
        rough = sorted(((_quick_epsilon(point, delta, is_rough=True), point) for point in points), reverse=True)
        largest = 0.0
        for bound, point in rough:
            if bound <= largest:
                break
            largest = max(largest, min(bound, _quick_epsilon(point, delta, is_rough=False)))
        return largest

    def _points(self) -> dict[int, Point]:
        """Return what the epsilon of each client that took part follows from."""
        clients = np.flatnonzero(self.rounds)
        if self.kind == "sampled":
            columns = [self._steps, self._rates, -self._multipliers, self._draws]
        else:
            columns = [self._most, self.rounds]
        rows = zip(*(column[clients].tolist() for column in columns), strict=True)
        found: dict[int, Point] = dict(zip(clients.tolist(), rows, strict=True))
        unequal = clients[self._least[clients] != self._most[clients]] if self.kind == "pure" else clients[:0]
        return found | self._each_epsilon(unequal)

    def _each_epsilon(self, clients: Ints) -> dict[int, Point]:
        """Return all epsilons of clients that paid unequal ones, in rising order, with a mark in front."""
        spent: dict[int, list[float]] = {client: [] for client in clients.tolist()}
        for charge in self._charges if spent else ():
            for client, epsilon in zip(charge.clients.tolist(), charge.columns["epsilon"].tolist(), strict=True):
                if client in spent:
                    spent[client].append(epsilon)
        return {client: (UNEQUAL, *sorted(each)) for client, each in spent.items()}


def _no_rule(kind: str) -> InputError:
    return InputError(f"ledger: no rule composes charges of kind '{kind}' here")


UNEQUAL = -1.0
"""Opens the point of a client whose pure rounds differ, which has three coordinates at least."""


def pareto(points: Iterable[Point]) -> list[Point]:
    """Return the points that no other one reaches in every coordinate.

    >>> sorted(pareto({(1.0, 5.0), (2.0, 5.0), (3.0, 1.0)}))
    [(2.0, 5.0), (3.0, 1.0)]
    """
    found: list[Point] = []
    for point in sorted(points, reverse=True):
        if not any(all(a <= b for a, b in zip(point, other, strict=True)) for other in found):
            found.append(point)
    return found


def _pure_epsilon(point: Point, delta: float) -> float:
    each = point[1:] if point[0] == UNEQUAL else (point[0],) * int(point[1])
    return float(pure_composition_epsilon(epsilons=np.array(each), delta=delta))


@lru_cache(maxsize=64)  # asked for in every round
def _most_squares(epsilon: float, delta: float) -> float:
    return float(gdp_mu(epsilon=epsilon, delta=delta) ** 2)


def _gaussian_epsilon(squares: Real, draws: Ints, delta: float) -> Real:
    mu = np.sqrt(squares)
    return epsilon_of_draws(lambda places, left: np.asarray(gdp_epsilon(mu=mu[places], delta=left)), mu, draws, delta)


def _quick_epsilon(point: Point, delta: float, *, is_rough: bool) -> float:
    steps, q, less, draws = point
    if not -less > 0:
        return float("inf")

    def exact(places: Ints, left: float) -> Real:
        return np.array([quick_sampled_epsilon(q, -less, int(steps), left, is_rough=is_rough)])

    mu = np.array([2 * np.sqrt(steps) / -less])
    return float(epsilon_of_draws(exact, mu, np.array([draws], dtype=np.int64), delta)[0])


@lru_cache(maxsize=4096)  # seeds of one experiment, and rounds of one run, ask for the same numbers
def _sampled_epsilon(steps: float, q: float, multiplier: float, draws: float, delta: float) -> float:
    if not multiplier > 0:
        return float("inf")

    def exact(places: Ints, left: float) -> Real:
        return np.array([sampled_gaussian_epsilon(q=q, noise_multiplier=multiplier, steps=int(steps), delta=left)])

    # Without sampling the sum would move by two clip norms in each step.
    mu = np.array([2 * np.sqrt(steps) / multiplier])
    return float(epsilon_of_draws(exact, mu, np.array([draws], dtype=np.int64), delta)[0])
