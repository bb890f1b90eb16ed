"""Arrays as the kernels take them, without copying what may be larger than memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from upcycled.core.shards import Shards
from upcycled.engines.fused.workspace import Floats, Ints


class _Unmarked:
    """The same memory, not marked read-only."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array  # keeps the memory alive
        described = array.__array_interface__
        self.__array_interface__ = {**described, "data": (described["data"][0], False)}


def plain(array: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """Return the same numbers row by row in memory and not marked read-only; a view wherever that is possible.

    Numba compiles a kernel again for arrays marked read-only, as memory-mapped ones are. The kernels write into
    what they return and into nothing else.
    """
    made = np.ascontiguousarray(array, dtype=dtype)
    return made if made.flags.writeable else np.asarray(_Unmarked(made))


@dataclass(frozen=True)
class FlatRows:
    """Shards as the kernels take them: the features of all samples end to end, views of what was given."""

    x: Floats
    y: Ints | Floats
    offsets: Ints

    @property
    def count(self) -> int:
        return int(self.offsets[-1])

    def row_parts(self, size: int) -> Ints:
        """Return the bounds of parts of ``size`` samples."""
        return np.append(np.arange(0, self.count, size, dtype=np.int64), self.count)

    def client_parts(self, size: int) -> Ints:
        """Return the bounds, in clients, of parts of about ``size`` samples."""
        block = self.offsets[:-1] // size
        cuts = np.flatnonzero(np.diff(block)) + 1
        return np.concatenate([[0], cuts, [block.size]]).astype(np.int64)


def rows_of(shards: Shards, as_labels: bool) -> FlatRows:
    """Return views of the shards' arrays, which ``support`` has checked; targets of another type are copied.

    Cross-entropy takes whole numbers and every other loss float32, so that kernels know their loss when compiled.
    """
    targets = plain(shards.y, np.int64 if as_labels else np.float32).reshape(-1)
    return FlatRows(plain(shards.x, np.float32).reshape(-1), targets, plain(shards.offsets, np.int64))
