"""Trackers: other people's tools that watch a run. Each is a callback.

To add one: write a file with ``opened()`` as in the two that are here, and add a line to ``TRACKERS``. What a
tracker writes lies below the results folder; nothing is sent anywhere.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from upcycled.config.experiment import Experiment
from upcycled.core.errors import UpcycledError, unknown
from upcycled.privacy import Ledger
from upcycled.runtime import Callback, Record
from upcycled.runtime.history import SCALARS
from upcycled.runtime.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from upcycled.runtime.state import Run

TRACKERS = {
    "tensorboard": "upcycled.integrations.tensorboard",
    "mlflow": "upcycled.integrations.mlflow",
}
"""Name on the command line -> module."""

Tracker: TypeAlias = Callable[[Experiment, int], Callback]
"""Gives the callback of a seed's run."""


def open_trackers(names: Sequence[str]) -> Callable[[Experiment, int], list[Callback]]:
    """Return what gives the callbacks of each run; a tracker that is missing is refused before anything is run."""
    opened: list[tuple[str, Tracker]] = []
    for name in dict.fromkeys(names):
        if name not in TRACKERS:
            raise unknown("--tracker", name, TRACKERS)
        opened.append((name, importlib.import_module(TRACKERS[name]).opened()))
    return lambda experiment, seed: [_Guarded(name, tracker(experiment, seed)) for name, tracker in opened]


def numbers_of(record: Record) -> dict[str, float]:
    """Return what is finite in a record, by name: accuracy, loss, bytes_up and so on, and its metrics."""
    values: dict[str, Any] = {name: getattr(record, name) for name in SCALARS if name not in ("iteration", "kind")}
    values |= record.metrics
    return {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}


def epsilons_of(plan: Plan) -> dict[int, float]:
    """Return the worst client's proven epsilon after each charge, by iteration, from the run's ledger on the disk.

    For the end of a run: a process of its own may have written the file.
    """
    path = plan.spec.ledger_path
    if plan.spec.privacy is None or path is None or not path.is_file():
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the run itself warned of a large delta
        ledger = Ledger.read(path)
        found = ledger.epsilon_over_rounds(ledger.default_delta)
    # A round that was repeated after a kill was charged twice: the last counts both.
    spent = dict(zip(found.iterations, found.worst, strict=True))
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
