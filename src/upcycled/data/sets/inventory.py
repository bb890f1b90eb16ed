"""Which real sets are on this machine, and in which file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from upcycled.core.errors import InputError
from upcycled.data.paths import find
from upcycled.data.sets import glove
from upcycled.data.sets.femnist import EMNIST, POOL
from upcycled.data.sets.femnist import READY as FEMNIST_READY
from upcycled.data.sets.sent140 import ORIGINAL, PARQUET, TOKENS


@dataclass(frozen=True)
class RealSet:
    """A set, the file it would be read from, and what ``upcycled data fetch`` calls it."""

    name: str
    path: Path | None
    fetch: str


def inventory() -> list[RealSet]:
    """Return all real sets; nothing but tables of contents is read."""
    return [
        RealSet("femnist", find(FEMNIST_READY, POOL, *EMNIST), "femnist"),
        RealSet("femnist, 26 letters", find(POOL, *EMNIST), "femnist"),
        RealSet("sent140", find(TOKENS, PARQUET, ORIGINAL), "sent140"),
        *(RealSet(f"word vectors, {size}", _vectors(size), "glove") for size in glove.DIMENSIONS),
    ]


def _vectors(dimension: int) -> Path | None:
    try:
        return glove.find_vectors(dimension)
    except InputError:
        return None
