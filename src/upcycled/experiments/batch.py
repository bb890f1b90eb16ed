"""Run experiments as one batch: every seed of each, into its own folder, none of them twice.

The one place where commands run experiments: ``run`` has one, ``compare``, ``sweep`` and ``demo`` have several.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from upcycled.config.experiment import PLAN_KEYS, Experiment
from upcycled.config.wording import in_keys, named
from upcycled.core.errors import BudgetSpentError, DivergedError, InputError, UpcycledError
from upcycled.data import FederatedData
from upcycled.experiments.results import (
    begin_seed,
    describe_data,
    finished_summary,
    forget_seed,
    open_ledger,
    seed_folder,
    write_seed,
)
from upcycled.runtime import Callback, Result
from upcycled.runtime.display.batch_progress import BatchProgress
from upcycled.runtime.executor import Job, train_each
from upcycled.runtime.plan import Plan, make_plan
from upcycled.support.lock import InUseError, locked
from upcycled.support.statistics import mean_and_sd

SUMMARY_KEYS = ("accuracy", "loss", "data_rounds", "iterations", "messages", "bytes", "gradient_steps", "seconds")
AT_ONCE = 256
"""Runs planned together: plans hold arrays, so thousands are not made at once."""
ORPHAN_SECONDS = 3.0
"""How long the workers of a killed command may take to notice that it is gone."""


@dataclass(frozen=True)
class SeedOutcome:
    """What became of one seed."""

    seed: int
    status: Literal["finished", "reused", "failed"]
    folder: Path
    summary: dict[str, Any] | None = None
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        about = {"seed": self.seed, "status": self.status, "folder": str(self.folder), "error": self.error}
        return {**(self.summary or {}), **about}


@dataclass(frozen=True)
class Outcome:
    """What became of an experiment."""

    experiment: Experiment
    seeds: tuple[SeedOutcome, ...]

    @property
    def is_complete(self) -> bool:
        """Whether every seed has a result."""
        return all(seed.summary is not None for seed in self.seeds)

    def summary(self) -> dict[str, dict[str, float | None]]:
        """Return mean and standard deviation over the seeds that have a result."""
        done = [seed.summary for seed in self.seeds if seed.summary is not None]
        return {key: mean_and_sd(summary[key] for summary in done) for key in SUMMARY_KEYS}


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
    """Go on from checkpoints that other versions wrote."""
    keep_checkpoints: bool = True
    """Whether a finished seed keeps its checkpoints."""
    watch: Watch = field(default=lambda experiment, seed: ())
    tell: Tell = field(default=lambda experiment, outcome: None)


@dataclass(frozen=True)
class Variant:
    """An experiment that was found to be in order."""

    experiment: Experiment
    title: str
    """What tables and sentences call it."""
    data: FederatedData
    about: dict[str, Any]
    """What identifies the data."""
    plan: Plan | None
    """The first seed's, which was made to see that all is in order; None where a batch has too many to keep."""
    there: Mapping[int, dict[str, Any]]
    """The summaries of seeds that are finished."""

    def folder(self, seed: int) -> Path:
        """Return where a seed's results lie."""
        return seed_folder(self.experiment, seed)

    def job(self, seed: int, watching: Sequence[Callback], **changes: Any) -> Job:
        """Return a seed's run, kept and watched as is said."""
        if self.plan is not None and seed == self.experiment.seeds[0]:
            return self.plan.kept(**changes, callbacks=[*self.plan.spec.callbacks, *watching])
        spec = self.experiment.spec(seed)
        return self.data, spec.replace(**changes, callbacks=[*spec.callbacks, *watching])


@dataclass(frozen=True)
class Batch:
    """Experiments that were checked completely and can be run; nothing is written yet."""

    variants: tuple[Variant, ...]
    source: str

    @property
    def is_finished(self) -> bool:
        """Whether every seed has its result already."""
        return all(seed in v.there for v in self.variants for seed in v.experiment.seeds)

    def run(self, options: Options | None = None) -> list[Outcome]:
        """Run every seed that has no result yet, and write each as soon as it is there.

        A seed that was begun goes on from its checkpoint. One that diverges is reported; the others go on. The caller
        holds the folder that all results lie below (see :func:`upcycled.support.lock.locked`).
        """
        return _run_all(self, options or Options())


def prepare_batch(experiments: Sequence[Experiment], source: str, titles: Sequence[str] | None = None) -> Batch:
    """Check experiments completely, their results folders included, without writing anything.

    Args:
        experiments: each with a name of its own below its results folder.
        source: the file's name, for error sentences.
        titles: what tables and sentences call the experiments; their names if left out.
    """
    known: dict[str, tuple[FederatedData, dict[str, Any]]] = {}
    variants = []
    with named(source):
        for i, experiment in enumerate(experiments):
            # Experiments on the same data share it.
            key = f"{experiment.data!r} {experiment.scored_on}"
            if key not in known:
                data = experiment.build_data()
                known[key] = data, describe_data(data)
            title = experiment.name if titles is None else titles[i]
            data, about = known[key]
            with _named_after(title, len(experiments)):
                with in_keys(PLAN_KEYS):
                    plan = make_plan(data, experiment.spec(experiment.seeds[0]))
                there = {
                    seed: summary
                    for seed in experiment.seeds
                    if (summary := finished_summary(seed_folder(experiment, seed), experiment, seed, about)) is not None
                }
            variants.append(Variant(experiment, title, data, about, plan if i < AT_ONCE else None, there))
    return Batch(tuple(variants), source)


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
    outcomes: dict[tuple[int, int], SeedOutcome] = {}
    todo: list[tuple[int, int]] = []
    with named(batch.source):
        for i, variant in enumerate(batch.variants):
            for seed in variant.experiment.seeds:
                summary = variant.there.get(seed)
                if summary is None:
                    todo.append((i, seed))
                    continue
                outcomes[i, seed] = SeedOutcome(seed, "reused", variant.folder(seed), summary=summary)
                options.tell(variant.experiment, outcomes[i, seed])
    table = BatchProgress(len(todo), options.progress)
    with named(batch.source), in_keys(PLAN_KEYS), table.shown():
        for start in range(0, len(todo), AT_ONCE):
            for (i, seed), result in _train(batch.variants, todo[start : start + AT_ONCE], table, options):
                variant = batch.variants[i]
                outcomes[i, seed] = _kept(variant, seed, result, options)
                options.tell(variant.experiment, outcomes[i, seed])
    return [
        Outcome(variant.experiment, tuple(outcomes[i, seed] for seed in variant.experiment.seeds))
        for i, variant in enumerate(batch.variants)
    ]


def _train(
    variants: Sequence[Variant], places: Sequence[tuple[int, int]], table: BatchProgress, options: Options
) -> Iterator[tuple[tuple[int, int], Result | Exception]]:
    """Yield the results of some seeds as they come."""
    runs, titles = [], []
    for i, seed in places:
        variant, folder = variants[i], variants[i].folder(seed)
        _wait_for_orphans(folder / "checkpoint")
        begin_seed(folder, variant.experiment, seed)
        ledger = None if variant.experiment.privacy is None else open_ledger(folder, variant.experiment)
        watching = options.watch(variant.experiment, seed)
        kept = {"checkpoint": folder / "checkpoint", "ledger": ledger, "resume_anyway": options.resume_anyway}
        runs.append(variant.job(seed, watching, **kept))
        titles.append(f"{variant.title}, seed {seed}" if len(variants) > 1 else f"seed {seed}")
    # Closed, not left to the collector: an error here must stop the runs that are under way.
    with closing(train_each(runs, progress=table, titles=titles)) as results:
        for place, result in results:
            error = result.error
            if isinstance(error, Exception):
                yield places[place], error
            elif isinstance(result, Result):
                yield places[place], result


def _kept(variant: Variant, seed: int, result: Result | Exception, options: Options) -> SeedOutcome:
    """Write a result down; what stopped one run is its outcome, what would stop all is raised."""
    folder = variant.folder(seed)
    if isinstance(result, DivergedError | BudgetSpentError):
        forget_seed(folder)
        return SeedOutcome(seed, "failed", folder, error=str(result))
    if isinstance(result, BrokenProcessPool):
        raise UpcycledError(
            f"a worker process died while {folder} was computed (most often the memory is too small): finished runs "
            "are kept, and the same command goes on"
        ) from result
    if isinstance(result, Exception):
        raise result
    summary = write_seed(folder, variant.experiment, seed, variant.data, variant.about, result, parquet=options.parquet)
    if not options.keep_checkpoints:
        shutil.rmtree(folder / "checkpoint", ignore_errors=True)
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
    batch = prepare_batch([experiment], source)
    if batch.is_finished:
        return batch.run(options)[0]
    with locked(experiment_folder(experiment)):
        return batch.run(options)[0]


def experiment_folder(experiment: Experiment) -> Path:
    """Return the folder that all results of an experiment lie below."""
    return Path(experiment.results) / experiment.name
