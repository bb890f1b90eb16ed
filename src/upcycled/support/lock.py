"""One process or thread at a time in a folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import lock_descriptor

from upcycled.core.errors import UpcycledError
from upcycled.support.files import cannot_write, make_private

LOCK = ".lock"


class InUseError(UpcycledError):
    """Somebody else works in the folder (exit code 1 on the command line)."""


@contextmanager
def locked(folder: Path, *, is_private: bool = False, waits: bool = False) -> Iterator[None]:
    """Make the folder and keep everybody else out of it while the block runs: processes, and threads of this one.

    With ``waits`` the block begins when nobody else is there any more.

    The lock is the system's, on ``<folder>/.lock``, so it goes with the process however that ends; the file stays and
    says who had it. Where there is no such lock (some network file systems) nobody is kept out. A private folder is its
    owner's alone (0700).

    Raises:
        InUseError: in one sentence, if somebody is there already.
        WriteError: in one sentence, if the folder cannot be made or written to.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, locked(Path(folder)):
    ...     with locked(Path(folder)):
    ...         pass
    Traceback (most recent call last):
    ...
    upcycled.support.lock.InUseError: ...
    """
    if is_private:
        make_private(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600 if is_private else 0o666)
    except OSError as error:
        raise cannot_write(folder, error) from error
    try:
        if not _is_ours(handle, waits):
            raise InUseError(
                f"{folder} is in use by {_holder(handle)}: wait until that is done, stop it, or choose another folder"
            )
        _sign(folder, handle)
        yield
    finally:
        os.close(handle)


def _is_ours(handle: int, waits: bool) -> bool:
    """Take the lock; True also where there are no locks."""
    try:
        return lock_descriptor(handle, blocking=waits)
    except OSError:  # a file system without locks
        return True


def _sign(folder: Path, handle: int) -> None:
    """Say who is here. The file stays when the lock goes: removing it would race with the next holder."""
    words = f"{os.getpid()} since {time.strftime('%Y-%m-%d %H:%M:%S')}"
    try:
        os.ftruncate(handle, 0)
        os.write(handle, words.encode())
    except OSError as error:
        raise cannot_write(folder, error) from error


def _holder(handle: int) -> str:
    try:
        words = os.read(handle, 100).decode(errors="replace").strip()
    except OSError:  # where a lock keeps readers out too
        words = ""
    return f"process {words}" if words[:1].isdigit() else "another process"
