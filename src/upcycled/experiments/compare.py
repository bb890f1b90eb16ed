"""Vanilla against upcycled, or one results folder against another, with a test of every difference.

Vanilla against upcycled, over seeds and algorithms, with a test of every difference.

Two results folders against each other, seed by seed: whatever trained them, from Python or from a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from upcycled._utils.extras import missing
from upcycled._utils.files import write_json
from upcycled._utils.formats import general
from upcycled._utils.lock import locked
from upcycled._utils.statistics import Paired, holm, mean_and_sd, verdict
from upcycled.algorithms import ALGORITHMS
from upcycled.coefficients import as_rule
from upcycled.config.experiment import Experiment, parse
from upcycled.config.tables import named
from upcycled.core.errors import InputError, check_number, suggest
from upcycled.core.mechanism import asked_epsilon
from upcycled.experiments.batch import Options, Outcome, experiment_folder, prepare_batch
from upcycled.experiments.metric_choice import ACCURACY, CHARGED, Judged, judged_by, with_metric
from upcycled.metrics import as_metrics
from upcycled.report import write_report
from upcycled.run_folder import RunFolder, Summary, plain, worst_epsilon
from upcycled.training.comparison import (
    SCORES,
    is_lower_better,
    longer_server_lr,
    longer_step_title,
    vanilla_iterations,
)

DOCUMENT = "compare.json"
TOO_FEW = "too few finished seeds to judge"
NOT_SHOWN = "scores are the data holder's own"
"""The verdict of restricted runs, and the reason why there is none."""
EQUAL_WORDS = {
    "work": "at equal work: as many data rounds each",
    "epsilon": "at equal epsilon: as many iterations, noise calibrated to the same epsilon",
}


@dataclass(frozen=True)
class Row:
    """One algorithm: its vanilla and its upcycled runs, and their difference in a final score."""

    algorithm: str
    vanilla: Outcome
    upcycled: Outcome
    paired: Paired | None
    """None where fewer than two seeds finished both ways."""
    holm_p: float | None = None
    """Holm's p-value over all rows of a table; None where there is one row, or nothing to judge."""
    judged: Judged = ACCURACY
    """The score."""
    server_lr: float | None = None
    """That of the vanilla runs, where it is longer for the fair test; None where it is the algorithm's own."""

    @property
    def title(self) -> str:
        """What the table calls the row."""
        return self.algorithm if self.server_lr is None else longer_step_title(self.algorithm, self.server_lr)

    @property
    def verdict(self) -> str:
        """What may be said of this row alone."""
        if self.is_restricted:
            return NOT_SHOWN
        return TOO_FEW if self.paired is None else self.paired.verdict

    @property
    def is_restricted(self) -> bool:
        """Whether nobody but the data holder may compare by scores."""
        return self.vanilla.is_restricted or self.upcycled.is_restricted

    @property
    def holm_is_significant(self) -> bool | None:
        """Whether it is a finding together with the others; None as in ``holm_p``."""
        if self.paired is None or self.holm_p is None:
            return None
        return self.holm_p < 1 - self.paired.confidence

    @property
    def holm_verdict(self) -> str | None:
        """What may be said of it together with the others."""
        if self.paired is None or self.holm_is_significant is None:
            return None
        return verdict(self.paired.mean, self.holm_is_significant, self.judged.lower_is_better)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values; accuracies as fractions."""
        test = self.paired
        found = {
            "algorithm": self.algorithm,
            "server_lr": self.server_lr,
            "vanilla": _side(self.vanilla, self.judged),
            "upcycled": _side(self.upcycled, self.judged),
            "differences": None if test is None else list(test.differences),
            "gain": None if test is None else test.mean,
            "interval": None if test is None else list(test.interval),
            "p_value": None if test is None else test.p_value,
            "is_significant": None if test is None else test.is_significant,
            "verdict": self.verdict,
            "holm_p_value": self.holm_p,
            "holm_is_significant": self.holm_is_significant,
            "holm_verdict": self.holm_verdict,
        }
        return dict(plain(found))


@dataclass(frozen=True)
class Compared:
    """What a comparison found and wrote."""

    experiment: Experiment
    rows: tuple[Row, ...]
    """Upcycled against vanilla, a row for each algorithm."""
    equal: str
    confidence: float
    folder: Path
    repeat: str
    judged: Judged = ACCURACY
    report: Path | None = None
    """The page; None where the extra ``report`` is not there."""
    longer_step: tuple[Row, ...] = ()
    """Upcycled against vanilla with a longer server step, for the algorithms that have this arm."""
    why_no_longer_step: Mapping[str, str] = field(default_factory=dict)
    """Why that arm is missing, by algorithm."""

    @property
    def table(self) -> list[Row]:
        """All rows, those of an algorithm together."""
        longer = {row.algorithm: row for row in self.longer_step}
        return [row for own in self.rows for row in (own, longer.get(own.algorithm)) if row is not None]

    @property
    def is_complete(self) -> bool:
        """Whether every run has a result."""
        return all(row.vanilla.is_complete and row.upcycled.is_complete for row in self.table)

    @property
    def is_restricted(self) -> bool:
        """Whether there is nothing to judge but what runs cost."""
        return any(row.is_restricted for row in self.rows)

    @property
    def notes(self) -> list[str]:
        """What a reader of the table has to know."""
        percent, seeds = general(100 * self.confidence), len(self.experiment.seeds)
        if self.is_restricted:
            found = [
                f"Means over {seeds} seeds, and the worst client's epsilon of a seed. Accuracy and loss are the data "
                "holder's own: comparing by them is a release."
            ]
        else:
            unit, points = (" in percent", " in points") if self.judged.name == "accuracy" else ("", "")
            found = [
                f"{self.judged.words} on test data after the last iteration{unit}, mean ± standard deviation over "
                f"{seeds} seeds; difference{points}, paired by seed, with Student's {percent} % interval."
            ]
        if self.longer_step:
            found.append(
                "Rows with server_lr compare upcycled with vanilla whose server step is longer by the coefficient."
            )
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.why_no_longer_step.items():
            by_reason.setdefault(reason, []).append(name)
        found += [
            f"No row with a longer server step for {', '.join(names)}: {reason}." for reason, names in by_reason.items()
        ]
        if len(self.table) > 1 and not self.is_restricted:
            found.append(
                f"Each interval is for its own row. Over all {len(self.table)} rows together, only what is significant "
                "after Holm's correction is a finding."
            )
        failed = [
            f"{outcome.experiment.name} seed {seed.seed}"
            for row in self.table
            for outcome in ((row.vanilla, row.upcycled) if row.server_lr is None else (row.vanilla,))
            for seed, score in zip(outcome.seeds, outcome.scores(self.judged), strict=True)
            if seed.summary is None or (score is None and not self.is_restricted)
        ]
        if failed:
            found.append(f"Without a result, and left out with their pairs: {', '.join(failed)}.")
        if self.experiment.privacy is not None:
            found.append("Epsilon is that of one run; all runs on the same data add up.")
        return found

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.experiment.name,
            "equal": self.equal,
            "confidence": self.confidence,
            "seeds": list(self.experiment.seeds),
            "metric": None if self.is_restricted else f"{self.judged.name} on test data after the last iteration",
            "judged": None if self.is_restricted else self.judged.as_json(),
            "runs": [
                {"folder": outcome.experiment.name, "algorithm": row.algorithm, "upcycled": is_upcycled}
                for row in self.table
                for is_upcycled, outcome in ((False, row.vanilla), (True, row.upcycled))
                if row.server_lr is None or not is_upcycled
            ],
            "rows": [row.as_json() for row in self.rows],
            "longer_step_rows": [row.as_json() for row in self.longer_step],
            "why_no_longer_step": dict(self.why_no_longer_step),
            "notes": self.notes,
            "repeat": self.repeat,
        }


def compare_experiment(
    experiment: Experiment,
    source: str,
    *,
    equal: str = "work",
    algorithms: Sequence[str] | None = None,
    confidence: float = 0.95,
    metric: str | None = None,
    longer_step: bool = True,
    repeat: str = "",
    options: Options | None = None,
) -> Compared:
    """Run the arms, test the differences, and write ``compare.json`` and, where it can be made, the page.

    The arms are vanilla, upcycled and, for a constant coefficient, vanilla with ``server_lr = 1 + coefficient``.

    Args:
        experiment: from :func:`upcycled.config.experiment.load_config`, with a table [upcycle].
        source: the file's name, for error sentences.
        equal: ``"work"`` or ``"epsilon"``.
        algorithms: their names; the file's own if left out. Others than the file's have their default parameters.
        confidence: of the intervals.
        metric: the score that is tested; accuracy if left out, or the loss where right answers have no meaning. One
            that is not among the file's metrics is measured all the same.
        longer_step: whether there is an arm with the longer server step.
        repeat: the command that does this, for the document.
        options: how it is shown, and what is kept.
    """
    folder = experiment_folder(experiment) / f"compare-{equal}"
    with named(source):
        experiment = with_metric(experiment, metric)
        names = _checked(experiment, equal, algorithms, confidence)
        pairs = [_pair(experiment, name, equal, folder) for name in names]
        arms = {name: _longer_step(*pair) for name, pair in zip(names, pairs, strict=True)} if longer_step else {}
    longer = [arm for arm in arms.values() if isinstance(arm, LongerStep)]
    every = [*(e for pair in pairs for e in pair), *(arm.experiment for arm in longer)]
    batch = prepare_batch(every, source, options=options)
    if batch.variants[0].data.test is None and not batch.variants[0].shown.is_restricted:
        raise InputError(
            "the data has no test samples, but a comparison needs some: see data.test_fraction", where=(source,)
        )
    with locked(experiment_folder(experiment)):
        judged = judged_by(experiment, metric, batch.variants[0].plan)
        outcomes = batch.run(options)
        sides: list[tuple[str, float | None, Outcome, Outcome]] = [
            (name, None, outcomes[2 * i], outcomes[2 * i + 1]) for i, name in enumerate(names)
        ]
        sides += [
            (arm.algorithm, arm.server_lr, outcome, outcomes[2 * names.index(arm.algorithm) + 1])
            for arm, outcome in zip(longer, outcomes[2 * len(names) :], strict=True)
        ]
        rows = _rows(sides, confidence, judged)
        reasons = {name: arm for name, arm in arms.items() if isinstance(arm, str)}
        found = Compared(
            experiment,
            rows[: len(names)],
            equal,
            confidence,
            folder,
            repeat,
            judged,
            longer_step=rows[len(names) :],
            why_no_longer_step=reasons,
        )
        write_json(folder / DOCUMENT, found.as_json())
        return replace(found, report=None if missing("jinja2") else write_report(folder))


def _checked(experiment: Experiment, equal: str, algorithms: Sequence[str] | None, confidence: float) -> list[str]:
    """Refuse what cannot be compared, in one sentence; return the algorithms' names."""
    check_number("--confidence", confidence, above=0, below=1)
    if experiment.upcycle is None:
        raise InputError(field="upcycle", but="a comparison needs a table [upcycle] for its upcycled runs")
    if len(experiment.seeds) < 2:
        raise InputError(
            field="seeds", value=list(experiment.seeds), but="a comparison needs two or more to judge a difference"
        )
    if experiment.iterations < 2:
        raise InputError(
            field="iterations", value=experiment.iterations, but="a comparison needs at least 2, one of each kind"
        )
    if equal == "epsilon":
        mechanism = None if experiment.privacy is None else experiment.privacy.build()
        if asked_epsilon(mechanism) is None:
            held = "missing" if mechanism is None else "without epsilon"
            raise InputError(
                f"is {held}, but --equal-epsilon needs a mechanism that is given epsilon = ...", field="privacy"
            )
    if experiment.scored_on != "test":
        raise InputError(field="scored_on", value=experiment.scored_on, must="'test', which a comparison is judged on")
    names = [_own_name(experiment)] if algorithms is None else [name.strip() for name in algorithms]
    for name in names:
        if name not in ALGORITHMS and name != _own_name(experiment):
            raise InputError(f"--algorithms has {name!r}, but it must be known{suggest(name, ALGORITHMS)}")
    if len(set(names)) != len(names) or not names:
        raise InputError(field="--algorithms", value=",".join(names), but="it must name one or more, each once")
    return names


def _own_name(experiment: Experiment) -> str:
    return str(experiment.resolved()["algorithm"]["name"])


def _pair(experiment: Experiment, name: str, equal: str, folder: Path) -> tuple[Experiment, Experiment]:
    """Return the vanilla and the upcycled experiment of an algorithm."""
    base = {key: value for key, value in experiment.resolved().items() if key != "sweep"}
    table = base["algorithm"] if name == _own_name(experiment) else {"name": name}
    base |= {"algorithm": table, "results": str(folder)}
    vanilla = {key: value for key, value in base.items() if key != "upcycle"}
    called = name.replace(":", ".")  # a folder's name has no colon
    iterations = vanilla_iterations(experiment.iterations, equal)
    return (
        parse(vanilla | {"name": f"{called}-vanilla", "iterations": iterations}),
        parse(base | {"name": f"{called}-upcycled"}),
    )


@dataclass(frozen=True)
class LongerStep:
    """The arm of an algorithm with a longer server step."""

    algorithm: str
    server_lr: float
    experiment: Experiment


def _longer_step(vanilla: Experiment, upcycled: Experiment) -> LongerStep | str:
    """Return the arm with the longer server step, or why there is none."""
    spec, name = upcycled.spec(upcycled.seeds[0]), _own_name(upcycled)
    rule, is_paid = as_rule(spec.upcycle), spec.account_path is not None
    server_lr, reason = longer_server_lr(spec.algorithm, rule, upcycled.is_restricted, is_paid)
    if server_lr is None:
        return reason
    raw = vanilla.resolved()
    raw |= {"name": f"{vanilla.name}-longer-step", "algorithm": raw["algorithm"] | {"server_lr": server_lr}}
    return LongerStep(name, server_lr, parse(raw))


def _rows(
    sides: Sequence[tuple[str, float | None, Outcome, Outcome]], confidence: float, judged: Judged
) -> tuple[Row, ...]:
    """Test the difference of each pair, and correct for there being several."""
    tests = [_paired(vanilla, upcycled, confidence, judged) for _, _, vanilla, upcycled in sides]
    known = [i for i, test in enumerate(tests) if test is not None]
    corrected = dict(zip(known, holm([test.p_value for test in tests if test is not None]), strict=True))
    several = len(sides) > 1
    return tuple(
        Row(name, vanilla, upcycled, tests[i], corrected.get(i) if several else None, judged, server_lr)
        for i, (name, server_lr, vanilla, upcycled) in enumerate(sides)
    )


def _paired(vanilla: Outcome, upcycled: Outcome, confidence: float, judged: Judged) -> Paired | None:
    """Return the differences of seeds that finished both ways; None where there are fewer than two to see."""
    if vanilla.is_restricted or upcycled.is_restricted:
        return None
    differences = [
        b - a
        for a, b in zip(vanilla.scores(judged), upcycled.scores(judged), strict=True)
        if a is not None and b is not None
    ]
    return Paired(tuple(differences), confidence, judged.lower_is_better) if len(differences) > 1 else None


def _side(outcome: Outcome, judged: Judged) -> dict[str, Any]:
    summary = outcome.summary()
    return {
        "folder": outcome.experiment.name,
        "iterations": outcome.experiment.iterations,
        **{key: summary[key] for key in ("accuracy", "loss", "data_rounds", "bytes", "gradient_steps", "seconds")},
        "messages": summary["messages"],
        "epsilon": outcome.worst_epsilon,
        "score": mean_and_sd(outcome.scores(judged)),
        "seeds": outcome.scores(judged),
    }


TOO_FEW_COMMON = "too few common seeds to judge"


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
        return TOO_FEW_COMMON if self.paired is None else self.paired.verdict

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
    sides = [_kept_side(place, one, judged) for place, one in zip(places, found, strict=True)]
    seeds = sorted(sides[0].scores.keys() & sides[1].scores.keys())
    if not seeds:
        raise InputError(f"{first} and {second} have no finished seed in common with a score {judged.name!r}")
    differences = tuple(sides[1].scores[seed] - sides[0].scores[seed] for seed in seeds)
    test = Paired(differences, confidence, judged.lower_is_better) if len(differences) > 1 else None
    return KeptComparison(sides[0], sides[1], judged, test)


def _summaries(folder: Path) -> dict[int, Summary]:
    """Return the summaries of an experiment's finished seeds."""
    summaries = [one.read_summary() for one in RunFolder.finished_in(folder)]
    found = {summary.seed: summary for summary in summaries}
    if not found:
        raise InputError(
            f"{folder} has no finished seed: it must be an experiment's folder, with seed-<n>/summary.json in it"
        )
    return found


def _judged(summaries: list[Summary], metric: str | None) -> Judged:
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


def _kept_side(folder: Path, summaries: dict[int, Summary], judged: Judged) -> Kept:
    scores = {seed: score for seed, summary in summaries.items() if (score := judged.of(summary)) is not None}
    return Kept(folder, scores, plain(worst_epsilon(summaries.values())))
