"""One process or thread at a time in a folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import lock_descriptor

from upcycled._utils.files import WriteError, cannot_write, drop_temporaries, make_private
from upcycled.core.errors import UpcycledError

LOCK = ".lock"
ATTEMPTS = 100
"""The number of attempts to lock a file that other processes keep removing."""


class InUseError(UpcycledError):
    """Somebody else works in the folder (exit code 1 on the command line)."""


@contextmanager
def locked(folder: Path, *, is_private: bool = False, waits: bool = False) -> Iterator[None]:
    """Make the folder and keep everybody else out of it while the block runs: processes, and threads of this one.

    With ``waits`` the block begins when nobody else is there any more.

    The lock is the system's, on ``<folder>/.lock``, so it goes with the process however that ends; the file stays and
    says who had it. Temporary files that killed processes left in the folder are removed. A private folder is its
    owner's alone (0700). It records what was spent, and two writers could lose a charge: where file locks do not work
    (some network file systems), it is refused. Other folders are then not locked.

    Raises:
        InUseError: in one sentence, if somebody is there already.
        WriteError: in one sentence, if the folder cannot be made or written to, or is private and cannot be locked.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, locked(Path(folder)):
    ...     with locked(Path(folder)):
    ...         pass
    Traceback (most recent call last):
    ...
    upcycled._utils.lock.InUseError: ...
    """
    if is_private:
        make_private(folder)
    handle = _locked(folder, is_private, waits)
    try:
        _sign(folder, handle)
        drop_temporaries(folder)
        yield
    finally:
        os.close(handle)


def _locked(folder: Path, is_private: bool, waits: bool) -> int:
    """Return an open, locked handle of the lock file that is in the folder, not of one that was removed meanwhile."""
    for _ in range(ATTEMPTS):
        handle = _opened(folder, is_private)
        try:
            if not _is_free(folder, handle, is_private, waits):
                advice = "wait until that is done, stop it, or choose another folder"
                raise InUseError(f"{folder} is in use by {_holder(handle)}: {advice}")
            if _is_in_place(folder, handle, is_private):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
    raise InUseError(f"{folder / LOCK} is replaced again and again; stop the program that removes it")


def _opened(folder: Path, is_private: bool) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600 if is_private else 0o666)
    except OSError as error:
        raise cannot_write(folder, error) from error


def _is_free(folder: Path, handle: int, is_private: bool, waits: bool) -> bool:
    """Take the lock and return whether it was free; True also where a folder that is not private has no locks."""
    try:
        return lock_descriptor(handle, blocking=waits)
    except OSError as error:
        if is_private:
            raise _without_locks(folder, error.strerror or str(error)) from error
        return True


def _is_in_place(folder: Path, handle: int, is_private: bool) -> bool:
    """Return whether the locked file still has its name, so that other processes lock the same file."""
    other = _opened(folder, is_private)
    try:
        if not os.path.samestat(os.fstat(other), os.fstat(handle)):
            return False
        if is_private and lock_descriptor(other, blocking=False):
            raise _without_locks(folder, "a second lock is granted beside the first")
        return True
    finally:
        os.close(other)


def _without_locks(folder: Path, reason: str) -> WriteError:
    return WriteError(
        f"{folder}: file locks do not work here ({reason}), so two processes could spend the same budget; expected a "
        "file system with file locks. Move the folder to a local disk"
    )


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
