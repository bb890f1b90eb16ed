"""Helper threads that wait for work: woken by one message a round, so that a round of a tenth of a millisecond pays."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

Job: TypeAlias = Callable[[int], None]
"""Does a share of the work as thread number 0 (the caller), 1, 2, ..."""
_Done: TypeAlias = "SimpleQueue[BaseException | None]"
_Inbox: TypeAlias = "SimpleQueue[tuple[Job, _Done] | None]"


class Pool:
    """The caller and a number of helpers; without helpers there is no thread and no queue."""

    def __init__(self, helpers: int) -> None:
        self._inboxes: list[_Inbox] = [SimpleQueue() for _ in range(helpers)]
        # Daemons: an engine that nobody closed must not keep the process alive.
        self._threads = [
            threading.Thread(target=_serve, args=(number, inbox), name=f"upcycled-fused-{number}", daemon=True)
            for number, inbox in enumerate(self._inboxes, start=1)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, job: Job, alone: bool = False) -> None:
        """Do the job in all threads, or in the caller alone, and come back when all are done."""
        if alone or not self._inboxes:
            job(0)
            return
        # A queue of this run's own: if it is interrupted, late answers do not reach the next one.
        done: _Done = SimpleQueue()
        for inbox in self._inboxes:
            inbox.put((job, done))
        try:
            job(0)
        finally:
            failures = [done.get() for _ in self._inboxes]
        for failure in failures:
            if failure is not None:
                raise failure

    def close(self) -> None:
        """Let the helpers go; the pool goes on with the caller alone."""
        while self._inboxes:
            self._inboxes.pop().put(None)
        while self._threads:
            self._threads.pop().join()


def _serve(number: int, inbox: _Inbox) -> None:
    while (message := inbox.get()) is not None:
        job, done = message
        try:
            job(number)
        except BaseException as failure:
            done.put(failure)
        else:
            done.put(None)
        # The loop's names must not keep the last round's arrays until the next.
        del job, done, message
