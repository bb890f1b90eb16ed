"""The cells of a column, each read by itself: what one says never changes how another is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled.core.vectors import Ints, Real
from upcycled.data.arrays import as_numbers

_GROUPED = re.compile(r"[+-]?[0-9]{1,3}(\.[0-9]{3})+(,[0-9]+)?")
FORMATS = (
    *("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%d %b %Y", "%d %B %Y"),
    *("%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%d.%m.%Y %H:%M", "%d/%m/%Y %H:%M"),
)
"""Forms of days that drafts and checks look for, day first where a day could be read both ways."""
NOWHERE = -1
"""In the place of a value's number, where it has none."""


@dataclass(frozen=True)
class Cells:
    """A column as a file has it, and where nothing is in it."""

    values: NDArray[Any]
    """Numbers, days, or objects: texts without spaces around them."""
    is_gap: NDArray[np.bool_]

    @property
    def filled(self) -> Ints:
        """The rows that have a value."""
        return np.flatnonzero(~self.is_gap)


def cells_of(values: NDArray[Any], gaps: Iterable[str], keep: Iterable[str] = ()) -> Cells:
    """Return a column with its gaps; texts in ``keep`` are none.

    >>> cells_of(np.array(["3", " na", "", None], dtype=object), ("", "NA")).is_gap.tolist()
    [False, True, True, True]
    """
    if values.dtype.kind in "iub":
        return Cells(values, np.zeros(len(values), np.bool_))
    if values.dtype.kind == "f":
        return Cells(values, np.isnan(values))
    if values.dtype.kind == "M":
        return Cells(values, np.isnat(values))
    kept, missing = set(keep), {gap.strip().casefold() for gap in gaps}
    out = np.empty(len(values), dtype=object)
    out[:] = [value.strip() if isinstance(value, str) else value for value in values.tolist()]
    is_gap = [_is_gap(value, missing, kept) for value in out]
    return Cells(out, np.array(is_gap, dtype=np.bool_))


def _is_gap(value: Any, missing: set[str], kept: set[str]) -> bool:
    if isinstance(value, str):
        return value not in kept and value.casefold() in missing
    # Not a number and not a time are what differs from itself; pandas' own NA answers with itself.
    return value is None or type(value).__name__ == "NAType" or bool(value != value)


def numbers_in(cells: Cells, decimal: str = ".") -> Real:
    """Return the cells' numbers; nan where there is a gap or something else, and where a number is not finite."""
    found = np.full(len(cells.values), np.nan)
    rows = cells.filled
    values = cells.values[rows]
    if values.dtype.kind in "iufb":
        found[rows] = values
    elif values.dtype.kind != "M":
        if decimal == ",":
            values = np.array([_with_point(value) for value in values], dtype=object)
        found[rows] = as_numbers(values)
    found[~np.isfinite(found)] = np.nan
    return found


def days_in(cells: Cells, formats: Sequence[str]) -> Real:
    """Return the cells' days as proleptic ordinals; nan where there is a gap or no day in one of these forms.

    >>> cells = cells_of(np.array(["1970-01-02", "2.1.1970", "soon"], dtype=object), ())
    >>> days_in(cells, ["%Y-%m-%d", "%d.%m.%Y"]).tolist()
    [719164.0, 719164.0, nan]
    """
    found = np.full(len(cells.values), np.nan)
    rows = cells.filled
    if cells.values.dtype.kind == "M":
        epoch = date(1970, 1, 1).toordinal()
        found[rows] = cells.values[rows].astype("datetime64[D]").astype(np.int64) + epoch
        return found
    known: dict[Any, float] = {}
    found[rows] = [_remembered(known, value, lambda one: _ordinal(one, formats)) for value in cells.values[rows]]
    return found


def forms_of(values: Iterable[Any]) -> list[str]:
    """Return the usual forms that read these cells as days, for those that are days.

    >>> forms_of(["1.2.2020", "02/13/2020", "soon"])
    ['%d.%m.%Y', '%m/%d/%Y']
    """
    readable = [
        next((form for form in FORMATS if not np.isnan(_ordinal(value, [form]))), None)
        for value in dict.fromkeys(map(str, values))
    ]
    return [form for form in dict.fromkeys(readable) if form is not None]


def places_in(cells: Cells, values: Sequence[str]) -> Ints:
    """Return which of the listed values each cell is, ``NOWHERE`` where it is none or a gap; 3.0 is "3".

    >>> places_in(cells_of(np.array(["b", 3.0, "?"], dtype=object), ()), ["3", "b"]).tolist()
    [1, 0, -1]
    """
    place = {value: i for i, value in enumerate(values)}
    found = np.full(len(cells.values), NOWHERE, dtype=np.int64)
    rows, known = cells.filled, dict[Any, int]()
    found[rows] = [_remembered(known, value, lambda one: _place(one, place)) for value in cells.values[rows].tolist()]
    return found


def text_of(value: Any) -> str:
    """Return a cell as a name is written: 3 and 3.0 are "3"."""
    is_whole = isinstance(value, float | np.floating) and float(value).is_integer()
    return str(int(value)) if is_whole else str(value)


def _place(value: Any, place: dict[str, int]) -> int:
    text = text_of(value)
    if text in place:
        return place[text]
    # Programs write whole numbers with a point where a column has gaps.
    return place.get(text.removesuffix(".0"), NOWHERE)


def _ordinal(value: Any, formats: Sequence[str]) -> float:
    if isinstance(value, date):  # a datetime is one, and pandas' own
        return float(value.toordinal())
    for form in formats if isinstance(value, str) else ():
        try:
            return float(datetime.strptime(value, form).toordinal())
        except ValueError:
            continue
    return np.nan


def _with_point(value: Any) -> Any:
    """Return a number with a decimal comma as Python writes it; points may group thousands, and mean nothing else."""
    if not isinstance(value, str):
        return value
    if "." in value and _GROUPED.fullmatch(value) is None:
        return None
    return value.replace(".", "").replace(",", ".")


def _remembered(known: dict[Any, Any], value: Any, found: Callable[[Any], Any]) -> Any:
    """Return what was found for an equal value before: columns repeat few days and few names."""
    if not isinstance(value, str):
        return found(value)
    if value not in known:
        known[value] = found(value)
    return known[value]
