"""One process at a time in a folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from upcycled.core.errors import UpcycledError
from upcycled.core.files import cannot_write

LOCK = ".lock"


class InUseError(UpcycledError):
    """Somebody else works in the folder (exit code 1 on the command line)."""


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Make the folder and keep everybody else out of it while the block runs: processes, and threads of this one.

    The lock is the system's (``flock`` on ``<folder>/.lock``), so it goes with the process however that ends. Where
    there is no such lock (not POSIX, some network file systems) nobody is kept out.

    Raises:
        InUseError: in one sentence, if somebody is there already.
        WriteError: in one sentence, if the folder cannot be made or written to.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, hold(Path(folder)):
    ...     with hold(Path(folder)):
    ...         pass
    Traceback (most recent call last):
    ...
    upcycled.runtime.hold.InUseError: ...
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise cannot_write(folder, error) from error
    try:
        if not _lock(handle):
            raise InUseError(
                f"{folder} is in use by {_holder(handle)}: wait until that is done, stop it, or choose another folder"
            )
        _sign(folder, handle)
        yield
    finally:
        os.close(handle)


def _lock(handle: int) -> bool:
    """Take the lock without waiting; True also where there are no locks."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _sign(folder: Path, handle: int) -> None:
    """Say who is here. The file stays when the lock goes: removing it would race with the next holder."""
    words = f"{os.getpid()} since {time.strftime('%Y-%m-%d %H:%M:%S')}"
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, words.encode(), 0)
    except OSError as error:
        raise cannot_write(folder, error) from error


def _holder(handle: int) -> str:
    words = os.pread(handle, 100, 0).decode(errors="replace").strip()
    return f"process {words}" if words[:1].isdigit() else "another process"
