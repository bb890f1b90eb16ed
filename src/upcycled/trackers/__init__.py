"""Trackers: other people's tools that watch a run. Each is a callback.

To add one: write a file with ``opened()`` as in the two that are here, and add a line to ``TRACKERS``. What a
tracker writes lies below the results folder; nothing is sent anywhere.
"""

from __future__ import annotations

import importlib
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from upcycled.config.experiment import Experiment, flat
from upcycled.core.errors import UpcycledError, unknown
from upcycled.experiments.batch import experiment_folder
from upcycled.privacy import Ledger
from upcycled.training import Callback, Record
from upcycled.training.history import SCALARS
from upcycled.training.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from upcycled.training.state import Run


TRACKERS = {
    "tensorboard": "upcycled.trackers.tensorboard",
    "mlflow": "upcycled.trackers.mlflow",
}
"""Name on the command line -> module."""


@dataclass(frozen=True)
class TrackedRun:
    """The run that a tracker is to watch."""

    home: Path
    """Its experiment's folder, whose name is the experiment's."""
    seed: int
    settings: Mapping[str, Any] | None = None
    """What was asked for, by dotted names; None where the run's plan is to say it."""


Tracker: TypeAlias = Callable[[TrackedRun], Callback]
"""Gives the callback of a seed's run."""


def tracker(name: str, results: str | os.PathLike[str], seed: int = 0) -> Callback:
    """Return a tracker as a callback, for runs from Python.

    Args:
        name: ``"tensorboard"`` or ``"mlflow"``.
        results: the experiment's folder, as in ``up.train(results=...)``; what the tracker writes lies below it, or
            beside it for MLflow.
        seed: the run's.

    Returns:
        A callback: ``up.train(data, spec, results=DIR, callbacks=[tracker("tensorboard", DIR)])``.

    Raises:
        InputError: for a name that is not known, or a package that is not there.
    """
    return _Guarded(name, _opened(name, "tracker")(TrackedRun(Path(results), seed)))


def open_trackers(names: Sequence[str]) -> Callable[[Experiment, int], list[Callback]]:
    """Return what gives the callbacks of each run; a tracker that is missing is refused before anything is run."""
    opened = {name: _opened(name, "--tracker") for name in dict.fromkeys(names)}

    def trackers(experiment: Experiment, seed: int) -> list[Callback]:
        settings = flat(experiment.for_seed(seed).resolved())
        watched = TrackedRun(experiment_folder(experiment), seed, settings)
        return [_Guarded(name, made(watched)) for name, made in opened.items()]

    return trackers


def _opened(name: str, field: str) -> Tracker:
    if name not in TRACKERS:
        raise unknown(field, name, TRACKERS)
    found: Tracker = importlib.import_module(TRACKERS[name]).opened()
    return found


def numbers_of(record: Record) -> dict[str, float]:
    """Return what is finite in a record, by name: accuracy, loss, bytes_up and so on, and its metrics."""
    values: dict[str, Any] = {name: getattr(record, name) for name in SCALARS if name not in ("iteration", "kind")}
    values |= record.metrics
    return {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}


def epsilons_of(plan: Plan) -> dict[int, float]:
    """Return the worst client's epsilon after each charge, by iteration, from the run's ledger on the disk.

    For the end of a run: a process of its own may have written the file.
    """
    path = plan.spec.ledger_path
    if plan.spec.privacy is None or path is None or not path.is_file():
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the run itself warned of a large delta
        ledger = Ledger.read(path)
        found, stated = ledger.epsilon_over_rounds(ledger.default_delta), ledger.max_epsilon(ledger.default_delta)
    # A round that was repeated after a kill was charged twice: the last counts both.
    spent = dict(zip(found.iterations, found.worst, strict=True))
    if spent:  # the last is what the run states: that of its complete plan, if it did not end as planned
        spent[found.iterations[-1]] = stated
    return {iteration: epsilon for iteration, epsilon in spent.items() if math.isfinite(epsilon)}


@dataclass(frozen=True)
class _Guarded:
    """A tracker whose failures are one sentence: they are other people's errors, of many types."""

    name: str
    tracker: Callback

    def start(self, plan: Plan, before: Sequence[Record]) -> None:
        with self._named():
            self.tracker.start(plan, before)

    def record(self, record: Record, run: Run | None) -> None:
        with self._named():
            self.tracker.record(record, run)

    def finish(self) -> None:
        with self._named():
            self.tracker.finish()

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise UpcycledError(
                f"the tracker {self.name} failed with {type(error).__name__}: {error}; without --tracker {self.name} "
                "the same command goes on"
            ) from error
