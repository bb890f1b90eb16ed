"""Run experiments as one batch: every seed of each, into its own folder, none of them twice.

What a command says before a private run charges anything: it follows from the file, never from cells.

The one place where commands run experiments: ``run`` has one, ``compare``, ``sweep`` and ``demo`` have several.

What is said on standard error of each seed as it is done; live tables are the batch's own.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from upcycled._utils.formats import fixed
from upcycled._utils.lock import InUseError, locked
from upcycled._utils.messages import is_terminal, say
from upcycled._utils.statistics import mean_and_sd
from upcycled.config.experiment import PLAN_KEYS, Experiment
from upcycled.config.sources import ColumnsFile
from upcycled.config.tables import in_keys, named
from upcycled.core.errors import InputError, UpcycledError
from upcycled.data import FederatedData
from upcycled.experiments.metric_choice import Judged
from upcycled.experiments.private_files import note_other_data
from upcycled.experiments.results import PLACE, FolderRun, finished_summary, folder_run, seed_folder
from upcycled.experiments.run_in_folder import drop_checkpoint, run_in_folders
from upcycled.privacy.accounts.account import Account, Cost
from upcycled.run_folder import RunFolder, Summary, plain, worst_epsilon
from upcycled.training import Callback, Result
from upcycled.training.charging import costs_of, new_to_account, replan
from upcycled.training.checkpoint.checkpointer import way_out
from upcycled.training.checkpoint.files import has_checkpoints
from upcycled.training.executor import Failed, Job, train_each
from upcycled.training.plan import Plan, make_plan
from upcycled.training.progress import BatchProgress
from upcycled.training.publication import Publication, publication_of
from upcycled.training.spec import RunSpec


def about_cells(experiment: Experiment) -> tuple[str, ...]:
    """Say how the holder sees what a restricted run replaces without a word; nothing of other experiments.

    The run itself cannot: whether cells fit the schema follows from records. So it is said of every such run alike.
    """
    table = experiment.data
    if not experiment.is_restricted or not isinstance(table, ColumnsFile) or table.schema_ is None:
        return ()
    paths = [table.path] if isinstance(table.path, str) else table.path
    files = shlex.join(os.path.relpath(path) for path in paths)
    return (
        "cells that do not fit the schema are replaced without a word here, labels too: `upcycled data check "
        f"{files} --schema SCHEMA --repair` says how many, to the holder alone",
    )


AVERAGED = ("accuracy", "loss", "data_rounds", "iterations", "messages", "bytes", "gradient_steps", "seconds")
AT_ONCE = 256
"""Runs planned together: plans hold arrays, so thousands are not made at once."""
ORPHAN_SECONDS = 3.0
"""How long the workers of a killed command may take to notice that it is gone."""


@dataclass(frozen=True)
class SeedOutcome:
    """What became of one seed."""

    seed: int
    status: Literal["finished", "reused", "stopped"]
    folder: Path
    summary: Summary | None = None
    """The numbers of a run that went to its end; of one that stopped they are in its folder only."""
    error: str | None = None
    """Why it stopped: it diverged, or nobody could pay for a round."""
    went_on: bool = False
    """Whether it was begun by an earlier command, which left a checkpoint."""

    def as_json(self) -> dict[str, Any]:
        about = {"seed": self.seed, "status": self.status, "folder": str(self.folder), "error": self.error}
        return {**({} if self.summary is None else self.summary.as_json()), **about}


@dataclass(frozen=True)
class Outcome:
    """What became of an experiment."""

    experiment: Experiment
    seeds: tuple[SeedOutcome, ...]

    @property
    def is_complete(self) -> bool:
        """Whether every seed has a result."""
        return all(seed.summary is not None for seed in self.seeds)

    @property
    def finished(self) -> list[Summary]:
        """The summaries of seeds that have a result."""
        return [seed.summary for seed in self.seeds if seed.summary is not None]

    @property
    def is_restricted(self) -> bool:
        """Whether scores of its runs are the data holder's own."""
        return any(summary.restricted for summary in self.finished)

    @property
    def worst_epsilon(self) -> float | None:
        """The largest epsilon of a client in a seed; None without privacy, or where none is finite."""
        found: float | None = plain(worst_epsilon(self.finished))
        return found

    def summary(self) -> dict[str, dict[str, float | None]]:
        """Return mean and standard deviation over the seeds that have a result."""
        return {key: mean_and_sd(getattr(summary, key) for summary in self.finished) for key in AVERAGED}

    def scores(self, judged: Judged) -> list[float | None]:
        """Return a score of each seed; None where it has none."""
        return [None if seed.summary is None else judged.of(seed.summary) for seed in self.seeds]


Watch: TypeAlias = Callable[[Experiment, int], Sequence[Callback]]
"""Who watches the run of a seed."""
Tell: TypeAlias = Callable[[Experiment, SeedOutcome], None]
"""Told of each seed as it is done."""


@dataclass(frozen=True)
class Options:
    """How a batch is carried out and shown; nothing here changes a result."""

    progress: bool = False
    """Show a live table on standard error."""
    parquet: bool = False
    """Write ``metrics.parquet`` beside ``metrics.jsonl``."""
    resume_anyway: bool = False
    """Go on from checkpoints that other versions or other code wrote, and reuse runs of such code."""
    watch: Watch = field(default=lambda experiment, seed: ())
    tell: Tell = field(default=lambda experiment, outcome: None)
    remark: Callable[[str], None] = field(default=lambda words: None)
    """Told, before anything is charged, what everybody may know of it; a sentence may come more than once."""


@dataclass(frozen=True)
class Variant:
    """An experiment that was found to be in order."""

    experiment: Experiment
    title: str
    """What tables and sentences call it."""
    data: FederatedData
    about: dict[str, Any]
    """What may be said of the data."""
    shown: Publication
    """What may be seen of its runs."""
    plan: Plan | None
    """The first seed's, which was made to see that all is in order; None where a batch has too many to keep."""
    there: Mapping[int, Summary]
    """The summaries of seeds that are finished or stopped."""
    owed: tuple[tuple[Cost, ...], ...] = ()
    """What each seed that is to be run will charge to the data holder's account."""

    def folder(self, seed: int) -> RunFolder:
        """Return where a seed's results lie."""
        return seed_folder(self.experiment, seed)

    def checkpoint(self, seed: int) -> Path:
        """Return where a seed's run is kept while it goes on."""
        return self.folder(seed).checkpoint(self.shown.is_restricted)

    def run(self, seed: int) -> FolderRun:
        """Return a seed's run in its folder."""
        return folder_run(self.experiment, seed, self.data, self.shown, self.about)

    def job(self, spec: RunSpec, changes: Mapping[str, Any]) -> Job:
        """Return a seed's run with some fields of its spec changed."""
        if self.plan is not None and spec.seed == self.experiment.seeds[0]:
            return self.plan.kept(**changes)
        return self.data, spec.replace(**changes)


@dataclass(frozen=True)
class Batch:
    """Experiments that were checked completely and can be run; nothing is written yet."""

    variants: tuple[Variant, ...]
    source: str

    @property
    def is_finished(self) -> bool:
        """Whether every seed has its result already, or stopped without one."""
        return all(seed in v.there for v in self.variants for seed in v.experiment.seeds)

    @property
    def owed(self) -> dict[str, tuple[tuple[Cost, ...], int]]:
        """What all runs together will charge to each account, by its folder, and how many runs that are."""
        found: dict[str, tuple[tuple[Cost, ...], int]] = {}
        for variant in self.variants:
            privacy = variant.experiment.privacy
            if not variant.owed or privacy is None or privacy.account is None:
                continue
            costs, runs = found.get(privacy.account, ((), 0))
            more = tuple(cost for each in variant.owed for cost in each)
            found[privacy.account] = (*costs, *more), runs + len(variant.owed)
        return found

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is to be said before runs charge anything; it depends on no record."""
        todo = [v.experiment for v in self.variants if any(seed not in v.there for seed in v.experiment.seeds)]
        found = [words for experiment in todo for words in about_cells(experiment)]
        for folder, (costs, _) in self.owed.items():
            found += new_to_account(Account(folder), [name for cost in costs for name in cost.clients])
        return tuple(dict.fromkeys(found))

    def run(self, options: Options | None = None) -> list[Outcome]:
        """Run every seed that has no result yet, and write each as soon as it is there.

        A seed that was begun goes on from its checkpoint. One that diverges or has spent its budget keeps what it had
        by then, with the reason in its summary, and is not run again; the others go on. The caller holds the folder
        that all results lie below (see :func:`upcycled._utils.lock.locked`).
        """
        return _run_all(self, options or Options())


def prepare_batch(
    experiments: Sequence[Experiment], source: str, titles: Sequence[str] | None = None, options: Options | None = None
) -> Batch:
    """Check experiments completely, their results folders included, without writing anything.

    Args:
        experiments: each with a name of its own below its results folder.
        source: the file's name, for error sentences.
        titles: what tables and sentences call the experiments; their names if left out.
        options: how the batch will be run.
    """
    known: dict[str, FederatedData] = {}
    described: dict[tuple[str, bool], dict[str, Any]] = {}
    variants = []
    with named(source):
        for i, experiment in enumerate(experiments):
            # Experiments on the same data share it.
            key = f"{experiment.data!r} {experiment.scored_on}"
            if key not in known:
                known[key] = experiment.build_data()
            title, data = experiment.name if titles is None else titles[i], known[key]
            with _named_after(title, len(experiments)):
                with in_keys(PLAN_KEYS):
                    plan = make_plan(data, experiment.spec(experiment.seeds[0]))
                shown = publication_of(plan)
                if (key, shown.is_restricted) not in described:
                    described[key, shown.is_restricted] = shown.about(data)
                about = described[key, shown.is_restricted]
                anyway = _is_anyway(experiment, options)
                found = {seed: finished_summary(experiment, seed, about, anyway) for seed in experiment.seeds}
                there = {seed: summary for seed, summary in found.items() if summary is not None}
            owed = _owed(plan, experiment, shown, there)
            kept = plan if i < AT_ONCE else None
            variants.append(Variant(experiment, title, data, about, shown, kept, there, owed))
        batch = Batch(tuple(variants), source)
        with in_keys(PLAN_KEYS):
            for folder, (costs, runs) in batch.owed.items():
                Account(folder).check(costs, "this run" if runs == 1 else f"these {runs} runs together")
    return batch


def _owed(
    plan: Plan, experiment: Experiment, shown: Publication, there: Mapping[int, Summary]
) -> tuple[tuple[Cost, ...], ...]:
    """Return what each seed is going to charge to its account; one that goes on is checked when it does."""
    if plan.spec.account_path is None:
        return ()
    checkpoints = [seed_folder(experiment, seed).checkpoint(shown.is_restricted) for seed in experiment.seeds]
    is_new = [not has_checkpoints(checkpoint) for checkpoint in checkpoints]
    seeds = [seed for seed, new in zip(experiment.seeds, is_new, strict=True) if new and seed not in there]
    if plan.participation.fraction == 1.0:  # every seed has the same schedule
        return (costs_of(plan),) * len(seeds)
    return tuple(costs_of(replan(plan, experiment.spec(seed))) for seed in seeds)


@contextmanager
def _named_after(title: str, of: int) -> Iterator[None]:
    """Say which of several experiments an error is about."""
    try:
        yield
    except InputError as error:
        if of == 1:
            raise
        raise error.at(title) from error


def _run_all(batch: Batch, options: Options) -> list[Outcome]:
    for words in batch.remarks:
        options.remark(words)
    outcomes: dict[tuple[int, int], SeedOutcome] = {}
    todo: list[tuple[int, int]] = []
    with named(batch.source):
        for i, variant in enumerate(batch.variants):
            for seed in variant.experiment.seeds:
                summary = variant.there.get(seed) or _ended_since(variant, seed, options)
                if summary is None:
                    todo.append((i, seed))
                    continue
                drop_checkpoint(variant.folder(seed), variant.shown.is_restricted)  # of a kill before it was dropped
                if variant.shown.is_restricted:
                    note_other_data(variant.folder(seed), variant.data)
                outcomes[i, seed] = _found(variant, seed, summary)
                options.tell(variant.experiment, outcomes[i, seed])
    begun = {place for place in todo if has_checkpoints(batch.variants[place[0]].checkpoint(place[1]))}
    is_shown = options.progress and all(variant.experiment.progress for variant in batch.variants)
    table = BatchProgress(len(todo), is_shown)
    with named(batch.source), in_keys(PLAN_KEYS), table.shown():
        for start in range(0, len(todo), AT_ONCE):
            for place, outcome in _train(batch.variants, todo[start : start + AT_ONCE], table, options):
                outcomes[place] = replace(outcome, went_on=place in begun)
                options.tell(batch.variants[place[0]].experiment, outcomes[place])
    return [
        Outcome(variant.experiment, tuple(outcomes[i, seed] for seed in variant.experiment.seeds))
        for i, variant in enumerate(batch.variants)
    ]


def _ended_since(variant: Variant, seed: int, options: Options) -> Summary | None:
    """Return the summary of a seed that another command finished after this one had looked."""
    if not variant.folder(seed).is_finished:
        return None
    return finished_summary(variant.experiment, seed, variant.about, _is_anyway(variant.experiment, options))


def _is_anyway(experiment: Experiment, options: Options | None) -> bool:
    return experiment.resume_anyway or (options is not None and options.resume_anyway)


def _found(variant: Variant, seed: int, summary: Summary) -> SeedOutcome:
    """Return what became of a seed that an earlier command ran; one that stopped would only stop, or pay, again."""
    folder = variant.folder(seed).path
    if summary.error is not None:
        advice = way_out(variant.experiment.noise == "system", PLACE)
        said = f"{summary.error} (in an earlier command, which kept it in {folder}; to run it again, {advice})"
        return SeedOutcome(seed, "stopped", folder, error=said)
    return SeedOutcome(seed, "reused", folder, summary=summary)


def _train(
    variants: Sequence[Variant], places: Sequence[tuple[int, int]], table: BatchProgress, options: Options
) -> Iterator[tuple[tuple[int, int], SeedOutcome]]:
    """Yield what became of some seeds as they end."""
    runs = [variants[i].run(seed) for i, seed in places]
    titles = [f"{variants[i].title}, seed {seed}" if len(variants) > 1 else f"seed {seed}" for i, seed in places]
    for i, seed in places:
        _wait_for_orphans(variants[i].checkpoint(seed))

    def job(k: int, kept: Mapping[str, Any]) -> Job:
        (i, seed), spec = places[k], runs[k].spec
        callbacks = [*spec.callbacks, *options.watch(variants[i].experiment, seed)]
        is_anyway = _is_anyway(variants[i].experiment, options)
        return variants[i].job(spec, {**kept, "resume_anyway": is_anyway, "callbacks": callbacks})

    def carry_out(jobs: Sequence[Job]) -> Generator[tuple[int, Result | Failed], None, None]:
        return train_each(jobs, progress=table, titles=titles)

    with closing(run_in_folders(runs, job, carry_out, parquet=options.parquet)) as ended:
        for k, result, summary in ended:
            yield places[k], _outcome(runs[k], result.error, summary)


def _outcome(run: FolderRun, error: BaseException | None, summary: Summary | None) -> SeedOutcome:
    """Return what became of a run; what stopped one run is its outcome, what would stop all is raised."""
    seed, folder = run.spec.seed, run.folder.path
    if isinstance(error, BrokenProcessPool):
        raise UpcycledError(
            f"a worker process died while {folder} was computed (most often the memory is too small): finished runs "
            "are kept, and the same command goes on"
        ) from error
    if summary is None:
        assert error is not None  # what has no result failed
        raise error
    if error is not None:
        return SeedOutcome(seed, "stopped", folder, error=str(error))
    return SeedOutcome(seed, "finished", folder, summary=summary)


def _wait_for_orphans(checkpoint: Path) -> None:
    """Wait for a worker whose command was killed: it holds its run's folder until it notices."""
    until = time.monotonic() + ORPHAN_SECONDS
    while checkpoint.is_dir():
        try:
            with locked(checkpoint):
                return
        except InUseError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def run_experiment(experiment: Experiment, source: str, options: Options | None = None) -> Outcome:
    """Run every seed that has no result yet, and write each as soon as it is there.

    Everything is checked before the first byte is written. A seed that diverges is reported; the others go on.

    Args:
        experiment: from :func:`upcycled.config.experiment.load_config`.
        source: the file's name, for error sentences.
        options: how it is shown, and what is kept.
    """
    batch = prepare_batch([experiment], source, options=options)
    if batch.is_finished:
        return batch.run(options)[0]
    with locked(experiment_folder(experiment)):
        return batch.run(options)[0]


def experiment_folder(experiment: Experiment) -> Path:
    """Return the folder that all results of an experiment lie below."""
    return Path(experiment.results) / experiment.name


def seed_line(outcome: SeedOutcome) -> str:
    """Return what became of a seed, in one line."""
    if outcome.status == "stopped":
        return f"seed {outcome.seed} stopped: {outcome.error}"
    if outcome.status == "reused":
        return f"seed {outcome.seed} is already there with this config and was not run again"
    how = ", from the checkpoint of an earlier command on" if outcome.went_on else ""
    return f"seed {outcome.seed} finished{how}: {outcome.folder}"


def tell_failures(experiment: Experiment, outcome: SeedOutcome) -> None:
    """Name runs that gave no result, and say nothing of the others: for batches of many."""
    if outcome.error is not None:
        say(f"{experiment.name}, {seed_line(outcome)}")


def tell_scores() -> Tell:
    """Return what says how each run ended; in a terminal the live table shows that, and only failures are said."""
    return tell_failures if is_terminal() else _tell_score


def _tell_score(experiment: Experiment, outcome: SeedOutcome) -> None:
    summary = outcome.summary
    if summary is None or summary.accuracy is None:
        tell_failures(experiment, outcome)
        return
    accuracy = fixed(summary.accuracy, 2, 100)
    say(f"{experiment.name}, seed {outcome.seed}: accuracy {accuracy} % after {summary.data_rounds} data rounds")
