"""Live progress of a batch: a row for each running run, a line now and then in a pipe, a bar in a notebook."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from upcycled.runtime.display.notebook_area import NotebookArea, in_notebook
from upcycled.runtime.display.run_progress import LINE_SECONDS, NOTEBOOK_SECONDS, QUIET_SECONDS, Watched, cells
from upcycled.support.formats import duration, fixed, megabytes
from upcycled.support.said import is_terminal, say

DRAW_SECONDS = 0.2
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
            while not self._over.wait(DRAW_SECONDS):
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
