"""What is claimed, and what it follows from: of a run's ledger, or of a data holder's account."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from upcycled.audit.evidence import verify
from upcycled.core.errors import InputError
from upcycled.core.mechanism import Charge
from upcycled.core.vectors import Real
from upcycled.privacy.accounts.account import Account
from upcycled.privacy.charge_kinds import Event
from upcycled.privacy.ledger.joint import (
    charges_of,
    delta_for_events,
    deltas_of_events,
    draws_of,
    epsilon_of_events,
    events_as_json,
    events_of,
    group_epsilon,
    joint_epsilon,
)
from upcycled.privacy.ledger.ledger import Ledger
from upcycled.privacy.ledger.statement import epsilon_words

POINTS = 61
WRONGLY = (0.01, 0.05, 0.1, 0.25, 0.5)
"""False-positive rates of the table."""
GROUPS = (1, 2, 5, 10)
SAME_FOR_GROUPS = ("model_clipping", "update_clipping")
"""Their sensitivity is two clip norms, however many records of a client are replaced."""


@dataclass(frozen=True)
class ClaimedClient:
    """What one client was charged for, or several that were charged alike."""

    names: tuple[str, ...]
    epsilon: float
    """As stated: the ledger's, or the account's so far; infinite where there is none."""
    events: Mapping[Event, int] | None
    draws: int

    def as_json(self, delta: float) -> dict[str, Any]:
        is_proven = self.events is not None and math.isfinite(self.epsilon)
        return {
            "clients": list(self.names),
            "stated_epsilon": self.epsilon if is_proven else None,
            "draws_of_real_noise": self.draws,
            "delta_for_events": delta_for_events(delta, self.epsilon, self.draws) if is_proven else None,
            "events": None if self.events is None else events_as_json(self.events),
        }


@dataclass(frozen=True)
class Claim:
    """An epsilon at a delta, and everything that it follows from."""

    title: str
    delta: float
    epsilon: float
    """Of the worst client; of an account the budget, which is the claim."""
    spent: float
    """Of the worst client by the charges so far; of a run it is epsilon."""
    word: str
    """What epsilon is: proven, or whose claim."""
    unit: str
    sees: str
    """What the adversary sees: releases, or aggregates only."""
    sites: int
    """How many clients there are."""
    rounds: int
    """Data rounds that a client was charged for, at most."""
    numbers: int | None
    """The length of what a client sends; None where it is not known, or not the same in all studies."""
    limit: float | None
    """The epsilon that an account holds all studies to; None where nothing does."""
    has_scores: bool
    """Whether noisy scores were released, and charged."""
    clients: tuple[ClaimedClient, ...]
    items: tuple[tuple[str, str], ...]
    """The statement: topics, and what is said of each."""
    is_account: bool
    is_simulation: bool
    is_clipping: bool
    """Whether a group of records moves a release no further than one of them."""

    @property
    def worst(self) -> ClaimedClient:
        """The client that spent most."""
        return max(self.clients, key=lambda client: client.epsilon)

    @cached_property
    def curve(self) -> tuple[Real, Real]:
        """(epsilon, delta) of the worst client's charges."""
        most = self.spent if math.isfinite(self.spent) else 1.0
        epsilons = np.linspace(0.0, 1.5 * max(most, 0.1), POINTS)
        return epsilons, deltas_of_events(self.worst.events, self.worst.draws, epsilons.tolist())

    def least_misses(self) -> list[tuple[float, float]]:
        """Return for each false-positive rate the least false-negative rate that any test can have."""
        epsilons, deltas = self.curve
        return [(wrongly, missed(wrongly, epsilons, deltas)) for wrongly in WRONGLY]

    def groups(self) -> list[tuple[int, float, float]]:
        """Return (records, epsilon, delta) for groups of records of one person in one client."""
        found = []
        for k in GROUPS:
            alone = self.spent if k == 1 or self.is_clipping else None
            exact = group_epsilon(self.worst.events, self.worst.draws, self.delta, k) if alone is None else alone
            found.append((k, exact, self.delta) if exact is not None else self._any_group(k))
        return found

    def _any_group(self, k: int) -> tuple[int, float, float]:
        """(k epsilon, delta (e^(k epsilon) - 1)/(e^epsilon - 1)), which holds for every mechanism."""
        if not 0 < self.spent < 100:
            return k, k * self.spent, self.delta if self.spent == 0 else 1.0
        return k, k * self.spent, min(1.0, self.delta * math.expm1(k * self.spent) / math.expm1(self.spent))


def missed(wrongly: float, epsilons: Real, deltas: Real) -> float:
    """Return the least false-negative rate at a false-positive rate: what a curve of (epsilon, delta) leaves a test.

    >>> missed(0.05, np.array([math.log(2)]), np.array([0.01]))  # max(1 - d - 2 a, (1 - d - a)/2)
    0.89
    """
    left = 1 - deltas - wrongly
    bounds = np.maximum(1 - deltas - np.exp(epsilons) * wrongly, np.exp(-epsilons) * left)
    return float(max(bounds.max(), 0.0))


def claim_of_run(attempts: Sequence[Ledger], delta: float, title: str, numbers: int | None = None) -> Claim:
    """Return a run's claim over all attempts at it; ``numbers`` is the length of what a client sends."""
    ledger = attempts[-1]
    epsilons = ledger.epsilon(delta) if len(attempts) == 1 else joint_epsilon(attempts, delta)
    each = [[charge for one in attempts for charge in charges_of(one, i)] for i in range(epsilons.size)]
    found = [(str(i), float(epsilons[i]), charges) for i, charges in enumerate(each)]
    worst = float(epsilons.max())
    items = ledger.statement_items(delta)
    if len(attempts) > 1:
        together = f"{epsilon_words(epsilons)}; all {len(attempts)} attempts at this run together"
        items = tuple((topic, together if topic.startswith("epsilon") else words) for topic, words in items)
    return Claim(
        title,
        delta,
        worst,
        worst,
        ledger.claim,
        ledger.promise.unit,
        ledger.promise.sees,
        epsilons.size,
        int(np.sum([one.rounds for one in attempts], axis=0).max()),
        numbers,
        None if ledger.account is None else ledger.account.epsilon,
        any(entry.kind == "scores" for one in attempts for entry in one),
        _grouped(found),
        items,
        is_account=False,
        is_simulation=ledger.is_simulation,
        is_clipping=ledger.mechanism in SAME_FOR_GROUPS,
    )


def claim_of_account(account: Account, title: str) -> Claim:
    """Return an account's claim: its budget, over all studies together."""
    terms = account.terms
    found = [(name, account.epsilon(name), account.charges_of(name)) for name in account.clients]
    mechanisms = {study.mechanism for study in account.studies}
    return Claim(
        title,
        terms.delta,
        terms.epsilon,
        max((epsilon for _, epsilon, _ in found), default=0.0),
        account.claim,
        terms.unit,
        # Where one study's server is trusted, the claim over all of them is against those who see aggregates.
        "aggregates" if any(study.sees == "aggregates" for study in account.studies) else "releases",
        len(account.clients),
        max(map(account.rounds, account.clients), default=0),
        None,
        terms.epsilon,
        any(one.entry.kind == "scores" for one in account.charges),
        _grouped(found or [("", 0.0, [])]),
        account.statement_items(),
        is_account=True,
        is_simulation=False,
        is_clipping=bool(mechanisms) and mechanisms <= set(SAME_FOR_GROUPS),
    )


def recomputed(client: ClaimedClient, delta: float) -> float:
    """Return what ``dp_accounting`` gives for a client's events."""
    return epsilon_of_events(client.events, client.draws, delta)


def _grouped(found: list[tuple[str, float, list[tuple[Charge, int]]]]) -> tuple[ClaimedClient, ...]:
    """Put clients together that were charged alike."""
    alike: dict[Any, ClaimedClient] = {}
    for name, epsilon, charges in found:
        if unknown := {charge.kind for charge, _ in charges} - {*verify.COLUMNS}:
            raise InputError(
                f"charges of kind '{min(unknown)}' cannot be given as evidence: verify.py, which recomputes epsilon "
                f"without the package, knows {', '.join(verify.COLUMNS)}"
            )
        events, draws = events_of(charges), draws_of(charges)
        key = (epsilon, draws, None if events is None else tuple(sorted(events.items())))
        others = alike[key].names if key in alike else ()
        alike[key] = ClaimedClient((*others, name), epsilon, events, draws)
    return tuple(alike.values())
