"""A draft of a schema, to be edited: what follows from the data is marked, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from upcycled.core.errors import InputError, suggest
from upcycled.data.readers.raw_tables import Dialect, RawTable
from upcycled.data.schema.column_kinds import ISO, CategoryColumn, DateColumn, Feature, NumberColumn
from upcycled.data.schema.column_looks import ColumnLook, columns_of, look_at, spelt_twice
from upcycled.data.schema.encoding import usual_gap
from upcycled.data.schema.toml_lines import toml_key, toml_value

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
        remarks = _odd_remark(look.no_numbers.many, look.no_numbers.value, "numbers")
        return _with_gap(look, NumberColumn((look.low, high)), {"bounds": [look.low, high]}, ("bounds",), remarks)
    if look.days is not None:
        days = look.days[0], max(look.days[1], look.days[0] + timedelta(days=1))
        keys: dict[str, Any] = {"bounds": list(days)}
        marked: tuple[str, ...] = ("bounds",)
        if look.formats != (ISO,):
            keys["formats"] = list(look.formats)
            marked = ("bounds", "formats")
        remarks = _odd_remark(look.no_days.many, look.no_days.value, "days")
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


def _odd_remark(many: int, value: str, what: str) -> tuple[str, ...]:
    if not many:
        return ()
    return (f"{many} cells are no {what}, such as {toml_value(value)}: mend them, or list such texts in gaps",)


def _spelling_remark(values: Sequence[str]) -> tuple[str, ...]:
    twice = spelt_twice(values)
    if twice is None:
        return ()
    both = f"{toml_value(twice[0])} and {toml_value(twice[1])}"
    return (f"{both} differ in capitals only: if they are one, write it alike in all tables and list it once",)


def _gap_remark(look: ColumnLook) -> tuple[str, ...]:
    words = "rows without a label must be left out of the tables"
    return (f"{look.gaps.many} gaps: {words}",) if look.gaps.many else ()
