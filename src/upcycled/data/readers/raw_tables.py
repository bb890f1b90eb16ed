"""The reader of tables: a file, a list of files, a folder or a data frame becomes columns of cells.

With a schema every cell is read as it is written. Without one, pandas reads a .csv and says which columns are numbers.
"""

from __future__ import annotations

import csv
import io
import os
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled._utils.extras import needs
from upcycled._utils.files import check_unpacked
from upcycled.core.errors import InputError, check_path
from upcycled.data.readers.npz import unreadable

TABLES = (".csv", ".parquet", ".xlsx")
OTHER_MARKS = ((";", "';'"), ("\t", "a tab"), ("|", "'|'"), (",", "a comma"))


@dataclass(frozen=True)
class Dialect:
    """How a .csv is written."""

    separator: str = ","
    encoding: str = "utf-8"


PLAIN = Dialect()


@dataclass(frozen=True)
class Inferred:
    """How a table without a schema is read: columns are numbers where all of their cells are."""

    texts: tuple[str, ...] = ()
    """Columns of a .csv that are text whatever is in them: "007" is not 7, nor "NA" a missing value."""
    all_text: bool = False
    """Whether every column of a .csv is: what a column holds must not decide how it is read."""


@dataclass(frozen=True)
class RawTable:
    """One table, column by column: numbers where a column has such a type, else objects (texts of a .csv)."""

    title: str
    """What sentences call it: the file's path."""
    client: str | None
    """Whose it is, where its file's name says so."""
    columns: dict[str, NDArray[Any]]
    num_rows: int


def is_frame(given: object) -> bool:
    """Tell a data frame of pandas or polars from a path."""
    return hasattr(given, "columns") and hasattr(given, "__getitem__")


def table_files(given: object) -> tuple[Path, ...]:
    """Return the files of a list, or of a folder in the order of their names; none of anything else.

    Raises:
        InputError: in one sentence, if there are none, or two that would be one client.
    """
    if isinstance(given, str | os.PathLike):
        folder = Path(check_path("path", given))
        if not os.path.isdir(folder):  # Path's own raises for a name that is too long
            return ()
        files = [one for one in sorted(folder.iterdir()) if one.suffix.lower() in TABLES and one.is_file()]
        files = [one for one in files if not one.name.startswith((".", "~$"))]
        if not files:
            raise InputError(f"holds no file that ends in {', '.join(TABLES)}: one for each site", field=str(folder))
    elif isinstance(given, Sequence):
        if not given:
            raise InputError(field="path", value=given, must="a file, a list of one or more files, a folder or a table")
        files = [Path(one) for one in given]
        for file in files:
            if not file.is_file() or file.suffix.lower() not in TABLES:
                raise InputError(f"must be a file that ends in {', '.join(TABLES)}", field=str(file))
    else:
        return ()
    repeated = [name for name, times in Counter(file.stem for file in files).items() if times > 1]
    if repeated:
        both = " and ".join(str(file) for file in files if file.stem == repeated[0])
        raise InputError(f"{both} have the same name, but it is a client's and must be one file's")
    return tuple(files)


def title_of(source: Any) -> str:
    """Return the name of a table, or of several, for error messages."""
    if is_frame(source):
        return "the table"
    if isinstance(source, list | tuple) and source:
        return str(source[0]) + (f" and {len(source) - 1} more" if len(source) > 1 else "")
    return str(source)


def raw_table(file: Path, how: Dialect | Inferred = PLAIN, client: str | None = None) -> RawTable:
    """Read a file.

    Raises:
        InputError: in one sentence, if it cannot be read, or its rows or its header have no sound shape.
    """
    is_inferred, is_csv = isinstance(how, Inferred), file.suffix.lower() == ".csv"
    if is_csv and isinstance(how, Dialect):
        names, columns = _csv_columns(file, how)
        return RawTable(str(file), client, dict(zip(names, columns, strict=True)), len(columns[0]) if columns else 0)
    needs(str(file), "pandas", *(("pyarrow",) if file.suffix.lower() == ".parquet" else ()))
    # pandas and its readers raise many kinds of errors on damaged files, not all of one family.
    try:
        frame = _inferred_csv(file, how) if isinstance(how, Inferred) and is_csv else _frame(file, is_inferred)
    except InputError:
        raise
    except Exception as error:
        if is_csv and isinstance(error, UnicodeError):
            wrong = f"is not UTF-8 text, but a .csv must be: save it again as UTF-8 ({error})"
            raise InputError(wrong, field=str(file)) from error
        raise unreadable(file, file.suffix.lower(), error) from error
    return frame_table(frame, str(file), client, is_inferred=is_inferred)


def _frame(file: Path, is_inferred: bool) -> Any:
    import pandas

    if file.suffix.lower() == ".xlsx":
        needs(str(file), "openpyxl")
        check_unpacked(file, _unpacked_sheet(file))
        return pandas.read_excel(file, engine="openpyxl", dtype=None if is_inferred else object)
    check_unpacked(file, _unpacked_parquet(file))
    return pandas.read_parquet(file, engine="pyarrow").reset_index(drop=True)


def _inferred_csv(file: Path, how: Inferred) -> Any:
    import pandas

    with file.open("rb") as stream:
        header = stream.readline()
    other = next((name for mark, name in ((b";", "';'"), (b"\t", "a tab")) if mark in header), None)
    if b"," not in header and other is not None:
        raise InputError(f"has {other} between its columns, but it must be a comma", field=str(file))
    # pandas would call the second of two equal names something else.
    check_header(str(file), [name for name in next(csv.reader([header.decode("utf-8-sig")]), []) if name])
    if how.all_text:
        frame = pandas.read_csv(file, dtype=str, keep_default_na=False, na_filter=False)
        marked = [name for name in how.texts[:1] if name in frame]
    else:
        # pandas looks for missing values after the converter, so a mark keeps every text from looking like one.
        frame = pandas.read_csv(file, low_memory=False, converters=dict.fromkeys(how.texts, "={}".format))
        marked = [name for name in how.texts if name in frame]
        for name in marked:
            frame[name] = frame[name].str[1:]
    for name in marked:
        frame[name] = frame[name].mask(frame[name] == "")
    if not isinstance(frame.index, pandas.RangeIndex):
        # pandas takes surplus fields for row names and would shift every column.
        raise InputError("has rows with more fields than its header, but they must be as many", field=str(file))
    return frame


def parquet_columns(file: Path) -> list[str]:
    """Return the names of the columns of a .parquet."""
    from pyarrow import parquet

    try:
        return list(parquet.ParquetFile(file).schema_arrow.names)
    except (OSError, ValueError) as error:
        raise unreadable(file, ".parquet", error) from error


def parquet_chunks(files: Sequence[Path], columns: Sequence[str], rows: int) -> Iterator[RawTable]:
    """Yield at most so many rows of these columns at a time, in the order of the files; a gap in numbers is nan."""
    from pyarrow import parquet

    for file in files:
        try:
            opened = parquet.ParquetFile(file, memory_map=True, pre_buffer=False)
            for batch in opened.iter_batches(batch_size=rows, columns=list(columns), use_threads=False):
                arrays = [column.to_numpy(zero_copy_only=False) for column in batch.columns]
                yield RawTable(str(file), None, dict(zip(batch.schema.names, arrays, strict=True)), batch.num_rows)
        except (OSError, ValueError) as error:
            raise unreadable(file, ".parquet", error) from error


def _unpacked_sheet(file: Path) -> int:
    """Return how many bytes a workbook, which is a .zip, says that its parts have."""
    with zipfile.ZipFile(file) as archive:
        return sum(member.file_size for member in archive.infolist())


def _unpacked_parquet(file: Path) -> int:
    """Return how many bytes a table says it has; a value that is repeated a million times is written once."""
    from pyarrow import parquet

    about = parquet.ParquetFile(file).metadata
    groups = (about.row_group(i).total_byte_size for i in range(about.num_row_groups))
    return int(max(8 * about.num_rows * about.num_columns, sum(groups)))


def frame_table(frame: Any, title: str, client: str | None = None, *, is_inferred: bool = False) -> RawTable:
    """Return the columns of a data frame of pandas or polars."""
    check_header(title, [str(name) for name in frame.columns])
    if is_inferred:
        needs("a data frame", "pandas")
        import pandas

        if not isinstance(frame, pandas.DataFrame):
            frame = pandas.DataFrame({str(name): frame[name].to_numpy() for name in frame.columns})
    take = inferred_column if is_inferred else _values
    return RawTable(title, client, {str(name): take(frame[name]) for name in frame.columns}, len(frame))


def inferred_column(column: Any) -> NDArray[Any]:
    """Return a column of pandas as numbers where its type is one of numbers (a gap is nan), else as objects."""
    from pandas.api import types

    if not types.is_numeric_dtype(column.dtype):
        return np.asarray(column, dtype=object)
    if isinstance(column.dtype, np.dtype):
        return np.asarray(column.to_numpy())
    if column.hasnans:
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    kinds = ((types.is_bool_dtype, np.bool_), (types.is_integer_dtype, np.int64))
    return np.asarray(column.to_numpy(dtype=next((kind for fits, kind in kinds if fits(column.dtype)), np.float64)))


def check_header(title: str, names: Sequence[str]) -> None:
    """Refuse a name that two columns have."""
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        listed = ", ".join(f"'{name}'" for name in repeated)
        raise InputError(f"has {listed} more than once in its header, but each column needs its own name", field=title)


def _values(column: Any) -> NDArray[Any]:
    """Return a column as numbers or days where all of it has that type, else as objects."""
    array = np.asarray(column)
    if array.dtype.kind in "iufbM":
        return array
    return np.asarray(column, dtype=object)


def _csv_columns(file: Path, dialect: Dialect) -> tuple[list[str], list[NDArray[Any]]]:
    try:
        encoding = "utf-8-sig" if dialect.encoding.replace("_", "-").lower() in ("utf-8", "utf8") else dialect.encoding
        text = file.read_bytes().decode(encoding)
    except OSError as error:
        raise unreadable(file, ".csv", error) from error
    except UnicodeError as error:
        raise InputError(
            f'is no text in {dialect.encoding} ({error}): save it as UTF-8, or say encoding = "latin-1" in the schema',
            field=str(file),
        ) from error
    try:
        rows = [
            row for row in csv.reader(io.StringIO(text, newline=""), delimiter=dialect.separator, strict=True) if row
        ]
    except csv.Error as error:
        raise InputError(f"cannot be read as .csv: {error} (a quote that is never closed?)", field=str(file)) from error
    if not rows:
        raise InputError("is empty, but it must have a header and rows", field=str(file))
    names = [name.strip() or f"Unnamed: {place}" for place, name in enumerate(rows[0])]
    if len(names) == 1:
        other = next((mark for mark in OTHER_MARKS if mark[0] != dialect.separator and mark[0] in names[0]), None)
        if other is not None:
            raise InputError(
                f"has {other[1]} between its columns: save it with {_called(dialect.separator)}, or say separator = "
                f"{_in_toml(other[0])} in the schema",
                field=str(file),
            )
    check_header(str(file), names)
    odd = [place for place, row in enumerate(rows[1:]) if len(row) != len(names)]
    if odd:
        first = rows[1 + odd[0]]
        several = f"{len(odd)} rows have" if len(odd) > 1 else "a row has"
        raise InputError(
            f"{several} another number of fields than the header's {len(names)}, the first {len(first)} at row "
            f"{odd[0]} (counted from 0): is {_called(dialect.separator)} between all columns, and texts in quotes?",
            field=str(file),
        )
    columns = []
    for values in zip(*rows[1:], strict=True) if len(rows) > 1 else [()] * len(names):
        column = np.empty(len(values), dtype=object)
        column[:] = values
        columns.append(column)
    return names, columns


def _called(mark: str) -> str:
    return dict(OTHER_MARKS).get(mark, repr(mark))


def _in_toml(mark: str) -> str:
    return '"\\t"' if mark == "\t" else f'"{mark}"'


def sniffed(files: Sequence[Path]) -> Dialect:
    """Return how tables seem to be written: with what is between the columns of most, in the first one's encoding."""
    file = next((one for one in files if one.suffix.lower() == ".csv"), None)
    if file is None:
        return PLAIN
    try:
        content = file.read_bytes()
    except OSError as error:
        raise unreadable(file, ".csv", error) from error
    encoding = "utf-8"
    try:
        content.decode("utf-8-sig")
    except UnicodeError:
        encoding = "latin-1"
    found = Counter(filter(None, (_separator(_header(one)) for one in files)))
    return Dialect(max(found, key=lambda mark: found[mark], default=PLAIN.separator), encoding)


def _header(file: Path) -> str:
    """Return the first line of a .csv; nothing of what is none, or cannot be read, which others say."""
    if file.suffix.lower() != ".csv":
        return ""
    try:
        with file.open("rb") as stream:
            return stream.readline().decode("utf-8-sig", errors="replace").rstrip("\r\n")
    except OSError:
        return ""


def _fields(header: str, mark: str) -> int:
    """Return how many columns a header has with a mark between them; one within quotes is none."""
    try:
        return len(next(csv.reader([header], delimiter=mark), ()))
    except csv.Error:  # said when the table is read
        return 1


def _separator(header: str) -> str:
    """Return what is between the columns of a header; nothing where it has one column."""
    best = max([",", ";", "\t", "|"], key=lambda mark: _fields(header, mark))
    return best if _fields(header, best) > 1 else ""
