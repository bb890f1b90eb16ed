"""Tables of a config file: their keys, types and ranges, and one sentence for everything that can be wrong in them.

One sentence for everything that can be wrong in a config file: file, key, value, and what would be right.

Tables of a config file that describe objects of the package: their keys, types and ranges come from those objects.

So a new algorithm, mechanism or option needs no config code, and a range is written down once, as ``Limits``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, create_model
from pydantic import Field as Key

from upcycled.core.errors import (
    COUNT,
    FRACTION,
    SEED,
    InputError,
    choices_of,
    declared_limits,
    limits_of,
    suggest,
)


def one_of(names: Iterable[str]) -> str:
    """Return "one of 'a', 'b'", or "'a'" where there is only one."""
    quoted = [f"'{name}'" for name in names]
    return quoted[0] if len(quoted) == 1 else f"one of {', '.join(quoted)}"


RENAMED = {"c": "coefficient", "rho": "coefficient", "classes": "num_classes", "labels": "label_names"}
"""The names that keys had before."""


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
        hint, now = suggest(key, known), RENAMED.get(key, key)
        is_near = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.8)
        if now != key and now in known:
            hint = f"; did you mean '{now}'? (known: {', '.join(known)})"
        elif (
            (now != key or not is_near)
            and now in self.elsewhere
            and not self.elsewhere[now].startswith(f"'{self.table}.")
        ):
            hint = f"; did you mean {self.elsewhere[now]}? (known: {', '.join(known)})"
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
        known = [name for name, field in keys.items() if not str(field.description).startswith("left out")]
        return place.unknown(key, raw[key], known)
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


AsTuple = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
"""Lists of the file become tuples, so that a table can be compared and never changes."""

KNOWN = (bool, int, float, str, int | None, float | None, str | None)
PHRASES: dict[Any, str] = {
    bool: "true or false",
    str: "a text in quotes",
    int: "an integer",
    float: "a finite number",
    int | None: "an integer",
    float | None: "a finite number",
    str | None: "a text in quotes",
}


def phrase_of(hint: Any) -> str:
    """Return what a value of a type must be, by the limits that it is annotated with, or by its kind.

    >>> phrase_of(Annotated[int, COUNT] | None), phrase_of(Literal["loss", "accuracy"] | None)
    ('an integer >= 1', "'loss' or 'accuracy'")
    """
    limits, choices = declared_limits(hint), choices_of(hint)
    if limits is not None:
        return limits.phrase
    if choices:
        names = [repr(choice) for choice in choices]
        return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    return PHRASES.get(hint.__origin__ if hasattr(hint, "__metadata__") else hint, "a fitting value")


class Table(BaseModel):
    """A table of the file: no unknown keys, no conversions, no change afterwards.

    Every key carries in its description what the value must be; error sentences are made from it. Where it is left out,
    the key's type says it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Describe the keys that have no description."""
        for key in cls.model_fields.values():
            if key.description is None:
                key.description = phrase_of(
                    Annotated[key.annotation, *key.metadata] if key.metadata else key.annotation
                )


class BuiltTable(Table):
    """A table that stands for one object of the package."""

    makes: ClassVar[Callable[..., Any]]
    names: ClassVar[Mapping[str, str]]
    """The object's field for each key that belongs to it."""

    def build(self) -> Any:
        values = {field: getattr(self, key) for key, field in self.names.items()}
        return self.makes(**{field: _plain(value) for field, value in values.items()})


Fraction = Annotated[float, FRACTION]
Count = Annotated[int, COUNT]
Seed = Annotated[int, SEED]
Word = Annotated[str, Key(min_length=1)]


def table_of(
    made: type[Any],
    *,
    tag: tuple[str, str] | None = None,
    renamed: Mapping[str, str] | None = None,
    types: Mapping[str, tuple[Any, str]] | None = None,
    base: type[BuiltTable] = BuiltTable,
    left_out: Collection[str] = (),
    defaults: Mapping[str, Any] | None = None,
    makes: Callable[..., Any] | None = None,
) -> type[BuiltTable]:
    """Return the table for a dataclass.

    Args:
        made: the dataclass.
        tag: key and value by which the table is chosen, such as ``("name", "fedprox")``.
        renamed: field -> key, where the file uses another word.
        types: field -> (type, phrase), where a file's value differs from Python's.
        base: what has keys that are not the dataclass's own.
        left_out: fields that a file does not give.
        defaults: field -> default, where it is not the dataclass's own.
        makes: what is called with the fields in the place of the dataclass.
    """
    given = [f for f in fields(made) if f.name not in left_out]
    key_of = {f.name: (renamed or {}).get(f.name, f.name) for f in given}
    hints = get_type_hints(made)
    keys: dict[str, Any] = {}
    if tag is not None:
        keys[tag[0]] = _tag_key(tag)
    limits = limits_of(made)
    for f in given:
        # A class of the user's may have fields of any type: what a file can hold is tried, and its own check decides.
        kind = hints[f.name] if hints[f.name] in KNOWN else Any
        kind, phrase = (types or {}).get(f.name, (kind, PHRASES.get(kind, "a fitting value")))
        if f.name in limits and f.name not in (types or {}):
            kind, phrase = Annotated[kind, limits[f.name]], limits[f.name].phrase
        default = (defaults or {}).get(f.name, default_of(f))
        keys[key_of[f.name]] = (kind, Key(default, description=phrase))
    table: type[BuiltTable] = create_model(f"{made.__name__}Table", __base__=base, **keys)
    table.makes = staticmethod(made if makes is None else makes)
    table.names = {key: field for field, key in key_of.items()}
    return table


def table_of_code(code: Any, tag: tuple[str, str], base: type[BuiltTable] = BuiltTable) -> type[BuiltTable]:
    """Return the table that stands for code as it is, which takes no options."""
    table: type[BuiltTable] = create_model("CodeTable", __base__=base, **{tag[0]: _tag_key(tag)})  # type: ignore[call-overload]
    table.makes = staticmethod(lambda: code)
    table.names = {}
    return table


def _tag_key(tag: tuple[str, str]) -> tuple[Any, Any]:
    return Literal[tag[1]], Key(tag[1], description=f"'{tag[1]}'")


def default_of(field: Field[Any]) -> Any:
    """Return a dataclass field's default, or ``...`` where it has none."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    return ... if field.default is MISSING else field.default


def _plain(value: Any) -> Any:
    """Return the Python value of a file's word or table; TOML has no None."""
    if isinstance(value, BuiltTable):
        return value.build()
    return None if value == "full" else value
