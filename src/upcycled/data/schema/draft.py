"""A draft of a schema, to be edited, from a look at the columns of tables.

A look at the columns of tables, for drafts and for problems: everything here follows from the data.

A draft of a schema, to be edited: what follows from the data is marked, for people and for programs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import numpy as np

from upcycled.core.errors import InputError, suggest
from upcycled.core.vectors import Real
from upcycled.data.readers.raw_tables import Dialect, RawTable
from upcycled.data.schema.cells import FORMATS, Cells, cells_of, days_in, numbers_in, text_of
from upcycled.data.schema.columns import ISO, CategoryColumn, DateColumn, Feature, NumberColumn, toml_key, toml_value
from upcycled.data.schema.encoding import usual_gap
from upcycled.data.schema.schema import GAPS

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
        [(table, cells, np.isnan(found) & ~cells.is_gap) for (table, cells), found in zip(held, numbers, strict=True)]
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


MOST_VALUES = 20
"""Different texts that make a category; with more it is taken for free text."""
_MARK = "  # from the data: replace by public knowledge before a private run"
_HEAD = """\
# What every column is, for all sites alike; docs/tables.md has the keys.
# from_data lists what was read off the data: put public knowledge in its place and take the mark away. A run with real
# noise refuses a schema that has marks.
format = 1
"""


@dataclass(frozen=True)
class DraftColumn:
    """A column's table: keys with their values, those that follow from the data, and remarks."""

    name: str
    keys: dict[str, Any]
    marked: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    def text(self) -> str:
        lines = [f"# {remark}" for remark in self.remarks] + [f"[columns.{toml_key(self.name)}]"]
        lines += [f"{key} = {toml_value(value)}{_MARK * (key in self.marked)}" for key, value in self.keys.items()]
        lines += [f"from_data = {toml_value(self.marked)}"] if self.marked else []
        return "\n".join(lines)


def draft(
    tables: Sequence[RawTable],
    *,
    client: str | None = None,
    label: str | None = None,
    targets: str | None = None,
    dialect: Dialect | None = None,
) -> str:
    """Return a draft of a schema for tables, as the text of its file.

    Args:
        tables: of one or more sites.
        client: the client column; left out, a column "client", or the files' names where there are several.
        label: the label column; left out, a column "label".
        targets: "classes" or "numbers"; left out, what the label looks like.
        dialect: how the tables are written, where they are not comma-separated UTF-8.

    Raises:
        InputError: in one sentence, if it cannot be told whose rows are, or what is to be learnt.

    >>> import numpy as np
    >>> columns = {"age": np.array(["31", "", "60"]), "label": np.array(["ill", "well", "ill"])}
    >>> text = draft([RawTable("a.csv", "a", columns, 3)])
    >>> print(text[text.index("[columns.age]"):])
    [columns.age]
    kind = "number"
    bounds = [31, 60]  # from the data: replace by public knowledge before a private run
    gap = 45.5  # from the data: replace by public knowledge before a private run
    from_data = ["bounds", "gap"]
    <BLANKLINE>
    [columns.label]
    kind = "label"
    classes = ["ill", "well"]  # from the data: replace by public knowledge before a private run
    from_data = ["classes"]
    """
    names = columns_of(tables)
    client = _special("--client", client, "client", names)
    label = _special("--label", label, "label", names)
    if label is None:
        raise InputError(field="--label", must=f"the column that is to be learnt (known: {', '.join(names)})")
    if client is None and any(table.client is None for table in tables):
        raise InputError(field="--client", must=f"the column that says whose a row is (known: {', '.join(names)})")
    dialect, decimal = dialect or Dialect(), _decimal(tables, names)
    columns = []
    for name in names:
        look = look_at(tables, name, decimal)
        if name == client:
            columns.append(DraftColumn(name, {"kind": "client"}))
        elif name == label:
            columns.append(_label(look, targets))
        else:
            columns.append(_column(look, sum(table.num_rows for table in tables)))
    head = _HEAD
    for key, value, usual in (
        ("separator", dialect.separator, ","),
        ("decimal", decimal, "."),
        ("encoding", dialect.encoding, "utf-8"),
    ):
        head += "" if value == usual else f"{key} = {toml_value(value)}\n"
    if client is None:
        head += '# No column has kind "client": the name of a file is its client\'s.\n'
    return "\n\n".join([head.rstrip(), *(column.text() for column in columns)]) + "\n"


def _special(field: str, given: str | None, usual: str, names: Sequence[str]) -> str | None:
    if given is not None and given not in names:
        raise InputError(field=field, value=given, but=f"the tables have no such column{suggest(given, names)}")
    return given if given is not None else usual if usual in names else None


def _decimal(tables: Sequence[RawTable], names: Sequence[str]) -> str:
    """Return what stands before the fractions of numbers: whichever makes numbers of more cells."""
    found = {mark: sum(look_at(tables, name, mark).numbers for name in names) for mark in (".", ",")}
    return "," if found[","] > found["."] else "."


def _label(look: ColumnLook, targets: str | None) -> DraftColumn:
    is_few = len(look.values) <= MOST_VALUES and (look.is_whole or not look.is_number)
    if targets == "numbers" or (targets is None and look.is_number and not is_few):
        return DraftColumn(look.name, {"kind": "label", "bounds": [look.low, look.high]}, ("bounds",))
    classes = sorted(
        look.values,
        key=lambda text: (float(text), text) if look.is_number and not look.no_numbers.many else (0.0, text),
    )
    remarks = _gap_remark(look) + _spelling_remark(classes)
    return DraftColumn(look.name, {"kind": "label", "classes": classes}, ("classes",), remarks)


def _column(look: ColumnLook, rows: int) -> DraftColumn:
    if look.is_index:
        return DraftColumn(look.name, {"kind": "ignored"}, (), ("the numbers of rows, as programs write them",))
    if look.is_constant or look.is_empty:
        value = next(iter(look.values), "")
        said = f"one value only ({toml_value(value)}), which teaches nothing" if look.filled else "gaps only"
        return DraftColumn(look.name, {"kind": "ignored"}, ("kind",), (said,))
    if look.is_number:
        high = look.high if look.high > look.low else look.low + 1
        remarks = _odd_remark(look.no_numbers, "numbers")
        return _with_gap(look, NumberColumn((look.low, high)), {"bounds": [look.low, high]}, ("bounds",), remarks)
    if look.days is not None:
        days = look.days[0], max(look.days[1], look.days[0] + timedelta(days=1))
        keys: dict[str, Any] = {"bounds": list(days)}
        marked: tuple[str, ...] = ("bounds",)
        if look.formats != (ISO,):
            keys["formats"] = list(look.formats)
            marked = ("bounds", "formats")
        remarks = _odd_remark(look.no_days, "days")
        if any(form.startswith(("%d/%m", "%m/%d")) for form in look.formats):
            remarks = (*remarks, "is the day first, or the month? formats are tried in their order")
        return _with_gap(look, DateColumn(days, look.formats), keys, marked, remarks)
    if len(look.values) <= MOST_VALUES:
        values = sorted(value for value in look.values if value != "other")
        remarks = _spelling_remark(values)
        return _with_gap(look, CategoryColumn(tuple(values)), {"values": values}, ("values",), remarks)
    said = f"text with {len(look.values)} different values in {rows} rows"
    return DraftColumn(look.name, {"kind": "ignored"}, ("kind",), (said,))


def _with_gap(
    look: ColumnLook, column: Feature, keys: dict[str, Any], marked: tuple[str, ...], remarks: tuple[str, ...]
) -> DraftColumn:
    keys = {"kind": column.kind, **keys}
    if look.gaps.many:
        keys["gap"] = usual_gap(column)
        marked = (*marked, "gap")
    return DraftColumn(look.name, keys, marked, remarks)


def _odd_remark(odd: Odd, what: str) -> tuple[str, ...]:
    if not odd.many:
        return ()
    return (f"{odd.many} cells are no {what}, such as {toml_value(odd.value)}: mend them, or list such texts in gaps",)


def _spelling_remark(values: Sequence[str]) -> tuple[str, ...]:
    twice = spelt_twice(values)
    if twice is None:
        return ()
    both = f"{toml_value(twice[0])} and {toml_value(twice[1])}"
    return (f"{both} differ in capitals only: if they are one, write it alike in all tables and list it once",)


def _gap_remark(look: ColumnLook) -> tuple[str, ...]:
    words = "rows without a label must be left out of the tables"
    return (f"{look.gaps.many} gaps: {words}",) if look.gaps.many else ()
