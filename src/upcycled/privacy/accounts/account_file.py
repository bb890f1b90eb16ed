"""An account on disk: ``account.jsonl``, chained lines that are only ever appended, one writer at a time.

    {"kind": "account", "format": 1, "terms": {...}}                       what was committed, first
    {"kind": "study", "run": ..., "mechanism": ..., "clients": [...]}      a run begins: whom its numbers mean
    {"kind": "committed", "study": 1, "planned": {...}}                    what it plans, before its first charge
    {"kind": "charge", "study": 1, "entry": {...}}                         a line of that run's ledger; a site's has the
                                                                           hash of the question: "question": "6f0c..."
    {"kind": "ended", "study": 1}                                          it ended as planned
    {"kind": "closed"}                                                     nothing follows

Nothing in it follows from records. Whatever reads it and writes to it does both under one lock; a line is on the disk
before the release that it pays for exists. A last line without its end was cut off by a kill before that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from upcycled._utils.files import WriteError, flush_folder
from upcycled.core.errors import InputError, shown
from upcycled.core.mechanism import Charge
from upcycled.privacy.accounts.filters import Commitment, commitment_of
from upcycled.privacy.ledger.budget import PlannedCharges, planned_from_json
from upcycled.privacy.ledger.chain import START, ChainedFile, follow, is_hash, linked, table_of
from upcycled.privacy.ledger.entries import MOST_ITERATIONS, Entry, from_line, to_line

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
class ChargedLine:
    """A charge of one of the studies."""

    study: int
    """Its number, from 1."""
    entry: Entry
    question: str | None = None
    """SHA-256 of what a server asked a site, all that determines the release; None where no server asks."""

    @property
    def charge(self) -> Charge:
        """The entry's charge: readers reject a line without one."""
        assert self.entry.charge is not None
        return self.entry.charge

    def to_json(self) -> dict[str, Any]:
        question = {} if self.question is None else {"question": self.question}
        return {"kind": "charge", "study": self.study, **question, "entry": to_line(self.entry)}


@dataclass(frozen=True, eq=False)
class Committed:
    """The charges that a study plans. They count as spent until the study ends as planned."""

    study: int
    planned: Mapping[str, PlannedCharges]

    def to_json(self) -> dict[str, Any]:
        planned = {kind: part.to_json() for kind, part in self.planned.items()}
        return {"kind": "committed", "study": self.study, "planned": planned}


@dataclass(frozen=True)
class Ended:
    """The end of one of the studies, as planned."""

    study: int

    def to_json(self) -> dict[str, Any]:
        return {"kind": "ended", "study": self.study}


@dataclass(frozen=True)
class Closed:
    """The end."""

    def to_json(self) -> dict[str, Any]:
        return {"kind": "closed"}


Line: TypeAlias = Study | Committed | ChargedLine | Ended | Closed


@dataclass(frozen=True)
class Prepared:
    """A line that is ready to be appended, and that readers accept."""

    text: bytes
    tip: str
    """The chain's value after it."""
    line: Line
    """The line as a reader gets it from the text."""


class AccountFile(ChainedFile):
    """What was read of the file so far; the caller holds the folder's lock."""

    what = "account"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / FILE)
        self.terms: Commitment | None = None
        self.studies: list[Study] = []

    def new_lines(self) -> list[Line]:
        """Return what others have written since.

        Raises:
            InputError: in one sentence, if that is no account's, or does not follow what was read before.
        """
        try:
            content = self.unread()
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
            found += [] if line is None else [line]
        if not self.tips:
            raise InputError(f"account '{self.path}' is empty, but it must open with what it commits itself to")
        return found

    def begin(self, terms: Commitment) -> None:
        """Write the first line of a new file."""
        self._write(_opening(terms))
        self.terms = terms
        flush_folder(self.path.parent)

    def prepare(self, line: Line) -> Prepared:
        """Return a line with its text; nothing is written.

        The text is read as every later reader reads it, so no line is ever appended that makes the file unreadable.

        Raises:
            InputError: if readers would reject the text, or get another line from it.
        """
        written = line.to_json()
        text, _ = linked(self.tips[-1], written)
        try:
            return self._prepared(text)
        except ValueError as error:
            raise InputError(
                f"account '{self.path}': a {written['kind']} that could not be read back ({error}); nothing was written"
            ) from None

    def append(self, prepared: Prepared) -> None:
        """Append a line, which is on the disk when this returns."""
        self._append(prepared.text, prepared.tip)
        if isinstance(prepared.line, Study):
            self.studies.append(prepared.line)

    def _cannot_write(self, error: OSError) -> WriteError:
        # No advice to choose another folder: an account that is replaced starts at zero.
        reason = error.strerror or str(error)
        return WriteError(f"account '{self.path}' cannot be written ({reason}); check permissions and free disk space")

    def _read(self, text: bytes) -> Line | None:
        """Return the next line of the file, and remember it; None for the first, which has the terms."""
        if not self.tips:
            self.terms = _terms(table_of(text))
            self._took(text, follow(START, text, _opening(self.terms)))
            return None
        prepared = self._prepared(text)
        self._took(text, prepared.tip)
        if isinstance(prepared.line, Study):
            self.studies.append(prepared.line)
        return prepared.line

    def _prepared(self, text: bytes) -> Prepared:
        """Return the next line, parsed from its text; ValueError with a reason if the text is invalid."""
        line = _line(table_of(text), self.studies)
        return Prepared(text, follow(self.tips[-1], text, line.to_json()), line)


def _opening(terms: Commitment) -> dict[str, Any]:
    return {"kind": "account", "format": FORMAT, "terms": terms.to_json()}


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
        if kind in ("committed", "charge", "ended"):
            number = line["study"]
            if type(number) is not int or not 1 <= number <= len(studies):
                raise ValueError(f"its study is {shown(number)}, and there are {len(studies)}")
            num_clients = len(studies[number - 1].clients)
            if kind == "ended":
                return Ended(number)
            if kind == "committed":
                return Committed(number, planned_from_json(line["planned"], num_clients))
            entry = from_line(line["entry"], num_clients, MOST_ITERATIONS)
            if entry.charge is None:
                raise ValueError("it is a charge of nothing")
            question = line.get("question")
            if question is not None and not is_hash(question):
                raise ValueError(f"its question is {shown(question)}, expected 64 hexadecimal digits")
            return ChargedLine(number, entry, question)
        if kind == "closed":
            return Closed()
    except KeyError as error:
        raise ValueError(f"it has no {error}") from None
    except (TypeError, AttributeError):
        raise ValueError("it holds a value of another type than an account's") from None
    raise ValueError(f"its kind is {shown(kind)}, which no account has")


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)
