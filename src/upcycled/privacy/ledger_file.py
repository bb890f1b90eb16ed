"""The ledger on disk: JSON lines, appended and forced to the disk before the releases they pay for leave."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from upcycled.core.errors import InputError
from upcycled.core.files import cannot_write
from upcycled.privacy.entries import Entry, from_line

_SAME = ("run", "mechanism", "noise", "unit", "schedule", "budget", "num_clients", "data_rounds_planned")
"""What the headers of one run have in common, whatever version of this package wrote them."""
_OPENING = b'{"kind":"run",'


class LedgerFile:
    """One run's charges. Lines are only ever appended; a run that goes on finds its own."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.path = path
        self.found: list[Entry] = []
        """What the file held when it was opened."""
        self._is_flushed = True
        try:
            if path.exists() and path.stat().st_size > 0:
                self._take_up(header)
            if not path.exists() or path.stat().st_size == 0:
                path.parent.mkdir(parents=True, exist_ok=True)
                self.append(header, durable=True)
                _sync(path.parent)
        except OSError as error:
            raise cannot_write(path, error) from error

    def append(self, line: dict[str, Any], *, durable: bool) -> None:
        """Append a line; with ``durable`` it is on the disk when this returns."""
        try:
            # Opened for each line: nothing to close, and a file that was moved away is noticed.
            with open(self.path, "ab") as file:
                file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
                file.flush()
                if durable:
                    os.fsync(file.fileno())
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self._is_flushed = durable

    def flush(self) -> None:
        """Have all lines on the disk, those that cost nothing too."""
        if self._is_flushed:
            return
        try:
            with open(self.path, "ab") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self._is_flushed = True

    def _take_up(self, header: dict[str, Any]) -> None:
        content = self.path.read_bytes()
        lines, length = _read(self.path, content)
        if lines and (not isinstance(lines[0], dict) or any(lines[0].get(name) != header[name] for name in _SAME)):
            raise InputError(
                f"ledger '{self.path}' holds the charges of another run, but each run needs a file of its own"
            )
        self.found = [_entry(self.path, number, line) for number, line in enumerate(lines[1:], start=2)]
        if length < len(content):
            # A line whose end is missing was cut off by a kill while it was written: its release never left.
            with open(self.path, "r+b") as file:
                file.truncate(length)
                os.fsync(file.fileno())


def run_of(path: Path) -> str | None:
    """Return whose charges a file holds; None where there are none yet."""
    if not path.is_file():
        return None
    lines, _ = _read(path, path.read_bytes())
    return str(lines[0].get("run")) if lines and isinstance(lines[0], dict) else None


def _read(path: Path, content: bytes) -> tuple[list[Any], int]:
    """Return the lines that are whole, and where the last of them ends."""
    length = content.rfind(b"\n") + 1
    if length == 0 and not (content.startswith(_OPENING) or _OPENING.startswith(content)):
        raise _damaged(path, 1)
    lines = []
    for number, text in enumerate(content[:length].splitlines(), start=1):
        try:
            lines.append(json.loads(text))
        except ValueError:
            raise _damaged(path, number) from None
    return lines, length


def _entry(path: Path, number: int, line: Any) -> Entry:
    try:
        return from_line(line)
    except (KeyError, TypeError, ValueError):
        raise _damaged(path, number) from None


def _damaged(path: Path, number: int) -> InputError:
    return InputError(f"ledger '{path}' is damaged in line {number}: give the run another file")


def _sync(folder: Path) -> None:
    """Force a new file's name to the disk too, where the system can do that for folders."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
