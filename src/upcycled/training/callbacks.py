"""The one interface for everything that watches a run: progress tables, trackers, measurements, files."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from upcycled.core.errors import InputError, shown
from upcycled.core.mechanism import Release
from upcycled.core.vectors import Vector
from upcycled.training.history import Record

if TYPE_CHECKING:
    from upcycled.training.plan import Plan
    from upcycled.training.state import Run


@dataclass(frozen=True)
class _Stop:
    def __repr__(self) -> str:
        return "upcycled.STOP"


STOP: Final = _Stop()
"""What a callback returns to end its run after the iteration it was told of."""


@dataclass(frozen=True)
class Step:
    """One iteration as a measurement sees it."""

    iteration: int
    before: Vector
    """The global model before it."""
    after: Vector
    release: Release | None
    """What the clients released; None in an upcycled iteration."""


class Callback(Protocol):
    """Told when a run starts, after each iteration, and at its end (also when it failed); what it lacks is not called.

    It is told what everybody may see (:mod:`upcycled.training.publication`): in a restricted run no score, no seconds,
    no sample and no personal model.

    In a batch the runs' callbacks are called from other threads, those of one run never at the same time.

    >>> import upcycled as up
    >>> class UntilGood:
    ...     def record(self, record, run):
    ...         return up.STOP if record.accuracy > 0.6 else None
    >>> data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    >>> run = up.train(data, algorithm=up.FedAvg(), iterations=50, callbacks=[UntilGood()], progress=False)
    >>> len(run.history) < 50, run.accuracy > 0.6
    (True, True)
    """

    def start(self, plan: Plan, before: Sequence[Record]) -> None:
        """Before the first iteration; ``before`` holds the records of a run that is resumed."""

    def record(self, record: Record, run: Run | None) -> object:
        """After each iteration; ``run`` is to be read, never changed, and is None where another process has it.

        ``up.STOP`` ends the run here.
        """

    def finish(self) -> None:
        """At the end, whatever happened."""


class Probe(Protocol):
    """A callback that measures; it may have :class:`Callback`'s methods too.

    It goes along where a run has a process of its own, so it must be picklable there. In a restricted run it is shown
    no sample, and its numbers stay with the holder, but for those whose names are in an attribute ``publishes``: its
    author says by it that they follow from what it is shown, or are charged.

    >>> import numpy as np, upcycled as up
    >>> class Length:
    ...     def measure(self, step):
    ...         return {"moved": float(np.linalg.norm(step.after - step.before))}
    >>> data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    >>> run = up.train(data, algorithm=up.FedAvg(), iterations=2, callbacks=[Length()], progress=False)
    >>> all(moved > 0 for moved in run.history.column("moved"))
    True
    """

    def measure(self, step: Step) -> Mapping[str, float]:
        """Return numbers about an iteration that belong into its record, under ``record.metrics``."""


HOOKS = ("start", "measure", "record", "finish")


def measures(value: object) -> bool:
    """Say whether a callback adds numbers to records."""
    return hasattr(value, "measure")


@dataclass(frozen=True)
class Hooks:
    """A callback with all its methods, made of one that has some of them, or of a function."""

    value: Any

    def start(self, plan: Plan, before: Sequence[Record]) -> None:
        self._call("start", plan, before)

    def measure(self, step: Step) -> Mapping[str, float]:
        return self._call("measure", step) or {}

    def record(self, record: Record, run: Run | None) -> object:
        return self._call("record", record, run)

    def finish(self) -> None:
        self._call("finish")

    def _call(self, name: str, *arguments: Any) -> Any:
        method = getattr(self.value, name, None)
        return None if method is None else method(*arguments)


@dataclass(frozen=True)
class _Function:
    call: Callable[..., object]
    takes_run: bool

    def record(self, record: Record, run: Run | None) -> object:
        return self.call(record, run) if self.takes_run else self.call(record)


def as_callback(value: object) -> Hooks:
    """Turn what a user passes into a callback: an object with some of the methods, or a function.

    >>> as_callback(lambda record: STOP).record(None, None)
    upcycled.STOP
    """
    if isinstance(value, Hooks):
        return value
    if not isinstance(value, type) and any(callable(getattr(value, name, None)) for name in HOOKS):
        return Hooks(value)
    if callable(value) and not isinstance(value, type):
        for arguments in ((None, None), (None,)):
            try:
                inspect.signature(value).bind(*arguments)
            except (TypeError, ValueError):
                continue
            return Hooks(_Function(value, len(arguments) == 2))
    methods = ", ".join(HOOKS)
    raise InputError(
        f"has {shown(value)}, but each must be a function of a record (and the run), or an object with some of the "
        f"methods {methods}",
        field="callbacks",
    )
