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
