"""The one interface for everything that watches a run: progress tables, trackers, files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from upcycled.runtime.history import Record
from upcycled.runtime.plan import Plan

if TYPE_CHECKING:
    from upcycled.runtime.loop import Run


class Observer(Protocol):
    """Told when a run starts, after each iteration, and at its end (also when it failed).

    In a batch the runs' observers are called from other threads, those of one run never at the same time.
    """

    def start(self, plan: Plan, before: Sequence[Record]) -> None:
        """Before the first iteration; ``before`` holds the records of a run that is resumed."""

    def record(self, record: Record, run: Run | None) -> None:
        """After each iteration; ``run`` is to be read, never changed, and is None where another process has it."""

    def finish(self) -> None:
        """At the end, whatever happened."""
