"""What charges add up to: the one place where epsilon is composed, for ledgers that are written and for those read.

Gaussian releases compose by the sum of (sensitivity / noise_std)^2, exactly; pure ones by their plain sum (delta = 0)
or optimally (delta > 0); sampled ones by (steps, rate, noise multiplier).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from upcycled.core.errors import InputError
from upcycled.core.mechanism import Charge
from upcycled.core.vectors import Ints, Real
from upcycled.privacy.accounting import gdp_epsilon, pure_composition_epsilon, sampled_gaussian_epsilon

Point: TypeAlias = tuple[float, ...]
"""All that the epsilon of a client depends on; more of any coordinate is worse."""


class Spent:
    """What every client has spent so far. Queries change nothing: they may come from another thread than charges."""

    def __init__(self, num_clients: int) -> None:
        self.rounds: Ints = np.zeros(num_clients, dtype=np.int64)
        """Data rounds each client was charged for."""
        self.kind: str | None = None
        """The kind of all charges; None before the first."""
        self._squares, self._pure = np.zeros(num_clients), np.zeros(num_clients)
        self._least, self._most = np.full(num_clients, np.inf), np.zeros(num_clients)
        self._steps = np.zeros(num_clients, dtype=np.int64)
        self._rates, self._multipliers = np.zeros(num_clients), np.full(num_clients, np.inf)
        self._charges: list[Charge] = []

    def check(self, charge: Charge) -> None:
        """Refuse a charge of another kind than those before: no theorem here composes them."""
        if self.kind not in (None, charge.kind):
            raise InputError(
                f"a charge is '{charge.kind}', but it must be '{self.kind}' like those before it in the ledger"
            )

    def add(self, charge: Charge) -> None:
        """Count a data round for the clients that pay for it."""
        self.check(charge)
        clients = charge.clients
        self.kind = charge.kind
        self._charges.append(charge)
        if charge.kind == "gaussian":
            self._squares[clients] += squared_ratio(charge)
        elif charge.epsilon is not None:
            self._pure[clients] += charge.epsilon
            self._least[clients] = np.minimum(self._least[clients], charge.epsilon)
            self._most[clients] = np.maximum(self._most[clients], charge.epsilon)
        elif charge.sampling_rate is not None and charge.steps is not None:
            # Should rates or noise ever differ between rounds, the worst of them counts for all: an upper bound.
            self._steps[clients] += charge.steps
            self._rates[clients] = np.maximum(self._rates[clients], charge.sampling_rate)
            multipliers = charge.noise_std / charge.sensitivity
            self._multipliers[clients] = np.minimum(self._multipliers[clients], multipliers)
        self.rounds[clients] += 1

    def with_charge(self, charge: Charge) -> Real:
        """Return what a filter holds against its limit: each of the charge's clients' sum, had it paid."""
        if charge.kind == "pure" and charge.epsilon is not None:
            pure: Real = self._pure[charge.clients] + charge.epsilon
            return pure
        squares: Real = self._squares[charge.clients] + squared_ratio(charge)
        return squares

    def epsilon(self, delta: float) -> Real:
        """Return the epsilon of every client; infinite where none is provable."""
        took_part = self.rounds > 0
        found: Real = np.where(took_part, np.inf, 0.0)
        if self.kind == "gaussian":
            paying = took_part & np.isfinite(self._squares)
            found[paying] = gdp_epsilon(mu=np.sqrt(self._squares[paying]), delta=delta)
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
            return [()] if self.rounds.any() else []
        if self.kind == "gaussian":
            return [(float(self._squares.max()),)]
        points = set(self._points().values())
        if self.kind == "pure":
            # A point is (epsilon, rounds), or all epsilons of a client that has unequal ones: those compare with none.
            equal = {point for point in points if len(point) == 2}
            return [*pareto(equal), *(points - equal)]
        return pareto(points)

    def values(self, points: Iterable[Point], delta: float) -> list[float]:
        """Return the epsilons of points."""
        if self.kind == "gaussian":
            squares = np.array([square for (square,) in points], dtype=np.float64)
            found, finite = np.full(squares.size, np.inf), np.isfinite(squares)
            found[finite] = gdp_epsilon(mu=np.sqrt(squares[finite]), delta=delta)
            return list(found.tolist())
        if self.kind == "pure":
            return [_pure_epsilon(point, delta) for point in points]
        if self.kind == "sampled":
            return [_sampled_epsilon(steps, q, -less, delta) for steps, q, less in points]
        return [float("inf") for _ in points]

    def _points(self) -> dict[int, Point]:
        """Return what the epsilon of each client that took part follows from."""
        clients = np.flatnonzero(self.rounds)
        if self.kind == "sampled":
            columns = [self._steps, self._rates, -self._multipliers]
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
            assert charge.epsilon is not None  # of a pure release
            for client, epsilon in zip(charge.clients.tolist(), charge.epsilon.tolist(), strict=True):
                if client in spent:
                    spent[client].append(epsilon)
        return {client: (UNEQUAL, *sorted(each)) for client, each in spent.items()}


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


def squared_ratio(charge: Charge) -> Real:
    """Return (sensitivity / noise_std)^2, infinite without noise."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio: Real = (charge.sensitivity / charge.noise_std) ** 2
    return ratio


def _pure_epsilon(point: Point, delta: float) -> float:
    each = point[1:] if point[0] == UNEQUAL else (point[0],) * int(point[1])
    return float(pure_composition_epsilon(epsilons=np.array(each), delta=delta))


@lru_cache(maxsize=4096)  # seeds of one experiment, and rounds of one run, ask for the same numbers
def _sampled_epsilon(steps: float, q: float, multiplier: float, delta: float) -> float:
    if not multiplier > 0:
        return float("inf")
    return sampled_gaussian_epsilon(q=q, noise_multiplier=multiplier, steps=int(steps), delta=delta)
