"""Progress of a batch of runs on standard error."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from upcycled.runtime.progress import LINE_SECONDS, QUIET_SECONDS


class BatchProgress:
    """Counts iterations and runs; a daemon thread shows them, so that a run pays one addition an iteration."""

    def __init__(self, iterations: int, runs: int, shown: bool) -> None:
        self._total, self._runs, self._wanted = iterations, runs, shown
        self._done = self._runs_done = 0
        self._over = threading.Event()

    def iteration(self) -> None:
        """Count an iteration; a lost count between threads would be harmless."""
        self._done += 1

    def run_done(self) -> None:
        """Count a finished run."""
        self._runs_done += 1

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show progress while the block runs."""
        thread = threading.Thread(target=self._show, daemon=True)
        if self._wanted:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            if self._wanted:
                thread.join()

    def _show(self) -> None:
        began = time.perf_counter()
        if self._over.wait(QUIET_SECONDS):
            return
        is_terminal = sys.stderr.isatty()
        while not self._over.wait(0.2 if is_terminal else LINE_SECONDS):
            share = max(self._done / max(self._total, 1), self._runs_done / max(self._runs, 1))
            left = f", {(time.perf_counter() - began) * (1 - share) / share:.0f} s left" if share else ""
            text = f"{self._runs_done} of {self._runs} runs done, {100 * share:.0f} %{left}"
            print(f"\r{text}  " if is_terminal else text, end="" if is_terminal else "\n", file=sys.stderr, flush=True)
        if is_terminal:
            print(file=sys.stderr)
