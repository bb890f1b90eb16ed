"""A sweep: many settings as one batch, chosen on validation data, and one test score in the end.

Selection runs are scored on the validation part of every client in the place of its test part, which they never see.
Only the settings that are chosen are run once more and scored on test data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upcycled._utils.extras import needs
from upcycled._utils.files import write_json, write_whole
from upcycled._utils.formats import general, percent
from upcycled._utils.lock import locked
from upcycled._utils.statistics import mean_and_sd
from upcycled.config.experiment import Experiment, parse
from upcycled.config.overrides import put
from upcycled.config.tables import named
from upcycled.core.errors import InputError, UpcycledError
from upcycled.experiments.batch import Batch, Options, Outcome, experiment_folder, prepare_batch
from upcycled.experiments.metric_choice import ACCURACY, Judged, judged_by, with_metric
from upcycled.experiments.search_space import Point, draws, grid, search
from upcycled.privacy.accounts.account import Account
from upcycled.run_folder import plain

FOLDER = "sweep"
DOCUMENT = "sweep.json"
CHOSEN = "chosen.toml"


@dataclass(frozen=True)
class Ranked:
    """A point and how it did on validation data."""

    point: Point
    outcome: Outcome
    judged: Judged = ACCURACY

    @property
    def is_complete(self) -> bool:
        """Whether every seed has a score; a point that diverges is never chosen."""
        return self.outcome.is_complete and None not in self.outcome.scores(self.judged)

    @property
    def goodness(self) -> float | None:
        """The mean score over seeds, turned round where a lower one is better; None where a seed has none."""
        if not self.is_complete:
            return None
        mean = mean_and_sd(self.outcome.scores(self.judged))["mean"]
        return None if mean is None else -mean if self.judged.lower_is_better else mean

    @property
    def order(self) -> tuple[bool, float, float]:
        """What points are ordered by, the best first: mean score over seeds, then mean loss."""
        if self.goodness is None:
            return True, 0.0, 0.0
        loss = self.outcome.summary()["loss"]["mean"]
        return False, -self.goodness, float("inf") if loss is None else loss

    def as_json(self) -> dict[str, Any]:
        summary = self.outcome.summary()
        return {
            "folder": self.outcome.experiment.name,
            "settings": {key: plain(value) for key, value in self.point.values},
            "accuracy": summary["accuracy"],
            "loss": summary["loss"],
            "score": mean_and_sd(self.outcome.scores(self.judged)),
            "failed": [
                seed.seed
                for seed, score in zip(self.outcome.seeds, self.outcome.scores(self.judged), strict=True)
                if score is None
            ],
        }


@dataclass(frozen=True)
class Swept:
    """What a sweep found and wrote."""

    experiment: Experiment
    how: str
    ranking: tuple[Ranked, ...]
    chosen: Outcome
    """The best point's runs, scored on test data."""
    folder: Path
    repeat: str
    judged: Judged = ACCURACY

    @property
    def chosen_file(self) -> Path:
        """The file that runs the chosen settings."""
        return self.folder / CHOSEN

    @property
    def notes(self) -> list[str]:
        """What a reader of the table has to know."""
        name = "accuracy" if self.judged.name == "accuracy" else self.judged.words
        found = [
            f"Ranked by mean {name} on validation samples held out of every client's training samples (ties: loss); "
            "test data took no part in the choice."
        ]
        failed = sum(not ranked.is_complete for ranked in self.ranking)
        if failed:
            found.append(f"{failed} of {len(self.ranking)} settings diverged with at least one seed and come last.")
        if self.experiment.privacy is not None and self.experiment.is_restricted:
            found.append(
                "Chosen by scores that are charged. Every trial, the losers too, is charged to the account; epsilon is "
                "this run's part of it."
            )
        elif self.experiment.privacy is not None:
            found.append(
                "Epsilon is that of one run: what the sweep itself has spent on the same data, and the choice, are not "
                "covered."
            )
        return found

    def as_json(self) -> dict[str, Any]:
        summary, best = self.chosen.summary(), self.ranking[0]
        return {
            "name": self.experiment.name,
            "how": self.how,
            "judged": self.judged.as_json(),
            "seeds": list(best.outcome.experiment.seeds),
            "ranking": [{"rank": i, **ranked.as_json()} for i, ranked in enumerate(self.ranking, start=1)],
            "chosen": {
                "settings": best.as_json()["settings"],
                "folder": self.chosen.experiment.name,
                "file": CHOSEN,
                "seeds": list(self.chosen.experiment.seeds),
                "validation": {name: best.as_json()[name] for name in ("accuracy", "loss", "score")},
                "test": {
                    "accuracy": summary["accuracy"],
                    "loss": summary["loss"],
                    "score": mean_and_sd(self.chosen.scores(self.judged)),
                },
            },
            "notes": self.notes,
            "repeat": self.repeat,
        }


@dataclass(frozen=True)
class How:
    """Which points are tried."""

    random: int | None = None
    """So many draws; None: the grid, or Optuna."""
    optuna: int | None = None
    """So many of Optuna's points."""
    draw_seed: int = 0
    seeds: tuple[int, ...] | None = None
    """Of the selection runs; the file's if left out."""
    metric: str | None = None
    """The score that points are chosen by; accuracy if left out, or the loss where right answers have no meaning."""

    @property
    def words(self) -> str:
        if self.optuna is not None:
            return f"{self.optuna} points of Optuna's, seed {self.draw_seed}"
        return "grid" if self.random is None else f"{self.random} random draws, seed {self.draw_seed}"


def sweep_experiment(
    experiment: Experiment,
    source: str,
    how: How | None = None,
    *,
    repeat: str = "",
    options: Options | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Swept:
    """Try all points, choose the best on validation data, score it on test data, and write all that down.

    Args:
        experiment: from :func:`upcycled.config.experiment.load_config`, with a table [sweep].
        source: the file's name, for error sentences.
        how: which points are tried; all combinations if left out.
        repeat: the command that does this, for the document.
        options: how it is shown, and what is kept.
        tell: told in a line what is going to be run.
    """
    how, options = how or How(), options or Options()
    with named(source):
        experiment = with_metric(experiment, how.metric)
    if how.optuna is not None:
        needs("--optuna", "optuna")
    folder = experiment_folder(experiment) / FOLDER
    seeds = len(how.seeds or experiment.seeds)
    tried: dict[str, Ranked] = {}

    def prepared(points: Sequence[Point]) -> Batch:
        variants = [_selection(experiment, point, how, folder) for point in points]
        batch = prepare_batch(variants, source, [point.label for point in points], options)
        if any(variant.shown.is_restricted for variant in batch.variants):
            _check_restricted(experiment, how)
            judged_by(experiment, how.metric, batch.variants[0].plan)  # says what may not be chosen by
        swept = next((key for key in experiment.sweep if key.partition(".")[0] == "loss"), None)
        if swept is not None and any(variant.data.targets != "classes" for variant in batch.variants):
            raise InputError(
                "is swept, but targets that are no classes have no accuracy to choose by, and values of different "
                "losses must not be compared: run a file for each",
                field=f'sweep."{swept}"',
            )
        return batch

    def carry_out(batch: Batch, points: Sequence[Point]) -> None:
        outcomes = batch.run(options)
        for point, outcome in zip(points, outcomes, strict=True):
            tried[point.mark] = Ranked(point, outcome, judged_by(experiment, how.metric, batch.variants[0].plan))

    def evaluate(points: Sequence[Point]) -> list[float | None]:
        different = list({point.mark: point for point in points}.values())
        carry_out(prepared(different), different)
        return [tried[point.mark].goodness for point in points]

    with named(source):
        points = _checked(experiment, how)
        # Whatever is wrong is said before the folder is made; Optuna's points are not known yet, but the file is.
        batch = prepared(points or [Point(())])
        paid = _paid(batch, len(experiment.seeds))
    with locked(experiment_folder(experiment)), named(source):
        for words in paid:
            tell(words)
        if how.optuna is not None:
            tell(f"{how.optuna} settings x {seeds} seeds, chosen by Optuna as it goes")
            judged = judged_by(experiment, how.metric, batch.variants[0].plan)
            # No accuracy is below zero: what gave none is as bad as can be.
            worst = 0.0 if judged.name == "accuracy" else None
            search(experiment.sweep, how.optuna, how.draw_seed, evaluate, worst)
        else:
            tell(f"{len(points)} settings x {seeds} seeds = {len(points) * seeds} runs")
            carry_out(batch, points)
        ranking = tuple(sorted(tried.values(), key=lambda ranked: ranked.order))
        if not ranking[0].is_complete:
            raise UpcycledError(f"every one of {len(ranking)} settings diverged: lower local.lr in [sweep]")
        return _finished(experiment, source, how, ranking, folder, repeat, options)


def _check_restricted(experiment: Experiment, how: How) -> None:
    """Refuse a sweep of private runs that nobody pays for, or that would choose by what nobody may see."""
    privacy = experiment.privacy
    if privacy is None or privacy.account is None:
        raise InputError(
            field="privacy.noise",
            value="system",
            but="every trial of a sweep is a release of the same data: privacy.account must name an account that pays "
            "for all of them, or the noise be 'seeded', a simulation, or the data be declared public",
        )
    if not experiment.is_restricted:
        raise InputError(
            field="privacy.noise",
            value=experiment.noise,
            must="'system' in the file itself, where a point of its sweep has that: one score chooses among all points",
        )
    if privacy.scores is None:
        raise InputError(
            "is missing, but a sweep of private runs must choose by scores that are charged, such as "
            "{ noise_std = 10.0, every = 100 }",
            field="privacy.scores",
        )
    if how.optuna is not None:
        raise InputError(
            "--optuna chooses settings as it goes, but what private runs cost must be known before the first: use a "
            "grid or --random"
        )


def _paid(batch: Batch, seeds: int) -> list[str]:
    """Return, for each account, what all trials and the chosen run will cost it, in words; refuse what does not fit."""
    found = []
    for folder, (costs, runs) in batch.owed.items():
        account = Account(folder)
        # The chosen settings are run once more, with the file's seeds: they cost no more than the costliest.
        runs_of = [each for variant in batch.variants for each in variant.owed]
        last = max(runs_of, key=account.share_of) * seeds
        account.check((*costs, *last), f"the {runs} trials and the chosen settings together")
        found.append(
            f"{runs} trials will be charged to account {account.id}, and the chosen settings once more: "
            f"{percent(account.share_of((*costs, *last)))} of the worst client's budget of epsilon "
            f"{general(account.terms.epsilon)} at delta {general(account.terms.delta)}"
        )
    return found


def _finished(
    experiment: Experiment,
    source: str,
    how: How,
    ranking: tuple[Ranked, ...],
    folder: Path,
    repeat: str,
    options: Options,
) -> Swept:
    """Score the best point on test data, and write the documents."""
    best = ranking[0].point
    final = _variant(experiment, best, f"chosen-{best.mark}", str(folder))
    outcome = prepare_batch([final], source, options=options).run(options)[0]
    swept = Swept(experiment, how.words, ranking, outcome, folder, repeat, ranking[0].judged)
    own = _variant(experiment, best, f"{experiment.name[:90]}-chosen", experiment.results)
    write_whole(swept.chosen_file, (_heading(best) + own.resolved_toml()).encode())
    write_json(folder / DOCUMENT, swept.as_json())
    return swept


def _heading(point: Point) -> str:
    return f"# Chosen on validation data: {point.label}.\n# Its validation samples are still held out of training.\n"


def _checked(experiment: Experiment, how: How) -> list[Point]:
    """Refuse what cannot be swept, in one sentence; return the points, none yet where Optuna chooses them."""
    if not experiment.sweep:
        raise InputError(field="sweep", but='a sweep needs a table [sweep] of lists, such as "local.lr" = [0.01, 0.1]')
    if how.random is not None and how.optuna is not None:
        raise InputError("--random and --optuna are both given, but a sweep takes its points in one way")
    if how.optuna is not None:
        return []
    return grid(experiment.sweep) if how.random is None else draws(experiment.sweep, how.random, how.draw_seed)


def _selection(experiment: Experiment, point: Point, how: How, folder: Path) -> Experiment:
    """Return a point's experiment as it is chosen by: on validation data."""
    found = _variant(experiment, point, point.mark, str(folder))
    return found.model_copy(update={"scored_on": "validation", "seeds": how.seeds or experiment.seeds})


def _variant(experiment: Experiment, point: Point, name: str, results: str) -> Experiment:
    # As it was said, not as it is resolved: a point with another kind of table takes that kind's own defaults.
    raw = {key: value for key, value in experiment.said().items() if key != "sweep"}
    for key, value in point.values:
        raw = put(raw, tuple(key.split(".")), value)
    try:
        return parse({**raw, "name": name, "results": results, "scored_on": "test"})
    except InputError as error:
        raise error.at(f"the sweep's point {point.label}") from error
