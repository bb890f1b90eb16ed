"""Rows of many clients in one flat array: client i owns rows offsets[i] .. offsets[i+1]-1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled.core.vectors import Ints


@dataclass(frozen=True)
class Shards:
    """Features ``x`` (rows, ...), targets ``y`` (rows, ...) and ``offsets`` (clients + 1,); may be memory-mapped."""

    x: NDArray[Any]
    y: NDArray[Any]
    """int64 classes (rows,), or float32 numbers or labels (rows,) or (rows, m)."""
    offsets: Ints

    @property
    def num_clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_rows(self) -> int:
        return int(self.offsets[-1])

    @property
    def sizes(self) -> Ints:
        return np.diff(self.offsets)

    def sizes_of(self, clients: Ints) -> Ints:
        """Samples of the given clients, at the cost of the given clients."""
        sizes: Ints = self.offsets[clients + 1] - self.offsets[clients]
        return sizes

    def client(self, index: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return one client's features and targets (views, not copies)."""
        rows = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        return self.x[rows], self.y[rows]
