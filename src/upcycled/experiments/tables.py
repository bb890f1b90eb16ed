"""Tables of a config file that describe objects of the package: their keys, types and ranges come from those objects.

So a new algorithm, mechanism or option needs no config code, and a range is written down once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields
from typing import Annotated, Any, ClassVar, Literal, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, create_model
from pydantic import Field as Key

from upcycled.core.errors import InputError, check_number

AsTuple = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
"""Lists of the file become tuples, so that a table can be compared and never changes."""

PHRASES: dict[Any, str] = {
    float: "a finite number",
    int: "an integer",
    bool: "true or false",
    str: "a text in quotes",
    float | None: "a finite number",
    int | None: "an integer",
}


class Table(BaseModel):
    """A table of the file: no unknown keys, no conversions, no change afterwards.

    Every key carries in its description what the value must be; error sentences are made from it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class BuiltTable(Table):
    """A table that stands for one object of the package."""

    makes: ClassVar[Callable[..., Any]]
    names: ClassVar[Mapping[str, str]]
    """The object's field for each key that belongs to it."""

    def build(self) -> Any:
        """Return the object."""
        values = {field: getattr(self, key) for key, field in self.names.items()}
        return self.makes(**{field: _plain(value) for field, value in values.items()})


def checked_number(value: Any, *, integer: bool = False, **limits: float) -> Any:
    """Return a number of the file as it is, if it is one within the limits."""
    with _overflow_is_too_large():
        check_number("it", value, integer=integer, **limits)
    if integer and isinstance(value, float):
        raise ValueError("a whole number must be written without a point")
    return value


def within(*, integer: bool = False, **limits: float) -> BeforeValidator:
    """Return the check of a key that is a number in a range; it words wrong types too."""
    return BeforeValidator(lambda value: checked_number(value, integer=integer, **limits))


def table_of(
    made: type[Any],
    *,
    tag: tuple[str, str] | None = None,
    renamed: Mapping[str, str] | None = None,
    types: Mapping[str, tuple[Any, str]] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> type[BuiltTable]:
    """Return the table for a dataclass.

    Args:
        made: the dataclass.
        tag: key and value by which the table is chosen, such as ``("name", "fedprox")``.
        renamed: field -> key, where the file uses another word.
        types: field -> (type, phrase), where a file's value differs from Python's.
        extra: keys that are not the dataclass's own, as pydantic field definitions.
    """
    key_of = {f.name: (renamed or {}).get(f.name, f.name) for f in fields(made)}
    hints = get_type_hints(made)
    keys: dict[str, Any] = {}
    if tag is not None:
        keys[tag[0]] = (Literal[tag[1]], Key(tag[1], description=f"'{tag[1]}'"))
    for f in fields(made):
        kind, phrase = (types or {}).get(f.name, (hints[f.name], PHRASES.get(hints[f.name], "a fitting value")))
        default = ... if f.default is MISSING else f.default
        keys[key_of[f.name]] = (
            Annotated[kind, _range_check(made, f, key_of[f.name], kind)],
            Key(default, description=phrase),
        )
    table: type[BuiltTable] = create_model(f"{made.__name__}Table", __base__=BuiltTable, **keys, **(extra or {}))
    table.makes = made
    table.names = {key: field for field, key in key_of.items()}
    return table


def _range_check(made: type[Any], field: Field[Any], key: str, kind: Any) -> BeforeValidator | AfterValidator:
    """Try one value in an otherwise sound object, whose own check then words the error."""
    sound = {f.name: 1.0 for f in fields(made) if f.default is MISSING}

    def check(value: Any) -> Any:
        with _overflow_is_too_large():
            try:
                made(**{**sound, field.name: _plain(value)})
            except InputError as error:
                # What several fields must agree on is checked when all of them are known.
                if about(error) in (field.name, key):
                    raise
        return value

    # Before the type check where the object words wrong types too ("must be a finite number > 0"); after it where the
    # object could not make sense of them.
    return BeforeValidator(check) if kind in (float, int, float | None, int | None) else AfterValidator(check)


def about(error: InputError) -> str:
    """Return the field that a sentence such as "FedProx mu is -1, but ..." is about.

    >>> about(InputError("FedProx mu is -1, but it must be a finite number >= 0"))
    'mu'
    """
    return re.split(r"[ .]", str(error).partition(" is ")[0])[-1]


@contextmanager
def _overflow_is_too_large() -> Iterator[None]:
    """A whole number beyond the largest float is finite, but nothing here can compute with it."""
    try:
        yield
    except OverflowError as error:
        raise InputError("number is one of more than 300 digits, but it must be a smaller one") from error


def _plain(value: Any) -> Any:
    """Return the Python value of a file's word; TOML has no None."""
    return None if value == "full" else value
