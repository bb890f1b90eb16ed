"""What is shown on standard error while experiments run; in a pipe a line now and then."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from upcycled.experiments.config import Experiment
from upcycled.experiments.run import SeedOutcome
from upcycled.runtime import Observer, Record
from upcycled.runtime.loop import Run
from upcycled.runtime.plan import Plan
from upcycled.runtime.progress import LiveProgress


def seed_progress(experiment: Experiment, seed: int) -> Observer:
    """Return the live table of one seed's run."""
    return LiveProgress(f"{experiment.name}, seed {seed}")


class DemoProgress:
    """A bar for every experiment and one for all together."""

    def __init__(self, experiments: Sequence[Experiment]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._is_terminal = sys.stderr.isatty()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[scores]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not self._is_terminal,
        )
        totals = {e.name: e.iterations * len(e.seeds) for e in experiments}
        self._tasks = {
            name: self._progress.add_task(name, total=total, scores="", start=False) for name, total in totals.items()
        }
        self._all = self._progress.add_task("all runs", total=sum(totals.values()), scores="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def watch(self, experiment: Experiment, seed: int) -> Sequence[Observer]:
        """Return the observer of one run."""
        if not self._is_terminal:
            return []
        return [_Bars(self._progress, self._tasks[experiment.name], self._all, seed)]

    def tell(self, experiment: Experiment, outcome: SeedOutcome) -> None:
        """Say that a run is finished, where there is no live table."""
        if not self._is_terminal and outcome.summary is not None:
            accuracy, rounds = 100 * outcome.summary["accuracy"], outcome.summary["data_rounds"]
            line = f"{experiment.name}, seed {outcome.seed}: accuracy {accuracy:.2f} % after {rounds} data rounds"
            print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class _Bars:
    """Moves the bar of one experiment, and the one of all."""

    progress: Any
    own: Any
    all: Any
    seed: int

    def start(self, plan: Plan, before: Sequence[Record]) -> None:
        self.progress.start_task(self.own)

    def record(self, record: Record, run: Run) -> None:
        self.progress.advance(self.all)
        if record.accuracy is not None:
            scores = f"seed {self.seed}: accuracy {100 * record.accuracy:.2f} %, loss {record.loss:.3f}"
            self.progress.update(self.own, scores=scores, advance=1)

    def finish(self) -> None: ...
