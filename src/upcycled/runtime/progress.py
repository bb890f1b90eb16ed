"""Live progress on standard error: a table in a terminal, an occasional line in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from upcycled.runtime.history import Record
from upcycled.runtime.plan import Plan

if TYPE_CHECKING:
    from upcycled.runtime.loop import Run

QUIET_SECONDS = 1.0
LINE_SECONDS = 5.0
ROWS = 8


class LiveProgress:
    """Shows the last iterations of a run that takes longer than a second; costs a few microseconds an iteration."""

    def __init__(self, title: str | None = None) -> None:
        self._title = title
        self._recent: list[Record] = []
        self._live: Any = None
        self._bytes = 0
        self._total = 0
        self._began = self._shown = 0.0
        self._is_terminal = sys.stderr.isatty()

    def start(self, plan: Plan, before: Sequence[Record]) -> None:
        """Remember what is coming; nothing is shown yet."""
        self._total = plan.iterations
        self._began = self._shown = time.perf_counter()
        if self._title is None:
            upcycled = "" if plan.settings["upcycle"] is None else "upcycled "
            self._title = f"{upcycled}{plan.strategy.algorithm.name} · {plan.engine.name} engine"

    def record(self, record: Record, run: Run) -> None:
        """Keep the record, and redraw at most every tenth of a second."""
        self._bytes += record.bytes_up + record.bytes_down
        self._recent.append(record)
        del self._recent[:-ROWS]
        now = time.perf_counter()
        pause = 0.1 if self._is_terminal else LINE_SECONDS
        if now - self._began < QUIET_SECONDS or now - self._shown < pause:
            return
        self._shown = now
        if self._is_terminal:
            self._draw(now)
        else:
            print(self._line(record, now), file=sys.stderr, flush=True)

    def finish(self) -> None:
        """Leave the last table on the screen."""
        if self._live is not None:
            self._draw(time.perf_counter())
            self._live.stop()
            self._live = None

    def _left(self, now: float) -> float:
        done = self._recent[-1].iteration
        return (now - self._began) / max(done, 1) * (self._total - done)

    def _line(self, record: Record, now: float) -> str:
        score = "" if record.accuracy is None else f", accuracy {100 * record.accuracy:.2f} %, loss {record.loss:.4f}"
        return f"{self._title}: iteration {record.iteration}/{self._total}{score}, {self._left(now):.0f} s left"

    def _draw(self, now: float) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.table import Table

        table = Table(title=self._title, caption=self._caption(now), title_justify="left", caption_justify="left")
        for column in ("iteration", "kind", "accuracy", "loss", "gradient steps", "seconds"):
            table.add_column(column, justify="left" if column == "kind" else "right")
        for r in self._recent:
            table.add_row(
                str(r.iteration),
                r.kind,
                "" if r.accuracy is None else f"{100 * r.accuracy:.2f} %",
                "" if r.loss is None else f"{r.loss:.4f}",
                f"{r.gradient_steps:,}",
                f"{r.seconds:.3f}",
            )
        if self._live is None:
            self._live = Live(table, console=Console(stderr=True), auto_refresh=False)
            self._live.start()
        self._live.update(table, refresh=True)

    def _caption(self, now: float) -> str:
        done = self._recent[-1].iteration
        return f"{done}/{self._total} iterations, {self._bytes / 1e6:.1f} MB moved, {self._left(now):.0f} s left"
