"""Worker processes: one pool for all runs, what is sent to them, and temporary folders that do not outlive a run.

Temporary folders that do not outlive their run, not even a killed one: what lies in them may be training data.

Each folder has a lock beside it that the system drops with its owner, however that ends. A folder whose lock is free
is nobody's, and goes: when a worker process sees that its parent is gone, or when the next folder is made.

How things reach worker processes: values as bytes, the arrays of a task through files mapped once for a run.

The worker processes: one pool for all runs and engines of this process, set up in one way.

A worker has one thread, and ends by itself: when it was idle for a while, or at once when its parent is gone.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import shutil
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import lock_descriptor
from numpy.typing import NDArray

from upcycled.core.engine import Task
from upcycled.core.vectors import Shards

_PREFIX = "upcycled-"
_LOCK = ".lock"


class ScratchFolder:
    """A folder of this process, for its user only; gone when it is closed, or with the process."""

    def __init__(self) -> None:
        drop_abandoned()
        lock, handle = _new_lock()
        self.path = lock.with_suffix("")
        self.path.mkdir(mode=0o700)
        self._close = weakref.finalize(self, _remove, self.path, lock, handle)

    def close(self) -> None:
        """Remove it; once is enough."""
        self._close()


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Have such a folder while the block runs."""
    folder = ScratchFolder()
    try:
        yield folder.path
    finally:
        folder.close()


def drop_abandoned() -> None:
    """Remove the folders of processes that were killed."""
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*{_LOCK}"):
        with suppress(OSError):  # another user's, or just gone
            handle = os.open(lock, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
            if _is_free(handle):
                _remove(lock.with_suffix(""), lock, handle)
            else:
                os.close(handle)


def _new_lock() -> tuple[Path, int]:
    while True:
        handle, name = tempfile.mkstemp(prefix=_PREFIX, suffix=_LOCK)
        try:
            held = lock_descriptor(handle, blocking=False)
        except OSError:  # no locks here: nobody will take the folder for abandoned, and a killed run leaves it
            return Path(name), handle
        # Somebody may have taken the file for abandoned before it was locked: then it is gone, or about to be.
        if held and os.fstat(handle).st_nlink:
            return Path(name), handle
        os.close(handle)


def _is_free(handle: int) -> bool:
    try:
        return lock_descriptor(handle, blocking=False)
    except OSError:
        return False


def _remove(folder: Path, lock: Path, handle: int) -> None:
    """Remove the folder first: as long as there is one, its lock tells whose it is."""
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        with suppress(OSError):
            lock.unlink(missing_ok=True)
    os.close(handle)


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
    """Where the arrays of :class:`~upcycled.core.vectors.Shards` lie."""

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


IDLE_SECONDS = 60
"""How long workers wait for the next round, or the next run, before they end by themselves."""
ORPHAN_SECONDS = 0.2


def worker_pool(processes: int) -> Any:
    """Return loky's pool with this many workers, started when they are needed; those that died are replaced."""
    from loky import get_reusable_executor

    return get_reusable_executor(
        max_workers=processes, timeout=IDLE_SECONDS, initializer=_set_up, initargs=(os.getpid(),)
    )


def are_warm(processes: int) -> bool:
    """Say whether so many workers live already: nothing waits for them to begin."""
    if "loky" not in sys.modules:  # nobody has asked for any: no pool is made to find that out
        return False
    living = [worker for worker in worker_pool(processes)._processes.values() if worker.is_alive()]
    return len(living) >= processes


# In a worker.


def _set_up(parent: int) -> None:
    """Make this process a worker, before its first job."""
    torch.set_num_threads(1)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """Leave at once when the parent is gone, however it went: nobody waits for the result, and its folders are free."""
    while os.getppid() == parent:
        time.sleep(ORPHAN_SECONDS)
    drop_abandoned()
    os._exit(1)
