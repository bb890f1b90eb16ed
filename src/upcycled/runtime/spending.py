"""What a private run has spent so far, for displays: computed beside the run, and seldom enough not to slow it."""

from __future__ import annotations

import threading
import time

from upcycled.core.release import Mechanism
from upcycled.privacy.ledger import Ledger

USUAL_DELTA = 1e-5
"""Where a mechanism was given its noise, not a delta."""
PAUSE_SECONDS = 0.3
SHARE = 0.05
"""The most of a core's time that the numbers may take."""
SAMPLED_SECONDS = 0.1
"""What the epsilon of one client takes where batches or cohorts are drawn in secret; elsewhere next to nothing."""


def stated_delta(mechanism: Mechanism | None, ledger: Ledger) -> float:
    """Return the delta that a run's epsilon is stated at: the mechanism's own, or a usual one that nobody warns about.

    At record level delta is to be at most 1/(10 n) of the largest client, at client level 1/(10 N).
    """
    wanted = getattr(mechanism, "delta", None)
    if wanted is not None:
        return float(wanted)
    sizes = ledger.setting.sizes
    return min(USUAL_DELTA, 0.1 / (int(sizes.max()) if ledger.promise.unit == "record" else sizes.size))


class WorstEpsilon:
    """The worst client's proven epsilon. A sampled mechanism's takes seconds: it comes late, no run waits for it."""

    def __init__(self, mechanism: Mechanism | None) -> None:
        self._mechanism = mechanism
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
            self._value = ledger.max_epsilon(stated_delta(self._mechanism, ledger))
        except Exception:
            # A display must never stop a run: the ledger says the same in its own place, where it is heard.
            self._value = None
        now = time.perf_counter()
        self._next = now + max(PAUSE_SECONDS, (now - began) / SHARE)
        self._busy = False


def _expected_seconds(ledger: Ledger) -> float:
    """Return what the numbers will take, before they are computed for the first time."""
    charge = next((entry.charge for entry in ledger if entry.charge is not None), None)
    is_sampled = charge is not None and charge.kind == "sampled"
    return SAMPLED_SECONDS * int((ledger.rounds > 0).sum()) if is_sampled else 0.0
