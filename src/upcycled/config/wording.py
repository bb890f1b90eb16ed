"""One sentence for everything that can be wrong in a config file: file, key, value, and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from upcycled.core.errors import InputError, suggest


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
        return InputError(
            field=self.key(key), value=value, but=f"{self.title or 'the file'} has no such key", hint=hint
        )


def from_validation(error: ValidationError, model: type[BaseModel], place: Place, raw: Mapping[str, Any]) -> InputError:
    """Return the sentence for the first thing pydantic found; a misspelt key goes before what is then missing."""
    found = sorted(error.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")[0]
    key = str(found["loc"][0]) if found["loc"] else ""
    is_within = len(found["loc"]) > 1
    keys = {field.alias or name: field for name, field in model.model_fields.items()}
    own = found.get("ctx", {}).get("error")
    if found["type"] == "extra_forbidden" and not is_within:
        return place.unknown(key, raw[key], list(keys))
    if not key:
        return own if isinstance(own, InputError) else InputError(found["msg"], where=(place.title,))
    right = str(keys[key].description)
    if found["type"] == "missing" and not is_within:
        return InputError(field=place.key(key), must=right)
    # Within a list or a table the whole of it is shown, and what all of it must be.
    if isinstance(own, InputError) and not is_within:
        return own.renamed(place.key(key))
    return InputError(field=place.key(key), value=raw[key], must=right)


@contextmanager
def in_keys(keys: Mapping[str, str]) -> Iterator[None]:
    """Put the file's key in place of the argument that an input error is about."""
    try:
        yield
    except InputError as error:
        if error.of or error.field not in keys:
            raise
        raise error.renamed(keys[error.field]) from error


@contextmanager
def in_path(path: str | None) -> Iterator[None]:
    """Name the key in errors about the file or folder that ``data.path`` gives, or about one within it."""
    try:
        yield
    except InputError as error:
        if path is None or not Path(error.field).is_relative_to(path):
            raise
        raise error.renamed(f"data.path {error.field}") from error


@contextmanager
def named(source: str) -> Iterator[None]:
    """Put the file's name before every input error."""
    try:
        yield
    except InputError as error:
        raise error.at(source) from error
