"""What a restricted run leaves to the holder of its data alone: the files of ``private/`` in its folder."""

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
from upcycled.privacy.ledger.chain import key_at
from upcycled.run_folder import DATA, EVALUATION, NOTES, SCORES, RunFolder
from upcycled.training.checkpoint.fingerprint import hash_of_data, keyed

_EXPECTED = "what a finished run left to the holder of its data"


def json_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode()


def write_own(folder: RunFolder, files: Mapping[str, bytes], notes: Iterable[str], data: FederatedData) -> None:
    """Write what of a finished run is the holder's own.

    Args:
        folder: the run's.
        files: what to write beside notes and the data's keyed hash.
        notes: the holder's, in order.
        data: what the run was trained and scored on.
    """
    about = json.dumps({"hmac": _keyed_hash(folder, data)}).encode() + b"\n"
    own = {**files, NOTES: json_lines({"note": words} for words in notes), DATA: about}
    make_private(folder.private)
    write_together(folder.private, own, private=True)


def note_other_data(folder: RunFolder, data: FederatedData) -> None:
    """Note for the holder that a finished run was asked for again with other data, once for each such data set.

    Nobody else is told: that a run is reused, or not, must not depend on a record.
    """
    place = folder.private
    if not (place / DATA).exists():
        return
    found = _keyed_hash(folder, data)
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
    found = sorted(path for path in folder.rglob(PRIVATE) if path.is_dir() and RunFolder(path.parent).config.exists())
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


def _keyed_hash(folder: RunFolder, data: FederatedData) -> str:
    return keyed(key_at(folder.data_key), hash_of_data(data))
