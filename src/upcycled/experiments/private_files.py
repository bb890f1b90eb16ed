"""What a restricted run leaves to the holder of its data alone: ``<seed>/private/`` (0700, files 0600).

``checkpoint/`` (the run's state, personal models among it, and the key of the data's hashes), ``scores.jsonl`` (every
number of every iteration), ``clients.jsonl`` (scores of each client), ``evaluation.json`` (the final model on test
data), ``personal.safetensors``, ``notes.jsonl`` (what would have been warnings), ``data.json`` (the data's keyed hash)
and ``ledger.key``. Reports, trackers and comparisons never look in here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from upcycled._utils.files import (
    PRIVATE,
    make_private,
    read_json,
    read_json_lines,
    reading,
    write_together,
    write_whole,
)
from upcycled._utils.formats import fixed
from upcycled.core.errors import InputError
from upcycled.data import FederatedData
from upcycled.experiments.evaluation import EVALUATION
from upcycled.privacy.ledger.chain import key_at
from upcycled.training.checkpoint.checkpointer import DATA_KEY
from upcycled.training.checkpoint.fingerprint import hash_of_data, keyed
from upcycled.training.publication import Publication

CHECKPOINT, SCORES, NOTES, DATA, LEDGER_KEY = "checkpoint", "scores.jsonl", "notes.jsonl", "data.json", "ledger.key"
_EXPECTED = "what a finished run left to the holder of its data"


def checkpoint_folder(seed: Path, shown: Publication) -> Path:
    """Return where a seed's run is kept while it goes on: its state is the holder's own where the run is restricted."""
    return seed / PRIVATE / CHECKPOINT if shown.is_restricted else seed / CHECKPOINT


def ledger_key(seed: Path) -> Path:
    """Return where the key lies that a restricted run's ledger is sealed with."""
    return seed / PRIVATE / LEDGER_KEY


def json_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode()


def write_own(seed: Path, files: Mapping[str, bytes], notes: Iterable[str], data: FederatedData) -> None:
    """Write what of a finished run is the holder's own.

    Args:
        seed: the run's folder.
        files: what to write beside notes and the data's keyed hash.
        notes: the holder's, in order.
        data: what the run was trained and scored on.
    """
    about = json.dumps({"hmac": _keyed_hash(seed, data)}).encode() + b"\n"
    own = {**files, NOTES: json_lines({"note": words} for words in notes), DATA: about}
    make_private(seed / PRIVATE)
    write_together(seed / PRIVATE, own, private=True)


def note_other_data(seed: Path, data: FederatedData) -> None:
    """Note for the holder that a finished run was asked for again with other data, once for each such data set.

    Nobody else is told: that a run is reused, or not, must not depend on a record.
    """
    place = seed / PRIVATE
    if not (place / DATA).exists():
        return
    found = _keyed_hash(seed, data)
    if read_json(place / DATA, _EXPECTED).get("hmac") == found:
        return
    words = f"asked for again with other data (keyed hash {found[:16]}): the finished run was left as it is"
    before = read_lines(place / NOTES)
    if words not in [line.get("note") for line in before]:
        write_whole(place / NOTES, json_lines([*before, {"note": words}]), private=True)


def own_folders(folder: Path) -> list[Path]:
    """Return the folders below a results folder that are the holder's own.

    Raises:
        InputError: in one sentence, if there is none.
    """
    found = sorted(path for path in folder.rglob(PRIVATE) if path.is_dir() and (path.parent / "config.toml").exists())
    if not found:
        raise InputError(
            f"{folder} holds nothing of a data holder's own, but it must be the results folder of a run with real "
            "noise on data that are not declared public"
        )
    return found


@dataclass(frozen=True)
class OwnResult:
    """What the holder finds in his folder of a seed."""

    HEAD: ClassVar = ("accuracy %", "loss", "global accuracy %", "global loss", "baseline %")
    folder: Path
    last: Mapping[str, Any] | None = None
    """The last iteration, with every number; None where it was not read, or there is none yet."""
    notes: tuple[str, ...] = ()
    baseline: Mapping[str, Any] = field(default_factory=dict)
    """The scores of an answer that looks at no features: the majority class, or the mean."""

    @classmethod
    def read(cls, folder: Path) -> OwnResult:
        scores = read_lines(folder / SCORES)
        notes = tuple(str(line.get("note")) for line in read_lines(folder / NOTES))
        path = folder / EVALUATION
        baseline = read_json(path, _EXPECTED).get("baseline", {}) if path.exists() else {}
        found = cls(folder, scores[-1] if scores else None, notes, baseline)
        with reading(folder, _EXPECTED):
            found.cells()  # of numbers alone
        return found

    def cells(self) -> list[str]:
        """Return the scores for a table."""
        last = self.last or {}
        return [
            fixed(last.get(f"{which}{name}"), digits, scale)
            for which in ("", "global_")
            for name, digits, scale in (("accuracy", 2, 100), ("loss", 4, 1))
        ] + [fixed(self.baseline.get("accuracy"), 2, 100)]

    def as_json(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "last": self.last,
            "baseline": dict(self.baseline),
            "notes": list(self.notes),
        }


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of the holder's; none where it is missing."""
    return read_json_lines(path, _EXPECTED) if path.exists() else []


def _keyed_hash(seed: Path, data: FederatedData) -> str:
    return keyed(key_at(seed / PRIVATE / CHECKPOINT / DATA_KEY), hash_of_data(data))
