"""Temporary folders that do not outlive their run, not even a killed one: what lies in them may be training data.

Each folder has a lock beside it that the system drops with its owner, however that ends. A folder whose lock is free
is nobody's, and goes: when a worker process sees that its parent is gone, or when the next folder is made.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import lock_descriptor

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
