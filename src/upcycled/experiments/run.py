"""Run an experiment: all its seeds, each into its own folder, none of them twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from upcycled.core.errors import DivergedError
from upcycled.core.files import check_writable
from upcycled.data import FederatedData
from upcycled.experiments.config import Experiment
from upcycled.experiments.results import (
    describe_data,
    finished_summary,
    mean_and_sd,
    open_ledger,
    seed_folder,
    write_seed,
)
from upcycled.experiments.sentences import in_keys, named
from upcycled.runtime import Observer, Result, train
from upcycled.runtime.plan import make_plan

Watch: TypeAlias = Callable[[int], Sequence[Observer]]
"""Who watches the run of a seed."""

SUMMARY_KEYS = ("accuracy", "loss", "data_rounds", "iterations", "messages", "bytes", "gradient_steps", "seconds")
_KEYS = {name: f"clients.{name}" for name in ("participation", "sampling", "stragglers")} | {"noise": "privacy.noise"}


@dataclass(frozen=True)
class SeedOutcome:
    """What became of one seed."""

    seed: int
    status: Literal["finished", "reused", "failed"]
    folder: Path
    summary: dict[str, Any] | None = None
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
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


def run_experiment(
    experiment: Experiment,
    source: str,
    watch: Watch = lambda seed: (),
    tell: Callable[[SeedOutcome], None] = lambda outcome: None,
) -> Outcome:
    """Run every seed that has no result yet, and write each as soon as it is there.

    Everything is checked before the first byte is written. A seed that diverges is reported; the others go on.

    Args:
        experiment: from :func:`upcycled.experiments.config.load_config`.
        source: the file's name, for error sentences.
        watch: gives the observers of a seed's run.
        tell: called with each seed as it is done.
    """
    with named(source):
        data = experiment.build_data()
        check_plan(experiment, data)
        about = describe_data(data)
        folders = {seed: seed_folder(experiment, seed) for seed in experiment.seeds}
        there = {seed: finished_summary(folder, experiment, seed, about) for seed, folder in folders.items()}
    todo = [seed for seed in experiment.seeds if there[seed] is None]
    if todo:
        check_writable(folders[todo[0]].parent)
    outcomes = {}
    for seed in experiment.seeds:
        if there[seed] is not None:
            outcomes[seed] = SeedOutcome(seed, "reused", folders[seed], summary=there[seed])
            tell(outcomes[seed])
    with named(source), in_keys(_KEYS):
        for seed, result in train_seeds(experiment, data, todo, watch, folders):
            if isinstance(result, DivergedError):
                outcomes[seed] = SeedOutcome(seed, "failed", folders[seed], error=str(result))
            else:
                summary = write_seed(folders[seed], experiment, seed, about, result)
                outcomes[seed] = SeedOutcome(seed, "finished", folders[seed], summary=summary)
            tell(outcomes[seed])
    return Outcome(experiment, tuple(outcomes[seed] for seed in experiment.seeds))


def check_plan(experiment: Experiment, data: FederatedData) -> None:
    """Decide the first run completely, as ``train`` will, without running it."""
    with in_keys(_KEYS):
        make_plan(data, **experiment.train_arguments(experiment.seeds[0]))


def train_seeds(
    experiment: Experiment,
    data: FederatedData,
    seeds: Sequence[int],
    watch: Watch,
    folders: Mapping[int, Path] | None = None,
) -> Iterator[tuple[int, Result | DivergedError]]:
    """Yield each seed's result, one after the other; the place where runs can be batched.

    With ``folders``, a private run's charges are on the disk before its releases leave.
    """
    for seed in seeds:
        arguments = experiment.train_arguments(seed)
        if folders is not None and arguments["privacy"] is not None:
            arguments["ledger"] = open_ledger(folders[seed], experiment, seed)
        try:
            result = train(data, **arguments, progress=False, observers=watch(seed))
        except DivergedError as error:
            yield seed, error
        else:
            yield seed, result
