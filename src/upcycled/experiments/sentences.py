"""One sentence for everything that can be wrong in a config file: file, key, value, and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ValidationError

from upcycled.core.errors import InputError, suggest

LONGEST_VALUE = 80


def shown(value: object) -> str:
    """Return a value for a sentence: one line, not too long; of a long one its beginning and its end.

    >>> shown("/a/long/way/" + 20 * "folder/" + "set.npz")
    "'/a/long/way/folder/folder/folder/folde...r/folder/folder/folder/folder/set.npz'"
    """
    try:
        text = " ".join(repr(value).split())
    except ValueError:
        # Python refuses to write out integers of more than 4300 digits.
        return "a number of more than 4300 digits"
    # The end of a path is its name, which is what a reader looks for.
    half = LONGEST_VALUE // 2
    return text if len(text) <= LONGEST_VALUE else f"{text[: half - 1]}...{text[2 - half :]}"


def must_be(key: str, value: object, right: str) -> InputError:
    """Return the usual sentence."""
    return InputError(f"{key} is {shown(value)}, but it must be {right}")


def one_of(names: Iterable[str]) -> str:
    """Return "one of 'a', 'b'", or "'a'" where there is only one."""
    quoted = [f"'{name}'" for name in names]
    return quoted[0] if len(quoted) == 1 else f"one of {', '.join(quoted)}"


@dataclass(frozen=True)
class Place:
    """Where in the file a key stands: for the words of a sentence."""

    table: str = ""
    """"" at the top of the file."""
    title: str = ""
    """The table as a sentence calls it."""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Which table keys belong to that do not stand here, quoted."""

    def key(self, key: str) -> str:
        """Return ``table.key``, or ``key`` at the top level."""
        return f"{self.table}.{key}" if self.table else key

    def unknown(self, key: str, value: object, known: list[str]) -> InputError:
        """Return the sentence for a key that does not exist."""
        hint = suggest(key, known)
        is_near = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.8)
        if not is_near and key in self.elsewhere and not self.elsewhere[key].startswith(f"'{self.table}."):
            hint = f"; did you mean {self.elsewhere[key]}? (known: {', '.join(known)})"
        return InputError(f"{self.key(key)} is {shown(value)}, but {self.title or 'the file'} has no such key{hint}")


def from_validation(error: ValidationError, model: type[BaseModel], place: Place, raw: Mapping[str, Any]) -> InputError:
    """Return the sentence for the first thing pydantic found; a misspelt key goes before what is then missing."""
    found = sorted(error.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")[0]
    key = str(found["loc"][0]) if found["loc"] else ""
    own = found.get("ctx", {}).get("error")
    if found["type"] == "extra_forbidden":
        return place.unknown(key, raw[key], list(model.model_fields))
    if not key:
        return own if isinstance(own, InputError) else InputError(f"{place.title}: {found['msg']}")
    right = str(model.model_fields[key].description)
    if found["type"] == "missing":
        return InputError(f"{place.key(key)} is missing, but it must be {right}")
    # Within a list the whole list is shown, and what all of it must be.
    if isinstance(own, InputError) and len(found["loc"]) == 1:
        return reworded(own, place.key(key))
    return must_be(place.key(key), raw[key], right)


def reworded(error: InputError, key: str) -> InputError:
    """Give a sentence of the package ("FedProx mu is -1, but ...") the key that the file uses ("algorithm.mu")."""
    _, verb, rest = str(error).partition(" is ")
    return InputError(f"{key} is {rest}") if verb else error


@contextmanager
def in_keys(keys: Mapping[str, str]) -> Iterator[None]:
    """Put the file's key in place of the argument's name that an input error begins with."""
    try:
        yield
    except InputError as error:
        word, space, rest = str(error).partition(" ")
        raise InputError(f"{keys.get(word, word)}{space}{rest}") from error


@contextmanager
def named(source: str) -> Iterator[None]:
    """Put the file's name before every input error, and see that it is one line."""
    try:
        yield
    except InputError as error:
        message = " ".join(str(error).split())
        raise InputError(message if message.startswith(f"{source}: ") else f"{source}: {message}") from error
