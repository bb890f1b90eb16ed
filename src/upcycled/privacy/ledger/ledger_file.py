"""The ledger on disk: JSON lines, appended and forced to the disk before the releases they pay for leave."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from upcycled.core.errors import InputError
from upcycled.privacy.ledger.entries import Entry, from_line
from upcycled.privacy.ledger.header import Header, from_json, to_json
from upcycled.support.files import cannot_write

_OPENING = b'{"kind":"run",'


class LedgerFile:
    """One run's charges. Lines are only ever appended; a run that goes on finds its own."""

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.found: list[Entry] = []
        """What the file held when it was opened."""
        self.format = header.format
        """Of the file: a run goes on in the format it began with."""
        self._is_flushed = True
        try:
            if path.exists() and path.stat().st_size > 0:
                self._take_up(header)
            if not path.exists() or path.stat().st_size == 0:
                path.parent.mkdir(parents=True, exist_ok=True)
                self.append(to_json(header), durable=True)
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

    def _take_up(self, header: Header) -> None:
        content = self.path.read_bytes()
        try:
            lines, length = _read(content)
            before = _header(lines) if lines else None
            if before is not None and not before.is_of_same_run(header):
                raise InputError(
                    f"ledger '{self.path}' holds the charges of another run, but each run needs a file of its own"
                )
            self.found = _entries(lines, header.num_clients)
        except _Damage as damage:
            raise InputError(f"{damage.of(self.path)}: give the run another file") from None
        self.format = header.format if before is None else before.format
        if length < len(content):
            # A line whose end is missing was cut off by a kill while it was written: its release never left.
            with open(self.path, "r+b") as file:
                file.truncate(length)
                os.fsync(file.fileno())


def read_file(path: Path) -> tuple[Header, list[Entry]]:
    """Return what a ledger's file holds, and leave it as it is; a last line without its end does not count."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"ledger '{path}' cannot be read: {error.strerror}") from None
    try:
        lines, _ = _read(content)
        if not lines:
            raise InputError(f"ledger '{path}' is empty, but it must open with a line about its run")
        header = _header(lines)
        entries = _entries(lines, header.num_clients)
    except _Damage as damage:
        raise InputError(damage.of(path)) from None
    return header.completed(entries) if header.format == 1 else header, entries


def run_of(path: Path) -> str | None:
    """Return whose charges a file holds; None where there are none yet."""
    if not path.is_file():
        return None
    try:
        lines, _ = _read(path.read_bytes())
        return _header(lines).run if lines else None
    except _Damage as damage:
        raise InputError(f"{damage.of(path)}: give the run another file") from None


class _Damage(Exception):
    """A line that no ledger writes."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(number, why)
        self.number, self.why = number, why

    def of(self, path: Path) -> str:
        return f"ledger '{path}' is damaged in line {self.number} ({self.why})"


def _read(content: bytes) -> tuple[list[Any], int]:
    """Return the lines that are whole, and where the last of them ends."""
    length = content.rfind(b"\n") + 1
    if length == 0 and not (content.startswith(_OPENING) or _OPENING.startswith(content)):
        raise _Damage(1, "it does not open a run's ledger")
    lines = []
    for number, text in enumerate(content[:length].splitlines(), start=1):
        try:
            lines.append(json.loads(text))
        except (ValueError, RecursionError):
            raise _Damage(number, "it is no JSON") from None
    return lines, length


def _header(lines: list[Any]) -> Header:
    try:
        return from_json(lines[0])
    except ValueError as error:
        raise _Damage(1, str(error)) from None


def _entries(lines: list[Any], num_clients: int) -> list[Entry]:
    found = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            found.append(from_line(line, num_clients))
        except ValueError as error:
            raise _Damage(number, str(error)) from None
    return found


def _sync(folder: Path) -> None:
    """Force a new file's name to the disk too, where the system can do that for folders."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
