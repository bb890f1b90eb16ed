"""Compressed files are bounded: a small file that unpacks into a great many bytes is refused, unless it is allowed."""

from __future__ import annotations

import os
from pathlib import Path

from upcycled.core.allocation import check_fits
from upcycled.core.errors import InputError

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
