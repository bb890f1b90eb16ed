"""Runs in worker processes: live records on their way out, and the word to stop on its way in.

A worker appends what its run tells to a file; the parent reads on from where it was and tells the run's observers. A
file needs no reader to go on, and what a worker wrote before it died is read to the end.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upcycled.core.errors import UpcycledError
from upcycled.engines.vectorised.parcels import packed, unpacked
from upcycled.runtime.history import Record
from upcycled.runtime.observe import Observer
from upcycled.runtime.plan import Plan
from upcycled.runtime.progress import Watched
from upcycled.runtime.result import Result
from upcycled.runtime.spending import WorstEpsilon
from upcycled.runtime.train import run_plan

if TYPE_CHECKING:
    from upcycled.runtime.loop import Run

STOP = "stop"
"""A file of this name in the batch's folder asks all workers to stop after the iteration they are in."""
ORPHAN_SECONDS = 0.2
_FRAME = struct.Struct("<Q")


class Stopped(UpcycledError):
    """The run was asked to stop, and did after an iteration."""


def attempt(plan: Plan, observers: Sequence[Observer], threads: int | None) -> Result | Exception:
    """Carry out one run; an error is a value, so that it crosses processes whole."""
    try:
        return run_plan(plan, observers, threads=threads)
    except Exception as error:
        return error


@dataclass(frozen=True)
class Parcel:
    """A plan on its way to a worker; made of bytes only when it is sent, so that runs that wait take no memory."""

    plan: Plan

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, (packed(self.plan),)


# In the worker.


def _unpacked(content: bytes) -> Parcel:
    return Parcel(unpacked(content))


def attempt_here(parcel: Parcel, folder: str, place: int, parent: int) -> Result | Exception:
    """Carry out one run of a batch in this worker, on one thread."""
    with _ends_with(parent), _interrupts_ignored():
        return attempt(parcel.plan, [_Reporter(Path(folder), place)], threads=1)


class _Reporter:
    """Appends whatever it is told to the run's file, a whole frame at a time."""

    def __init__(self, folder: Path, place: int) -> None:
        self._stop = folder / STOP
        self._path = folder / str(place)
        self._worst = WorstEpsilon()

    def start(self, plan: Plan, before: Sequence[Record]) -> None:
        self._worst = WorstEpsilon()
        self._write("start", tuple(before))

    def record(self, record: Record, run: Run | None) -> None:
        ledger = None if run is None else run.ledger
        self._write("record", (record, self._worst.of(ledger)))
        if self._stop.exists():
            raise Stopped("the run was stopped with its batch")

    def finish(self) -> None:
        self._write("finish", None)

    def _write(self, kind: str, value: object) -> None:
        body = pickle.dumps((kind, value))
        with self._path.open("ab", buffering=0) as file:
            file.write(_FRAME.pack(len(body)) + body)


@contextmanager
def _ends_with(parent: int) -> Iterator[None]:
    """Leave at once when the parent is gone, however it went: nobody waits for the result, and the folder is held."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(ORPHAN_SECONDS):
            if os.getppid() != parent:
                os._exit(1)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ctrl-C reaches every process of a terminal: the parent hears it and asks the workers to stop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# In the parent.


class Mailbox:
    """What one run in a worker has told so far, passed on to its observers."""

    def __init__(self, folder: Path, place: int, plan: Plan, observers: Sequence[Observer], row: Watched) -> None:
        self._path, self._plan, self._observers, self._row = folder / str(place), plan, observers, row
        self._read = 0
        self._lock = threading.Lock()
        self.error: Exception | None = None
        """What an observer failed with; it is told nothing more."""

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
        for observer in (*self._observers, self._row):
            if kind == "start":
                observer.start(self._plan, value)
            elif kind == "record":
                observer.record(value[0], None)
            else:
                observer.finish()
        if kind == "record":
            self._row.epsilon = value[1]


@contextmanager
def delivering(mailboxes: Sequence[Mailbox], seconds: float = 0.1) -> Iterator[None]:
    """Deliver what the workers tell while the block runs."""
    over = threading.Event()

    def deliver() -> None:
        while not over.wait(seconds):
            for mailbox in mailboxes:
                mailbox.deliver()

    thread = threading.Thread(target=deliver, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
