"""Results of a long computation, kept cell by cell: a stopped command goes on where it was.

One JSON line per finished cell, appended and flushed. A line cut short by a kill is dropped when the file is opened.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from upcycled.core.errors import InputError
from upcycled.runtime import Result
from upcycled.runtime.many import train_each

AT_ONCE = 64
"""Runs planned together: plans hold arrays, so thousands are not made at once."""


class Cells:
    """A file of cells, each under its key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._kept: dict[str, dict[str, Any]] = {}
        if path.exists():
            self._read()

    def __contains__(self, key: str) -> bool:
        return key in self._kept

    def __getitem__(self, key: str) -> dict[str, Any]:
        return self._kept[key]

    def __len__(self) -> int:
        return len(self._kept)

    def keys(self) -> list[str]:
        """Return the keys of what is there, in the order it came."""
        return list(self._kept)

    def add(self, key: str, value: Mapping[str, Any]) -> None:
        """Keep a finished cell; it is on the disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, **value}, separators=(",", ":")) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._kept[key] = dict(value)

    def _read(self) -> None:
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(self.path, len(whole))
        for number, line in enumerate(whole.decode("utf-8").splitlines(), start=1):
            try:
                cell = json.loads(line)
                self._kept[cell.pop("key")] = cell
            except (ValueError, KeyError, AttributeError):
                raise InputError(
                    f"{self.path}: line {number} is not a cell, but each line must be a JSON object with a key; "
                    "remove the line, and its cell is computed again"
                ) from None


def compute_cells(
    cells: Cells,
    wanted: Mapping[str, Callable[[], Mapping[str, Any]]],
    value_of: Callable[[Result], Mapping[str, Any]],
    *,
    progress: bool = True,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Run what is missing and keep each cell as soon as it is there.

    Args:
        cells: where they are kept.
        wanted: for each key a function that gives ``train``'s arguments, called when its run is near.
        value_of: what is kept of a result. A run that failed is kept as ``{"error": sentence}``.
        progress: show the batch's progress.
        tell: called with (done, total) after each cell.
    """
    missing = [key for key in wanted if key not in cells]
    done = len(wanted) - len(missing)
    for start in range(0, len(missing), AT_ONCE):
        keys = missing[start : start + AT_ONCE]
        for i, result in train_each([wanted[key]() for key in keys], progress=progress):
            value = value_of(result) if isinstance(result, Result) else {"error": str(result.error)}
            cells.add(keys[i], value)
            done += 1
            tell(done, len(wanted))
