"""The final scores of every experiment, and what each private one costs.

The final scores: every experiment over its seeds, then every seed.

What is promised, against whom, at what epsilon: of every private experiment its costliest run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from upcycled._utils.statistics import mean_and_sd
from upcycled.privacy.mechanisms import claim_word
from upcycled.report.charts import Drawn, scored_on
from upcycled.report.collect import Part, Row, Seed, number
from upcycled.report.final_model import baseline_words
from upcycled.report.settings import split_settings

Cell = Mapping[str, float | None]
MOST_UNDER = 4
"""Settings that stand under an experiment's name."""


@dataclass(frozen=True)
class Line:
    """An experiment over its seeds."""

    one: Drawn
    settings: Mapping[str, Any]
    """What tells it apart, where its name does not."""
    scored_on: str

    def over_seeds(self, name: str) -> Cell:
        """Return mean and standard deviation of a number of the summaries."""
        return mean_and_sd(known(seed, name) for seed in self.one.part.seeds)

    def metric(self, name: str) -> Cell:
        """Return mean and standard deviation of a metric."""
        return mean_and_sd(_within(seed, "metrics", name) for seed in self.one.part.seeds)

    def baseline(self, name: str) -> float | None:
        """Return the score of a model that has learnt nothing from features; None where that is not known."""
        return mean_and_sd(_within(seed, "baseline", name) for seed in self.one.part.seeds)["mean"]

    @property
    def has_baseline(self) -> bool:
        """Whether some score of such a model is known."""
        return self.baseline("loss") is not None

    @property
    def baseline_words(self) -> str:
        """What such a model answers with."""
        return baseline_words(self.one.part.seeds)

    @property
    def global_accuracy(self) -> Cell | None:
        """The global model's, where the accuracy is that of personal models."""
        other = self.over_seeds("global_accuracy")
        return None if other["mean"] in (None, self.over_seeds("accuracy")["mean"]) else other

    @property
    def worst_epsilon(self) -> float | None:
        """The largest of a seed; None without privacy."""
        return max((worst_epsilon(seed) for seed in private_seeds(self.one.part)), default=None)


def lines(every: Sequence[Drawn]) -> list[Line]:
    _, differing = split_settings([one.part for one in every])
    is_named_by_folder = len(every) > 1 and any(one.label == one.part.name for one in every)
    found = []
    for k, one in enumerate(every):
        own = {name: values[k] for name, values in differing.items() if values[k] is not None}
        is_needed = is_named_by_folder and len(own) <= MOST_UNDER
        found.append(Line(one, own if is_needed else {}, scored_on([one])))
    return found


def _within(seed: Seed, table: str, name: str) -> float | None:
    values = seed.summary.get(table)
    value = number(values.get(name)) if isinstance(values, dict) else math.nan
    return None if math.isnan(value) else value


def metric_of(seed: Seed, name: str) -> float | None:
    """Return a metric of a seed's summary; None where it has none."""
    return _within(seed, "metrics", name)


def known(seed: Seed, name: str) -> float | None:
    """Return a number of a seed's summary; None where it has none."""
    value = number(seed.summary.get(name))
    return None if math.isnan(value) else value


def worst_epsilon(seed: Seed) -> float:
    """Return a run's worst epsilon: NaN without privacy, infinite where none is stated."""
    if seed.privacy is None:
        return math.nan
    table = seed.privacy.get("epsilon")
    found = number(table.get("max")) if isinstance(table, dict) else math.nan
    return math.inf if math.isnan(found) else found


def private_seeds(part: Part) -> list[Seed]:
    """Return the runs that used a privacy mechanism."""
    return [seed for seed in part.seeds if seed.privacy is not None]


@dataclass(frozen=True)
class PrivacyCost:
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


def costs(every: Sequence[Drawn]) -> list[PrivacyCost]:
    return [_cost(one, max(seeds, key=worst_epsilon)) for one in every if (seeds := private_seeds(one.part))]


def _cost(one: Drawn, worst: Seed) -> PrivacyCost:
    privacy: Row = worst.privacy or {}
    table = privacy.get("epsilon")
    return PrivacyCost(
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
