"""An account on disk: ``account.jsonl``, chained lines that are only ever appended, one writer at a time.

    {"kind": "account", "format": 1, "terms": {...}}                       what was committed, first
    {"kind": "study", "run": ..., "mechanism": ..., "clients": [...]}      a run begins: whom its numbers mean
    {"kind": "charge", "study": 1, "entry": {...}}                         a line of that run's ledger
    {"kind": "closed"}                                                     nothing follows

Nothing in it follows from records. Whatever reads it and writes to it does both under one lock; a line is on the disk
before the release that it pays for exists. A last line without its end was cut off by a kill before that.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from upcycled.core.errors import InputError, shown
from upcycled.privacy.accounts.pots import Commitment, commitment_of
from upcycled.privacy.ledger.chain import START, linked, parsed
from upcycled.privacy.ledger.entries import MOST_ITERATIONS, Entry, from_line, to_line
from upcycled.support.files import cannot_write, flush_folder

FORMAT = 1
FILE = "account.jsonl"
_SEES = ("releases", "aggregates")


@dataclass(frozen=True)
class Study:
    """A run that an account pays for."""

    run: str
    """What names the run, in its own ledger too."""
    mechanism: str
    unit: str
    sees: str
    """What the adversary of its epsilon sees: releases, or aggregates only."""
    clients: tuple[str, ...]
    """What the holder calls the clients that the run has numbers for."""

    def to_json(self) -> dict[str, Any]:
        return {"kind": "study", **vars(self), "clients": list(self.clients)}


@dataclass(frozen=True)
class Charged:
    """A charge of one of the studies."""

    study: int
    """Its number, from 1."""
    entry: Entry

    def to_json(self) -> dict[str, Any]:
        return {"kind": "charge", "study": self.study, "entry": to_line(self.entry)}


@dataclass(frozen=True)
class Closed:
    """The end."""

    def to_json(self) -> dict[str, Any]:
        return {"kind": "closed"}


Line: TypeAlias = Study | Charged | Closed


class AccountFile:
    """What was read of the file so far; the caller holds the folder's lock."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.tips: list[str] = []
        """The chain's value after each line."""
        self.terms: Commitment | None = None
        self.studies: list[Study] = []
        self._length = 0

    def new_lines(self) -> list[Line]:
        """Return what others have written since.

        Raises:
            InputError: in one sentence, if that is no account's, or does not follow what was read before.
        """
        try:
            with self.path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._length:
                    raise InputError(f"account '{self.path}' is shorter than it was: put the file back")
                file.seek(self._length)
                content = file.read()
        except FileNotFoundError:
            raise InputError(
                field="account",
                value=str(self.path.parent),
                must="the folder of an account, which `upcycled privacy account open` makes",
            ) from None
        except OSError as error:
            raise InputError(f"account '{self.path}' cannot be read: {error.strerror}") from None
        found = list[Line]()
        for text in content[: content.rfind(b"\n") + 1].split(b"\n")[:-1]:
            try:
                line = self._read(text)
            except ValueError as error:
                raise InputError(f"account '{self.path}' is damaged in line {len(self.tips) + 1} ({error})") from None
            self._length += len(text) + 1
            found += [] if line is None else [line]
        if not self.tips:
            raise InputError(f"account '{self.path}' is empty, but it must open with what it commits itself to")
        return found

    def begin(self, terms: Commitment) -> None:
        """Write the first line of a new file."""
        self._append({"kind": "account", "format": FORMAT, "terms": terms.to_json()}, os.O_CREAT | os.O_EXCL)
        self.terms = terms
        flush_folder(self.path.parent)

    def append(self, line: Line) -> None:
        """Append a line, which is on the disk when this returns."""
        self._append(line.to_json())
        if isinstance(line, Study):
            self.studies.append(line)

    def _append(self, line: Mapping[str, Any], flags: int = 0) -> None:
        text, tip = linked(self.tips[-1] if self.tips else START, line)
        try:
            handle = os.open(self.path, os.O_RDWR | flags, 0o600)
            with open(handle, "r+b") as file:
                # A line without its end, from a kill while it was written: its release never left.
                file.truncate(self._length)
                file.seek(self._length)
                file.write(text + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self.tips.append(tip)
        self._length += len(text) + 1

    def _read(self, text: bytes) -> Line | None:
        line = parsed(text)
        line.pop("chain", None)
        is_first = not self.tips
        found = None if is_first else _line(line, self.studies)
        terms = _terms(line) if is_first else self.terms
        assert terms is not None
        written = {"kind": "account", "format": FORMAT, "terms": terms.to_json()} if found is None else found.to_json()
        expected, tip = linked(START if is_first else self.tips[-1], written)
        if text != expected:
            raise ValueError("it is not what was written, or does not follow the line before it")
        self.tips.append(tip)
        self.terms = terms
        if isinstance(found, Study):
            self.studies.append(found)
        return found


def _terms(line: Mapping[str, Any]) -> Commitment:
    if line.get("kind") != "account":
        raise ValueError("it does not open an account")
    if line.get("format") != FORMAT:
        raise ValueError(f"its format is {shown(line.get('format'))}, and this version of the package reads {FORMAT}")
    return commitment_of(line.get("terms"))


def _line(line: Mapping[str, Any], studies: list[Study]) -> Line:
    kind = line.get("kind")
    try:
        if kind == "study":
            words = {name: line[name] for name in ("run", "mechanism", "unit", "sees")}
            if not _are_texts([*words.values(), *line["clients"]]) or line["sees"] not in _SEES:
                raise ValueError("it names no study")
            return Study(**words, clients=tuple(line["clients"]))
        if kind == "charge":
            number = line["study"]
            if type(number) is not int or not 1 <= number <= len(studies):
                raise ValueError(f"its study is {shown(number)}, and there are {len(studies)}")
            num_clients = len(studies[number - 1].clients)
            return Charged(number, from_line(line["entry"], num_clients, MOST_ITERATIONS))
        if kind == "closed":
            return Closed()
    except KeyError as error:
        raise ValueError(f"it has no {error}") from None
    except (TypeError, AttributeError):
        raise ValueError("it holds a value of another type than an account's") from None
    raise ValueError(f"its kind is {shown(kind)}, which no account has")


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)
