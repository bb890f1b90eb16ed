"""A ledger's file as evidence: one text for a line, the hash of all lines before it at its end, and heads.

A line's canonical text is its JSON without spaces, in ASCII, keys in the order they are written in. The chain's value
after a line is the SHA-256 of the value before it and that text; it is the last thing in the line. A *head* names a
line by its number and the chain's value there, under the holder's key: kept elsewhere, it shows that a file still
holds all that it held then.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from upcycled._utils.files import WriteError, cannot_write, write_whole
from upcycled.core.errors import InputError, shown

START = "0" * 64
"""The chain's value before the first line."""
KEY_BYTES = 32
_LINK = b',"chain":"'
_DIGITS = frozenset("0123456789abcdef")


def canonical(line: Mapping[str, Any]) -> bytes:
    """Return a line's one text, without its end."""
    return json.dumps(line, separators=(",", ":")).encode()


def parsed(text: bytes) -> dict[str, Any]:
    """Return what a text says; ValueError, in words, for what no ledger writes: a key twice, NaN, more than ASCII."""
    try:
        found = json.loads(text.decode("ascii"), object_pairs_hook=_table, parse_constant=_constant)
    except _Repeated as repeated:
        raise ValueError(f"it has {shown(repeated.name)} twice") from None
    except (ValueError, RecursionError):
        raise ValueError("it is no JSON") from None
    if not isinstance(found, dict):
        raise ValueError("it is no table of names and values")
    return found


class _Repeated(Exception):
    """A key that stands twice in a table."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Repeated(next(name for name in names if names.count(name) > 1))
    return found


def _constant(word: str) -> float:
    """Infinity is what a release can move by without a bound; nothing else here is no number."""
    if word != "Infinity":
        raise ValueError(word)
    return float("inf")


def link(before: str, text: bytes) -> str:
    """Return the chain's value after a line."""
    return hashlib.sha256(before.encode() + text).hexdigest()


def linked(before: str, line: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return a line's text as it stands in the file, and the chain's value after it."""
    text = canonical(line)
    tip = link(before, text)
    return text[:-1] + _LINK + tip.encode() + b'"}', tip


def table_of(text: bytes) -> dict[str, Any]:
    """Return a line of a file without its chain value; ValueError with a reason if it is invalid."""
    table = parsed(text)
    table.pop("chain", None)
    return table


def follow(before: str, text: bytes, line: Mapping[str, Any]) -> str:
    """Return the chain's value after a line; ValueError if its text is not the one that is written for it."""
    expected, tip = linked(before, line)
    if text != expected:
        raise ValueError("it is not what the run wrote, or does not follow the line before it")
    return tip


class ChainedFile:
    """A file of chained lines that are only ever appended, for its user alone.

    Accounts are written under their folder's lock, ledgers under that of their checkpoints. A run without checkpoints
    has no lock: it stops at a line of another writer, and never writes over one.

    A last line without its end was cut off by a kill while it was written, so its release never left: readers ignore
    it, and the next line takes its place.
    """

    what = "file"
    """What messages call it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tips: list[str] = []
        """The chain's value after each line that was read or written."""
        self._length = 0
        """Where the last of these lines ends."""
        self._is_flushed = True

    def unread(self) -> bytes:
        """Return what follows the lines that are known."""
        with self.path.open("rb") as file:
            return self._rest(file)

    def _rest(self, file: BinaryIO) -> bytes:
        """Return what follows the lines that are known, of the open file."""
        if file.seek(0, os.SEEK_END) < self._length:
            raise InputError(f"{self.what} '{self.path}' is shorter than it was: put the file back")
        file.seek(self._length)
        return file.read()

    def drop_torn(self) -> None:
        """Take off a line that was cut off while it was written."""
        with open(os.open(self.path, os.O_RDWR), "r+b") as file:
            if self._has_dropped(file):
                os.fsync(file.fileno())

    def _has_dropped(self, file: BinaryIO) -> bool:
        """Take off what follows the last line that is known; say whether there was any. Reject a whole line."""
        rest = self._rest(file)
        if b"\n" in rest:
            raise InputError(
                f"{self.what} '{self.path}': another process wrote to it; let one write at a time, and try again"
            )
        if rest:
            file.truncate(self._length)
        return bool(rest)

    def flush(self) -> None:
        """Have all lines on the disk, those that cost nothing too."""
        if self._is_flushed:
            return
        try:
            with open(os.open(self.path, os.O_RDWR), "r+b") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise self._cannot_write(error) from error
        self._is_flushed = True

    def _write(self, line: Mapping[str, Any], *, is_durable: bool = True) -> None:
        """Append a line; the first one makes the file."""
        self._append(*linked(self.tips[-1] if self.tips else START, line), is_durable=is_durable)

    def _append(self, text: bytes, tip: str, *, is_durable: bool = True) -> None:
        """Append a line from its text; with ``is_durable`` it is on the disk when this returns."""
        flags = os.O_RDWR | os.O_APPEND | (0 if self.tips else os.O_CREAT)
        try:
            # Opened for each line: nothing to close, and a file that was moved away is noticed.
            with open(os.open(self.path, flags, 0o600), "r+b") as file:
                self._has_dropped(file)
                file.write(text + b"\n")
                file.flush()
                if is_durable:
                    os.fsync(file.fileno())
        except OSError as error:
            raise self._cannot_write(error) from error
        self._is_flushed = is_durable
        self._took(text, tip)

    def _took(self, text: bytes, tip: str) -> None:
        """Count a line that was read or written."""
        self.tips.append(tip)
        self._length += len(text) + 1

    def _cannot_write(self, error: OSError) -> WriteError:
        return cannot_write(self.path, error)


@dataclass(frozen=True)
class Head:
    """What a ledger held at some time: so many lines, the header among them, and the chain's value after the last.

    ``mac`` is an HMAC-SHA256 of both under the holder's key; None where there is none, as in a simulation.
    """

    lines: int
    tip: str
    mac: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def head_of(tips: Sequence[str], key: bytes | None) -> Head:
    """Return the head of a file whose chain has these values."""
    lines, tip = len(tips), tips[-1]
    return Head(lines, tip, None if key is None else _mac(lines, tip, key))


def as_head(value: object) -> Head:
    """Return a head from the plain values that a summary has of it.

    Raises:
        InputError: in one sentence, if it is none.
    """
    if isinstance(value, Head):
        return value
    if isinstance(value, Mapping) and set(value) == {"lines", "tip", "mac"}:
        lines, tip, mac = value["lines"], value["tip"], value["mac"]
        if type(lines) is int and lines >= 1 and is_hash(tip) and (mac is None or is_hash(mac)):
            return Head(lines, tip, mac)
    raise InputError(
        field="head", value=value, must='what a ledger\'s head was, such as {"lines": 5, "tip": "...", "mac": "..."}'
    )


def check_mac(head: Head, key: bytes) -> None:
    """Refuse a head that the key's holder did not make."""
    check_key(key)
    if head.mac is None or not hmac.compare_digest(head.mac, _mac(head.lines, head.tip, key)):
        why = "has no HMAC" if head.mac is None else "has an HMAC of another key, or was changed"
        raise InputError(f"{why}, but it must be what the holder of this key made", field="head")


def check_key(key: object) -> None:
    """Refuse what is no key, and never show it."""
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        raise InputError(f"is not {KEY_BYTES} bytes, but it must be what the key's file holds", field="key")


def key_at(path: Path) -> bytes:
    """Return the key that a file holds; where there is none, a new one is made there for its user alone.

    Raises:
        InputError: if the file holds no key.
        WriteError: if it cannot be made.
    """
    try:
        if not path.exists():
            if not path.parent.exists():
                path.parent.mkdir(parents=True, mode=0o700)
            write_whole(path, secrets.token_bytes(KEY_BYTES), private=True)
        os.chmod(path, 0o600)
        key = path.read_bytes()
    except OSError as error:
        raise cannot_write(path, error) from error
    if len(key) != KEY_BYTES:
        raise InputError(f"{path} holds {len(key)} bytes, but a key has {KEY_BYTES}: put the key back")
    return key


def _mac(lines: int, tip: str, key: bytes) -> str:
    return hmac.new(key, f"upcycled ledger head {lines} {tip}".encode(), hashlib.sha256).hexdigest()


def is_hash(value: object) -> bool:
    """Return whether a value is a SHA-256 in hexadecimal digits."""
    return isinstance(value, str) and len(value) == 64 and _DIGITS.issuperset(value)
