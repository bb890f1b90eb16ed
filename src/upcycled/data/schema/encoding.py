"""From the cells of one site's table to numbers, by the schema alone: another site's rows change nothing here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled.core.errors import InputError, shown
from upcycled.core.vectors import Real
from upcycled.data.readers.raw_tables import RawTable
from upcycled.data.schema.cells import NOWHERE, Cells, cells_of, days_in, forms_of, numbers_in, places_in, text_of
from upcycled.data.schema.columns import (
    OTHER,
    CategoryColumn,
    DateColumn,
    Feature,
    LabelColumn,
    NumberColumn,
    column_line,
    marked_line,
    marks_line,
    toml_value,
)
from upcycled.data.schema.schema import Schema

FROM_ZERO = "(counted from 0)"
DECIMAL_COMMA = 'decimal = ","'
_MOST_GAPS = 8
_MOST_NEW = 8
_MOST_LOST = 0.1
"""The share of labels that may be no class before a check, which is the holder's own, calls it wrong."""
_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(,[0-9]{3})+")


@dataclass(frozen=True)
class TableProblem:
    """What is wrong with a table, or often is, and the line of a schema that mends it."""

    said: str
    """One sentence, without a full stop."""
    mend: str = ""
    """What the schema should say, with a mark where it was read off the data; nothing where the table has to change."""
    is_shape: bool = False
    """Whether it is about columns and rows and not about what is in them: public, so refused of any data."""
    blocks: bool = True
    """Whether data cannot be read because of it."""
    where: str = ""
    """Whose it is: the file."""
    as_gaps: tuple[str, ...] = ()
    """Texts that the mend has among the schema's ``gaps``, of which there is one line for all columns."""
    is_label: bool = False
    """Whether it is about what is to be learnt, which a holder should hear of first."""
    is_grave: bool = False
    """Whether so many labels are no class that repaired data would teach something else."""


@dataclass(frozen=True)
class Encoded:
    """A table in numbers, and what was met on the way."""

    x: NDArray[np.float32]
    y: NDArray[Any] | None
    problems: tuple[TableProblem, ...]


def encode(schema: Schema, table: RawTable, *, with_labels: bool) -> Encoded:
    """Return a table's features and, for training, its labels, with all problems at once.

    What is wrong has numbers too: a cell that is no number or day counts as a gap, and a gap without a public constant
    as the middle of the bounds; a label that is no class is nan.
    """
    needed = [*schema.features, *(schema.labels if with_labels else ())]
    needed += [name for name in (schema.client, schema.split) if with_labels and name is not None]
    problems = _shape_problems(schema, table, needed)
    parts: list[Real] = []
    for name, column in schema.features.items():
        if name in table.columns:
            made, met = encode_feature(schema, name, column, table.columns[name])
            parts.append(made)
            problems += met
        else:
            parts.append(np.zeros((table.num_rows, len(column.names(name)))))
    labels = []
    for name, label in schema.labels.items() if with_labels else ():
        if name in table.columns:
            made, met = _label(schema, name, label, table.columns[name])
            labels.append(made)
            is_grave = label.classes is not None and bool(np.isnan(made).sum() > _MOST_LOST * len(made))
            problems += [replace(one, is_label=True, is_grave=is_grave) for one in met]
    y = None
    if with_labels and len(labels) == len(schema.labels) and labels:
        y = labels[0] if len(labels) == 1 else np.stack(labels, axis=1)
    x = np.concatenate(parts, axis=1).astype(np.float32)
    return Encoded(x, y, tuple(replace(one, where=table.title) for one in problems))


def encode_feature(schema: Schema, name: str, column: Feature, values: NDArray[Any]) -> tuple[Real, list[TableProblem]]:
    """Return the numbers (rows, features) that a column becomes."""
    if isinstance(column, CategoryColumn):
        return _category(schema, name, column, cells_of(values, schema.gaps, keep=column.values))
    cells = cells_of(values, schema.gaps)
    if isinstance(column, NumberColumn):
        found, (low, high), gap, what = numbers_in(cells, schema.decimal), column.bounds, column.gap, "number"
    else:
        found, what = days_in(cells, column.formats), f"day like {_like(column)}"
        low, high = (float(day.toordinal()) for day in column.bounds)
        gap = None if column.gap is None else float(column.gap.toordinal())
    is_gap = np.isnan(found)
    problems = _strange(schema, name, column, cells, is_gap & ~cells.is_gap, what)
    problems += _gaps(name, column, cells)
    outside = ~is_gap & ((found < low) | (found > high))
    if outside.any():
        problems.append(_outside(name, column, cells, outside))
    middle = low + (high - low) / 2
    filled = np.clip(np.where(is_gap, middle if gap is None else gap, found), low, high)
    scaled = 2 * ((filled - low) / (high - low)) - 1
    return np.column_stack([scaled, *([] if gap is None else [is_gap])]).astype(np.float64), problems


def _category(schema: Schema, name: str, column: CategoryColumn, cells: Cells) -> tuple[Real, list[TableProblem]]:
    places = places_in(cells, column.values)
    problems, strange = _gaps(name, column, cells), (places == NOWHERE) & ~cells.is_gap
    listed = column.listed
    if column.other:
        places[strange] = len(column.values)
        problems += _listed_otherwise(name, column, cells, strange)
    elif strange.any():
        words = _first(cells, strange)
        mend = column_line(name, "other", True)
        said = f"column '{name}' holds {words}, where {_one_of(column.values)} is due"
        problems.append(TableProblem(said, mend))
    if column.gap is not None:
        places[cells.is_gap] = listed.index(column.gap)
    elif column.other:
        places[cells.is_gap] = len(column.values)
    hot = (places[:, None] == np.arange(len(listed))).astype(np.float64)
    return np.column_stack([hot, *([] if column.gap is None else [cells.is_gap])]), problems


def _listed_otherwise(
    name: str, column: CategoryColumn, cells: Cells, strange: NDArray[np.bool_]
) -> list[TableProblem]:
    """Name the first value that counts as "other" and is listed but for its capitals."""
    listed = {value.casefold(): value for value in column.values}
    found = sorted({text_of(value) for value in cells.values[strange].tolist()})
    near = next((value for value in found if value.casefold() in listed), None)
    if near is None:
        return []
    said = f"column '{name}' holds {shown(near)}, which is not listed and counts as other, though"
    said += f" {shown(listed[near.casefold()])} is: write it so"
    return [TableProblem(said, blocks=False)]


def _label(
    schema: Schema, name: str, column: LabelColumn, values: NDArray[Any]
) -> tuple[NDArray[Any], list[TableProblem]]:
    cells = cells_of(values, schema.gaps, keep=column.classes or ())
    problems: list[TableProblem] = []
    if cells.is_gap.any():
        problems.append(TableProblem(f"label column '{name}' {_has_gaps(cells)}: leave such rows out of the table"))
    if column.classes is not None:
        places = places_in(cells, column.classes)
        strange = (places == NOWHERE) & ~cells.is_gap
        listed = {one.casefold(): one for one in column.classes}
        near = strange.copy()
        near[strange] = [text_of(value).casefold() in listed for value in cells.values[strange].tolist()]
        strange &= ~near
        if near.any():
            due = shown(listed[text_of(cells.values[np.flatnonzero(near)[0]]).casefold()])
            said = f"label column '{name}' holds {_first(cells, near)}, where {due} is due"
            problems.append(TableProblem(f"{said}: only capitals differ, so write it so in the table"))
        if strange.any():
            new = dict.fromkeys(text_of(value) for value in cells.values[strange].tolist())
            mend = marked_line(name, "classes", [*column.classes, *list(new)[:_MOST_NEW]], column.from_data)
            said = f"label column '{name}' holds {_first(cells, strange)}, where {_one_of(column.classes)} is due"
            problems.append(TableProblem(said, mend))
        return np.where(places == NOWHERE, np.nan, places), problems
    found = numbers_in(cells, schema.decimal)
    strange = np.isnan(found) & ~cells.is_gap
    if strange.any():
        said = f"label column '{name}' holds {_first(cells, strange)}, where a number is due"
        problems.append(TableProblem(said, marked_line(name, "classes", _some(cells), column.from_data)))
    if column.bounds is not None:
        outside = (found < column.bounds[0]) | (found > column.bounds[1])
        if outside.any():
            problems.append(_outside(name, column, cells, outside))
        # A gap in repaired data is 0, or the bound that is nearest to it.
        found = np.clip(np.where(np.isnan(found), 0.0, found), *column.bounds)
    return found, problems


def _shape_problems(schema: Schema, table: RawTable, needed: list[str]) -> list[TableProblem]:
    problems, renamed = [], set[str]()
    for name in needed:
        if name not in table.columns:
            near = [one for one in table.columns if one.strip().casefold() == name.strip().casefold()]
            hint = f": rename its column '{near[0]}'" if near else ""
            problems.append(TableProblem(f"has no column '{name}', which the schema asks for{hint}", "", True))
            renamed.update(near)
    for name in table.columns:
        if name not in schema.columns and name not in renamed:
            said = f"has a column '{name}' that the schema does not know"
            problems.append(TableProblem(said, column_line(name, "kind", "ignored"), True))
    if table.num_rows == 0:
        problems.append(TableProblem("has a header and no rows, but every site needs one at least", "", True))
    return problems


def _strange(
    schema: Schema, name: str, column: Feature, cells: Cells, strange: NDArray[np.bool_], what: str
) -> list[TableProblem]:
    if not strange.any():
        return []
    every = dict.fromkeys(str(value) for value in cells.values[strange].tolist())
    odd = tuple(filter(is_word, every))
    mend = gaps_line(schema.gaps, odd) if odd else ""
    forms = forms_of(cells.values[strange].tolist()) if isinstance(column, DateColumn) else []
    if isinstance(column, DateColumn) and forms:
        mend, odd = marked_line(name, "formats", [*column.formats, *forms], column.from_data), ()
    elif isinstance(column, NumberColumn) and schema.decimal == "." and has_commas(every, cells):
        mend, odd = DECIMAL_COMMA, ()
    elif strange.sum() * 2 > len(cells.filled):
        mend, odd = column_line(name, "kind", "category"), ()
    said = f"column '{name}' holds {_first(cells, strange)}, where a {what} is due"
    return [TableProblem(said, mend, as_gaps=odd)]


def is_word(text: str) -> bool:
    """Tell what may stand for a gap from a value that is written in another way, which would be lost as one.

    >>> is_word("unknown"), is_word("80,5"), is_word("2023-13-45")
    (True, False, False)
    """
    return not any(char.isdigit() for char in text)


def has_commas(strange: Iterable[str], cells: Cells) -> bool:
    """Tell whether a column is one of numbers once a comma stands before their fractions.

    >>> def told(*texts):
    ...     return has_commas(texts, Cells(np.array(texts, dtype=object), np.zeros(len(texts), np.bool_)))
    >>> told("80,5", "7"), told("80,5", "80.5"), told("1,000")
    (True, False, False)
    """
    # Commas that may group thousands are for a person to judge.
    is_fraction = any(not _THOUSANDS.fullmatch(text) for text in strange)
    return is_fraction and not np.isnan(numbers_in(cells, ",")[cells.filled]).any()


def gaps_line(gaps: Sequence[str], more: Iterable[str]) -> str:
    """Return the line of a schema that counts some texts more as gaps; a handful, for it is to be read."""
    return f"gaps = {toml_value([*gaps, *list(more)[:_MOST_GAPS]])}\n{marks_line(['gaps'])}"


def _gaps(name: str, column: Feature, cells: Cells) -> list[TableProblem]:
    if column.gap is not None or not cells.is_gap.any():
        return []
    said = f"column '{name}' {_has_gaps(cells)}, and no constant for them"
    return [TableProblem(said, marked_line(name, "gap", usual_gap(column), column.from_data))]


def usual_gap(column: Feature) -> Any:
    """Return the constant that a draft proposes for a gap: the middle of the bounds, or what is no listed value."""
    if isinstance(column, CategoryColumn):
        return OTHER if column.other else column.values[0]
    if isinstance(column, NumberColumn):
        return column.bounds[0] + (column.bounds[1] - column.bounds[0]) / 2
    return date.fromordinal((column.bounds[0].toordinal() + column.bounds[1].toordinal()) // 2)


def _outside(
    name: str, column: NumberColumn | DateColumn | LabelColumn, cells: Cells, outside: NDArray[np.bool_]
) -> TableProblem:
    """Say what is clipped; wider bounds would be somebody's value, so none are proposed."""
    assert column.bounds is not None  # who has none has nothing outside of them
    words = " to ".join(map(toml_value, column.bounds))
    said = f"column '{name}' holds {_first(cells, outside)}, outside of its bounds, {words}: they are clipped"
    return TableProblem(said, blocks=False)


def _first(cells: Cells, rows: NDArray[np.bool_]) -> str:
    """Return the first of some cells, its row, and how many more there are."""
    places = np.flatnonzero(rows)
    value = cells.values[places[0]]
    word = shown(str(value)) if isinstance(value, str) or cells.values.dtype.kind == "M" else shown(value)
    more = f" and {len(places) - 1} more such" if len(places) > 1 else ""
    return f"{word} at row {places[0]} {FROM_ZERO}{more}"


def _has_gaps(cells: Cells) -> str:
    rows = np.flatnonzero(cells.is_gap)
    return has_gaps(len(rows), int(rows[0]))


def has_gaps(many: int, first: int) -> str:
    """Return how many gaps a column has, and where the first of them is.

    >>> has_gaps(2, 5)
    'has 2 gaps, the first at row 5 (counted from 0)'
    """
    return f"has {'a gap' if many == 1 else f'{many} gaps'}, the first at row {first} {FROM_ZERO}"


def _some(cells: Cells) -> list[str]:
    return sorted({str(value) for value in cells.values[cells.filled].tolist()})[:8]


def _one_of(values: tuple[str, ...]) -> str:
    listed = ", ".join(map(repr, values[:8]))
    return f"one of {listed}{', ...' if len(values) > 8 else ''}"


def _like(column: DateColumn) -> str:
    return " or ".join(column.bounds[0].strftime(form) for form in column.formats)


_LISTED = 20


def refuse(problems: Sequence[TableProblem]) -> None:
    """Refuse tables with problems: all of them in one sentence, those of a file together.

    Raises:
        InputError: if there is one.
    """
    if not problems:
        return
    by_file: dict[str, list[str]] = {}
    for one in problems[:_LISTED]:
        by_file.setdefault(one.where, []).append(
            one.said + (f" (schema: {', '.join(one.mend.splitlines())})" if one.mend else "")
        )
    is_one = len(by_file) == 1
    words = "; ".join(f"{'' if is_one else f'{file}: '}{'; '.join(said)}" for file, said in by_file.items())
    more = f"; and {len(problems) - _LISTED} more, which 'upcycled data check' lists" if len(problems) > _LISTED else ""
    raise InputError(words + more, where=tuple(by_file) if is_one else ())


def clients_in(schema: Schema, table: RawTable) -> tuple[NDArray[Any], list[TableProblem]]:
    """Return whose each row is, and what is wrong with that; where nobody says so, it is the file's."""
    if schema.client is None:
        if table.client is None:
            said = "has nothing that says whose a row is: a column must have kind 'client'"
            return np.full(table.num_rows, ""), [TableProblem(said, "", True, where=table.title)]
        return np.full(table.num_rows, table.client), []
    if schema.client not in table.columns:
        return np.full(table.num_rows, ""), []  # its absence is said already
    cells = cells_of(table.columns[schema.client], ("",))
    problems = []
    if cells.is_gap.any():
        said = f"client column '{schema.client}' {_has_gaps(cells)}"
        problems.append(TableProblem(said, "", True, where=table.title))
    return np.array([text_of(value) for value in cells.values.tolist()], dtype=np.str_), problems
