"""A run's ledgers where they lie, held against what the summary beside them says: its head, and its epsilon."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from upcycled.core.errors import InputError
from upcycled.privacy.ledger.ledger import Ledger
from upcycled.privacy.ledger.statement import contradiction
from upcycled.support.files import PRIVATE

SUMMARY = "summary.json"
NAMES = re.compile(r"ledger(-[0-9]+)?\.jsonl")


def ledger_files(folder: Path) -> list[Path]:
    """Return a run's ledgers, the first attempt's first: with real noise, one begun anew has a file for each."""
    found = [path for path in folder.glob("ledger*.jsonl") if NAMES.fullmatch(path.name)]
    return sorted(found, key=lambda path: (len(path.name), path.name))


def read_beside(path: Path) -> Ledger:
    """Return a run's ledger, held against the summary that lies beside it, and against the holder's key where it is.

    A summary speaks of the last attempt only. Without one the ledger is as its file alone shows it, unanchored.

    Raises:
        InputError: in one sentence, if it is no ledger, or not what the summary says.
    """
    privacy = _summary(path)
    head = privacy.get("head")
    ledger = Ledger.read(path, head=head, key=_key(path.parent) if head else None)
    if isinstance(delta := privacy.get("delta"), int | float):
        contradicts = contradiction(privacy, ledger.max_epsilon(float(delta)))
        if contradicts is not None:
            raise InputError(f"{path} {contradicts}")
    return ledger


def _summary(path: Path) -> Mapping[str, Any]:
    """Return what the summary beside a ledger says of its privacy; nothing where there is none, or it is of another."""
    beside = path.parent / SUMMARY
    if path not in ledger_files(path.parent)[-1:] or not beside.exists():
        return {}
    try:
        privacy = json.loads(beside.read_text(encoding="utf-8")).get("privacy")
    except (OSError, ValueError, AttributeError):
        raise InputError(f"{beside} is damaged, but it has the head that {path} is held against") from None
    return privacy if isinstance(privacy, dict) else {}


def _key(folder: Path) -> bytes | None:
    """Return the holder's key, where the one who asks is the holder: a head that it did not make is then refused."""
    path = folder / PRIVATE / "ledger.key"
    return path.read_bytes() if os.access(path, os.R_OK) else None
