"""Cells: what is kept of one finished run each, so that a stopped study goes on where it was.

A file of cells is Parquet, a row a cell. While a study runs, each finished cell is a line of JSON in a journal beside
that file, flushed to the disk; `Cells.fold` puts the journal's cells into the Parquet file and takes the journal away.
Killed at any moment, nothing finished is lost: a line cut short is no cell, and a journal that was folded but not taken
away says what the Parquet file says. Reading changes nothing: it may happen beside a command that is just writing.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from upcycled._utils.files import WriteError, cannot_write, write_whole
from upcycled.core.errors import InputError
from upcycled.training import Result
from upcycled.training.executor import train_each

AT_ONCE = 64
"""Runs planned together: plans hold arrays, so thousands are not made at once."""

SUFFIXES = PARQUET, JOURNAL = (".parquet", ".jsonl")

Value = dict[str, Any]
Wanted = Mapping[str, Callable[[], Mapping[str, Any]]]
"""For each key a function that gives ``train``'s arguments, called when its run is near."""

Check = Callable[[str, Mapping[str, Any]], None]
"""Raises ValueError where a key and its values cannot be a cell."""

# What others' text can end in: cells are read from files that anybody may have touched.
DAMAGE = (ValueError, LookupError, AttributeError, TypeError, OverflowError, RecursionError)


class Cells:
    """A file of cells, each under its key.

    Args:
        path: the Parquet file; it need not be there.
        check: what a cell must be, beyond named values with a key.

    Raises:
        InputError: in one sentence, if a row or a line is not a cell: which one.
    """

    def __init__(self, path: Path, check: Check = lambda key, value: None) -> None:
        self.path, self.journal = path, path.with_suffix(JOURNAL)
        # The journal first: cells that are folded in between are then seen twice, and not missed.
        lines = _read(self.journal, _from_journal, check)
        self._kept = _read(path, _from_parquet, check) | lines

    def __contains__(self, key: str) -> bool:
        return key in self._kept

    def __getitem__(self, key: str) -> Value:
        return self._kept[key]

    def get(self, key: str) -> Value | None:
        return self._kept.get(key)

    def __len__(self) -> int:
        return len(self._kept)

    def keys(self) -> list[str]:
        """Return the keys of what is there, in the order it came."""
        return list(self._kept)

    def items(self) -> list[tuple[str, Value]]:
        """Return what is there with its keys, in that order."""
        return list(self._kept.items())

    def add(self, key: str, value: Mapping[str, Any]) -> None:
        """Keep a finished cell; it is on the disk when this returns. Only one process at a time may add or fold."""
        line = json.dumps({"key": key, **value}, separators=(",", ":")) + "\n"
        try:
            self.journal.parent.mkdir(parents=True, exist_ok=True)
            with self.journal.open("a+b") as file:
                _drop_cut_line(file)
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise cannot_write(self.journal, error) from error
        self._kept[key] = dict(value)

    def fold(self) -> None:
        """Put the journal's cells into the Parquet file; without a journal there is nothing to do."""
        if not self.journal.exists():
            return
        write_cells(self.path, self._kept)
        self.journal.unlink()


def write_cells(path: Path, cells: Mapping[str, Mapping[str, Any]]) -> None:
    """Write a Parquet file of cells, whole.

    Raises:
        WriteError: in one sentence, also where Parquet would change a value; a file that was there before still is.
    """
    content = _to_parquet(cells)
    if _from_parquet(content) != list(cells.items()):
        raise WriteError(f"{path} cannot be written: as columns of Parquet these cells would not be what they are")
    write_whole(path, content)


def _to_parquet(cells: Mapping[str, Mapping[str, Any]]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    names = dict.fromkeys(name for cell in cells.values() for name in cell)
    columns: dict[str, list[Any]] = {name: [cell.get(name) for cell in cells.values()] for name in names}
    # A value that is None is not a value that is left out, but both are nulls of a column.
    columns |= {"key": list(cells), "fields": [",".join(cell) for cell in cells.values()]}
    stream = io.BytesIO()
    # Most numbers occur once: a dictionary of them is larger than they are.
    parquet.write_table(pyarrow.table(columns), stream, compression="zstd", compression_level=19, use_dictionary=False)
    return stream.getvalue()


def _from_parquet(content: bytes) -> list[tuple[Any, Value]]:
    from pyarrow import parquet

    rows = parquet.read_table(io.BytesIO(content)).to_pylist()
    return [(row["key"], {name: row[name] for name in row["fields"].split(",") if name}) for row in rows]


def _from_journal(content: bytes) -> list[tuple[Any, Value]]:
    """Return the cells of whole lines; one that is no JSON object is a cell that nobody can check."""
    found: list[tuple[Any, Value]] = []
    for line in content.split(b"\n")[:-1]:
        try:
            cell = json.loads(line.decode("utf-8"))
            found.append((cell.pop("key"), cell))
        except DAMAGE:
            found.append((None, {}))
    return found


def _read(path: Path, parse: Callable[[bytes], list[tuple[Any, Value]]], check: Check) -> dict[str, Value]:
    if not path.exists():
        return {}
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}), but it must be a file of cells") from None
    number = 0
    try:
        cells = parse(content)
        for key, cell in cells:
            number += 1
            if not isinstance(key, str):
                raise ValueError("a key is text")
            check(key, cell)
    except (*DAMAGE, OSError):  # pyarrow calls damage an OSError too
        raise _damaged(path, number) from None
    return dict(cells)


def _damaged(path: Path, number: int) -> InputError:
    if path.suffix == JOURNAL:
        return InputError(
            f"{path}: line {number} is not a cell, but each line must be a JSON object with a key, as it was written; "
            "remove the line, and its cell is computed again"
        )
    where = f": row {number}" if number else ""
    return InputError(
        f"{path}{where} is damaged, but it must be cells as they were written; restore the file, or remove it, and its "
        "cells are computed again"
    )


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
    wanted: Wanted,
    value_of: Callable[[Result], Mapping[str, Any]],
    *,
    may_fail: bool = True,
    progress: bool = True,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Run what is missing and keep each cell as soon as it is there.

    Args:
        cells: where they are kept.
        wanted: the runs by their keys.
        value_of: what is kept of a result.
        may_fail: keep a run that failed as ``{"error": sentence}``; otherwise its error ends the computation.
        progress: show the batch's progress.
        tell: called with (done, total) after each cell.
    """
    missing = [key for key in wanted if key not in cells]
    done = len(wanted) - len(missing)
    for start in range(0, len(missing), AT_ONCE):
        keys = missing[start : start + AT_ONCE]
        for i, result in train_each([wanted[key]() for key in keys], progress=progress):
            if result.error is not None and not may_fail:
                raise result.error
            if isinstance(result, Result) and result.error is None:
                cells.add(keys[i], value_of(result))
            else:
                cells.add(keys[i], {"error": str(result.error)})
            done += 1
            tell(done, len(wanted))
