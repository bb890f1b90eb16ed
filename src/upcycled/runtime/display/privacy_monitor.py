"""What a private run has spent so far, for displays: computed beside the run, and seldom enough not to slow it."""

from __future__ import annotations

import threading
import time

from upcycled.privacy.ledger.ledger import Ledger

PAUSE_SECONDS = 0.3
SHARE = 0.05
"""The most of a core's time that the numbers may take."""
SAMPLED_SECONDS = 0.1
"""What the epsilon of one client takes where batches or cohorts are drawn in secret; elsewhere next to nothing."""


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
    return SAMPLED_SECONDS * int((ledger.rounds > 0).sum()) if ledger.kind == "sampled" else 0.0
