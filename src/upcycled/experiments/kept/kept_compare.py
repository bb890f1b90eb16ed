"""Two results folders against each other, seed by seed: whatever trained them, from Python or from a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upcycled.core.errors import InputError, check_number
from upcycled.experiments.judged import ACCURACY, CHARGED, Judged
from upcycled.experiments.summary import read_summary
from upcycled.metrics.measure import as_metrics
from upcycled.runtime.comparison import SCORES, is_lower_better
from upcycled.support.statistics import Paired, mean_and_sd

TOO_FEW = "too few common seeds to judge"


@dataclass(frozen=True)
class Kept:
    """An experiment's finished seeds."""

    folder: Path
    scores: dict[int, float]
    epsilon: float | None
    """The worst client's of any seed."""


@dataclass(frozen=True)
class KeptComparison:
    """The second folder minus the first."""

    first: Kept
    second: Kept
    judged: Judged
    paired: Paired | None
    """None where fewer than two seeds are in both."""

    @property
    def seeds(self) -> list[int]:
        """The seeds of both."""
        return sorted(self.first.scores.keys() & self.second.scores.keys())

    @property
    def verdict(self) -> str:
        return TOO_FEW if self.paired is None else self.paired.verdict

    def as_json(self) -> dict[str, Any]:
        test = self.paired
        return {
            "judged": self.judged.as_json(),
            "seeds": self.seeds,
            "sides": [
                {
                    "folder": str(side.folder),
                    "score": mean_and_sd([side.scores[seed] for seed in self.seeds]),
                    "epsilon": side.epsilon,
                }
                for side in (self.first, self.second)
            ],
            "gain": None if test is None else test.mean,
            "interval": None if test is None else list(test.interval),
            "p_value": None if test is None else test.p_value,
            "verdict": self.verdict,
        }


def compare_kept(
    first: str | Path, second: str | Path, *, metric: str | None = None, confidence: float = 0.95
) -> KeptComparison:
    """Compare two results folders by a final score of the seeds that both have; nothing is trained.

    Args:
        first: an experiment's folder, with ``seed-<n>/`` in it.
        second: another; gains are its score minus the first's.
        metric: accuracy, loss, or a metric that the runs measured; accuracy if left out, or the loss where right
            answers have no meaning.
        confidence: of the interval.

    Raises:
        InputError: in one sentence, for a folder without finished seeds, no seed in common, or a score they lack.
    """
    check_number("--confidence", confidence, above=0, below=1)
    places = [Path(first), Path(second)]
    found = [_summaries(place) for place in places]
    judged = _judged([summary for one in found for summary in one.values()], metric)
    sides = [_side(place, one, judged) for place, one in zip(places, found, strict=True)]
    seeds = sorted(sides[0].scores.keys() & sides[1].scores.keys())
    if not seeds:
        raise InputError(f"{first} and {second} have no finished seed in common with a score {judged.name!r}")
    differences = tuple(sides[1].scores[seed] - sides[0].scores[seed] for seed in seeds)
    test = Paired(differences, confidence, judged.lower_is_better) if len(differences) > 1 else None
    return KeptComparison(sides[0], sides[1], judged, test)


def _summaries(folder: Path) -> dict[int, dict[str, Any]]:
    """Return the summaries of an experiment's finished seeds."""
    found = {}
    for path in sorted(folder.glob("seed-*/summary.json")):
        summary = read_summary(path)
        found[summary["seed"]] = summary
    if not found:
        raise InputError(
            f"{folder} has no finished seed: it must be an experiment's folder, with seed-<n>/summary.json in it"
        )
    return found


def _judged(summaries: list[dict[str, Any]], metric: str | None) -> Judged:
    """Return the score that is asked for, or the first of accuracy, a charged accuracy and the loss that all have."""
    if metric is not None:
        if metric.startswith(CHARGED):
            return Judged(metric, metric.endswith("loss"))
        # A function's name says nothing: more of it is better, as for sweeps.
        known = metric in SCORES or _is_known(metric)
        return Judged(metric, is_lower_better(metric, [metric] if metric not in SCORES else []) if known else False)
    for one in (ACCURACY, Judged(f"{CHARGED}accuracy"), Judged("loss", True)):
        if all(one.of(summary) is not None for summary in summaries):
            return one
    return ACCURACY


def _is_known(metric: str) -> bool:
    try:
        as_metrics([metric])
    except InputError:
        return False
    return True


def _side(folder: Path, summaries: dict[int, dict[str, Any]], judged: Judged) -> Kept:
    scores = {seed: score for seed, summary in summaries.items() if (score := judged.of(summary)) is not None}
    spent = [summary["privacy"]["epsilon"]["max"] for summary in summaries.values() if summary.get("privacy")]
    return Kept(folder, scores, None if None in spent else max(spent, default=None))  # null is not finite
