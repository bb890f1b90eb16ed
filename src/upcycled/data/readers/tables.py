"""Tables without a schema: one row per sample, one column each for client and label, every other column a feature.

A column that says which rows are for training and which for testing.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from upcycled._utils.extras import needs
from upcycled.core.errors import InputError, suggest
from upcycled.data.arrays import Declared, as_numbers, labels_of
from upcycled.data.federated import FederatedData
from upcycled.data.grouping import GroupedRows, client_column, group
from upcycled.data.readers.npz import unreadable
from upcycled.data.readers.raw_tables import check_header, is_frame, read_frame, table_files

_SPLITS = {"train": False, "0": False, "test": True, "1": True}
_WRITTEN = {"0.0": "0", "1.0": "1", "false": "0", "true": "1"}


def is_test_row(title: str, name: str, values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which rows are for testing.

    Args:
        title: the file's, for a sentence.
        name: the column's.
        values: its cells.

    Raises:
        InputError: in one sentence, if a cell says neither.

    >>> is_test_row("a.csv", "part", np.array(["train", "Test ", "0"], dtype=object)).tolist()
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


NOTHING = Declared()
_RIGHT_TARGETS = {
    "classes": "labels must be whole numbers from 0 on",
    "numbers": "targets must be numbers",
    "labels": "labels must be 0 or 1",
}
COLUMNS_AT_ONCE = 1000
Source: TypeAlias = Any
"""A file, a list of files, a folder, or a data frame."""


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


@dataclass(frozen=True)
class ColumnTable:
    """A read file: features, their names, labels, and the client and split columns where asked for."""

    x: NDArray[Any]
    y: NDArray[Any]
    feature_names: tuple[str, ...]
    other_columns: tuple[str, ...]
    client: NDArray[Any] | None
    is_test: NDArray[np.bool_] | None


def load_table(source: Source, columns: Columns, declared: Declared) -> FederatedData:
    """Read a table that has a client column, or tables whose files are named after their clients."""
    table = read_table(source, columns, declared)
    assert table.client is not None  # the caller names a client column
    parts = [GroupedRows("train", table.x, table.y, table.client, is_typed=False)]
    if table.is_test is not None:
        masks = (("train", ~table.is_test), ("test", table.is_test))
        parts = [
            GroupedRows(title, table.x[rows], table.y[rows], table.client[rows], is_typed=False)
            for title, rows in masks
        ]
    data = group(parts, feature_names=table.feature_names, declared=declared)
    return replace(data, other_columns=table.other_columns)


def read_table(source: Source, columns: Columns, declared: Declared = NOTHING) -> ColumnTable:
    """Read a table and take its columns apart."""
    path = title_of(source)
    frame = _joined(source, columns, declared)
    known = [str(name) for name in frame.columns]
    labels = [("label", name) for name in columns.labels]
    for field, name in (("client", columns.client), *labels, ("split", columns.split)):
        if name is not None and name not in known:
            what = "table" if is_frame(source) else "file"
            raise InputError(field=field, value=name, but=f"the {what} has no such column{suggest(name, known)}")
    if len(set(columns.special)) != len(columns.special):
        raise InputError(f"client, label and split are {columns.special}, but they must be different columns")
    features = _feature_names(path, columns, known)
    chosen = set(features)  # a table may have a hundred thousand columns
    return ColumnTable(
        x=_any_features(frame, features) if declared.repair else _features(path, frame, features),
        y=_targets(path, frame, columns, declared),
        feature_names=features,
        other_columns=tuple(name for name in known if name not in chosen),
        client=None if columns.client is None else clients_of(path, frame, columns.client),
        is_test=None
        if columns.split is None
        else is_test_row(path, columns.split, frame[columns.split].to_numpy(object)),
    )


def title_of(source: Source) -> str:
    """Return what sentences call a table."""
    if is_frame(source):
        return "the table"
    if isinstance(source, list | tuple) and source:
        return str(source[0]) + (f" and {len(source) - 1} more" if len(source) > 1 else "")
    return str(source)


def _joined(source: Source, columns: Columns, declared: Declared) -> Any:
    """Return all rows of all files in one frame; a file of many is its client's where no column says so."""
    if is_frame(source):
        return _taken(_with_rows("the table", source))
    files = table_files(source)
    if not files:
        return _frame(Path(source), columns, declared)
    needs(title_of(source), "pandas")
    import pandas

    frames = [_frame(file, columns, declared) for file in files]
    first = dict.fromkeys(str(name) for name in frames[0].columns)
    for file, frame in zip(files, frames, strict=True):
        names = dict.fromkeys(str(name) for name in frame.columns)
        for name in first | names:
            if (name in first) != (name in names):
                there, lacking = (files[0], file) if name in first else (file, files[0])
                raise InputError(
                    f"has no column '{name}', but {there} has: they must have the same", field=str(lacking)
                )
    if columns.client == "client" and "client" not in first:
        frames = [frame.assign(client=file.stem) for file, frame in zip(files, frames, strict=True)]
    return pandas.concat([frame[list(frames[0].columns)] for frame in frames], ignore_index=True)


def _taken(frame: Any) -> Any:
    """Return a data frame of pandas or polars as one of pandas, its rows by their numbers."""
    needs("a data frame", "pandas")
    import pandas

    check_header("the table", [str(name) for name in frame.columns])
    if isinstance(frame, pandas.DataFrame):
        return frame.reset_index(drop=True).rename(columns=str)
    return pandas.DataFrame({str(name): frame[name].to_numpy() for name in frame.columns})


def read_features(
    path: Path, choose: Callable[[list[str]], tuple[str, ...]], id: str | None
) -> tuple[NDArray[Any], list[str] | None]:
    """Read the columns that ``choose`` picks by name, and those of ``id`` as they are written, where that is given."""
    frame = _frame(path, Columns(id, ""), NOTHING)
    known = [str(name) for name in frame.columns]
    if id is not None and id not in known:
        raise InputError(field="id", value=id, but=f"the file has no such column{suggest(id, known)}")
    features = choose([name for name in known if name != id])
    ids = None if id is None else ["" if value is None or value != value else str(value) for value in frame[id]]
    return _features(str(path), frame, features), ids


def _frame(path: Path, columns: Columns, declared: Declared) -> Any:
    needs(str(path), "pandas")
    import pandas

    if path.suffix.lower() != ".csv":
        return _with_rows(str(path), read_frame(path))
    # pandas raises many kinds of errors on damaged files, not all of one family.
    try:
        frame = _csv(path, columns, declared)
    except InputError:
        raise
    except UnicodeError as error:
        raise InputError(
            f"is not UTF-8 text, but a .csv must be: save it again as UTF-8 ({error})", field=str(path)
        ) from error
    except Exception as error:
        raise unreadable(path, path.suffix.lower(), error) from error
    if not isinstance(frame.index, pandas.RangeIndex):
        # pandas takes surplus fields for row names and would shift every column.
        raise InputError("has rows with more fields than its header, but they must be as many", field=str(path))
    return _with_rows(str(path), frame)


def _with_rows(title: str, frame: Any) -> Any:
    if len(frame) == 0:
        raise InputError("has no rows, but it must have at least one sample", field=title)
    return frame


def _csv(path: Path, columns: Columns, declared: Declared) -> Any:
    import pandas

    with path.open("rb") as file:
        header = file.readline()
    other = next((name for mark, name in ((b";", "';'"), (b"\t", "a tab")) if mark in header), None)
    if b"," not in header and other is not None:
        raise InputError(f"has {other} between its columns, but it must be a comma", field=str(path))
    # pandas would call the second of two equal names something else.
    check_header(str(path), [name for name in next(csv.reader([header.decode("utf-8-sig")]), []) if name])
    if declared.repair:
        # All as text: what a column holds must not decide how it is read.
        frame = pandas.read_csv(path, dtype=str, keep_default_na=False, na_filter=False)
        if columns.client in frame:
            frame[columns.client] = frame[columns.client].mask(frame[columns.client] == "")
        return frame
    # Names as text, whatever it is: "007" must not become 7, nor "NA" a missing value. pandas looks for missing
    # values after the converter, so a mark keeps every text from looking like one.
    names = [columns.client, None if declared.label_names is None else columns.labels[0]]
    marked = {name: "={}".format for name in names if name is not None}
    frame = pandas.read_csv(path, low_memory=False, converters=marked)
    for name in marked:
        if name in frame:
            texts = frame[name].str[1:]
            frame[name] = texts.mask(texts == "")
    return frame


def _feature_names(path: str, columns: Columns, known: list[str]) -> tuple[str, ...]:
    if columns.features is None:
        others = {*columns.special, *columns.unused}
        names = tuple(name for name in known if name not in others)
        if not names:
            raise InputError(
                f"has no columns beside {', '.join(columns.special)}, but it must have features", field=path
            )
        return names
    there = set(known)
    for name in columns.features:
        if name not in there:
            raise InputError(f"holds '{name}', but the file has no such column{suggest(name, known)}", field="features")
        if name in columns.special:
            raise InputError(f"holds '{name}', but that column is already the client, label or split", field="features")
    if not columns.features or len(set(columns.features)) != len(columns.features):
        raise InputError(field="features", value=list(columns.features), must="one or more different columns")
    return columns.features


def _features(path: str, frame: Any, names: Sequence[str]) -> NDArray[Any]:
    from pandas.api import types

    places = frame.columns.get_indexer(list(names))
    dtypes = frame.dtypes.iloc[places].tolist()
    is_number = {dtype: types.is_numeric_dtype(dtype) for dtype in set(dtypes)}
    wrong = [name for name, dtype in zip(names, dtypes, strict=True) if not is_number[dtype]]
    if wrong:
        example = frame[wrong[0]].iloc[_first_text(frame[wrong[0]])]
        listed = ", ".join(f"'{name}'" for name in wrong[:5]) + (f" and {len(wrong) - 5} more" * (len(wrong) > 5))
        raise InputError(
            f"has columns that are not numbers: {listed} (such as {str(example)[:40]!r}), but features "
            "must be numbers; choose columns with features",
            field=path,
        )
    # Whole numbers stay whole (they may be tokens) unless a value is missing or another column is not whole.
    # Only pandas' own kinds of whole numbers can miss one.
    whole = all(types.is_integer_dtype(dtype) and dtype != np.uint64 for dtype in is_number) and not any(
        frame[name].hasnans for name, dtype in zip(names, dtypes, strict=True) if not isinstance(dtype, np.dtype)
    )
    matrix = np.empty((len(frame), len(names)), dtype=np.int64 if whole else np.float64)
    # Column by column pandas takes a minute for a hundred thousand of them, and all at once are a second copy.
    for start in range(0, len(names), COLUMNS_AT_ONCE):
        some = slice(start, start + COLUMNS_AT_ONCE)
        missing = {} if whole else {"na_value": np.nan}
        matrix[:, some] = frame.iloc[:, places[some]].to_numpy(dtype=matrix.dtype, **missing)
    return matrix


def _any_features(frame: Any, names: Sequence[str]) -> NDArray[np.float64]:
    """Return columns of any content; what is no number is nan."""
    matrix = np.empty((len(frame), len(names)))
    for j, name in enumerate(names):
        matrix[:, j] = _any_numbers(frame[name])
    return matrix


def _any_numbers(column: Any) -> NDArray[np.float64]:
    from pandas.api import types

    if types.is_numeric_dtype(column.dtype):
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return as_numbers(column.to_numpy(dtype=object))


def _first_text(column: Any) -> int:
    """Return the first row whose value is not a number, to quote it."""
    import pandas

    if column.dtype.kind != "O" and not pandas.api.types.is_string_dtype(column.dtype):
        return 0
    parsed = pandas.to_numeric(column.astype(object), errors="coerce")
    rows = np.flatnonzero((parsed.isna() & column.notna()).to_numpy())
    return int(rows[0]) if rows.size else 0


def _targets(path: str, frame: Any, columns: Columns, declared: Declared) -> NDArray[Any]:
    """Return the labels, (rows,) of one column and (rows, columns) of a list."""
    found = [_label(path, frame, name, declared) for name in columns.labels]
    return found[0] if isinstance(columns.label, str) else np.stack(found, axis=1)


def _label(path: str, frame: Any, name: str, declared: Declared) -> NDArray[Any]:
    from pandas.api import types

    column = frame[name]
    if declared.label_names is not None:
        return labels_of(f"column '{name}'", np.array([_text(value) for value in column], dtype=object), declared)
    if declared.repair:
        return _any_numbers(column)
    if not types.is_numeric_dtype(column.dtype):
        row = _first_text(column)
        raise InputError(
            f"has {str(column.iloc[row])!r} in label column '{name}' at row {row} (counted from 0), but "
            + _RIGHT_TARGETS[declared.targets],
            field=path,
        )
    if types.is_integer_dtype(column.dtype) and not column.hasnans:
        return np.asarray(column.to_numpy())
    return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))


def _text(value: Any) -> str:
    """Return a value of a label column as a name is written: 3 and 3.0 are "3"."""
    is_whole = isinstance(value, float | np.floating) and float(value).is_integer()
    return str(int(value)) if is_whole else str(value)


def clients_of(path: str, frame: Any, name: str) -> NDArray[Any]:
    """Return the column that says whose a row is; none may be missing."""
    column = frame[name]
    missing = np.flatnonzero(column.isna().to_numpy())
    if missing.size:
        row = frame.index[missing[0]]
        raise InputError(
            f"has no client in column '{name}' at row {row} (counted from 0), but every row needs one", field=path
        )
    values = column.to_numpy()
    if values.dtype.kind not in "iufb":
        values = np.array([str(value) for value in values], dtype=np.str_)
    return client_column(f"column '{name}'", values)
