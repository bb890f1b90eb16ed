"""Live progress of runs and batches: a table in a terminal, an occasional line in a pipe, a bar in a notebook.

A place in a notebook's output whose content is replaced as a run goes on.

What a private run has spent so far, for displays: computed beside the run, and seldom enough not to slow it.

Live progress of a batch: a row for each running run, a line now and then in a pipe, a bar in a notebook.
"""

from __future__ import annotations

import html
import importlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from upcycled._utils.formats import count, duration, epsilon, fixed, megabytes
from upcycled._utils.messages import is_terminal, say
from upcycled.privacy.charge_kinds import kind_named
from upcycled.privacy.ledger.ledger import Ledger
from upcycled.training.history import Record
from upcycled.training.plan import Plan
from upcycled.training.publication import publication_of

if TYPE_CHECKING:
    from upcycled.training.state import Run


def in_notebook() -> bool:
    """Say whether a Jupyter kernel runs this process; IPython in a terminal is a terminal."""
    # Whoever runs in a kernel has IPython loaded: nothing is imported to find out.
    ask = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return ask is not None and hasattr(ask(), "kernel")


class NotebookArea:
    """Shows a bar and a line of words, always in the same place of one cell's output."""

    def __init__(self) -> None:
        self._handle: Any = None

    @property
    def is_shown(self) -> bool:
        return self._handle is not None

    def show(self, share: float, words: str) -> None:
        """Show how much is done, from 0 to 1, and what is to be said of it."""
        # By name: a kernel brings IPython, this package neither needs nor installs it.
        display = importlib.import_module("IPython.display").display
        content = {
            "text/plain": words,
            "text/html": f'<progress max="1" value="{fixed(share, 3)}"></progress> {html.escape(words)}',
        }
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


PAUSE_SECONDS = 0.3
SHARE = 0.05
"""The most of a core's time that the numbers may take."""


class WorstEpsilon:
    """The worst client's epsilon. A sampled mechanism's takes seconds: it comes late, no run waits for it."""

    def __init__(self) -> None:
        self._value: float | None = None
        self._began = time.perf_counter()
        self._next = 0.0
        self._busy = False

    def of(self, ledger: Ledger | None) -> float | None:
        """Return the number as last computed, and have it computed anew where that is due."""
        now = time.perf_counter()
        if ledger is None or self._busy or now < self._next:
            return self._value
        self._next = now + PAUSE_SECONDS
        if now - self._began >= _expected_seconds(ledger) / SHARE:
            self._busy = True
            threading.Thread(target=self._compute, args=(ledger,), daemon=True).start()
        return self._value

    def _compute(self, ledger: Ledger) -> None:
        began = time.perf_counter()
        try:
            self._value = ledger.spent_epsilon(ledger.default_delta)
        except Exception:
            # A display must never stop a run: the ledger says the same in its own place, where it is heard.
            self._value = None
        now = time.perf_counter()
        self._next = now + max(PAUSE_SECONDS, (now - began) / SHARE)
        self._busy = False


def _expected_seconds(ledger: Ledger) -> float:
    """Return what the numbers will take, before they are computed for the first time."""
    return kind_named(ledger.kind).seconds * int((ledger.rounds > 0).sum())


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


BATCH_DRAW_SECONDS = 0.2
MOST_ROWS = 16
MOST_IN_A_LINE = 4


class BatchProgress:
    """Shows what a batch is doing, once it takes longer than a second. A thread of its own draws it."""

    def __init__(self, runs: int, shown: bool) -> None:
        self.runs, self._wanted = runs, shown
        self._done = 0
        self._running: list[Watched] = []
        self._over = threading.Event()
        self._began = time.perf_counter()

    @property
    def is_wanted(self) -> bool:
        """Whether somebody looks."""
        return self._wanted

    def row(self, title: str | None = None) -> Watched:
        """Return the observer of a run; its row is shown while it runs."""
        watched = Watched(title)
        self._running.append(watched)
        return watched

    def run_done(self, watched: Watched | None = None) -> None:
        """Count a run that ended, and take its row away."""
        self._done += 1
        if watched in self._running:
            self._running.remove(watched)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show progress while the block runs; a run alone shows its own."""
        if not self._wanted or self.runs < 2:
            yield
            return
        thread = threading.Thread(target=self._show, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _show(self) -> None:
        if self._over.wait(QUIET_SECONDS):
            return
        if in_notebook():
            self._show_in(NotebookArea())
            return
        if is_terminal():
            self._draw()
            return
        before = ""
        while not self._over.wait(LINE_SECONDS):
            now = "; ".join(run.text for run in self._rows()[:MOST_IN_A_LINE])
            line = f"{self._text(self._shows_pace)}{f' ({now})' if now else ''}"
            if line != before:  # while kernels are compiled nothing changes, and a pipe keeps every line
                say(line)
            before = line

    @property
    def _shows_pace(self) -> bool:
        """Whether what is kept may tell how fast runs are."""
        return not any(run.is_restricted for run in list(self._running))

    def _show_in(self, area: NotebookArea) -> None:
        # A notebook is kept, as what goes through a pipe is.
        while not self._over.wait(NOTEBOOK_SECONDS):
            area.show(self._share, self._text(self._shows_pace))
        area.show(self._share, self._text(shows_pace=False))

    def _draw(self) -> None:
        from rich.console import Console
        from rich.live import Live

        # What others print meanwhile goes above the table, which is gone in the end; standard output is left alone.
        console = Console(stderr=True)
        with Live(self._table(), console=console, auto_refresh=False, redirect_stdout=False, transient=True) as live:
            while not self._over.wait(BATCH_DRAW_SECONDS):
                live.update(self._table(), refresh=True)

    def _table(self) -> Any:
        from rich.table import Table

        rows = self._rows()
        if not rows:  # worker processes take a while to start
            return self._text()
        private = any(run.spent for run in rows)
        table = Table(caption=self._text(), caption_justify="left")
        columns = ["run", "iteration", "kind", "accuracy", "loss", "MB", *(["worst ε"] * private), "left"]
        for column in columns:
            table.add_column(column, justify="left" if column in ("run", "kind") else "right", no_wrap=True)
        for run in rows[:MOST_ROWS]:
            table.add_row(
                run.title,
                f"{run.iteration}/{run.total}",
                *cells(run.last),
                megabytes(run.bytes),
                *([run.spent] if private else []),
                "" if run.left is None else duration(run.left),
            )
        return table

    def _rows(self) -> list[Watched]:
        """Return the runs that have begun and are not over."""
        return [run for run in list(self._running) if run.last is not None and not run.is_over]

    @property
    def _share(self) -> float:
        parts = sum(run.share for run in list(self._running))
        return min((self._done + parts) / max(self.runs, 1), 1.0)

    def _text(self, shows_pace: bool = True) -> str:
        share = self._share
        seconds = time.perf_counter() - self._began
        left = f", {duration(seconds * (1 - share) / share)} left" if share and shows_pace else ""
        return f"{self._done} of {self.runs} runs done, {fixed(share, 0, 100)} %{left}"
