"""Torch for any module, in one of two ways.

Small models are stacked: one call of torch makes a step of all clients. Large ones go one client after another, in
one single-threaded process per core. Which way is a fixed function of the task (:func:`way_of`), so a run has the
same bits alone, in a batch of runs, and with any number of threads.
"""

from __future__ import annotations

from upcycled.core.engine import Engine, EngineKind, Task
from upcycled.core.machine import may_have_workers
from upcycled.engines.vectorised.dispatch import Way, products_of, refuses, way_of
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


VECTORISED = EngineKind("vectorised", refuses, open_vectorised)

__all__ = ["VECTORISED", "open_vectorised", "products_of", "way_of"]
