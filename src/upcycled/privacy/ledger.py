"""The per-client ledger: what was released, what it cost, and the epsilon that follows.

Append-only. A charge is written before the release leaves, and a written charge stays. With seeded noise the key
(round, attempt, client) names one release: charging it again is the same release and costs nothing more. Upcycled
iterations appear with cost zero. No data are ever stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from upcycled.core.errors import InputError, check_number
from upcycled.core.release import Charge, Setting
from upcycled.core.vectors import Ints, Real
from upcycled.privacy.accounting import (
    gdp_epsilon,
    gdp_mu,
    pure_composition_epsilon,
    sampled_gaussian_epsilon,
)


class PaperClaim(Protocol):
    """A mechanism for which the paper prints an epsilon."""

    def paper_epsilon(self, rounds: Ints, sizes: Ints, delta: float) -> Real:
        """Return the paper's own number for each client; not a guarantee."""


@dataclass(frozen=True)
class Budget:
    """The most a client may spend over all its data rounds, enforced before it trains.

    A valid filter for adaptive rounds: Gaussian releases by sum (sensitivity / noise_std)^2, pure ones by their plain
    sum. Sampled releases are not filtered: their epsilon holds for a schedule fixed in advance only.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_number("budget epsilon", self.epsilon, above=0)
        check_number("budget delta", self.delta, at_least=0, below=1)


@dataclass(frozen=True)
class Entry:
    """One line of the ledger: a round's charge for its cohort, or an upcycled iteration (nobody, nothing)."""

    iteration: int
    kind: str
    round: int
    attempt: int
    clients: Ints
    charge: Charge | None


class Ledger:
    """What every client has spent."""

    def __init__(self, mechanism: str, noise: str, setting: Setting, budget: Budget | None, paper: object) -> None:
        self.mechanism, self.noise, self.setting, self.budget = mechanism, noise, setting, budget
        self._paper = paper
        clients = setting.sizes.size
        self._entries: list[Entry] = []
        self._keys: set[tuple[int, int]] = set()
        self._squares, self._pure = np.zeros(clients), np.zeros(clients)
        self._pure_each: dict[int, list[float]] = {}
        self._steps, self._rounds = np.zeros(clients, dtype=np.int64), np.zeros(clients, dtype=np.int64)
        self._rates, self._multipliers = np.ones(clients), np.full(clients, np.inf)
        self._kind = "none"

    @property
    def rounds(self) -> Ints:
        """Data rounds each client was charged for."""
        return self._rounds.copy()

    @property
    def is_simulation(self) -> bool:
        """True with seeded noise: whoever knows the seed can take the noise off again."""
        return self.noise == "seeded"

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def can_pay(self, clients: Ints, charge: Charge | None) -> Any:
        """Return which of the clients stay within the budget if they are charged; a mask over ``clients``."""
        if self.budget is None or charge is None:
            return np.ones(clients.size, dtype=bool)
        if charge.kind == "pure":
            return self._pure[clients] + charge.epsilon <= self.budget.epsilon * (1 + 1e-12)
        if charge.kind == "gaussian":
            limit = gdp_mu(epsilon=self.budget.epsilon, delta=self.budget.delta) ** 2
            return self._squares[clients] + _squared_ratio(charge) <= limit * (1 + 1e-12)
        raise InputError(
            f"a budget cannot be enforced for '{self.mechanism}': its rounds compose by a schedule fixed in advance; "
            "calibrate with epsilon= and delta= instead"
        )

    def charge(self, iteration: int, round: int, attempt: int, clients: Ints, charge: Charge) -> None:
        """Write a round's charge, before its releases leave."""
        if self.is_simulation and (round, attempt) in self._keys:
            return
        self._keys.add((round, attempt))
        self._entries.append(Entry(iteration, "data", round, attempt, clients, charge))
        self._kind = charge.kind
        self._rounds[clients] += 1
        if charge.kind == "gaussian":
            self._squares[clients] += _squared_ratio(charge)
        elif charge.kind == "pure":
            self._pure[clients] += charge.epsilon
            for client, epsilon in zip(clients.tolist(), charge.epsilon.tolist(), strict=True):
                self._pure_each.setdefault(client, []).append(epsilon)
        elif charge.kind == "sampled":
            self._steps[clients] += charge.steps
            self._rates[clients] = charge.sampling_rate
            self._multipliers[clients] = charge.noise_std / charge.sensitivity

    def upcycled(self, iteration: int, round: int) -> None:
        """Write an upcycled iteration: post-processing of releases already charged."""
        self._entries.append(Entry(iteration, "upcycled", round, 0, np.zeros(0, dtype=np.int64), None))

    def epsilon(self, delta: float) -> Real:
        """Return the proven epsilon of every client for its releases so far: replace-one, record level.

        Infinite where no finite epsilon is provable. It is a guarantee for the whole run when schedule, noise and
        participation were fixed before the first round, as in ``train``.
        """
        check_number("delta", delta, at_least=0, below=1)
        took_part = self._rounds > 0
        if self._kind == "pure":
            return np.array([self._pure_epsilon(client, delta) for client in range(took_part.size)])
        if self._kind == "gaussian":
            check_number("delta", delta, above=0, below=1)
            with np.errstate(invalid="ignore"):
                finite = np.isfinite(self._squares)
            found: Real = np.where(took_part, np.inf, 0.0)
            paying = took_part & finite
            found[paying] = gdp_epsilon(mu=np.sqrt(self._squares[paying]), delta=delta)
            return found
        if self._kind == "sampled":
            return self._sampled_epsilon(delta)
        return np.where(took_part, np.inf, 0.0)

    def max_epsilon(self, delta: float) -> float:
        """Return the worst client's proven epsilon."""
        return float(self.epsilon(delta).max())

    def paper_epsilon(self, delta: float) -> Real:
        """Return the number the paper's theorem prints for each client: labelled as such, not a guarantee."""
        of = getattr(self._paper, "paper_epsilon", None)
        if of is None:
            raise InputError(f"the paper states no epsilon for '{self.mechanism}'")
        found: Real = of(self._rounds, self.setting.sizes, delta)
        return found

    def _pure_epsilon(self, client: int, delta: float) -> float:
        spent = self._pure_each.get(client, [])
        return float(pure_composition_epsilon(epsilons=np.array(spent), delta=delta)) if spent else 0.0

    def _sampled_epsilon(self, delta: float) -> Real:
        """Clients with the same rate, multiplier and steps share one computation: it takes a second or so."""
        found, cache = np.zeros(self._rounds.size), dict[tuple[float, float, int], float]()
        for client in np.flatnonzero(self._rounds).tolist():
            key = (float(self._rates[client]), float(self._multipliers[client]), int(self._steps[client]))
            if key not in cache:
                q, multiplier, steps = key
                cache[key] = (
                    sampled_gaussian_epsilon(q=q, noise_multiplier=multiplier, steps=steps, delta=delta)
                    if multiplier > 0
                    else np.inf
                )
            found[client] = cache[key]
        return found


def _squared_ratio(charge: Charge) -> Real:
    with np.errstate(divide="ignore"):
        ratio: Real = (charge.sensitivity / charge.noise_std) ** 2
    return ratio
