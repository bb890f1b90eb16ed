"""One door for data: ``load`` for .npz and tables, one or a site each, ``save`` for .npz."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from numpy.typing import NDArray

from upcycled._utils.messages import collected_warnings
from upcycled.core.errors import InputError, check_path
from upcycled.data.federated import FederatedData, finished
from upcycled.data.options import DataKeywords, DataOptions
from upcycled.data.readers.npz import array_names, load_npz, pixels, read_set, save, set_names
from upcycled.data.readers.raw_tables import (
    PLAIN,
    TABLES,
    Dialect,
    Inferred,
    RawTable,
    frame_table,
    is_frame,
    raw_table,
    table_files,
    title_of,
)
from upcycled.data.readers.tables import Columns, how_to_read, load_by_schema, read_rows
from upcycled.data.schema.schema import Schema, as_schema

__all__ = ["EXTENSIONS", "Found", "Pool", "files_in", "load", "read_pool", "save"]
_LISTED = 20

EXTENSIONS = (".npz", *TABLES)


@dataclass(frozen=True)
class Pool:
    """Samples that belong to no client yet, and the column to make clients of, where one was asked for."""

    x: NDArray[Any]
    y: NDArray[Any]
    column: NDArray[Any] | None = None


def load(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Any,
    name: str | None = None,
    client: str | None = None,
    label: str | Sequence[str] | None = None,
    split: str | None = None,
    features: Sequence[str] | None = None,
    *,
    schema: Schema | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    **options: Unpack[DataKeywords],
) -> FederatedData:
    r"""Read federated data from a file, from a file for each site, or from a data frame.

    An ``.npz`` has arrays ``[<set>_]{train,test}_{x,y,client}`` (``validation`` too, if you like); uint8 images
    become float32 / 255. A ``.csv``, ``.parquet`` or ``.xlsx`` has one row per sample. Client ids may be any whole
    numbers or strings; clients come in sorted order and their rows keep the order of the file.

    Args:
        path: the file; a list of tables, or a folder of them, whose files' names are the clients; or a data frame of
            pandas or polars.
        name: which set of an .npz that holds several.
        client: the client column, "client" if left out; several files need none.
        label: the label column, "label" (in an .npz "y") if left out; of a table with ``targets`` that are numbers or
            labels a list of columns, too.
        split: a column of a table that says "train" or "test", or 0 or 1.
        features: the feature columns of a table; every other column if left out.
        schema: what the columns of tables are (:class:`Schema`, or its TOML file): numbers with public bounds,
            categories, dates, gaps, label and client. It says all that ``client``, ``label``, ``split``, ``features``,
            ``num_classes``, ``label_names``, ``vocabulary`` and ``targets`` would.
        options: facts and wishes about the data: ``num_classes``, ``label_names``, ``vocabulary``, ``targets``,
            ``client_names``, ``test_fraction``, ``seed``, ``repair``, ``public``
            (:class:`upcycled.data.options.DataOptions` explains each). What an .npz says of itself counts where they
            are left out. For ``repair`` see ``docs/data.md``.

    Returns:
        The data, checked.

    Raises:
        InputError: in one sentence that names the file, when it cannot be used; by a schema with all that is wrong.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = Path(folder) / "visits.csv"
    ...     _ = table.write_text("client,age,weight,label\nann,31,60,0\nann,47,71,1\nbob,25,80,1\n")
    ...     load(table)
    FederatedData(2 clients, 3 training samples of 2 features, 2 classes)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = Path(folder) / "doses.csv"
    ...     _ = table.write_text("client,age,morning,evening\nann,31,0.5,1.5\nbob,25,0.7,2.5\n")
    ...     load(table, label=["morning", "evening"], targets="numbers").train.y.shape
    (2, 2)
    >>> import pandas
    >>> visits = pandas.DataFrame({"site": ["a", "b"], "age": [31, 90], "ill": ["no", "yes"]})
    >>> schema = {"site": {"kind": "client"}, "age": {"kind": "number", "bounds": [0, 100]}}
    >>> schema["ill"] = {"kind": "label", "classes": ["no", "yes"]}
    >>> load(visits, schema={"columns": schema}).train.x.round(2).tolist()
    [[-0.38], [0.8]]
    """
    given = DataOptions.of(options)
    known = None if schema is None else as_schema(schema)
    if known is not None:
        said = {"name": name, "client": client, "label": label, "split": split, "features": features}
        for field in (*said, "num_classes", "label_names", "vocabulary", "targets"):
            value = said.get(field, getattr(given, field, None))
            if value is not None:
                raise InputError(field=field, value=value, must="left out: the schema says it")
    try:
        if known is not None:
            read = partial(_load_by_schema, path, known, given)
        elif (file := _npz_of(path)) is not None:
            refuse_options("a .csv or .parquet", split=split, features=features)
            if label is not None and not isinstance(label, str):
                raise InputError(field="label", value=label, must="the name of one array, whose rows may have several")
            read = partial(load_npz, file, name, client, label, given)
        else:
            refuse_options("an .npz", name=name)
            columns = Columns(client or "client", _labels(label, given), split, _listed(features))
            read = partial(_load_by_columns, path, columns, given)
        # What others' code warns about may follow from samples: of repaired data only their holder is told.
        with collected_warnings(Warning) if given.repair else nullcontext(()) as warned:
            data = read()
        return finished(replace(data, notes=(*data.notes, *warned)), given)
    except InputError as error:
        if known is not None or (not is_frame(path) and error.field in map(str, table_files(path))):
            raise
        raise about_file(title_of(path), error) from error


def _load_by_schema(source: Any, schema: Schema, options: DataOptions) -> FederatedData:
    return load_by_schema(raw_tables(source, schema), schema, options)


def _load_by_columns(source: Any, columns: Columns, options: DataOptions) -> FederatedData:
    rows = read_rows(raw_tables(source, how_to_read(columns, options)), columns, options)
    return rows.grouped(options)


def _npz_of(source: Any) -> Path | None:
    """Return the file if it is an .npz; None for tables."""
    if is_frame(source) or table_files(source):
        return None
    file = existing_file(source)
    return file if file.suffix.lower() == ".npz" else None


def raw_tables(source: Any, how: Schema | Dialect | Inferred = PLAIN) -> list[RawTable]:
    """Return the tables of a file, list, folder or data frame, each with the name of its client.

    Without a schema a single file is nobody's: a column has to say whose its rows are.
    """
    if is_frame(source):
        return [frame_table(source, "the table", is_inferred=isinstance(how, Inferred))]
    if isinstance(how, Inferred) and not table_files(source):
        return [raw_table(existing_file(source), how)]
    return read_all(files_of(source), Dialect(how.separator, how.encoding) if isinstance(how, Schema) else how)


def read_all(files: Sequence[Path], how: Dialect | Inferred) -> list[RawTable]:
    """Return the tables in files, each with the name of its client.

    Raises:
        InputError: in one sentence that names every file that cannot be read.
    """
    tables, wrong = [], list[InputError]()
    for file in files:
        try:
            tables.append(raw_table(file, how, file.stem))
        except InputError as error:
            wrong.append(error)
    if len(wrong) > 1:
        more = f"; and {len(wrong) - _LISTED} files more" if len(wrong) > _LISTED else ""
        raise InputError("; ".join(map(str, wrong[:_LISTED])) + more)
    if wrong:
        raise wrong[0]
    return tables


def files_of(source: Any) -> tuple[Path, ...]:
    """Return the tables that a file, a list or a folder is."""
    files = table_files(source)
    if not files:
        file = existing_file(source)
        if file.suffix.lower() == ".npz":
            raise InputError("is an .npz, but a schema is for tables", field=str(file))
        files = (file,)
    return files


def read_pool(
    path: str | os.PathLike[str],
    name: str | None = None,
    label: str | None = None,
    features: Sequence[str] | None = None,
    column: str | None = None,
) -> Pool:
    """Read samples without regard to clients: all parts of an .npz set joined, or all rows of a table.

    ``column`` is read too, for :func:`upcycled.data.partition.by_column`. A table's column named "client" is no
    feature, unless ``features`` says so.
    """
    file = existing_file(path)
    try:
        if file.suffix.lower() != ".npz":
            refuse_options("an .npz", name=name)
            columns = Columns(column, label or "label", None, _listed(features), unused=("client",))
            rows = read_rows([raw_table(file, how_to_read(columns, DataOptions()))], columns, DataOptions())
            return Pool(rows.x, rows.y, rows.client)
        refuse_options("a .csv or .parquet", features=features)
        arrays = ["x", label or "y", *([] if column is None else [column])]
        archive = read_set(file, name, arrays)
        joined = [archive.joined(key) for key in arrays]
        return Pool(pixels(joined[0]), joined[1], joined[2] if column is not None else None)
    except InputError as error:
        raise about_file(str(file), error) from error


@dataclass(frozen=True)
class Found:
    """A file that could be loaded: the named sets in it, or why it holds none."""

    file: str
    kind: str
    sets: tuple[str, ...] = ()
    problem: str | None = None


def files_in(folder: str | os.PathLike[str]) -> list[Found]:
    """List the data files of a folder from their names and tables of contents; no array is read."""
    return [
        _look(path) for path in sorted(Path(folder).iterdir()) if path.suffix.lower() in EXTENSIONS and path.is_file()
    ]


def _look(path: Path) -> Found:
    kind = path.suffix.lower()[1:]
    if kind != "npz":
        return Found(path.name, kind)
    try:
        keys = array_names(path)
    except InputError:
        return Found(path.name, kind, problem="cannot be read")
    sets = set_names(keys)
    problem = None
    if not sets:
        problem = "no train_x, so not a federated set"
    elif sets == [""] and "train_client" not in keys:
        problem = "no train_client, so samples to be dealt out first"
    return Found(path.name, kind, tuple(name for name in sets if name), problem)


def existing_file(path: str | os.PathLike[str]) -> Path:
    """Return a path that is a file of a known kind."""
    file = Path(check_path("path", path, "file"))
    # Path's own methods raise for a name that is too long.
    if os.path.isfile(file) and file.suffix.lower() in EXTENSIONS:
        return file
    wrong = "is a folder" if os.path.isdir(file) else f"ends in '{file.suffix}'"
    wrong = wrong if os.path.exists(file) else "does not exist"
    raise InputError(f"{wrong}, but it must be a file that ends in {', '.join(EXTENSIONS)}", field=str(file))


def refuse_options(kind: str, **options: object) -> None:
    """Refuse what is only for another kind of file."""
    for field, value in options.items():
        if value is not None:
            raise InputError(field=field, value=value, must=f"left out: it is for {kind} file")


def _labels(label: str | Sequence[str] | None, options: DataOptions) -> str | tuple[str, ...]:
    """Return the label column, or several of them."""
    if label is None or isinstance(label, str):
        return label or "label"
    names = tuple(label)
    if options.kind == "classes":
        raise InputError(field="label", value=list(names), must="one column, unless targets are numbers or labels")
    if not names or len(set(names)) != len(names):
        raise InputError(field="label", value=list(names), must="a column, or a list of one or more different columns")
    return names


def _listed(features: Sequence[str] | None) -> tuple[str, ...] | None:
    if features is None:
        return None
    return (features,) if isinstance(features, str) else tuple(features)


def about_file(file: str, error: InputError) -> InputError:
    """Return the error with the file's name in it, once."""
    return error if error.field == file else error.at(file)
