"""A look at the columns of tables, for drafts and for problems: everything here follows from the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np

from upcycled.core.vectors import Real
from upcycled.data.readers.raw_tables import RawTable
from upcycled.data.schema.cells import FORMATS, Cells, cells_of, days_in, numbers_in, text_of
from upcycled.data.schema.table_schema import GAPS

MOSTLY = 0.9
"""The share of cells that makes a column one of numbers or days; the others are named."""
_INDEX = ("", "index", "id", "row", "rownames", "nr", "no")


@dataclass(frozen=True)
class Odd:
    """Cells that stand out: how many, and the first of them."""

    many: int = 0
    value: str = ""
    row: int = 0
    where: str = ""
    values: tuple[str, ...] = ()
    """Every different one, in the order they are met."""


@dataclass(frozen=True)
class ColumnLook:
    """What is in a column of all tables together."""

    name: str
    filled: int
    gaps: Odd
    no_numbers: Odd
    """Cells with something else than a number."""
    numbers: int
    low: float
    high: float
    is_whole: bool
    values: Counter[str]
    """Every different text, and how often."""
    formats: tuple[str, ...]
    """The forms of days that the texts have, if nearly all are days."""
    no_days: Odd
    days: tuple[date, date] | None
    is_index: bool

    @property
    def is_number(self) -> bool:
        """Whether nearly all of it is numbers."""
        return self.filled > 0 and self.numbers >= MOSTLY * self.filled

    @property
    def is_date(self) -> bool:
        """Whether nearly all of it is days."""
        return self.days is not None

    @property
    def is_empty(self) -> bool:
        """Whether there are gaps only."""
        return self.filled == 0 and self.gaps.many > 0

    @property
    def is_constant(self) -> bool:
        """Whether there is one value only, and no gap."""
        return len(self.values) <= 1 and self.gaps.many == 0


def look_at(tables: Sequence[RawTable], name: str, decimal: str = ".", gaps: Sequence[str] = GAPS) -> ColumnLook:
    """Return what is in a column of the tables that have it.

    >>> column = np.array(["3", "x", ""], dtype=object)
    >>> look = look_at([RawTable("a.csv", "a", {"age": column}, 3)], "age")
    >>> look.numbers, look.no_numbers.value, look.gaps.many
    (1, 'x', 1)
    """
    held = [(table, cells_of(table.columns[name], gaps)) for table in tables if name in table.columns]
    numbers = [numbers_in(cells, decimal) for _, cells in held]
    every = np.concatenate([found[~np.isnan(found)] for found in numbers]) if numbers else np.zeros(0)
    values: Counter[str] = Counter()
    for _, cells in held:
        values.update(text_of(value) for value in cells.values[cells.filled].tolist())
    filled = sum(values.values())
    no_numbers = _odd(
        [(table, cells, np.isnan(found) & ~cells.is_gap) for (table, cells), found in _both(held, numbers)]
    )
    formats, days, no_days = _days(held, filled) if len(every) < MOSTLY * filled else ((), None, Odd())
    return ColumnLook(
        name=name,
        filled=filled,
        gaps=_odd([(table, cells, cells.is_gap) for table, cells in held]),
        no_numbers=no_numbers,
        numbers=len(every),
        low=float(every.min()) if len(every) else 0.0,
        high=float(every.max()) if len(every) else 0.0,
        is_whole=bool(np.all(every == np.floor(every))),
        values=values,
        formats=formats,
        no_days=no_days,
        days=days,
        is_index=_is_index(name, numbers),
    )


def columns_of(tables: Sequence[RawTable]) -> list[str]:
    """Return every column that a table has, in the order of the first that has it."""
    return list(dict.fromkeys(name for table in tables for name in table.columns))


def spelt_twice(values: Iterable[str]) -> tuple[str, str] | None:
    """Return the first two values that differ in their capitals only: two spellings of one, most often.

    >>> spelt_twice(["m", "f", "F"]), spelt_twice(["m", "f"])
    (('F', 'f'), None)
    """
    first: dict[str, str] = {}
    for value in sorted(values):
        other = first.setdefault(value.casefold(), value)
        if other != value:
            return other, value
    return None


def equal_columns(tables: Sequence[RawTable], names: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs of columns that hold the same cells in all tables: the first, and its copy."""
    first: dict[tuple[Any, ...], str] = {}
    found = []
    for name in names:
        held = tuple(tuple(map(str, table.columns[name].tolist())) for table in tables if name in table.columns)
        if held in first:
            found.append((first[held], name))
        first.setdefault(held, name)
    return found


def _both(held: list[tuple[RawTable, Cells]], numbers: list[Real]) -> list[tuple[tuple[RawTable, Cells], Real]]:
    return list(zip(held, numbers, strict=True))


def _odd(found: Sequence[tuple[RawTable, Cells, Any]]) -> Odd:
    many = sum(int(rows.sum()) for _, _, rows in found)
    values = dict.fromkeys(str(value) for _, cells, rows in found for value in cells.values[rows].tolist())
    for table, cells, rows in found:
        if rows.any():
            first = int(np.flatnonzero(rows)[0])
            return Odd(many, str(cells.values[first]), first, table.title, tuple(values))
    return Odd()


def _days(held: Sequence[tuple[RawTable, Cells]], filled: int) -> tuple[tuple[str, ...], tuple[date, date] | None, Odd]:
    """Return the fewest forms that read the days of a column, the first and the last of them, and what is none."""
    if not filled:
        return (), None, Odd()
    read = {form: [days_in(cells, [form]) for _, cells in held] for form in FORMATS}
    chosen: list[str] = []
    covered = [np.zeros(len(cells.values), np.bool_) for _, cells in held]
    while True:
        gains = {
            form: sum(int((~np.isnan(d) & ~c).sum()) for d, c in zip(found, covered, strict=True))
            for form, found in read.items()
        }
        best = max(FORMATS, key=lambda form: gains[form])
        if not gains[best]:
            break
        chosen.append(best)
        covered = [c | ~np.isnan(d) for c, d in zip(covered, read[best], strict=True)]
    if sum(int(c.sum()) for c in covered) < MOSTLY * filled:
        return (), None, Odd()
    days = [days_in(cells, chosen) for _, cells in held]
    every = np.concatenate([found[~np.isnan(found)] for found in days])
    ends = date.fromordinal(int(every.min())), date.fromordinal(int(every.max()))
    odd = _odd([(table, cells, ~c & ~cells.is_gap) for (table, cells), c in zip(held, covered, strict=True)])
    return tuple(chosen), ends, odd


def _is_index(name: str, numbers: Sequence[Real]) -> bool:
    """Tell the numbers of rows, which programs write beside a table, by their name and by counting up."""
    counts = [np.array_equal(found - found[0], np.arange(len(found))) for found in numbers if len(found)]
    is_called_so = name.startswith("Unnamed: ") or name.strip().lower() in _INDEX
    return is_called_so and bool(counts) and all(counts)
