"""Where real data lies: the folder ``UPCYCLED_DATA``, then ``data`` in the cache folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from upcycled._utils.files import cache_folder
from upcycled.core.errors import InputError

VARIABLE = "UPCYCLED_DATA"


def chosen_folder() -> Path | None:
    """Return the folder named by UPCYCLED_DATA, if it is set."""
    named = os.environ.get(VARIABLE, "")
    if not named:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise InputError(field=VARIABLE, value=named, must="a folder")
    return folder


def fetched_folder() -> Path:
    """Return where fetched data goes unless UPCYCLED_DATA or the user says otherwise."""
    cache = cache_folder()
    if cache is None:
        raise InputError(f"there is no home folder to keep data in, so {VARIABLE} must name a folder")
    return cache / "data"


def folders() -> list[Path]:
    """Return the folders that are searched, in this order."""
    chosen, cache = chosen_folder(), cache_folder()
    return [folder for folder in (chosen, None if cache is None else cache / "data") if folder is not None]


def find(*names: str) -> Path | None:
    """Return the first of these files that is there: in a data folder, or in a folder right in it.

    All folders are searched for the first name before any is for the second.
    """
    for name in names:
        for folder in folders():
            for place in (folder / name, *sorted(folder.glob(f"*/{name}"))):
                if place.is_file():
                    return place
    return None


def missing(what: str, names: Sequence[str], fetch: str) -> InputError:
    """Return the sentence for a set that is nowhere: what is missing, where it was looked for, how to get it."""
    looked = " and ".join(str(folder) for folder in folders()) or "no folder at all"
    return InputError(
        f"is not on this machine: none of {', '.join(names)} is in {looked}, but one must be there "
        f"('upcycled data fetch {fetch}' downloads it, {VARIABLE} names another folder)",
        field=what,
    )
