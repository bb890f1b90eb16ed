"""All problems of tables at once, each with the line of a schema that mends it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from upcycled.core.errors import shown, suggest
from upcycled.data.readers.raw_tables import RawTable
from upcycled.data.schema.cells import Cells, cells_of, text_of
from upcycled.data.schema.columns import column_line, marked_line
from upcycled.data.schema.draft import MOST_VALUES, ColumnLook, columns_of, equal_columns, look_at, spelt_twice
from upcycled.data.schema.encoding import (
    DECIMAL_COMMA,
    FROM_ZERO,
    TableProblem,
    clients_in,
    encode,
    gaps_line,
    has_commas,
    has_gaps,
    is_word,
)
from upcycled.data.schema.schema import GAPS, Schema

_LISTED = 5
_FEW = 10


def problems_by_schema(tables: Sequence[RawTable], schema: Schema) -> list[TableProblem]:
    """Return what is wrong with tables that a schema describes, and what often is a slip."""
    found = [one for table in tables for one in encode(schema, table, with_labels=True).problems]
    odd = dict.fromkeys(text for one in found for text in one.as_gaps)
    found = [replace(one, mend=gaps_line(schema.gaps, odd)) if one.as_gaps else one for one in found]
    found += [one for table in tables for one in clients_in(schema, table)[1]]
    features = [name for name in schema.features if any(name in table.columns for table in tables)]
    looks = [look_at(tables, name, schema.decimal, schema.gaps) for name in features]
    found += [one for look in looks for one in _slips(look)]
    found += _copies(tables, features)
    label = next(iter(schema.labels), None)
    if label is not None and schema.classes is not None:
        found += _lacking(tables, label, schema.classes, schema.client, schema.gaps)
    return found


def problems_without_schema(
    tables: Sequence[RawTable],
    *,
    client: str | None,
    label: str | None,
    features: Sequence[str] | None = None,
    others: Sequence[str] = (),
) -> list[TableProblem]:
    """Return what keeps tables from being read as numbers, and what often is a slip.

    Args:
        tables: of one or more sites.
        client: the client column, where there is one.
        label: the label column, where its values are to be looked at.
        features: the columns that count; all that are nothing else if left out.
        others: columns that are something else.
    """
    special = {client, label, *others}
    names = [name for name in columns_of(tables) if name not in special] if features is None else list(features)
    found: list[TableProblem] = []
    there = columns_of(tables)
    for wanted in (client, label):
        if wanted is not None and wanted not in there:
            found.append(TableProblem(f"no table has a column '{wanted}'{suggest(wanted, there)}"))
    looks = [look_at(tables, name) for name in names]
    # One line of the schema has all of them.
    odd = [value for look in looks if look.is_number for value in look.no_numbers.values if is_word(value)]
    for look in looks:
        found += _unreadable(look, gaps_line(GAPS, dict.fromkeys(odd)))
        found += _slips(look)
    found += _copies(tables, names)
    if label is not None and label in there:
        look = look_at(tables, label)
        found += _label_problems(look)
        found += _capitals(look)
        if len(look.values) <= MOST_VALUES:
            found += _lacking(tables, label, sorted(look.values), client, GAPS)
    return found


def _unreadable(look: ColumnLook, gaps: str) -> list[TableProblem]:
    found = []
    if look.no_numbers.many:
        odd = look.no_numbers
        said = f"column '{look.name}' holds {shown(odd.value)} at row {odd.row} {FROM_ZERO}{_more(odd.many)}, where a "
        mend = column_line(look.name, "kind", "ignored")
        if has_commas(odd.values, _every(look)):
            mend = DECIMAL_COMMA
        elif look.is_number:
            mend = gaps if any(map(is_word, odd.values)) else ""
        elif look.is_date:
            mend = column_line(look.name, "kind", "date")
        elif len(look.values) <= MOST_VALUES:
            mend = column_line(look.name, "kind", "category")
        found.append(TableProblem(f"{said}number is due", mend, where=odd.where))
    if look.is_empty:
        said, mend = f"column '{look.name}' is empty", marked_line(look.name, "kind", "ignored")
        found.append(TableProblem(said, mend, where=look.gaps.where))
    elif look.gaps.many:
        said = f"column '{look.name}' {has_gaps(look.gaps.many, look.gaps.row)}"
        gap = look.low + (look.high - look.low) / 2 if look.is_number else "other"
        found.append(TableProblem(said, marked_line(look.name, "gap", gap), where=look.gaps.where))
    return found


def _every(look: ColumnLook) -> Cells:
    return cells_of(np.array(list(look.values), dtype=object), ())


def _label_problems(look: ColumnLook) -> list[TableProblem]:
    found = []
    if look.gaps.many:
        said = f"label column '{look.name}' {has_gaps(look.gaps.many, look.gaps.row)}"
        found.append(TableProblem(f"{said}: leave such rows out of the table", "", where=look.gaps.where))
    if look.no_numbers.many:
        odd = look.no_numbers
        said = f"label column '{look.name}' holds {shown(odd.value)} at row {odd.row} {FROM_ZERO}{_more(odd.many)}"
        mend = marked_line(look.name, "classes", sorted(look.values)[:MOST_VALUES])
        found.append(TableProblem(f"{said}, where a class's number is due", mend, where=odd.where))
    return found


def _slips(look: ColumnLook) -> list[TableProblem]:
    if look.is_index:
        said = f"column '{look.name}' counts rows, as programs write them beside a table"
        return [TableProblem(said, column_line(look.name, "kind", "ignored"), blocks=False)]
    if look.is_constant and look.filled > 1:
        said = f"column '{look.name}' holds one value only, {shown(next(iter(look.values)))}"
        return [TableProblem(said, marked_line(look.name, "kind", "ignored"), blocks=False)]
    return []


def _capitals(look: ColumnLook) -> list[TableProblem]:
    """Name classes that differ in their capitals only."""
    twice = spelt_twice(look.values)
    if twice is None:
        return []
    said = f"label column '{look.name}' holds {shown(twice[0])} and {shown(twice[1])}, which would be two classes"
    return [TableProblem(f"{said}: write one of them everywhere", blocks=False)]


def _copies(tables: Sequence[RawTable], names: Sequence[str]) -> list[TableProblem]:
    return [
        TableProblem(f"column '{copy}' is a copy of '{first}'", marked_line(copy, "kind", "ignored"), blocks=False)
        for first, copy in equal_columns(tables, names)
    ]


def _lacking(
    tables: Sequence[RawTable], label: str, classes: Sequence[str], client: str | None, gaps: Sequence[str]
) -> list[TableProblem]:
    """Name the clients that have no sample of a class, or few."""
    held: dict[str, Counter[str]] = {}
    for table in tables:
        if label not in table.columns or (client is not None and client not in table.columns):
            continue
        labels = [text_of(value) for value in cells_of(table.columns[label], gaps, keep=classes).values.tolist()]
        owners = np.full(table.num_rows, table.client or "") if client is None else table.columns[client]
        for who, value in zip(owners.tolist(), labels, strict=True):
            held.setdefault(text_of(who).strip(), Counter())[value] += 1
    found = []
    for name in classes:
        many = {who: own[name] + own[f"{name}.0"] for who, own in held.items()}
        lacking = sorted(who for who, times in many.items() if times == 0)
        # A site with few rows has few of everything.
        few = sorted(
            who for who, times in many.items() if 0 < times < _FEW and held[who].total() >= _FEW * 2 * len(classes)
        )
        if lacking and len(lacking) < len(held):
            said = f"class '{name}' of '{label}' has no sample at {_names(lacking)}"
            found.append(TableProblem(said, "", blocks=False))
        if few:
            said = f"class '{name}' of '{label}' has fewer than {_FEW} samples at {_names(few)}"
            found.append(TableProblem(said, "", blocks=False))
    return found


def _names(who: Sequence[str]) -> str:
    more = f" and {len(who) - _LISTED} more" if len(who) > _LISTED else ""
    return ", ".join(map(repr, who[:_LISTED])) + more


def _more(many: int) -> str:
    return f" and {many - 1} more such" if many > 1 else ""
