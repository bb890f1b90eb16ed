"""Live progress of a run: a table in a terminal, an occasional line in a pipe, a bar in a notebook."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from upcycled.runtime.display.notebook_area import NotebookArea, in_notebook
from upcycled.runtime.display.privacy_monitor import WorstEpsilon
from upcycled.runtime.history import Record
from upcycled.runtime.plan import Plan
from upcycled.runtime.publication import publication_of
from upcycled.support.formats import count, duration, epsilon, fixed, megabytes
from upcycled.support.said import is_terminal, say

if TYPE_CHECKING:
    from upcycled.runtime.state import Run

QUIET_SECONDS = 1.0
LINE_SECONDS = 5.0
DRAW_SECONDS = 0.1
NOTEBOOK_SECONDS = 0.5
ROWS = 8
TABLE_WIDTH, NUMBER_WIDTH = 75, 6
"""Of the table without metrics, and of a number in it."""


class Watched:
    """What a display knows of a run; costs a few microseconds an iteration."""

    def __init__(self, title: str | None = None) -> None:
        self.title = title or ""
        self.total = 1
        self.last: Record | None = None
        self.bytes: int | None = 0
        """Moved so far; None where that is nobody's to know."""
        self.epsilon: float | None = None
        """The worst client's, as last computed; None without privacy."""
        self._is_simulation = False
        self.is_over = False
        self.metrics: tuple[str, ...] = ()
        """The names of what is measured, and shown."""
        self._rounds = 1
        self._first: tuple[int, float] | None = None
        """The first data round since the start, and when it ended: what came before it began engines and workers."""
        self._latest: tuple[int, float] | None = None
        self.is_restricted = False
        """Whether its pace is its data holder's own."""
        self._worst = WorstEpsilon()

    def start(self, plan: Plan, before: Sequence[Record]) -> None:
        self.total = plan.iterations
        self._is_simulation = plan.spec.noise == "seeded"
        self._worst = WorstEpsilon()
        self._rounds, self._first, self._latest = plan.data_rounds, None, None
        self.is_restricted = publication_of(plan).is_restricted
        self.metrics = () if self.is_restricted else tuple(metric.name for metric in plan.metrics)
        self.bytes = 0
        for record in before:
            self._count(record)
        self.last = before[-1] if before else None
        if not self.title:
            upcycled = "" if plan.spec.upcycle is None else "upcycled "
            self.title = f"{upcycled}{plan.strategy.algorithm.name} · {plan.engine.name} engine"

    def record(self, record: Record, run: Run | None) -> None:
        self._count(record)
        self.last = record
        if record.kind == "data":
            self._latest = record.data_round, time.perf_counter()
            self._first = self._first or self._latest
        if run is not None and run.ledger is not None:
            self.epsilon = self._worst.of(run.ledger)

    def _count(self, record: Record) -> None:
        if self.bytes is None or record.bytes_up is None or record.bytes_down is None:
            self.bytes = None
        else:
            self.bytes += record.bytes_up + record.bytes_down

    def finish(self) -> None:
        self.is_over = True

    @property
    def iteration(self) -> int:
        return 0 if self.last is None else self.last.iteration

    @property
    def share(self) -> float:
        """How much of it is done, from 0 to 1."""
        return self.iteration / self.total

    @property
    def spent(self) -> str:
        """The worst client's epsilon, never without a word where it protects nobody; empty where there is none yet."""
        if self.epsilon is None:
            return ""
        return f"{epsilon(self.epsilon)}{' (simulation)' if self._is_simulation else ''}"

    @property
    def left(self) -> float | None:
        """Seconds left, from the pace of data rounds so far; None before there is one.

        The first data round tells nothing: worker processes and compiled kernels begin in it.
        """
        if self._first is None or self._latest is None or self._latest[0] == self._first[0]:
            return None
        rounds, seconds = (later - earlier for earlier, later in zip(self._first, self._latest, strict=True))
        return seconds / rounds * (self._rounds - self._latest[0])

    @property
    def text(self) -> str:
        """The run in one line, for a pipe: what may be kept, so that a restricted run says nothing of its pace."""
        record = self.last
        parts = [f"iteration {self.iteration}/{self.total}"]
        if record is not None and record.accuracy is not None:
            parts.append(f"accuracy {fixed(record.accuracy, 2, 100)} %, loss {fixed(record.loss, 4)}")
        elif record is not None and record.loss is not None:
            parts.append(f"loss {fixed(record.loss, 4)}")
        if record is not None and record.loss is not None:
            parts.extend(f"{name} {fixed(record.metrics.get(name), 4)}" for name in self.metrics)
        if self.spent:
            parts.append(f"worst epsilon {self.spent}")
        if self.left is not None and self.share < 1 and not self.is_restricted:
            parts.append(f"{duration(self.left)} left")
        return f"{self.title}: {', '.join(parts)}"


class LiveProgress:
    """Shows the last iterations of a run that takes longer than a second."""

    def __init__(self, title: str | None = None) -> None:
        self._run = Watched(title)
        self._recent: list[Record] = []
        self._live: Any = None
        self._began = self._shown = 0.0
        self._area = NotebookArea() if in_notebook() else None
        self._is_terminal = self._area is None and is_terminal()

    def start(self, plan: Plan, before: Sequence[Record]) -> None:
        """Remember what is coming; nothing is shown yet."""
        self._run.start(plan, before)
        self._recent = list(before[-ROWS:])
        self._began = self._shown = time.perf_counter()

    def record(self, record: Record, run: Run | None) -> None:
        """Keep the record, and redraw at most every tenth of a second."""
        self._run.record(record, run)
        self._recent.append(record)
        del self._recent[:-ROWS]
        now = time.perf_counter()
        pause = DRAW_SECONDS if self._is_terminal else LINE_SECONDS if self._area is None else NOTEBOOK_SECONDS
        if now - self._began < QUIET_SECONDS or now - self._shown < pause:
            return
        self._shown = now
        if self._area is not None:
            self._show_in(self._area)
        elif self._is_terminal:
            self._draw()
        else:
            say(self._run.text)

    def finish(self) -> None:
        """Leave the last table on the screen, and the bar where the run ended."""
        if self._area is not None and self._area.is_shown:
            self._show_in(self._area)
        if self._live is not None:
            self._draw()
            self._live.stop()
            self._live = None

    def _show_in(self, area: NotebookArea) -> None:
        area.show(self._run.share, f"{fixed(self._run.share, 0, 100)} % · {self._run.text}")

    def _draw(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.table import Table

        run, console = self._run, Console(stderr=True)
        metrics = shown_metrics(run.metrics, console.width)
        table = Table(title=run.title, caption=self._caption(), title_justify="left", caption_justify="left")
        for column in ("iteration", "kind", "accuracy", "loss", *metrics, "gradient steps", "seconds"):
            table.add_column(column, justify="left" if column == "kind" else "right")
        for r in self._recent:
            measured = [fixed(r.metrics.get(name), 4) if r.loss is not None else "" for name in metrics]
            table.add_row(str(r.iteration), *cells(r), *measured, count(r.gradient_steps), fixed(r.seconds, 3))
        if self._live is None:
            # What others print meanwhile goes above the table; standard output is left alone.
            self._live = Live(table, console=console, auto_refresh=False, redirect_stdout=False)
            self._live.start()
        self._live.update(table, refresh=True)

    def _caption(self) -> str:
        run = self._run
        spent = f", worst epsilon {run.spent}" if run.spent else ""
        left = "" if run.left is None else f", {duration(run.left)} left"
        moved = "" if run.bytes is None else f", {megabytes(run.bytes)} MB moved"
        return f"{run.iteration}/{run.total} iterations{moved}{spent}{left}"


def cells(record: Record | None) -> tuple[str, str, str]:
    """Return kind, accuracy and loss for a table."""
    if record is None:
        return "", "", ""
    if record.loss is None:
        return record.kind, "", ""
    accuracy = "" if record.accuracy is None else f"{fixed(record.accuracy, 2, 100)} %"
    return record.kind, accuracy, fixed(record.loss, 4)


def shown_metrics(names: Sequence[str], width: int) -> list[str]:
    """Return the first metrics that have room in a terminal of this width.

    >>> shown_metrics(["auroc", "f1_macro", "kappa"], 95)
    ['auroc', 'f1_macro']
    """
    room, found = width - TABLE_WIDTH, list[str]()
    for name in names:
        room -= max(len(name), NUMBER_WIDTH) + 3
        if room < 0:
            break
        found.append(name)
    return found
