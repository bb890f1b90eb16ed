"""Files that appear whole or not at all, files that may be damaged or forged, and the cache folder.

Where on this machine things are kept that can be made or fetched again.

Compressed files are bounded: a small file that unpacks into a great many bytes is refused, unless it is allowed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from upcycled.core.errors import InputError, UpcycledError, reason_of, shown
from upcycled.core.machine import check_fits


def cache_folder() -> Path | None:
    """Return UPCYCLED_CACHE, else the platform's folder for caches; None for a user without a home."""
    chosen = os.environ.get("UPCYCLED_CACHE")
    if chosen:
        return Path(chosen)
    try:
        Path.home()  # without one platformdirs would answer with a folder named "~"
    except RuntimeError:
        return None
    return user_cache_path("upcycled", appauthor=False, opinion=False)


VARIABLE = "UPCYCLED_MOST_UNPACKED"
MULTIPLE = 100
"""How many times its own size a file may unpack into."""
ALWAYS = 2**28
"""So many bytes any file may unpack into: zeros are nothing bad."""


def check_unpacked(path: Path, num_bytes: int) -> None:
    """Refuse a file that would unpack into far more than itself, or into more than fits into memory.

    The environment variable ``UPCYCLED_MOST_UNPACKED`` allows another multiple of the file's size than a hundred.

    Args:
        path: the file.
        num_bytes: what it says it unpacks into, a Python integer.

    Raises:
        InputError: in one sentence.
    """
    packed = path.stat().st_size
    allowed = max(ALWAYS, _multiple() * packed)
    if num_bytes > allowed:
        raise InputError(
            f"has {packed} bytes and unpacks into {num_bytes}, but it must be at most {_multiple()} times as many (or "
            f"{ALWAYS}): set {VARIABLE} to a larger number if you trust the file",
            field=str(path),
        )
    try:
        check_fits("its content", num_bytes)
    except InputError as error:
        raise error.at(str(path)) from None


def _multiple() -> int:
    text = os.environ.get(VARIABLE, "")
    if not text:
        return MULTIPLE
    if not text.isascii() or not text.isdigit() or not 1 <= len(text) <= 9:
        raise InputError(field=VARIABLE, value=text, must="a whole number, such as 1000")
    return int(text)


class WriteError(UpcycledError):
    """A result could not be written (exit code 1 on the command line)."""


class DamagedError(InputError):
    """A file cannot be read, or holds something else than it should (exit code 2 on the command line)."""


PRIVATE = "private"
"""The folder beside public files that holds what is the data holder's own; what publishes never looks into it."""


def write_whole(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a file atomically: under another name first, flushed to the disk, then renamed.

    With ``private`` it is for its user alone, whatever the umask.

    Raises:
        WriteError: in one sentence; a file that was there before is still there, whole.
    """
    write_together(path.parent, {path.name: content}, private=private)


def make_private(folder: Path) -> None:
    """Make a folder that its owner alone may look into, or make an existing one such (0700).

    Raises:
        WriteError: in one sentence.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise cannot_write(folder, error) from error


_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What decoding a text or a table may raise."""
_TEMPORARY = re.compile(r"\..+\.\d+\.tmp")
"""Names of files that are not whole yet, with their writer's process."""
RESULTS_FORMAT = 2
"""Of results folders: the number in ``summary.json`` counts for the files beside it."""


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON document that says its format, as :func:`write_whole` does."""
    text = json.dumps({"format": RESULTS_FORMAT, **document}, indent=2, allow_nan=False)
    write_whole(path, f"{text}\n".encode())


def check_format(document: Mapping[str, Any], path: Path) -> None:
    """Refuse what another version wrote.

    Raises:
        InputError: in one sentence.
    """
    found = document.get("format")
    if found != RESULTS_FORMAT:
        raise InputError(
            f"{path} has format {shown(found)}, but this version of upcycled reads format {RESULTS_FORMAT}: use the "
            "version that wrote it"
        )


@contextmanager
def reading(path: Path, expected: str, *others: type[Exception]) -> Iterator[None]:
    """Turn the errors of a block that reads and decodes a file into one error about that file.

    Files are not trusted: whatever is in them, a reader ends in a value or in this error.

    Args:
        path: the file.
        expected: what it should be, and how to get it back.
        others: exceptions of a library that decodes it.

    Raises:
        DamagedError: if the file cannot be read, or is damaged.
    """
    damage: tuple[type[Exception], ...] = (*_DAMAGE, *others)
    try:
        yield
    except UpcycledError:
        raise
    except OSError as error:
        raise DamagedError(f"cannot be read ({error.strerror}); expected {expected}", where=(str(path),)) from error
    except damage as error:
        # A missing key says its name only, and other errors of Python little more; a ValueError says what is wrong.
        reason = reason_of(error) if type(error) is ValueError else f"{type(error).__name__}: {reason_of(error)}"
        raise DamagedError(f"damaged ({reason}); expected {expected}", where=(str(path),)) from error


def read_json(path: Path, expected: str) -> dict[str, Any]:
    """Return the table that a JSON file holds.

    Raises:
        DamagedError: as :func:`reading` has it.
    """
    with reading(path, expected):
        return json_table(path.read_bytes())


def read_json_lines(path: Path, expected: str) -> list[dict[str, Any]]:
    """Return the tables that the lines of a JSONL file hold.

    Raises:
        DamagedError: as :func:`reading` has it.
    """
    with reading(path, expected):
        return [json_table(line) for line in path.read_bytes().split(b"\n") if line]


def json_table(content: bytes) -> dict[str, Any]:
    """Return the table that a JSON text holds; ValueError or RecursionError for anything else."""
    found = json.loads(content.decode("utf-8"))
    if not isinstance(found, dict):
        raise ValueError("not a table of names and values")
    if b"\\u" in content:
        json.dumps(found, ensure_ascii=False).encode()  # half a surrogate pair cannot be printed
    return found


def write_together(folder: Path, files: Mapping[str, bytes], *, private: bool = False) -> None:
    """Write several files of a folder, each of them atomically, and flush the folder once.

    Raises:
        WriteError: in one sentence; files that were there before are still there, whole, or replaced by whole ones.
    """
    temporary = {name: folder / f".{name}.{os.getpid()}.tmp" for name in files}
    path = folder / next(iter(files), "")
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in files.items():
                path = folder / name
                if private:  # before there is anything in it
                    temporary[name].touch(0o600)
                    temporary[name].chmod(0o600)
                with temporary[name].open("wb") as stream:
                    stream.write(content)
                    stream.flush()
                    os.fsync(stream.fileno())
            for name in files:
                path = folder / name
                temporary[name].replace(path)
            flush_folder(folder)
        finally:
            for left in temporary.values():
                left.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def drop_temporaries(folder: Path) -> None:
    """Remove the temporary files that killed writers left in a folder; only the holder of its lock may do that."""
    for path in folder.glob(".*.tmp") if folder.is_dir() else ():
        if _TEMPORARY.fullmatch(path.name):
            with suppress(OSError):  # it does no harm
                path.unlink()


def cannot_write(path: Path, error: OSError) -> WriteError:
    reason = error.strerror or str(error)
    return WriteError(f"{path} cannot be written ({reason}): free the way or choose another folder")


def flush_folder(folder: Path) -> None:
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
