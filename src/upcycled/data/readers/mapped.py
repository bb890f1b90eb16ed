"""Parquet files larger than the memory: sorted by client into memory-mapped arrays, a part at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from upcycled._utils.extras import needs
from upcycled.core.errors import InputError, check_path
from upcycled.core.objective import TargetKind
from upcycled.core.vectors import Ints
from upcycled.data.federated import FederatedData
from upcycled.data.readers.raw_tables import RawTable, parquet_chunks, parquet_columns, table_files
from upcycled.data.readers.tables import Columns, check_same_columns

_ROWS = 1 << 16
"""Rows of a table in memory at a time."""
_WAITING = 1 << 22
"""Client ids that are counted before they are merged."""

PathLike: TypeAlias = str | os.PathLike[str]


def load_mapped(
    path: PathLike | Sequence[PathLike],
    folder: PathLike,
    client: str = "client",
    label: str = "label",
    features: Sequence[str] | None = None,
    *,
    num_classes: int | None = None,
    targets: TargetKind = "classes",
    public: bool = False,
) -> FederatedData:
    """Read Parquet files that need not fit into memory: they are sorted by client into files, and these are mapped.

    The files are gone over twice, some ten thousand rows at a time: once for how many rows each client has, once for
    the rows themselves. What stays in memory is a few numbers a client. Clients come in the order of their ids, and
    their rows keep the order of the files.

    Args:
        path: a .parquet, a list of them, or a folder of them.
        folder: where ``x.npy`` and ``y.npy`` are written, which the data are read from as long as they are used; it
            must have room for all samples, and hold no such files yet.
        client: the column of client ids, which are whole numbers.
        label: the column of labels, or of the numbers to be predicted.
        features: the feature columns, numbers all; every other column if left out.
        num_classes: the number of classes; one more than the largest label if left out.
        targets: ``"classes"``, or ``"numbers"`` for regression.
        public: everybody may know the samples.

    Returns:
        The data, checked and memory-mapped.

    Raises:
        InputError: in one sentence that names the file or the column, where they do not fit.

    >>> import tempfile, pandas
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = pandas.DataFrame({"client": [7, 3, 7], "age": [31.0, 25.0, 47.0], "label": [0, 1, 1]})
    ...     table.to_parquet(Path(folder) / "visits.parquet")
    ...     data = load_mapped(Path(folder) / "visits.parquet", Path(folder) / "mapped")
    ...     data.sizes.tolist(), data.train.x.ravel().tolist()
    ([1, 2], [25.0, 31.0, 47.0])
    """
    if targets not in ("classes", "numbers"):
        raise InputError(field="targets", value=targets, must="'classes' or 'numbers'")
    needs("a Parquet file", "pyarrow")
    tables = _tables(path, client, label, features)
    into = Path(check_path("folder", folder))
    into.mkdir(parents=True, exist_ok=True)
    held = [name for name in ("x.npy", "y.npy") if (into / name).exists()]
    if held:
        raise InputError(f"holds {held[0]} already: it must be a folder without one", field=str(into))
    ids, counts = _counted(tables)
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
    x_path, y_path = _sorted_into(into, tables, ids, offsets, np.float32 if targets == "numbers" else np.int64)
    data = FederatedData.from_flat(
        np.load(x_path, mmap_mode="r"),
        np.load(y_path, mmap_mode="r"),
        offsets,
        num_classes=num_classes,
        targets=targets,
        public=public,
    )
    return replace(data, client_ids=ids, feature_names=tables.features)


@dataclass(frozen=True)
class _Tables:
    """Parquet files with the same columns."""

    files: tuple[Path, ...]
    client: str
    label: str
    features: tuple[str, ...]

    def chunks(self, *columns: str) -> Iterator[RawTable]:
        return parquet_chunks(self.files, columns, _ROWS)


def _tables(path: Any, client: str, label: str, features: Sequence[str] | None) -> _Tables:
    files = table_files(path) or (Path(check_path("path", path)),)
    for file in files:
        if file.suffix.lower() != ".parquet" or not file.is_file():
            raise InputError("must be a file that ends in .parquet", field=str(file))
    names = [(str(file), parquet_columns(file)) for file in files]
    check_same_columns(names)
    columns = Columns(client, label, features=None if features is None else tuple(features))
    return _Tables(files, client, label, columns.check(names[0][1], names[0][0]))


def _counted(tables: _Tables) -> tuple[Ints, Ints]:
    """Return the ids of all clients in their order, and how many rows each has."""
    found: tuple[Ints, Ints] = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    waiting: list[tuple[Ints, Ints]] = []
    for chunk in tables.chunks(tables.client):
        ids, counts = np.unique(_ids(chunk, tables.client), return_counts=True)
        waiting.append((ids, counts))
        if sum(some.size for some, _ in waiting) > _WAITING:
            found, waiting = _merged([found, *waiting]), []
    found = _merged([found, *waiting])
    if not found[0].size:
        raise InputError("has no rows, but it must have at least one sample", field=str(tables.files[0]))
    return found


def _merged(parts: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    ids, place = np.unique(np.concatenate([ids for ids, _ in parts]), return_inverse=True)
    counts = np.zeros(ids.size, dtype=np.int64)
    np.add.at(counts, place, np.concatenate([counts for _, counts in parts]))
    return ids, counts


def _sorted_into(folder: Path, tables: _Tables, ids: Ints, offsets: Ints, kind: type) -> tuple[Path, Path]:
    """Write every row to its client's place; the files have their names when they are whole."""
    rows, width = int(offsets[-1]), len(tables.features)
    paths, parts = (folder / "x.npy", folder / "y.npy"), (folder / "x.npy.part", folder / "y.npy.part")
    x = np.lib.format.open_memmap(parts[0], mode="w+", dtype=np.float32, shape=(rows, width))
    y = np.lib.format.open_memmap(parts[1], mode="w+", dtype=kind, shape=(rows,))
    next_row = offsets[:-1].copy()
    for chunk in tables.chunks(tables.client, tables.label, *tables.features):
        clients = np.searchsorted(ids, _ids(chunk, tables.client))
        order = np.argsort(clients, kind="stable")
        mine, first, counts = np.unique(clients[order], return_index=True, return_counts=True)
        # The k-th row of a client in this part is the k-th after those before it.
        place = np.empty(clients.size, dtype=np.int64)
        place[order] = np.arange(clients.size) - np.repeat(first, counts) + np.repeat(next_row[mine], counts)
        next_row[mine] += counts
        y[place] = _labels(chunk, tables.label, kind)
        for column, name in enumerate(tables.features):
            x[place, column] = _numbers(chunk, name)
    x.flush()
    y.flush()
    del x, y
    for part, path in zip(parts, paths, strict=True):
        part.replace(path)
    return paths


def _ids(chunk: RawTable, name: str) -> Ints:
    found = chunk.columns[name]
    if found.dtype.kind not in "iu":
        raise InputError(f"column '{name}' must hold whole numbers, one a row, for clients", field=chunk.title)
    ids: Ints = found.astype(np.int64)
    return ids


def _labels(chunk: RawTable, name: str, kind: type) -> NDArray[Any]:
    found = _numbers(chunk, name)
    if kind is np.int64 and not (found == np.floor(found)).all():
        raise InputError(f"column '{name}' must hold whole numbers for classes", field=chunk.title)
    return found


def _numbers(chunk: RawTable, name: str) -> NDArray[Any]:
    found = chunk.columns[name]
    if found.dtype.kind not in "iufb" or bool(np.isnan(found).any()):
        raise InputError(f"column '{name}' must hold a number in every row", field=chunk.title)
    return found
