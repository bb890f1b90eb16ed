"""Streams of a client in compiled code, and its exponential function."""

from __future__ import annotations

import numpy as np

from upcycled.engines.fused.workspace import Order
from upcycled.support.compiled_streams import mix
from upcycled.support.kernel_cache import compiled, inlined

# Numba turns uint64 with int64 into float64, so every number that meets a word is unsigned.
_32 = np.uint64(32)
_52 = np.int64(52)


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


@inlined
def exponential(x: float) -> float:
    """Return e^x for x at most 0 within two units in the last place, and about 1e-307 instead of anything smaller.

    x = k log 2 + r with log 2 in two parts, as fdlibm does; e^r by its series, |r| <= log(2) / 2: unlike the C
    library's, several at a time.
    """
    x = max(x, -706.0) if x == x else x
    k = (x * 1.4426950408889634 + 6755399441055744.0) - 6755399441055744.0
    r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10
    p = 1.6059043836821613e-10
    p = p * r + 2.08767569878681e-09
    p = p * r + 2.505210838544172e-08
    p = p * r + 2.755731922398589e-07
    p = p * r + 2.7557319223985893e-06
    p = p * r + 2.48015873015873e-05
    p = p * r + 1.984126984126984e-04
    p = p * r + 1.388888888888889e-03
    p = p * r + 8.333333333333333e-03
    p = p * r + 4.1666666666666664e-02
    p = p * r + 1.6666666666666666e-01
    p = p * r + 0.5
    p = 1.0 + (r + r * r * p)
    return float(p * np.int64((np.float64(k + 6755399441056767.0).view(np.int64)) << _52).view(np.float64))
