"""The compiled twin of core.streams: the same words, bit for bit."""

from __future__ import annotations

import numpy as np

from upcycled.engines.fused.workspace import Order
from upcycled.support.kernel_cache import compiled, inlined

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
# Numba turns uint64 with int64 into float64, so every number here is unsigned.
_27, _30, _31, _32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)


@inlined
def mix(word: np.uint64) -> np.uint64:
    """SplitMix64's step."""
    z = word + _GOLDEN
    z = (z ^ (z >> _30)) * _MIX_1
    z = (z ^ (z >> _27)) * _MIX_2
    return z ^ (z >> _31)


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
