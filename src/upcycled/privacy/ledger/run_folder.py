"""Runs' ledgers where they lie, held against what the summary beside them says, and what several cost together."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upcycled.core.errors import InputError
from upcycled.privacy.ledger.joint import FIXED_ONLY, is_quickly_composed, joint_epsilon
from upcycled.privacy.ledger.ledger import Ledger
from upcycled.privacy.ledger.ledger_file import ledger_files
from upcycled.privacy.ledger.statement import contradiction
from upcycled.support.files import PRIVATE, read_json
from upcycled.support.formats import epsilon as epsilon_in_words
from upcycled.support.formats import general

SUMMARY = "summary.json"


def read_beside(path: Path, asks_key: bool = True) -> Ledger:
    """Return a run's ledger, held against the summary that lies beside it, and against the holder's key where it is.

    A summary speaks of the last attempt only. Without one the ledger is as its file alone shows it, unanchored.

    Args:
        path: the ledger's file.
        asks_key: whether the holder's own may be looked at, which what everybody may see never does.

    Raises:
        InputError: in one sentence, if it is no ledger, or not what the summary says.
    """
    privacy = _summary(path)
    head = privacy.get("head")
    ledger = Ledger.read(path, head=head, key=_key(path.parent) if head and asks_key else None)
    if isinstance(delta := privacy.get("delta"), int | float):
        contradicts = contradiction(privacy, ledger.max_epsilon(float(delta)))
        if contradicts is not None:
            raise InputError(f"{path} {contradicts}")
    return ledger


@dataclass(frozen=True)
class Together:
    """What several runs on the same clients cost the worst of them."""

    runs: int
    epsilon: float | None
    """Infinite where none is stated; None where it was not composed."""
    delta: float
    why_not: str = ""
    """Why it was not composed, in a sentence."""

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values; None stands for infinity too."""
        is_stated = self.epsilon is not None and math.isfinite(self.epsilon)
        return {
            "runs": self.runs,
            "epsilon": self.epsilon if is_stated else None,
            "delta": None if math.isnan(self.delta) else self.delta,
            "why_not": self.why_not or None,
        }

    @property
    def words(self) -> str:
        """Say it in a sentence, but for its end."""
        if self.epsilon is None:
            return f"What these {self.runs} runs cost together is not stated here: {self.why_not}"
        stated = f"epsilon {epsilon_in_words(self.epsilon)} for the worst client at delta {general(self.delta)}"
        return f"All {self.runs} runs together: {stated}, {FIXED_ONLY}"


def cost_together(folders: Iterable[Path], asks_key: bool = True) -> Together | None:
    """Return what all runs with real noise in these folders cost together; None where there are fewer than two.

    Attempts that were begun anew count, and so do runs that stopped: what they released was seen.
    """
    paths = [path for folder in folders for path in ledger_files(folder)]
    if len(paths) < 2:
        return None
    try:
        with warnings.catch_warnings():
            # Each run warned of a large delta itself.
            warnings.simplefilter("ignore", UserWarning)
            ledgers = [one for path in paths if not (one := read_beside(path, asks_key)).is_simulation]
            if len(ledgers) < 2:
                return None
            delta = min(ledger.default_delta for ledger in ledgers)
            if is_quickly_composed(ledgers):
                return Together(len(ledgers), float(joint_epsilon(ledgers, delta).max()), delta)
    except InputError as error:
        return Together(len(paths), None, math.nan, str(error))
    return Together(len(ledgers), None, delta, "`upcycled privacy ledger` composes them, which takes long")


def _summary(path: Path) -> Mapping[str, Any]:
    """Return what the summary beside a ledger says of its privacy; nothing where there is none, or it is of another."""
    beside = path.parent / SUMMARY
    if path not in ledger_files(path.parent)[-1:] or not beside.exists():
        return {}
    privacy = read_json(beside, f"a summary with the head that {path} is held against").get("privacy")
    return privacy if isinstance(privacy, dict) else {}


def _key(folder: Path) -> bytes | None:
    """Return the holder's key, where the one who asks is the holder: a head that it did not make is then refused."""
    path = folder / PRIVATE / "ledger.key"
    return path.read_bytes() if os.access(path, os.R_OK) else None
