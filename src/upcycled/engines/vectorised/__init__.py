"""Torch for any module, in one of two ways.

Small models are stacked: one call of torch makes a step of all clients. Large ones go one client after another, in
one single-threaded process per core. Which way is a fixed function of the task (:func:`way_of`), so a run has the
same bits alone, in a batch of runs, and with any number of threads.
"""

from __future__ import annotations

import math

from upcycled.core.engine import Engine, EngineKind, Task
from upcycled.core.forked import may_have_workers
from upcycled.engines.choice.expected_seconds import PACES, expected_seconds
from upcycled.engines.vectorised.dispatch import Way, is_stackable, refuses, refuses_both_ways, way_of, would_stack
from upcycled.engines.vectorised.stacked import open_stacked
from upcycled.engines.vectorised.workers import open_workers


def open_vectorised(task: Task, threads: int | None, way: Way | None = None) -> Engine:
    """Open the engine on a task; ``way`` overrides its own choice."""
    if (way_of(task) if way is None else way) == "stacked":
        return open_stacked(task)
    return open_workers(task, _processes(task, threads))


def _processes(task: Task, threads: int | None) -> int:
    # Processes would fight for a device that they share, and one client keeps one process busy; a forked process
    # or a daemon can have no workers.
    if task.device != "cpu" or task.cohort_size == 1 or not may_have_workers():
        return 1
    if threads is not None:
        return threads
    from loky import cpu_count

    return int(cpu_count())


def _expects(task: Task) -> float:
    if refuses_both_ways(task) is not None:
        return math.inf
    if not would_stack(task):
        return expected_seconds("workers", task)
    stacked = expected_seconds("stacked", task)
    # Whether torch can stack the module takes as long to find out as the stack takes to begin.
    if stacked > expected_seconds("one by one", task) or is_stackable(task):
        return stacked
    return expected_seconds("workers", task) + PACES["stacked"].start


VECTORISED = EngineKind("vectorised", refuses, open_vectorised, _expects)

__all__ = ["VECTORISED", "open_vectorised", "way_of"]
