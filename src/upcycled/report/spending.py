"""What a private run has cost its worst client as it went on: read from its ledger, which does the composing."""

from __future__ import annotations

import warnings
from pathlib import Path

from upcycled.privacy.ledger.ledger import EpsilonOverRounds, Ledger


def spending(path: Path, delta: float) -> EpsilonOverRounds | None:
    """Return the worst epsilon over a ledger's rounds; None if nothing was charged.

    Raises:
        InputError: if the file is no ledger.
    """
    with warnings.catch_warnings():
        # The run warned of a large delta; the statement that the page shows has it.
        warnings.simplefilter("ignore", UserWarning)
        found = Ledger.read(path).epsilon_over_rounds(delta)
    return found if found.rounds else None
