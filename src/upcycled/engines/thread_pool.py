"""Helper threads that wait for work: woken by one message a round, so that a round of a tenth of a millisecond pays."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TypeAlias

Job: TypeAlias = Callable[[int], None]
"""Does what is left of the work, as thread number 0 (the caller), 1, 2, ...; the work is done when one returns."""


def cores() -> int:
    """Return the cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@dataclass(frozen=True)
class _Call:
    """One job, a permit for each helper to join in, and what those who joined report."""

    job: Job
    permits: SimpleQueue[None] = field(default_factory=SimpleQueue)
    reports: SimpleQueue[BaseException | None] = field(default_factory=SimpleQueue)


_Inbox: TypeAlias = "SimpleQueue[_Call | None]"


class ThreadPool:
    """The caller and a number of helpers; without helpers there is no thread and no queue."""

    def __init__(self, helpers: int) -> None:
        self._inboxes: list[_Inbox] = [SimpleQueue() for _ in range(helpers)]
        # Daemons: an engine that nobody closed must not keep the process alive.
        self._threads = [
            threading.Thread(target=_serve, args=(number, inbox), name=f"upcycled-{number}", daemon=True)
            for number, inbox in enumerate(self._inboxes, start=1)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, job: Job, alone: bool = False) -> None:
        """Do the job in all threads, or in the caller alone, and come back when nobody works on it any more."""
        if alone or not self._inboxes:
            job(0)
            return
        call = _Call(job)
        for inbox in self._inboxes:
            call.permits.put(None)
            inbox.put(call)
        try:
            job(0)
        finally:
            failures = [call.reports.get() for _ in range(_joined(call, len(self._inboxes)))]
        for failure in failures:
            if failure is not None:
                raise failure

    def close(self) -> None:
        """Let the helpers go; the pool goes on with the caller alone."""
        while self._inboxes:
            self._inboxes.pop().put(None)
        while self._threads:
            self._threads.pop().join()


def _joined(call: _Call, helpers: int) -> int:
    """Take back the permits that are left, and return how many helpers had one.

    On a busy machine a helper may wake up only when the work is done: nobody waits for it.
    """
    for late in range(helpers):
        try:
            call.permits.get_nowait()
        except Empty:
            return helpers - late
    return 0


def _serve(number: int, inbox: _Inbox) -> None:
    while (call := inbox.get()) is not None:
        try:
            call.permits.get_nowait()
        except Empty:
            continue
        try:
            call.job(number)
        except BaseException as failure:
            call.reports.put(failure)
        else:
            call.reports.put(None)
        # The name must not keep the round's arrays until the next.
        del call
