"""How things reach worker processes: values as bytes, the arrays of a task through files mapped once for a run."""

from __future__ import annotations

import io
import mmap
import os
import pickle
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled.core.engine import Task
from upcycled.core.shards import Shards

_TASK = "task.pickle"
_NO_ROWS = Shards(np.empty((0, 0), dtype=np.float32), np.empty(0, dtype=np.int64), np.zeros(1, dtype=np.int64))


@dataclass(frozen=True)
class StoredArray:
    """Where the bytes of an array lie."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    offset: int = 0

    def open(self) -> NDArray[Any]:
        if 0 in self.shape:
            return np.empty(self.shape, dtype=self.dtype)
        return np.memmap(self.path, dtype=self.dtype, mode="r", shape=self.shape, offset=self.offset)


def store(array: NDArray[Any], path: Path) -> StoredArray:
    """Write an array to ``path``; one that already lies in a file is left there."""
    mapped = _mapped(array)
    if mapped is not None:
        return mapped
    np.ascontiguousarray(array).tofile(path)
    return StoredArray(str(path), array.dtype.str, array.shape)


def _mapped(array: NDArray[Any]) -> StoredArray | None:
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    # A copy-on-write map may differ from its file.
    if not isinstance(root, np.memmap) or root.filename is None or root.mode == "c" or not array.flags.c_contiguous:
        return None
    # A slice of a map keeps the map's own offset: where it really begins follows from the addresses.
    skipped = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return StoredArray(str(root.filename), array.dtype.str, array.shape, root.offset + skipped)


@dataclass(frozen=True)
class StoredShards:
    """Where the arrays of :class:`~upcycled.core.shards.Shards` lie."""

    x: StoredArray
    y: StoredArray
    offsets: StoredArray

    def open(self) -> Shards:
        return Shards(self.x.open(), self.y.open(), self.offsets.open())


def packed(value: object) -> bytes:
    """Pickle a value together with classes that were written in a notebook or a script.

    Modules beside which a command was given are found in the worker too: it looks where this process does.
    """
    import cloudpickle

    return pickle.dumps([*sys.path, os.getcwd()]) + bytes(cloudpickle.dumps(value))


def unpacked(content: bytes) -> Any:
    """Return what :func:`packed` was given, in another process."""
    stream = io.BytesIO(content)
    sys.path.extend(path for path in pickle.load(stream) if path not in sys.path)
    return pickle.load(stream)


def send(task: Task, folder: Path) -> None:
    """Put everything a worker needs into ``folder``."""
    train = _store_shards(task.train, folder, "train")
    test = None if task.test is None else _store_shards(task.test, folder, "test")
    (folder / _TASK).write_bytes(packed((replace(task, train=_NO_ROWS, test=None), train, test)))


def receive(folder: Path) -> Task:
    """Return the task that was sent; its data stay in their files until they are read."""
    sent: tuple[Task, StoredShards, StoredShards | None] = unpacked((folder / _TASK).read_bytes())
    task, train, test = sent
    return replace(task, train=train.open(), test=None if test is None else test.open())


def let_go(shards: Shards) -> None:
    """Drop mapped rows from this process's memory; they stay in the system's cache.

    A pool that watches its processes' memory would take them for a leak and end a process that has read much.
    """
    rows = shards.x.base
    if isinstance(rows, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        rows.madvise(mmap.MADV_DONTNEED)


def _store_shards(shards: Shards, folder: Path, name: str) -> StoredShards:
    return StoredShards(
        x=store(shards.x, folder / f"{name}.x"),
        y=store(shards.y, folder / f"{name}.y"),
        offsets=store(shards.offsets, folder / f"{name}.offsets"),
    )
