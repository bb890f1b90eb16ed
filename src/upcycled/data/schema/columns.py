"""The kinds of columns that a schema knows, and the lines of a schema's file.

Lines of a schema's file, for drafts and for what mends a problem.

The kinds of columns that a schema knows, each with what everybody may know of it.

A number or a date is clipped to its public bounds and scaled by them to [-1, 1]: the middle of the bounds is 0, so that
a gap that is filled with it adds nothing to a linear model, and its "is missing" column says the rest. A category is
one column of 0 and 1 for each value, and one for all others. Nothing is ever fitted to the data.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import date, datetime
from typing import Any, ClassVar, TypeAlias

from upcycled.core.errors import Absent, InputError, suggest, unknown

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_value(value: Any) -> str:
    """Return a value on one line.

    >>> toml_value(["a", 1.0, 2.5, True, date(2020, 1, 31)])
    '["a", 1, 2.5, true, 2020-01-31]'
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    if isinstance(value, int):
        return str(value)
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_key(name: str) -> str:
    """Return a name as a key, in quotes where it needs them.

    >>> toml_key("age"), toml_key("blood pressure")
    ('age', '"blood pressure"')
    """
    return name if _BARE.fullmatch(name) else toml_value(name)


def column_line(name: str, key: str, value: Any) -> str:
    """Return what a column's table should say, on one line.

    >>> column_line("sex", "other", True)
    '[columns.sex] other = true'
    """
    return f"[columns.{toml_key(name)}] {key} = {toml_value(value)}"


def marked_line(name: str, key: str, value: Any, marks: Iterable[str] = ()) -> str:
    """Return what a column's table should say, read off the data: with the mark that a run with real noise refuses.

    >>> print(marked_line("age", "gap", 50.0, ["bounds"]))
    [columns.age] gap = 50
    from_data = ["bounds", "gap"]
    """
    return f"{column_line(name, key, value)}\n{marks_line([*marks, key])}"


def marks_line(keys: Iterable[str]) -> str:
    """Return the line that lists what was read off the data.

    >>> marks_line(["bounds", "gap", "gap"])
    'from_data = ["bounds", "gap"]'
    """
    return f"from_data = {toml_value(list(dict.fromkeys(keys)))}"


ISO = "%Y-%m-%d"
OTHER = "other"
"""The column, and the gap, of a category's values that the schema does not list."""


@dataclass(frozen=True)
class _Column:
    kind: ClassVar[str]
    from_data: tuple[str, ...] = field(default=(), kw_only=True)
    """The keys whose values were read off the data."""

    def names(self, name: str) -> tuple[str, ...]:
        """Return what its features are called."""
        return ()


@dataclass(frozen=True)
class NumberColumn(_Column):
    """A measurement."""

    kind = "number"
    bounds: tuple[float, float]
    gap: float | None = None

    def names(self, name: str) -> tuple[str, ...]:
        return (name, *_missing(name, self.gap))


@dataclass(frozen=True)
class CategoryColumn(_Column):
    """One of a few values."""

    kind = "category"
    values: tuple[str, ...]
    other: bool = True
    gap: str | None = None

    @property
    def listed(self) -> tuple[str, ...]:
        """The values that have a feature of their own, and the one for all others."""
        return (*self.values, *((OTHER,) if self.other else ()))

    def names(self, name: str) -> tuple[str, ...]:
        return (*(f"{name}={value}" for value in self.listed), *_missing(name, self.gap))


@dataclass(frozen=True)
class DateColumn(_Column):
    """A day, as the number of days from the first bound."""

    kind = "date"
    bounds: tuple[date, date]
    formats: tuple[str, ...] = (ISO,)
    gap: date | None = None

    def names(self, name: str) -> tuple[str, ...]:
        return (name, *_missing(name, self.gap))


@dataclass(frozen=True)
class LabelColumn(_Column):
    """What is to be learnt: one of the classes; or a number in its own unit, within bounds where they are given."""

    kind = "label"
    classes: tuple[str, ...] | None = None
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True)
class ClientColumn(_Column):
    """Whose a row is."""

    kind = "client"


@dataclass(frozen=True)
class SplitColumn(_Column):
    """Whether a row is for training or for testing."""

    kind = "split"


@dataclass(frozen=True)
class IgnoredColumn(_Column):
    """Nothing that is looked at; it need not be there."""

    kind = "ignored"


Feature: TypeAlias = NumberColumn | CategoryColumn | DateColumn
ColumnKind: TypeAlias = Feature | LabelColumn | ClientColumn | SplitColumn | IgnoredColumn
FEATURES = (NumberColumn, CategoryColumn, DateColumn)
KINDS: dict[str, type[ColumnKind]] = {
    made.kind: made for made in (*FEATURES, LabelColumn, ClientColumn, SplitColumn, IgnoredColumn)
}


def column_from(name: str, table: object) -> ColumnKind:
    """Return a column of a schema's file, checked.

    Raises:
        InputError: in one sentence that names the column's table and key.
    """
    where = f"columns.{name}"
    if not isinstance(table, Mapping):
        raise InputError(field=where, value=table, must=f"a table with a kind: {', '.join(KINDS)}")
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        if kind is None:
            raise InputError(field=f"{where}.kind", must=f"one of {', '.join(KINDS)}")
        raise unknown(f"{where}.kind", kind, KINDS)
    allowed = [one.name for one in fields(KINDS[kind])]
    for key in table:
        if key != "kind" and key not in allowed:
            raise InputError(f"is no key of a column of kind '{kind}'{suggest(key, allowed)}", field=f"{where}.{key}")
    marks = _texts(f"{where}.from_data", table.get("from_data", []), least=0)
    for mark in marks:
        if mark != "kind" and mark not in allowed:
            raise InputError(f"holds '{mark}', but it must list keys of this column", field=f"{where}.from_data")
    keys = _CHECKS[kind](where, table) if kind in _CHECKS else {}
    return KINDS[kind](**keys, from_data=marks)


def plain_column(column: ColumnKind) -> dict[str, Any]:
    """Return a column as plain values, from which :func:`column_from` makes an equal one."""
    own = {one.name: getattr(column, one.name) for one in fields(column)}
    found = {"kind": column.kind} | {key: _shown(value) for key, value in own.items() if value is not None}
    marks = found.pop("from_data")
    return found | ({"from_data": marks} if marks else {})


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else value


def _missing(name: str, gap: object) -> tuple[str, ...]:
    return () if gap is None else (f"{name} is missing",)


def _bounds(where: str, table: Mapping[str, Any]) -> tuple[float, float]:
    try:
        # -0.0 and 0.0 give the same numbers, so they are written alike in a fingerprint.
        low, high = (float(one) + 0.0 for one in table["bounds"])
        is_fine = low < high and math.isfinite(high - low)
    except (KeyError, TypeError, ValueError, OverflowError):
        is_fine = False
    if not is_fine:
        must = "two finite numbers, the smaller first, such as [0, 120]"
        raise InputError(field=f"{where}.bounds", value=table.get("bounds", Absent.MISSING), must=must)
    return low, high


def _number(where: str, table: Mapping[str, Any]) -> dict[str, Any]:
    low, high = _bounds(where, table)
    if table.get("gap") is None:
        return {"bounds": (low, high)}
    try:
        gap = float(table["gap"]) + 0.0
    except (TypeError, ValueError, OverflowError):
        gap = math.nan
    if not low <= gap <= high:
        must = f"a number within the bounds, {low:g} to {high:g}"
        raise InputError(field=f"{where}.gap", value=table["gap"], must=must)
    return {"bounds": (low, high), "gap": gap}


def _category(where: str, table: Mapping[str, Any]) -> dict[str, Any]:
    values = _texts(f"{where}.values", table.get("values"), least=1)
    other = table.get("other", True)
    if not isinstance(other, bool):
        raise InputError(field=f"{where}.other", value=other, must="true or false")
    if other and OTHER in values:
        raise InputError(
            f"holds '{OTHER}', which stands for all values that are not listed: leave it out, or say other = false",
            field=f"{where}.values",
        )
    gap = table.get("gap")
    known = CategoryColumn(values, other).listed
    if gap is not None and (isinstance(gap, bool) or str(gap).strip() not in known):
        raise InputError(field=f"{where}.gap", value=gap, must=f"one of {', '.join(map(repr, known))}")
    return {"values": values, "other": other, "gap": None if gap is None else str(gap).strip()}


def _date(where: str, table: Mapping[str, Any]) -> dict[str, Any]:
    given = table.get("bounds", Absent.MISSING)
    days = [_day(one) for one in given] if isinstance(given, list | tuple) else []
    if len(days) != 2 or days[0] is None or days[1] is None or not days[0] < days[1]:
        must = "two days, the earlier first, such as [2010-01-01, 2030-12-31]"
        raise InputError(field=f"{where}.bounds", value=_shown(given), must=must)
    gap = None if table.get("gap") is None else _day(table["gap"])
    if table.get("gap") is not None and (gap is None or not days[0] <= gap <= days[1]):
        must = f"a day within the bounds, {days[0]} to {days[1]}"
        raise InputError(field=f"{where}.gap", value=_shown(table["gap"]), must=must)
    formats = _texts(f"{where}.formats", table.get("formats", [ISO]), least=1)
    for form in formats:
        try:
            is_day = datetime.strptime(date(2021, 11, 23).strftime(form), form).date() == date(2021, 11, 23)
        except ValueError:
            is_day = False
        if not is_day:
            raise InputError(field=f"{where}.formats", value=form, must="a form of days such as '%d.%m.%Y'")
    return {"bounds": (days[0], days[1]), "formats": formats, "gap": gap}


def _label(where: str, table: Mapping[str, Any]) -> dict[str, Any]:
    if "classes" in table and "bounds" in table:
        raise InputError("is given beside classes, but a label is one of them or a number", field=f"{where}.bounds")
    if "classes" in table:
        return {"classes": _texts(f"{where}.classes", table["classes"], least=2)}
    return {"bounds": _bounds(where, table)} if "bounds" in table else {}


_CHECKS: dict[str, Callable[[str, Mapping[str, Any]], dict[str, Any]]] = {
    "number": _number,
    "category": _category,
    "date": _date,
    "label": _label,
}
"""What checks the keys of each kind of column, all but ``from_data``."""


def _texts(field: str, given: object, least: int) -> tuple[str, ...]:
    """Return a list of different texts; numbers count as they are written."""
    parts: Sequence[Any] = given if isinstance(given, list | tuple) else ()
    is_right = isinstance(given, list | tuple) and len(parts) >= least
    if not is_right or any(isinstance(one, bool) or not isinstance(one, str | int | float) for one in parts):
        many = {0: "texts", 1: "one or more texts"}.get(least, "two or more texts")
        raise InputError(field=field, value=given, must=f"a list of {many}")
    texts = tuple(map(_written, parts))
    repeated = [text for text in texts if texts.count(text) > 1]
    if repeated:
        raise InputError(f"holds '{repeated[0]}' twice, but every one must be different", field=field)
    return texts


def _written(value: str | float) -> str:
    is_whole = isinstance(value, float) and value.is_integer()
    return str(int(value)) if is_whole else str(value).strip()


def _day(value: object) -> date | None:
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, date):
        return value
    try:
        return date.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _shown(value: object) -> object:
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else _plain(value)
