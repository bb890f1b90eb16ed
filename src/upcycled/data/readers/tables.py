"""From tables to federated data, by a schema or by the names of columns: features, labels, clients, test rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled.core.errors import InputError, suggest
from upcycled.core.vectors import Real
from upcycled.data.arrays import as_numbers, labels_of
from upcycled.data.federated import FederatedData
from upcycled.data.grouping import GroupedRows, client_column, group
from upcycled.data.options import DataOptions
from upcycled.data.readers.raw_tables import Inferred, RawTable, title_of
from upcycled.data.schema.cells import cells_of, text_of
from upcycled.data.schema.encoding import clients_in, encode, refuse
from upcycled.data.schema.schema import Schema

_SPLITS = {"train": False, "0": False, "test": True, "1": True}
_WRITTEN = {"0.0": "0", "1.0": "1", "false": "0", "true": "1"}


def _is_test_row(title: str, name: str, values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which rows are for testing.

    Args:
        title: the file's, for a sentence.
        name: the column's.
        values: its cells.

    Raises:
        InputError: in one sentence, if a cell says neither.

    >>> _is_test_row("a.csv", "part", np.array(["train", "Test ", "0"], dtype=object)).tolist()
    [False, True, False]
    """
    known: dict[Any, bool] = {}
    for value in values.tolist():
        if value not in known:
            word = str(value).strip().lower()
            word = _WRITTEN.get(word, word)
            if word not in _SPLITS:
                raise InputError(
                    f"has {str(value)!r} in split column '{name}', but it must be 'train' or 'test', or 0 or 1",
                    field=title,
                )
            known[value] = _SPLITS[word]
    return np.array([known[value] for value in values.tolist()], dtype=np.bool_)


_RIGHT_TARGETS = {
    "classes": "labels must be whole numbers from 0 on",
    "numbers": "targets must be numbers",
    "labels": "labels must be 0 or 1",
}
COLUMNS_AT_ONCE = 1000


@dataclass(frozen=True)
class Columns:
    """Which columns mean what; ``features`` None is every other column but the unused ones."""

    client: str | None
    label: str | tuple[str, ...]
    """Several where a target is several numbers or labels."""
    split: str | None = None
    features: tuple[str, ...] | None = None
    unused: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.label,) if isinstance(self.label, str) else self.label

    @property
    def special(self) -> list[str]:
        """The columns that are not features."""
        return [name for name in (self.client, *self.labels, self.split) if name is not None]

    def check(self, known: Sequence[str], title: str) -> tuple[str, ...]:
        """Return the feature columns of a table that has these columns."""
        what = "table" if title == "the table" else "file"
        labels = [("label", name) for name in self.labels]
        for field, name in (("client", self.client), *labels, ("split", self.split)):
            if name is not None and name not in known:
                raise InputError(field=field, value=name, but=f"the {what} has no such column{suggest(name, known)}")
        if len(set(self.special)) != len(self.special):
            raise InputError(f"client, label and split are {self.special}, but they must be different columns")
        if self.features is None:
            others = {*self.special, *self.unused}
            names = tuple(name for name in known if name not in others)
            if not names:
                listed = ", ".join(self.special)
                raise InputError(f"has no columns beside {listed}, but it must have features", field=title)
            return names
        there = set(known)
        for name in self.features:
            if name not in there:
                but = f"holds '{name}', but the file has no such column{suggest(name, known)}"
                raise InputError(but, field="features")
            if name in self.special:
                raise InputError(
                    f"holds '{name}', but that column is already the client, label or split", field="features"
                )
        if not self.features or len(set(self.features)) != len(self.features):
            raise InputError(field="features", value=list(self.features), must="one or more different columns")
        return self.features


@dataclass(frozen=True)
class Rows:
    """Converted tables: features, their names, labels, and clients and test rows where there are such columns."""

    x: NDArray[Any]
    y: NDArray[Any]
    feature_names: tuple[str, ...]
    other_columns: tuple[str, ...]
    client: NDArray[Any] | None
    is_test: NDArray[np.bool_] | None
    is_typed: bool = False

    def grouped(self, options: DataOptions) -> FederatedData:
        """Return the data of the clients."""
        assert self.client is not None  # the caller asks for clients
        whole = slice(None)
        masks = {"train": whole} if self.is_test is None else {"train": ~self.is_test, "test": self.is_test}
        parts = [
            GroupedRows(title, self.x[rows], self.y[rows], self.client[rows], self.is_typed)
            for title, rows in masks.items()
        ]
        return replace(group(parts, options, self.feature_names), other_columns=self.other_columns)


def load_by_schema(tables: Sequence[RawTable], schema: Schema, options: DataOptions) -> FederatedData:
    """Return the data of tables that a schema describes.

    Raises:
        InputError: with all problems of all tables in one sentence; repaired, only those of shapes.
    """
    if not schema.labels:
        raise InputError("holds no column of kind 'label', but there must be something to learn", field="columns")
    done = [encode(schema, table, with_labels=True) for table in tables]
    owners = [clients_in(schema, table) for table in tables]
    problems = [one for made in done for one in made.problems]
    others = [one for _, met in owners for one in met]
    refuse([one for one in (*problems, *others) if one.blocks and (one.is_shape or not options.repair)])
    name = schema.split
    rows = Rows(
        np.concatenate([made.x for made in done]),
        np.concatenate([made.y for made in done if made.y is not None]),
        schema.feature_names,
        schema.others,
        client_column("client", np.concatenate([clients for clients, _ in owners])),
        None if name is None else np.concatenate([_is_test_row(one.title, name, one.columns[name]) for one in tables]),
        is_typed=True,
    )
    data = rows.grouped(replace(options, label_names=schema.classes, targets=schema.targets))
    notes = [
        [f"{one.where}: {one.said}" if len(tables) > 1 else one.said for one in problems if one.is_label is is_label]
        for is_label in (True, False)
    ]
    # What follows from a draft's marks follows from the data.
    inferred = data.inferred | ({"schema"} if schema.marks else set())
    return replace(data, schema=schema, inferred=inferred, notes=(*notes[0], *data.notes, *notes[1]))


def how_to_read(columns: Columns, options: DataOptions) -> Inferred:
    """Return how a table with such columns is read: clients are text, and so are labels that have names."""
    texts = (columns.client, *(columns.labels[:1] if options.label_names is not None else ()))
    return Inferred(tuple(name for name in texts if name is not None), options.repair)


def read_rows(tables: Sequence[RawTable], columns: Columns, options: DataOptions) -> Rows:
    """Convert tables without a schema; all of them have the same columns."""
    for one in tables:
        check_rows(one)
    check_same_columns([(one.title, one.columns) for one in tables])
    table = _joined(tables, columns.client)
    features = columns.check(list(table.columns), table.title)
    chosen = set(features)  # a table may have a hundred thousand columns
    x = features_of(table, features, repair=options.repair)
    labels = [_label(table, name, options) for name in columns.labels]
    cells, client, split = table.columns, columns.client, columns.split
    return Rows(
        x,
        labels[0] if isinstance(columns.label, str) else np.stack(labels, axis=1),
        features,
        tuple(name for name in cells if name not in chosen),
        None if client is None else clients_of(table.title, client, cells[client]),
        None if split is None else _is_test_row(table.title, split, cells[split]),
    )


def check_rows(table: RawTable) -> None:
    """Refuse a table without rows."""
    if not table.num_rows:
        raise InputError("has no rows, but it must have at least one sample", field=table.title)


def check_same_columns(tables: Sequence[tuple[str, Iterable[str]]]) -> None:
    """Refuse tables, each a title and its columns, with different columns."""
    first, names = tables[0][0], [dict.fromkeys(columns) for _, columns in tables]
    for (title, _), own in zip(tables, names, strict=True):
        for name in names[0] | own:
            if (name in names[0]) != (name in own):
                there, lacking = (first, title) if name in names[0] else (title, first)
                raise InputError(f"has no column '{name}', but {there} has: they must have the same", field=lacking)


def _joined(tables: Sequence[RawTable], client: str | None) -> RawTable:
    """Return all rows of all tables; a file of many is its client's where no column says so."""
    first = tables[0]
    columns = dict(first.columns)
    if len(tables) > 1:
        columns = {name: np.concatenate([one.columns[name] for one in tables]) for name in columns}
    if client == "client" and first.client is not None:
        columns.setdefault(client, np.concatenate([np.full(one.num_rows, one.client, object) for one in tables]))
    return RawTable(title_of([one.title for one in tables]), None, columns, sum(one.num_rows for one in tables))


def _is_number(values: NDArray[Any]) -> bool:
    return values.dtype.kind != "O"


def features_of(table: RawTable, names: Sequence[str], *, repair: bool = False) -> NDArray[Any]:
    """Return the numbers in these columns: int64 where all are whole, else float64.

    Repaired, they are float64, and nan where a cell is no number.

    Raises:
        InputError: in one sentence with the columns that are not numbers.
    """
    columns = [table.columns[name] for name in names]
    wrong = [name for name, values in zip(names, columns, strict=True) if not _is_number(values)]
    if wrong and not repair:
        example = _first_text(table.columns[wrong[0]])[1]
        listed = ", ".join(f"'{name}'" for name in wrong[:5]) + (f" and {len(wrong) - 5} more" * (len(wrong) > 5))
        raise InputError(
            f"has columns that are not numbers: {listed} (such as {str(example)[:40]!r}), but features "
            "must be numbers; choose columns with features",
            field=table.title,
        )
    # Whole numbers stay whole (they may be tokens) unless a value is missing or another column is not whole.
    whole = not repair and all(values.dtype.kind in "iu" and values.dtype != np.uint64 for values in columns)
    matrix = np.empty((table.num_rows, len(names)), dtype=np.int64 if whole else np.float64)
    # All at once would be a second copy of the table.
    for start in range(0, len(names), COLUMNS_AT_ONCE):
        some = slice(start, start + COLUMNS_AT_ONCE)
        matrix[:, some] = np.stack([values if whole else as_floats(values) for values in columns[some]], axis=1)
    return matrix


def as_floats(values: NDArray[Any]) -> Real:
    """Return a column of any content as numbers; nan where a cell is none."""
    return values.astype(np.float64) if _is_number(values) else as_numbers(values)


def _first_text(values: NDArray[Any]) -> tuple[int, Any]:
    """Return the first row whose value is not a number, and the value, to quote it."""
    rows = np.flatnonzero(np.isnan(as_numbers(values)) & ~cells_of(values, ()).is_gap)
    row = int(rows[0]) if rows.size else 0
    return row, values[row]


def _label(table: RawTable, name: str, options: DataOptions) -> NDArray[Any]:
    values = table.columns[name]
    if options.label_names is not None:
        texts = np.array([text_of(value) for value in values.tolist()], dtype=object)
        return labels_of(f"column '{name}'", texts, options)
    if not _is_number(values) and not options.repair:
        row, value = _first_text(values)
        raise InputError(
            f"has {str(value)!r} in label column '{name}' at row {row} (counted from 0), but "
            + _RIGHT_TARGETS[options.kind],
            field=table.title,
        )
    return values if values.dtype.kind in "iu" and not options.repair else as_floats(values)


def clients_of(title: str, name: str, values: NDArray[Any], rows: NDArray[Any] | None = None) -> NDArray[Any]:
    """Return the column that says whose a row is; none may be missing. ``rows`` are their numbers in the file."""
    missing = np.flatnonzero(cells_of(values, ()).is_gap)
    if missing.size:
        row = missing[0] if rows is None else rows[missing[0]]
        raise InputError(
            f"has no client in column '{name}' at row {row} (counted from 0), but every row needs one", field=title
        )
    if values.dtype.kind not in "iufb":
        values = np.array([str(value) for value in values], dtype=np.str_)
    return client_column(f"column '{name}'", values)
