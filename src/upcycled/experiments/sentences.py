"""One sentence for everything that can be wrong in a config file: file, key, value, and what would be right."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel, ValidationError

from upcycled.core.errors import InputError, suggest

LONGEST_VALUE = 80


def shown(value: object) -> str:
    """Return a value for a sentence: one line, not too long."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:
        # Python refuses to write out integers of more than 4300 digits.
        return "a number of more than 4300 digits"
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def must_be(key: str, value: object, right: str) -> InputError:
    """Return the usual sentence."""
    return InputError(f"{key} is {shown(value)}, but it must be {right}")


def dotted(table: str, key: str) -> str:
    """Return ``table.key``, or ``key`` at the top level."""
    return f"{table}.{key}" if table else key


def unknown_key(table: str, key: str, value: object, known: list[str], elsewhere: Mapping[str, str]) -> InputError:
    """Return the sentence for a key that does not exist; ``elsewhere`` tells which table other keys belong to."""
    near = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.5)
    hint = suggest(key, known)
    if not near and key in elsewhere:
        hint = f"; did you mean '{elsewhere[key]}'? (known: {', '.join(known)})"
    where = f"[{table}] has" if table else "there is"
    return InputError(f"{dotted(table, key)} is {shown(value)}, but {where} no such key{hint}")


def from_validation(
    error: ValidationError, model: type[BaseModel], table: str, raw: Mapping[str, Any], elsewhere: Mapping[str, str]
) -> InputError:
    """Return the sentence for the first thing pydantic found; a misspelt key goes before what is then missing."""
    found = sorted(error.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")[0]
    key = str(found["loc"][0]) if found["loc"] else ""
    if found["type"] == "extra_forbidden":
        return unknown_key(table, key, raw[key], list(model.model_fields), elsewhere)
    if not key:
        return _own_words(found, table)
    right = model.model_fields[key].description
    if found["type"] == "missing":
        return InputError(f"{dotted(table, key)} is missing, but it must be {right}")
    if isinstance(found.get("ctx", {}).get("error"), InputError):
        return reworded(str(found["ctx"]["error"]), table, {}, key)
    return must_be(dotted(table, key), raw[key], str(right))


def _own_words(found: Any, table: str) -> InputError:
    cause = found.get("ctx", {}).get("error")
    return InputError(str(cause) if cause is not None else f"{table}: {found['msg']}")


def reworded(message: str, table: str, renamed: Mapping[str, str], key: str | None = None) -> InputError:
    """Give a sentence of the package ("FedProx mu is -1, but ...") the key that the file uses ("algorithm.mu")."""
    subject, verb, rest = message.partition(" is ")
    if not verb:
        return InputError(message)
    field = re.split(r"[ .]", subject)[-1] if key is None else key
    return InputError(f"{dotted(table, renamed.get(field, field))} is {rest}")


@contextmanager
def named(source: str, keys: Mapping[str, str] | None = None) -> Iterator[None]:
    """Put the file's name before every input error, and the file's key in place of the argument's name."""
    try:
        yield
    except InputError as error:
        message = " ".join(str(error).split())
        word = message.partition(" ")[0]
        message = message.replace(word, (keys or {}).get(word, word), 1)
        raise InputError(message if message.startswith(source) else f"{source}: {message}") from error
