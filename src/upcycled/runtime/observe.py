"""The one interface for everything that watches a run: progress tables, trackers, files."""

from __future__ import annotations

from typing import Protocol

from upcycled.runtime.history import Record
from upcycled.runtime.plan import Plan


class Observer(Protocol):
    """Told when a run starts, after each iteration, and at its end (also when it failed)."""

    def start(self, plan: Plan) -> None:
        """Before the first iteration."""

    def record(self, record: Record) -> None:
        """After each iteration."""

    def finish(self) -> None:
        """At the end, whatever happened."""
