"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from upcycled.core.errors import UpcycledError


class WriteError(UpcycledError):
    """A result could not be written (exit code 1 on the command line)."""


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically: under another name first, flushed to the disk, then renamed.

    Raises:
        WriteError: in one sentence; a file that was there before is still there, whole.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
            _flush_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def check_writable(folder: Path) -> None:
    """Make a folder and try to write in it, so that a long run does not end in a refusal."""
    probe = folder / f".probe.{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(b"x")
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error


def cannot_write(path: Path, error: OSError) -> WriteError:
    """Return the sentence."""
    reason = error.strerror or str(error)
    return WriteError(f"{path} cannot be written ({reason}): free the way or choose another folder with results=FOLDER")


def _flush_folder(folder: Path) -> None:
    """Flush the rename itself; not every file system offers that."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
