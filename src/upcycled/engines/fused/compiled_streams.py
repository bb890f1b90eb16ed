"""Streams of a client in compiled code."""

from __future__ import annotations

import numpy as np

from upcycled.engines.fused.workspace import Order
from upcycled.support.compiled_streams import mix
from upcycled.support.kernel_cache import compiled, inlined

# Numba turns uint64 with int64 into float64, so every number that meets a word is unsigned.
_32 = np.uint64(32)


@inlined
def client_key(round_key: np.uint64, client: int) -> np.uint64:
    """Return one client's key, as core.streams.client_keys does for many."""
    key: np.uint64 = mix(np.uint64(client) ^ round_key)
    return key


@compiled
def shuffle(key: np.uint64, epoch: int, size: int, order: Order) -> None:
    """Write row ``epoch`` of core.streams.permutations(key, size, ...) into order[:size]."""
    for i in range(size):
        order[i] = i
    first = np.uint64(epoch * size)
    for i in range(size - 1, 0, -1):
        word = mix(key + mix(first + np.uint64(i))) >> _32
        j = np.int64((word * np.uint64(i + 1)) >> _32)
        order[i], order[j] = order[j], order[i]
