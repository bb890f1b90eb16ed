"""The ledger on disk: JSON lines, appended and forced to the disk before the releases they pay for leave."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from upcycled.core.errors import InputError


class LedgerFile:
    """One run's charges. Lines are only ever appended; a run that is repeated finds its own lines and adds none."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.path = path
        self._written: set[tuple[Any, ...]] = set()
        if path.exists() and path.stat().st_size > 0:
            self._take_up(header["run"])
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        self._append(header, durable=True)
        _sync(path.parent)

    def write(self, line: dict[str, Any], *, durable: bool) -> None:
        """Append a line unless it is there already; with ``durable`` it is on the disk when this returns."""
        if _key(line) not in self._written:
            self._written.add(_key(line))
            self._append(line, durable=durable)

    def _append(self, line: dict[str, Any], *, durable: bool) -> None:
        # Opened for each line: nothing to close, and a file that was moved away is noticed.
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
            file.flush()
            if durable:
                os.fsync(file.fileno())

    def _take_up(self, run: str) -> None:
        lines = []
        for number, text in enumerate(self.path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                lines.append(json.loads(text))
            except ValueError:
                raise InputError(
                    f"ledger '{self.path}' is damaged in line {number}: give the run another file"
                ) from None
        if not lines or lines[0].get("run") != run:
            raise InputError(
                f"ledger '{self.path}' holds the charges of another run, but each run needs a file of its own"
            )
        self._written = {_key(line) for line in lines[1:]}


def _key(line: dict[str, Any]) -> tuple[Any, ...]:
    """What tells two lines of one run apart: a charge by its round and attempt, the others by their iteration too."""
    return line["kind"], line["iteration"], line["round"], line["attempt"]


def _sync(folder: Path) -> None:
    """Force a new file's name to the disk too, where the system can do that for folders."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
