"""Checkpoint files: named by iteration and by the hash of their own bytes, so a whole one is known by its name.

``iteration-000120-<hash>.safetensors`` appears by one rename, after its content is on the disk. Each is kept until two
younger ones are there. What is in it is no matter here: see :mod:`upcycled.training.checkpoint.snapshot`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from upcycled._utils.files import write_whole
from upcycled._utils.messages import say
from upcycled.core.errors import COUNT, InputError

_NAME = re.compile(r"iteration-(\d{6,})-([0-9a-f]{32})\.safetensors")
_SECONDS = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*s")


def how_often(value: object) -> int | float:
    """Return a number of data rounds as an int, and ``"2s"`` as seconds in a float.

    >>> how_often(5), how_often("2s"), how_often("0.5s")
    (5, 2.0, 0.5)
    >>> how_often("often")
    Traceback (most recent call last):
    ...
    upcycled.core.errors.InputError: checkpoint_every is 'often', but it must be a number of data rounds such as 10, ...
    """
    if not isinstance(value, str):
        return int(COUNT.check("checkpoint_every", value))
    found = _SECONDS.fullmatch(value.strip())
    if found is None or float(found[1]) <= 0:
        raise InputError(
            field="checkpoint_every", value=value, must="a number of data rounds such as 10, or seconds such as '2s'"
        )
    return float(found[1])


def write(folder: Path, iteration: int, content: bytes) -> Path:
    """Write a checkpoint and return its path; raises WriteError in one sentence, with nothing half-written left."""
    path = folder / f"iteration-{iteration:06d}-{_hash(content)}.safetensors"
    write_whole(path, content, private=True)
    return path


def read_newest(folder: Path, tell: Callable[[str], None]) -> tuple[Path, bytes] | None:
    """Return the newest whole checkpoint; ``tell`` gets one line about each damaged one that is passed over."""
    for path in _checkpoints(folder):
        try:
            content = path.read_bytes()
        except OSError as error:
            tell(f"checkpoint {path} cannot be read ({error.strerror}) and is passed over")
            continue
        if _hash(content) == _parts(path)[1]:
            return path, content
        tell(f"checkpoint {path} is damaged (its content is not what its name says) and is passed over")
    return None


def tidy(folder: Path, kept: Collection[Path]) -> None:
    """Remove all checkpoints but these; only the folder's holder may do that.

    A file that cannot be removed does no harm.
    """
    for path in _checkpoints(folder):
        if path not in kept:
            with suppress(OSError):
                path.unlink()


def keep_newest(folder: Path) -> None:
    """Remove all checkpoints but the newest whole one; only the folder's holder may do that."""
    newest = read_newest(folder, lambda line: None)
    if newest is not None:
        tidy(folder, [newest[0]])


def has_checkpoints(folder: Path) -> bool:
    """Say whether a folder has a checkpoint, whole or not."""
    return bool(_checkpoints(folder))


def tell_user(line: str) -> None:
    say(line)


def _checkpoints(folder: Path) -> list[Path]:
    """All files named like a checkpoint, newest first."""
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if _NAME.fullmatch(p.name)), key=_parts, reverse=True)


def _parts(path: Path) -> tuple[int, str]:
    found = _NAME.fullmatch(path.name)
    assert found is not None
    return int(found[1]), found[2]


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
