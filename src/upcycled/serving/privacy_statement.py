"""What can be said of the privacy of those whose data a model was trained on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from upcycled.privacy.ledger.ledger import Ledger


@dataclass(frozen=True)
class PrivacyStatement:
    """What a run's ledger says, as it is kept beside the model; ``print`` shows it in words."""

    mechanism: str
    """Its name."""
    is_simulation: bool
    """Whether the noise follows from a seed, so that it protects nobody."""
    epsilon: float | None
    """Of the worst client, proven or whose claim it is, as the statement says; None where there is none."""
    delta: float
    unit: str
    """``"record"`` or ``"client"``: whose replacement is hard to notice."""
    adversary: str
    """Against whom."""
    items: tuple[tuple[str, str], ...]
    """The whole statement: topics, and what is said of each."""
    head: Mapping[str, Any] | None
    """The head of the run's ledger, which its file can be held against; None without a file."""

    def __str__(self) -> str:
        return "\n".join(f"{topic}: {words}" for topic, words in self.items)


def statement_of(ledger: Ledger) -> PrivacyStatement:
    """Return what a run's ledger says at its usual delta."""
    delta, promise = ledger.default_delta, ledger.promise
    worst = ledger.max_epsilon(delta) if promise.is_claimed else math.inf
    return PrivacyStatement(
        mechanism=ledger.mechanism,
        is_simulation=ledger.is_simulation,
        epsilon=worst if math.isfinite(worst) else None,
        delta=delta,
        unit=promise.unit,
        adversary=promise.adversary,
        items=ledger.statement_items(delta),
        head=None if ledger.head is None else ledger.head.as_json(),
    )
