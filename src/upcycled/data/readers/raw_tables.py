"""Tables as they are written, before anybody says what their columns mean: a file, a list, a folder, a data frame."""

from __future__ import annotations

import csv
import io
import os
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled.core.allocation import check_fits, memory_limit
from upcycled.core.errors import InputError, check_path
from upcycled.data.readers.npz import unreadable
from upcycled.support.compressed import check_unpacked
from upcycled.support.extras import needs
from upcycled.support.formats import count

TABLES = (".csv", ".parquet", ".xlsx")
OTHER_MARKS = ((";", "';'"), ("\t", "a tab"), ("|", "'|'"), (",", "a comma"))


@dataclass(frozen=True)
class Dialect:
    """How a .csv is written."""

    separator: str = ","
    encoding: str = "utf-8"


PLAIN = Dialect()


@dataclass(frozen=True)
class RawTable:
    """One table, column by column, with nothing decided: texts of a .csv, values of everything else."""

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
        if not given or not all(isinstance(one, str | os.PathLike) for one in given):
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


def raw_table(file: Path, dialect: Dialect = PLAIN, client: str | None = None) -> RawTable:
    """Read a file as it is written.

    Raises:
        InputError: in one sentence, if it cannot be read, or its rows or its header have no sound shape.
    """
    if file.suffix.lower() == ".csv":
        names, columns = _csv_columns(file, dialect)
        return RawTable(str(file), client, dict(zip(names, columns, strict=True)), len(columns[0]) if columns else 0)
    return frame_table(read_frame(file, as_written=True), str(file), client)


def read_frame(file: Path, *, as_written: bool = False) -> Any:
    """Read a .parquet or .xlsx with pandas; ``as_written`` keeps every cell of a sheet as it is."""
    is_sheet = file.suffix.lower() == ".xlsx"
    needs(str(file), "pandas", *(() if is_sheet else ("pyarrow",)))
    if is_sheet:
        needs(str(file), "openpyxl")
    import pandas

    # pandas and its readers raise many kinds of errors on damaged files, not all of one family.
    try:
        check_unpacked(file, _unpacked_sheet(file) if is_sheet else _unpacked_parquet(file))
        if is_sheet:
            return pandas.read_excel(file, engine="openpyxl", dtype=object if as_written else None)
        return pandas.read_parquet(file, engine="pyarrow").reset_index(drop=True)
    except InputError:
        raise
    except Exception as error:
        raise unreadable(file, file.suffix.lower(), error) from error


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


MOST_COLUMNS = 100_000
_LONGEST_HEADER = 2**26


def check_cells_fit(file: Path, separator: bytes) -> None:
    """Refuse a .csv whose cells need more memory than there is: an empty one is a byte there and eight here.

    Before that one with more columns than a table is read with in seconds: each is an array of its own, and costs as
    much in a file without rows.

    Raises:
        InputError: in one sentence.
    """
    with file.open("rb") as stream:
        header = stream.readline(_LONGEST_HEADER)
        columns, has_rows = header.count(separator) + 1, bool(stream.read(1))
    if columns > MOST_COLUMNS or len(header) == _LONGEST_HEADER:
        many = f"more than {count(MOST_COLUMNS)} columns"
        raise InputError(f"has {many}, but a table must have no more: keep such samples in an .npz", field=str(file))
    if not has_rows and columns > MOST_COLUMNS // 100:  # fewer are counted by those who know what rows are for
        raise InputError("has no rows, but it must have at least one sample for every client", field=str(file))
    limit = memory_limit()
    if limit is None or 8 * file.stat().st_size <= limit:  # no file has more cells than bytes
        return
    with file.open("rb") as stream:
        columns = stream.readline().count(separator) + 1
        rows = sum(part.count(b"\n") for part in iter(lambda: stream.read(2**24), b""))
    try:
        check_fits(f"a table of {rows} rows and {columns} columns", 8 * rows * columns)
    except InputError as error:
        raise error.at(str(file)) from None


def frame_table(frame: Any, title: str, client: str | None = None) -> RawTable:
    """Return the columns of a data frame of pandas or polars."""
    named = [str(name) for name in frame.columns]
    check_header(title, named)
    columns = {str(name): _values(frame[name]) for name in frame.columns}
    return RawTable(title, client, columns, len(frame))


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
        check_cells_fit(file, dialect.separator.encode())
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
    return Dialect(_usual_separator([_header(one) for one in files], PLAIN.separator), encoding)


def written_otherwise(files: Sequence[Path], dialect: Dialect) -> list[InputError]:
    """Return a sentence for each of several tables that is not written like most of them, by their headers alone.

    Whoever reads them says the same, whatever the first table or the schema has: the fewest files are to change.
    """
    headers = [_header(file) for file in files]
    usual = _usual_separator(headers, dialect.separator)
    many = sum(_fields(header, usual) > 1 for header in headers)
    others = "the other table has" if many == 1 else f"{many} of {len(files)} tables have"
    also = "" if usual == dialect.separator else f", and say separator = {_in_toml(usual)} in the schema"
    return [
        InputError(
            f"has {_called(_separator(header))} between its columns, where {others} {_called(usual)}: save it so, too"
            f"{also}",
            field=str(file),
        )
        for file, header in zip(files, headers, strict=True)
        if _fields(header, usual) == 1 and _separator(header)
    ]


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


def _usual_separator(headers: Sequence[str], otherwise: str) -> str:
    """Return what is between the columns of most tables; of equally many what would be so otherwise."""
    found = Counter(filter(None, map(_separator, headers)))
    return max(found, key=lambda mark: (found[mark], mark == otherwise), default=otherwise)
