"""The ledger on disk: JSON lines, appended and forced to the disk before the releases they pay for leave.

For its user alone, whatever the umask. Lines are chained (see :mod:`upcycled.privacy.ledger.chain`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from upcycled._utils.files import cannot_write
from upcycled.core.errors import InputError
from upcycled.privacy.ledger.chain import START, ChainedFile, canonical, follow, parsed, table_of
from upcycled.privacy.ledger.entries import (
    CHARGED,
    ENDED,
    FIRST,
    ChargedClients,
    Entry,
    First,
    first_from_json,
    from_line,
    to_line,
)
from upcycled.privacy.ledger.header import Header, from_json, to_json

T = TypeVar("T")
_NAMES = re.compile(r"ledger(-[0-9]+)?\.jsonl")
_OPENING = b'{"kind":"run",'


@dataclass(frozen=True)
class Content:
    """What a file holds."""

    header: Header
    entries: list[Entry]
    tips: list[str]
    """The chain's value after each line, the header's first."""
    length: int
    """Where its last whole line ends."""
    charged: ChargedClients
    """Who is charged in it: a line says more of clients that it is the first to charge."""


class LedgerFile(ChainedFile):
    """One run's charges. Lines are only ever appended; a run that goes on finds its own."""

    def __init__(self, path: Path, header: Header) -> None:
        super().__init__(path)
        self.header = header
        """Of the file: a run goes on with the plan that it began with."""
        self.found: list[Entry] = []
        """What the file held when it was opened."""
        self.is_new = False
        """Whether every line in it is this run's own, written here."""
        self._charged = ChargedClients(header.num_clients)
        try:
            if path.exists():
                self._take_up(header)
                self.drop_torn()
            if not self.tips:
                self._begin(header)
            os.chmod(path, 0o600)
        except OSError as error:
            raise cannot_write(path, error) from error

    def append(self, entry: Entry, *, durable: bool) -> None:
        """Append a line; with ``durable`` it is on the disk when this returns."""
        if entry.charge is None:
            self._write(to_line(entry), is_durable=durable)
            return
        first = self.header.first(self._charged.new(entry.clients))
        self._write(to_line(entry) | first.to_json(), is_durable=durable)
        self._charged.add(first.clients)

    def _begin(self, header: Header) -> None:
        if header.noise == "system":
            header = self.header = replace(header, previous=_previous_tip(self.path))
        line = to_json(header)
        _check_readable(line, header.mechanism)
        self.is_new = True
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._write(line)
        _sync(self.path.parent)

    def _take_up(self, header: Header) -> None:
        try:
            held = _content(self.unread())
        except _Damage as damage:
            raise InputError(f"{damage.of(self.path)}: give the run another file") from None
        if held is not None:
            payer, before = held.header.account, held.header
            if payer != header.account and before.goes_on_as(replace(header, account=payer)):
                ours, theirs = (one.account.id if one.account else "none" for one in (header, before))
                raise InputError(
                    field="account",
                    value=ours,
                    must=f"{theirs}: ledger '{self.path}' holds charges of this run that were charged there",
                )
            if not before.goes_on_as(header):
                raise InputError(
                    f"ledger '{self.path}' holds the charges of another run, but each run needs a file of its own"
                )
            self.found, self.tips, self._charged = held.entries, held.tips, held.charged
            self._length = held.length
            self.header = replace(header, planned=held.header.planned)


def ledger_files(folder: Path) -> list[Path]:
    """Return a run's ledgers, the first attempt's first: with real noise, one begun anew has a file for each."""
    found = [path for path in folder.glob("ledger*.jsonl") if _NAMES.fullmatch(path.name)]
    return sorted(found, key=_attempt)


def _attempt(path: Path) -> tuple[int, str]:
    return len(path.name), path.name


def _previous_tip(path: Path) -> str | None:
    """Return the last chain value of the attempt before this one; None where there is none that charged anything."""
    if _NAMES.fullmatch(path.name) is None:
        return None
    for earlier in reversed([other for other in ledger_files(path.parent) if _attempt(other) < _attempt(path)]):
        try:
            held = _content(earlier.read_bytes())
        except _Damage as damage:
            raise InputError(f"{damage.of(earlier)}: put the file back, or give the run another folder") from None
        if held is not None:
            return held.tips[-1]
    return None


def read_file(path: Path) -> Content:
    """Return what a ledger's file holds, and leave it as it is; a last line without its end does not count."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"ledger '{path}' cannot be read: {error.strerror}") from None
    try:
        held = _content(content)
    except _Damage as damage:
        raise InputError(damage.of(path)) from None
    if held is None:
        raise InputError(f"ledger '{path}' is empty, but it must open with a line about its run")
    return held


def run_of(path: Path) -> str | None:
    """Return whose charges a file holds; None where there are none yet."""
    if not path.is_file():
        return None
    try:
        held = _content(path.read_bytes())
    except _Damage as damage:
        raise InputError(f"{damage.of(path)}: give the run another file") from None
    return None if held is None else held.header.run


class _Damage(Exception):
    """A line that no ledger writes."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(number, why)
        self.number, self.why = number, why

    def of(self, path: Path) -> str:
        return f"ledger '{path}' is damaged in line {self.number} ({self.why})"


def _content(content: bytes) -> Content | None:
    """Return what whole lines say, each held to the text that a ledger writes; None where there is none."""
    length = content.rfind(b"\n") + 1
    texts = content[:length].split(b"\n")[:-1]
    _check_torn(content[length:], len(texts) + 1)
    if not texts:
        return None
    lines = [_of_line(number, table_of, text) for number, text in enumerate(texts, start=1)]
    header = _of_line(1, from_json, lines[0])
    charged, firsts = ChargedClients(header.num_clients), list[First | None]()
    entries, read = list[Entry](), partial(from_line, num_clients=header.num_clients, data_rounds=header.data_rounds)
    for number, line in enumerate(lines[1:], start=2):
        given = line.pop(FIRST, None) if line.get("kind") in CHARGED else None
        entry = _of_line(number, read, line)
        entries.append(entry)
        firsts.append(_of_line(number, partial(_first, header, charged, entry), given))
    written = [to_line(one) | (first.to_json() if first else {}) for one, first in zip(entries, firsts, strict=True)]
    # From the values, not from what was parsed: what is read is what these bytes say, and nothing else.
    tips = _tips(texts, [to_json(header), *written])
    _check_order(header, entries)
    return Content(header.filled(first for first in firsts if first is not None), entries, tips, length, charged)


def _first(header: Header, charged: ChargedClients, entry: Entry, given: object) -> First | None:
    """Return what a line says of the clients that it is the first to charge; None where it charges nobody."""
    if entry.charge is None:
        return None
    first = first_from_json(given, charged.new(entry.clients), header.seal, header.paper is not None)
    charged.add(first.clients)
    return first


def _of_line(number: int, read: Callable[[Any], T], value: Any) -> T:
    try:
        return read(value)
    except ValueError as error:
        raise _Damage(number, str(error)) from None


def _tips(texts: Iterable[bytes], lines: Iterable[dict[str, Any]]) -> list[str]:
    """Return the chain's values if the texts are those that a ledger writes for these lines."""
    found = [START]
    for number, (text, line) in enumerate(zip(texts, lines, strict=True), start=1):
        found.append(_of_line(number, partial(follow, found[-1], text), line))
    return found[1:]


def _check_order(header: Header, entries: Iterable[Entry]) -> None:
    """Hold iterations and rounds to what a run does: a round belongs to its iterations, and later ones to later.

    Real noise goes back to an earlier iteration where a stopped run goes on; a simulation writes nothing twice.
    """
    rounds: dict[int, int] = {}
    last = 0
    for number, entry in enumerate(entries, start=2):
        if entry.kind == ENDED:
            continue
        if rounds.setdefault(entry.iteration, entry.round) != entry.round:
            raise _Damage(number, f"its round is {entry.round}, and iteration {entry.iteration} had another before")
        if header.noise == "seeded" and entry.iteration < last:
            raise _Damage(number, f"its iteration is {entry.iteration}, after {last}")
        last = entry.iteration
    in_order = [rounds[iteration] for iteration in sorted(rounds)]
    if in_order != sorted(in_order):
        raise _Damage(1, "rounds of the lines below go down where iterations go up")


def _check_torn(tail: bytes, number: int) -> None:
    """Refuse a last line without its end that is not the beginning of a line either."""
    opening = _OPENING if number == 1 else _OPENING[:9]
    if not (tail.startswith(opening) or opening.startswith(tail)):
        raise _Damage(number, "it does not open a run's ledger" if number == 1 else "it does not begin like one")
    try:
        text = tail.decode("ascii")
        _, end = json.JSONDecoder().raw_decode(text) if text else (None, 0)
    except UnicodeDecodeError:
        raise _Damage(number, "it is no JSON") from None
    except (ValueError, RecursionError):
        return
    if end < len(text):
        raise _Damage(number, "more than its end follows it")


def _check_readable(line: dict[str, Any], mechanism: str) -> None:
    """Refuse a mechanism of one's own whose promise could not be read back."""
    try:
        if canonical(to_json(from_json(parsed(canonical(line))))) == canonical(line):
            return
        why = "it would read as another"
    except (TypeError, ValueError) as error:
        why = str(error)
    raise InputError(f"the promise of mechanism '{mechanism}' cannot stand in a ledger ({why})")


def _sync(folder: Path) -> None:
    """Force a new file's name to the disk too, where the system can do that for folders."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
