"""Runs in worker processes: live records on their way out, and the word to stop on its way in.

A worker appends what its run tells to a file; the parent reads on from where it was and tells the run's callbacks. A
file needs no reader to go on, and what a worker wrote before it died is read to the end.
"""

from __future__ import annotations

import math
import os
import pickle
import signal
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upcycled.core.errors import UpcycledError
from upcycled.engines.processes import packed, unpacked
from upcycled.training.callbacks import STOP, Hooks, as_callback, measures
from upcycled.training.history import Record
from upcycled.training.plan import Plan
from upcycled.training.progress import Watched, WorstEpsilon
from upcycled.training.publication import publication_of
from upcycled.training.result import HoldersOwn, Result
from upcycled.training.train import run_plan

if TYPE_CHECKING:
    from upcycled.training.state import Run


STOP_FILE = "stop"
"""A file of this name in the batch's folder asks all workers to stop after the iteration they are in."""
STOPPED = "the run was stopped with its batch"
MOMENT_SECONDS = 0.02
"""How long records may wait to be written together; the parent looks less often than that."""
_FRAME = struct.Struct("<Q")


class Stopped(UpcycledError):
    """The run was asked to stop, and did after an iteration."""


def attempt(plan: Plan, callbacks: Sequence[object], threads: int | None) -> Result | Exception:
    """Carry out one run; an error is a value, so that it crosses processes whole."""
    try:
        return run_plan(plan, callbacks, threads=threads)
    except Exception as error:
        return error


@dataclass(frozen=True)
class Parcel:
    """A plan on its way to a worker; made of bytes only when it is sent, so that runs that wait take no memory."""

    plan: Plan
    here: str = field(default_factory=os.getcwd)
    """Where paths of the plan begin that are not absolute: a worker may have been started elsewhere."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Callbacks stay with the parent, which tells them what the worker tells it; measurements need the data.
        going = tuple(one for one in self.plan.spec.callbacks if measures(one))
        return _unpacked, (packed(replace(self.plan, spec=self.plan.spec.replace(callbacks=going))), self.here)


# In the worker.


def _unpacked(content: bytes, here: str) -> Parcel:
    return Parcel(unpacked(content), here)


@dataclass(frozen=True)
class Returned:
    """A run's outcome on its way to the parent, and what a pickled result leaves out: the data holder's own."""

    outcome: Result | Exception
    private: HoldersOwn | None

    def joined(self) -> Result | Exception:
        """Return the outcome as the worker had it."""
        if isinstance(self.outcome, Result):
            return replace(self.outcome, private=self.private)
        if isinstance(self.outcome, UpcycledError) and self.outcome.result is not None:
            self.outcome.result = replace(self.outcome.result, private=self.private)
        return self.outcome


def attempt_here(parcel: Parcel, folder: Path, place: int) -> Returned:
    """Carry out one run of a batch in this worker, on one thread."""
    if (folder / STOP_FILE).exists():
        return Returned(Stopped(STOPPED), None)
    os.chdir(parcel.here)
    reporter = _Reporter(folder, place)
    with _interrupts_ignored():
        outcome = attempt(parcel.plan, [*parcel.plan.spec.callbacks, reporter], threads=1)
        reporter.flush()
    result = outcome if isinstance(outcome, Result) else getattr(outcome, "result", None)
    return Returned(outcome, None if result is None else result.private)


class _Reporter:
    """Appends whatever it is told to the run's file, whole frames at a time, and looks whether it is to stop.

    A round may last less than the writing of its record: what comes within a moment is written together.
    """

    def __init__(self, folder: Path, place: int, moment: float = MOMENT_SECONDS) -> None:
        self._moment = moment
        self._stop = folder / STOP_FILE
        self._stop_run = folder / f"{place}.{STOP_FILE}"
        self._path = folder / str(place)
        self._worst = WorstEpsilon()
        self._waiting: list[bytes] = []
        self._written = -math.inf

    def start(self, plan: Plan, before: Sequence[Record]) -> None:
        self._worst = WorstEpsilon()
        self._add("start", tuple(before))

    def record(self, record: Record, run: Run | None) -> object:
        ledger = None if run is None else run.ledger
        self._add("record", (record, self._worst.of(ledger)))
        if time.monotonic() < self._written + self._moment:
            return None
        self.flush()
        if self._stop.exists():
            raise Stopped(STOPPED)
        # A callback of the parent's hears of an iteration a little later: the run ends some iterations on.
        return STOP if self._stop_run.exists() else None

    def finish(self) -> None:
        self._add("finish", None)

    def flush(self) -> None:
        """Write what waits."""
        if self._waiting:
            with self._path.open("ab", buffering=0) as file:
                file.write(b"".join(self._waiting))
            self._waiting.clear()
        self._written = time.monotonic()

    def _add(self, kind: str, value: object) -> None:
        body = pickle.dumps((kind, value))
        self._waiting.append(_FRAME.pack(len(body)) + body)


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ctrl-C reaches every process of a terminal, SIGTERM those of a group: the parent asks the workers to stop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# In the parent.


class EventStream:
    """What one run in a worker has told so far, passed on to its callbacks."""

    def __init__(self, folder: Path, place: int, plan: Plan, callbacks: Sequence[object], row: Watched) -> None:
        self._path, self._plan, self._row = folder / str(place), plan, row
        self._callbacks = [*(as_callback(one) for one in callbacks if not measures(one)), Hooks(row)]
        self._stop = folder / f"{place}.{STOP_FILE}"
        self._read = 0
        self._lock = threading.Lock()
        self.error: Exception | None = None
        """What a callback failed with; it is told nothing more."""

    def deliver(self) -> None:
        """Read what is new and tell it."""
        with self._lock:
            for kind, value in self._new():
                try:
                    if self.error is None:
                        self._tell(kind, value)
                except Exception as error:
                    self.error = error

    def _new(self) -> Iterator[tuple[str, Any]]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            while len(head := file.read(_FRAME.size)) == _FRAME.size:
                body = file.read(_FRAME.unpack(head)[0])
                if len(body) < _FRAME.unpack(head)[0]:
                    return
                self._read = file.tell()
                yield pickle.loads(body)

    def _tell(self, kind: str, value: Any) -> None:
        for one in self._callbacks:
            if kind == "start":
                one.start(publication_of(self._plan).plan(self._plan), value)
            elif kind == "record":
                if one.record(value[0], None) is STOP:
                    self._stop.touch()
            else:
                one.finish()
        if kind == "record":
            self._row.epsilon = value[1]


@contextmanager
def delivering(mailboxes: Sequence[EventStream]) -> Iterator[None]:
    """Deliver what the workers tell while the block runs."""
    over = threading.Event()

    def deliver() -> None:
        while not over.wait(0.1):
            for mailbox in mailboxes:
                mailbox.deliver()

    thread = threading.Thread(target=deliver, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
