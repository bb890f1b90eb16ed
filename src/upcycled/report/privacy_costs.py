"""What is promised, against whom, at what epsilon: of every private experiment its costliest run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from upcycled.privacy.mechanisms.table import claim_word
from upcycled.report.charts import Drawn
from upcycled.report.collect import Row, Seed, number
from upcycled.report.scores import private_seeds, worst_epsilon


@dataclass(frozen=True)
class Cost:
    """What a private experiment cost, and what is stated about it."""

    one: Drawn
    seed: Seed
    """The costliest."""
    delta: float
    epsilon: float
    median: float
    paper: float
    """What the paper's formula prints, which is no guarantee; NaN if it has none for the mechanism."""
    noise: str | None
    claim: str
    """What the epsilon is: proven, or whose claim."""
    scope: str
    """What the epsilon is about: this run only, or a part of an account."""
    statement: tuple[tuple[str, str], ...]

    @property
    def has_paper(self) -> bool:
        return not math.isnan(self.paper)


def costs(every: Sequence[Drawn]) -> list[Cost]:
    return [_cost(one, max(seeds, key=worst_epsilon)) for one in every if (seeds := private_seeds(one.part))]


def _cost(one: Drawn, worst: Seed) -> Cost:
    privacy: Row = worst.privacy or {}
    table = privacy.get("epsilon")
    return Cost(
        one,
        worst,
        number(privacy.get("delta")),
        worst_epsilon(worst),
        number(table.get("median")) if isinstance(table, dict) else math.nan,
        _paper(privacy.get("paper_epsilon")),
        str(privacy["noise"]) if "noise" in privacy else None,
        claim_word(worst.mechanism),
        str(privacy.get("scope", "this run only")),
        tuple(_statement(privacy, worst.evidence)),
    )


def _paper(found: Any) -> float:
    return number(found.get("max")) if isinstance(found, dict) else math.nan


def _statement(privacy: Row, evidence: str | None = None) -> list[tuple[str, str]]:
    said = privacy.get("statement_items")
    pairs = [one for one in said if isinstance(one, list) and len(one) == 2] if isinstance(said, list) else []
    items = [(str(topic), str(text)) for topic, text in pairs]
    if evidence is not None:  # as the page finds the file, which is not what the run could say of it
        items = [*(item for item in items if item[0] != "ledger"), ("ledger", evidence)]
    if isinstance(own := privacy.get("not_covered"), str):
        items.append(("scores", own))
    return items


def is_simulation(seed: Seed) -> bool:
    """Whether a private run's noise follows from its seed."""
    return bool((seed.privacy or {}).get("is_simulation"))


def claim_of(every: Sequence[Drawn]) -> str:
    """Return what the page's epsilons are: proven, or whose claim."""
    return claim_word(*(seed.mechanism for one in every for seed in private_seeds(one.part)))


def is_any_simulated(every: Sequence[Drawn]) -> bool:
    """Whether some epsilon on the page is of a simulation."""
    return any(is_simulation(seed) for one in every for seed in private_seeds(one.part))


def has_curve(every: Sequence[Drawn]) -> bool:
    """Whether a finite epsilon is known over data rounds."""
    seeds = (seed for one in every for seed in private_seeds(one.part))
    return any(seed.spent is not None and min(seed.spent.worst) < math.inf for seed in seeds)
