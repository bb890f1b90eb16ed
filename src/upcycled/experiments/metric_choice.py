"""The score that experiments are judged by: accuracy, loss, or one of their metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from upcycled.config.experiment import Experiment
from upcycled.core.errors import InputError
from upcycled.metrics import Metric, as_metrics
from upcycled.run_folder import Summary
from upcycled.training.comparison import SCORES, is_lower_better
from upcycled.training.plan import Plan


@dataclass(frozen=True)
class Judged:
    """A score by name, and which way is better."""

    name: str = "accuracy"
    lower_is_better: bool = False

    def of(self, summary: Summary) -> float | None:
        """Return it of a seed's summary; None where the run has none."""
        table = summary.charged_scores or {} if self.name.startswith(CHARGED) else summary.metrics
        found: float | None = getattr(summary, self.name) if self.name in SCORES else table.get(self.name)
        return None if found is None else float(found)

    @property
    def words(self) -> str:
        """What notes call it, at the beginning of a sentence."""
        if self.name == "accuracy":
            return "Accuracy"
        return f"{self.name} (lower is better)" if self.lower_is_better else self.name

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "lower_is_better": self.lower_is_better}


ACCURACY = Judged()
CHARGED = "noisy_"
"""How the names of scores begin that a restricted run publishes, because they are charged."""


def with_metric(experiment: Experiment, metric: str | None) -> Experiment:
    """Return the experiment with the metric that it is to be judged by among its own.

    Raises:
        InputError: in one sentence, for a name that is not known.
    """
    if metric is None or metric in SCORES or metric in [one.name for one in as_metrics(experiment.metrics)]:
        return experiment
    if metric.startswith(CHARGED) and experiment.privacy is not None and experiment.privacy.scores is not None:
        return experiment
    try:
        as_metrics([metric])
    except InputError as error:
        raise error.renamed("--metric") from None
    return experiment.model_copy(update={"metrics": (*experiment.metrics, metric)})


def judged_by(experiment: Experiment, metric: str | None, plan: Plan | None) -> Judged:
    """Return the score: the one asked for, else accuracy, or the loss where right answers have no meaning.

    Of a restricted experiment it is one of the scores that are charged: nobody sees another.
    """
    if experiment.is_restricted and not (metric or CHARGED).startswith(CHARGED):
        but = "a private run's exact scores are the data holder's own: it must be one that is charged, noisy_accuracy"
        raise InputError(field="--metric", value=metric, but=but)
    if experiment.is_restricted and metric is None:
        return Judged(f"{CHARGED}accuracy")
    if metric is not None and metric.startswith(CHARGED):
        return Judged(metric, metric.endswith("loss"))
    if metric is None:
        has_answers = plan is None or plan.objective.targets == "classes"
        return ACCURACY if has_answers else Judged("loss", True)
    named = {one: as_metrics([one])[0] for one in experiment.metrics}
    called: Metric | None = named.get(metric)
    name = metric if called is None else called.name
    return Judged(name, is_lower_better(name, experiment.metrics))
