"""What every client has spent: the totals of its charges, and the epsilon that follows by the rules of their kind."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled.core.errors import InputError
from upcycled.core.mechanism import Charge
from upcycled.core.vectors import Ints, Real
from upcycled.privacy.charge_kinds import ChargeKind, Point, Totals, kind_named, kind_of
from upcycled.privacy.ledger.budget import Budget


class Spent:
    """What every client has spent so far. Queries change nothing: they may come from another thread than charges."""

    def __init__(self, num_clients: int) -> None:
        # Zeros take memory only where a client's are written: of a large population it is those who took part.
        self.rounds: Ints = np.zeros(num_clients, dtype=np.int64)
        """Data rounds each client was charged for."""
        self.kind: str | None = None
        """The kind of all charges; None before the first."""
        self._has_paid = np.zeros(num_clients, dtype=bool)
        self._totals: dict[str, Any] = {"draws": np.zeros(num_clients, dtype=np.int64)}
        self._charges: list[Charge] = []

    @property
    def made_of(self) -> type[ChargeKind]:
        """The class of ``kind``."""
        return kind_named(self.kind)

    def copied(self) -> Spent:
        """Return the same, to add other charges to."""
        found = copy.copy(self)
        found.rounds, found._has_paid, found._charges = self.rounds.copy(), self._has_paid.copy(), [*self._charges]
        found._totals = {name: values.copy() for name, values in self._totals.items()}
        return found

    def check(self, charge: Charge) -> ChargeKind:
        """Return a charge's columns; reject another kind than that of those before: no theorem here composes them."""
        if self.kind not in (None, charge.kind):
            raise InputError(
                f"a charge is '{charge.kind}', but it must be '{self.kind}' like those before it in the ledger"
            )
        return kind_of(charge)

    def add(self, charge: Charge, rounds: int | Ints = 1) -> None:
        """Count a charge for so many data rounds: for all of its clients, or for each."""
        columns, clients = self.check(charge), charge.clients
        if self.kind is None:
            self.kind = charge.kind
            self._with_totals(columns)
        for name, more in columns.amounts().items():
            values = self._totals[name]
            values[clients] = columns.totals[name].how(values[clients], more)
        if charge.draws is not None:
            self._totals["draws"][clients] += charge.draws
        self._charges.append(charge)
        self._has_paid[clients] = True
        self.rounds[clients] += rounds

    def _with_totals(self, columns: ChargeKind) -> Spent:
        """Begin the totals of a kind."""
        self._totals |= {name: total.of(self.rounds.size) for name, total in columns.totals.items()}
        return self

    def fits(self, charge: Charge, budget: Budget, planned_draws: int) -> NDArray[np.bool_]:
        """Return which of the charge's clients stay within the budget if they pay: a filter, whatever they paid for."""
        columns = self.check(charge)
        spent = self if self.kind is not None else Spent(self.rounds.size)._with_totals(columns)
        return columns.fits(spent._of(charge.clients), budget.epsilon, budget.delta, planned_draws)

    def epsilon(self, delta: float) -> Real:
        """Return the epsilon of every client; infinite where none is provable."""
        found: Real = np.zeros(self.rounds.size)
        paying = np.flatnonzero(self._has_paid)
        if paying.size:
            found[paying] = self.made_of.all_epsilons(self._of(paying), delta)
        found[np.isnan(found)] = np.inf  # a kind's rule gives no number
        return found

    def worst(self, delta: float) -> float:
        """Return the worst client's epsilon; where one number takes long, only clients that no other exceeds count."""
        if self.made_of.is_slow:
            return max(self.values(self.worst_points(), delta), default=0.0)
        return float(self.epsilon(delta).max())

    def worst_points(self) -> list[Point]:
        """Return what the worst client's epsilon follows from: points that no client exceeds in every coordinate."""
        paying = np.flatnonzero(self._has_paid)  # whoever did not exceeds nobody, and may be millions
        return self.made_of.frontier(self.made_of.points(self._of(paying))) if paying.size else []

    def values(self, points: Sequence[Point], delta: float) -> list[float]:
        """Return the epsilons of points; infinite where a kind's rule gives no number."""
        found = self.made_of.epsilons(points, delta) if points else []
        return [math.inf if math.isnan(epsilon) else epsilon for epsilon in found]

    def _of(self, clients: Ints) -> Totals:
        values: dict[str, Any] = {name: total[clients] for name, total in self._totals.items()}
        return Totals(clients, values, self._charges)
