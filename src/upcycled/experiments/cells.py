"""Results of a long computation, kept cell by cell: a stopped command goes on where it was.

One JSON line per finished cell, appended and flushed. A line cut short by a kill is no cell, and goes when the next one
is added. Reading changes nothing: it may happen beside a command that is just writing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from upcycled.core.errors import InputError
from upcycled.core.files import cannot_write
from upcycled.runtime import Result
from upcycled.runtime.many import train_each

AT_ONCE = 64
"""Runs planned together: plans hold arrays, so thousands are not made at once."""


Check = Callable[[str, Mapping[str, Any]], None]
"""Raises ValueError where a key and its values cannot be a cell."""


class Cells:
    """A file of cells, each under its key.

    Args:
        path: the file; it need not be there.
        check: what a cell must be, beyond a JSON object with a key.

    Raises:
        InputError: in one sentence, if a line is not a cell: which one.
    """

    def __init__(self, path: Path, check: Check = lambda key, value: None) -> None:
        self.path = path
        self._kept: dict[str, dict[str, Any]] = {}
        if path.exists():
            self._read(check)

    def __contains__(self, key: str) -> bool:
        return key in self._kept

    def __getitem__(self, key: str) -> dict[str, Any]:
        return self._kept[key]

    def get(self, key: str) -> dict[str, Any] | None:
        """Return a cell, None where it is not there."""
        return self._kept.get(key)

    def __len__(self) -> int:
        return len(self._kept)

    def keys(self) -> list[str]:
        """Return the keys of what is there, in the order it came."""
        return list(self._kept)

    def add(self, key: str, value: Mapping[str, Any]) -> None:
        """Keep a finished cell; it is on the disk when this returns. Only one process at a time may add."""
        line = json.dumps({"key": key, **value}, separators=(",", ":")) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as file:
                _drop_cut_line(file)
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self._kept[key] = dict(value)

    def _read(self, check: Check) -> None:
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise InputError(f"{self.path} cannot be read ({error.strerror}), but it must be a file of cells") from None
        for number, line in enumerate(content.split(b"\n")[:-1], start=1):
            try:
                cell = json.loads(line.decode("utf-8"))
                key = cell.pop("key")
                check(key, cell)
                self._kept[key] = cell
            except (ValueError, LookupError, AttributeError, TypeError, OverflowError, RecursionError):
                raise InputError(
                    f"{self.path}: line {number} is not a cell, but each line must be a JSON object with a key, as it "
                    "was written; remove the line, and its cell is computed again"
                ) from None


def _drop_cut_line(file: IO[bytes]) -> None:
    """Cut a file after its last whole line."""
    end = file.seek(0, os.SEEK_END)
    if not end:
        return
    file.seek(end - 1)
    if file.read(1) != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


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
