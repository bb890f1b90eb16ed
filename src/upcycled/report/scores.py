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
from upcycled.report.collect import Part, Seed, number
from upcycled.report.final_model import baseline_words
from upcycled.report.settings import split_settings
from upcycled.run_folder import PrivacySummary, worst_epsilon

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
        return mean_and_sd(metric_of(seed, name) for seed in self.one.part.seeds)

    def baseline(self, name: str) -> float | None:
        """Return the score of a model that has learnt nothing from features; None where that is not known."""
        return mean_and_sd(_finite((seed.summary.baseline or {}).get(name)) for seed in self.one.part.seeds)["mean"]

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
        return worst_epsilon(seed.summary for seed in self.one.part.seeds)


def lines(every: Sequence[Drawn]) -> list[Line]:
    _, differing = split_settings([one.part for one in every])
    is_named_by_folder = len(every) > 1 and any(one.label == one.part.name for one in every)
    found = []
    for k, one in enumerate(every):
        own = {name: values[k] for name, values in differing.items() if values[k] is not None}
        is_needed = is_named_by_folder and len(own) <= MOST_UNDER
        found.append(Line(one, own if is_needed else {}, scored_on([one])))
    return found


def _finite(value: object) -> float | None:
    found = number(value)
    return None if math.isnan(found) else found


def metric_of(seed: Seed, name: str) -> float | None:
    """Return a metric of a seed's summary; None where it has none."""
    return _finite(seed.summary.metrics.get(name))


def known(seed: Seed, name: str) -> float | None:
    """Return a number of a seed's summary; None where it has none."""
    return _finite(getattr(seed.summary, name))


def private_seeds(part: Part) -> list[tuple[Seed, PrivacySummary]]:
    """Return the runs that used a privacy mechanism, and what their summaries say of it."""
    return [(seed, seed.privacy) for seed in part.seeds if seed.privacy is not None]


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
    noise: str
    claim: str
    """What the epsilon is: proven, or whose claim."""
    scope: str
    """What the epsilon is about: this run only, or a part of an account."""
    statement: tuple[tuple[str, str], ...]

    @property
    def has_paper(self) -> bool:
        return not math.isnan(self.paper)


def costs(every: Sequence[Drawn]) -> list[PrivacyCost]:
    found = [(one, private_seeds(one.part)) for one in every]
    return [_cost(one, *max(seeds, key=lambda pair: pair[1].worst_epsilon)) for one, seeds in found if seeds]


def _cost(one: Drawn, worst: Seed, privacy: PrivacySummary) -> PrivacyCost:
    paper = privacy.paper_epsilon
    return PrivacyCost(
        one,
        worst,
        number(privacy.delta),
        privacy.worst_epsilon,
        number(privacy.epsilon.median),
        number(None if paper is None else paper.max),
        privacy.noise,
        claim_word(worst.mechanism),
        privacy.scope,
        tuple(_statement(privacy, worst.evidence)),
    )


def _statement(privacy: PrivacySummary, evidence: str | None) -> list[tuple[str, str]]:
    items = list(privacy.statement_items)
    if evidence is not None:  # as the page finds the file, which is not what the run could say of it
        items = [*(item for item in items if item[0] != "ledger"), ("ledger", evidence)]
    if privacy.not_covered is not None:
        items.append(("scores", privacy.not_covered))
    return items


def claim_of(every: Sequence[Drawn]) -> str:
    """Return what the page's epsilons are: proven, or whose claim."""
    return claim_word(*(seed.mechanism for one in every for seed, _ in private_seeds(one.part)))


def is_any_simulated(every: Sequence[Drawn]) -> bool:
    """Whether some epsilon on the page is of a simulation."""
    return any(privacy.is_simulation for one in every for _, privacy in private_seeds(one.part))


def has_curve(every: Sequence[Drawn]) -> bool:
    """Whether a finite epsilon is known over data rounds."""
    seeds = (seed for one in every for seed in one.part.seeds)
    return any(seed.spent is not None and min(seed.spent.worst) < math.inf for seed in seeds)
