"""One door for data: ``load`` for .npz and tables, one or a site each, ``save`` for .npz."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from numpy.typing import NDArray

from upcycled._utils.messages import collected_warnings
from upcycled.core.errors import InputError, check_path
from upcycled.core.objective import TargetKind
from upcycled.data.arrays import Declared, declare
from upcycled.data.federated import FederatedData
from upcycled.data.readers.npz import array_names, load_npz, pixels, read_set, save, set_names
from upcycled.data.readers.raw_tables import TABLES, Dialect, RawTable, frame_table, is_frame, raw_table, table_files
from upcycled.data.readers.tables import Columns, load_table, read_table, title_of
from upcycled.data.schema.encoding import load_by_schema
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
    test_fraction: float = 0.0,
    features: Sequence[str] | None = None,
    seed: int = 0,
    *,
    num_classes: int | None = None,
    label_names: Sequence[str] | None = None,
    vocabulary: int | None = None,
    targets: TargetKind | None = None,
    schema: Schema | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    repair: bool = False,
    public: bool = False,
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
        test_fraction: hold this part of every client's samples out as a test part, for files that have none.
        features: the feature columns of a table; every other column if left out.
        seed: for ``test_fraction``.
        num_classes: the number of classes; what an .npz says of itself, else one more than the largest label.
        label_names: the names of the classes, which labels may be written as.
        vocabulary: features are token ids below this number.
        targets: ``"classes"``; ``"numbers"`` for regression, one or several a sample; or ``"labels"``, several a
            sample, each 0 or 1. Left out, it is what an .npz says of itself, else classes.
        schema: what the columns of tables are (:class:`Schema`, or its TOML file): numbers with public bounds,
            categories, dates, gaps, label and client. It says all that ``client``, ``label``, ``split``, ``features``,
            ``num_classes``, ``label_names``, ``vocabulary`` and ``targets`` would.
        repair: let no sample be wrong: features that are no finite number count as 0, labels that are no class as class
            0, and ``notes`` says how many did. What is held out does not look for copies. See ``docs/data.md``.
        public: everybody may know the samples.

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
    if schema is not None:
        given: dict[str, Any] = {"name": name, "client": client, "label": label, "split": split, "features": features}
        given |= {"num_classes": num_classes, "label_names": label_names, "vocabulary": vocabulary, "targets": targets}
        for field, value in given.items():
            if value is not None:
                raise InputError(field=field, value=value, must="left out: the schema says it")
        known = as_schema(schema)
        with collected_warnings(Warning) if repair else nullcontext(()) as warned:
            data = load_by_schema(raw_tables(path, known), known, repair=repair)
        data = replace(data, notes=(*data.notes, *warned), public=public)
        return data.split(test_fraction, seed) if test_fraction else data
    declared = declare(num_classes, label_names, vocabulary, repair, targets or "classes")
    is_one = not is_frame(path) and not table_files(path)
    file = existing_file(cast("str | os.PathLike[str]", path)) if is_one else None
    title = title_of(path)
    try:
        if file is not None and file.suffix.lower() == ".npz":
            refuse_options("a .csv or .parquet", split=split, features=features)
            if label is not None and not isinstance(label, str):
                raise InputError(field="label", value=label, must="the name of one array, whose rows may have several")
            read = partial(load_npz, file, name, client, label, declared, has_kind=targets is not None)
        else:
            refuse_options("an .npz", name=name)
            columns = Columns(client or "client", _labels(label, declared), split, _listed(features))
            read = partial(load_table, path, columns, declared)
        # What others' code warns about may follow from samples: of repaired data only their holder is told.
        with collected_warnings(Warning) if repair else nullcontext(()) as warned:
            data = read()
        data = replace(data, notes=(*data.notes, *warned), public=public)
        return data.split(test_fraction, seed) if test_fraction else data
    except InputError as error:
        is_named = not is_one and error.field in map(str, table_files(path))
        raise error if is_named else about_file(title, error) from error


def raw_tables(source: Any, schema: Schema | None = None) -> list[RawTable]:
    """Return the tables of a file, list, folder or data frame as they are written, each with its client's name."""
    if is_frame(source):
        return [frame_table(source, "the table")]
    dialect = Dialect() if schema is None else Dialect(schema.separator, schema.encoding)
    return read_all(files_of(source), dialect)


def read_all(files: Sequence[Path], dialect: Dialect) -> list[RawTable]:
    """Return the tables in files, each with its client's name.

    Raises:
        InputError: in one sentence that names every file that cannot be read.
    """
    tables, wrong = [], list[InputError]()
    for file in files:
        try:
            tables.append(raw_table(file, dialect, file.stem))
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
            table = read_table(file, Columns(column, label or "label", None, _listed(features), unused=("client",)))
            return Pool(table.x, table.y, table.client)
        refuse_options("a .csv or .parquet", features=features)
        columns = ["x", label or "y", *([] if column is None else [column])]
        archive = read_set(file, name, columns)
        joined = [archive.joined(key) for key in columns]
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


def _labels(label: str | Sequence[str] | None, declared: Declared) -> str | tuple[str, ...]:
    """Return the label column, or several of them."""
    if label is None or isinstance(label, str):
        return label or "label"
    names = tuple(label)
    if declared.targets == "classes":
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
