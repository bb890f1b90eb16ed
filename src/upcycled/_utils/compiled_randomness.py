"""The compiled twin of core.randomness: the same words and the same normals, bit for bit.

Kernels of several rooms call it, so every kernel's folder is named after it too (:mod:`upcycled._utils.compilation`).
"""

from __future__ import annotations

import numpy as np

from upcycled._utils.compilation import compiled, inlined
from upcycled.core.randomness import normal_pair
from upcycled.core.vectors import Real

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
# Numba turns uint64 with int64 into float64, so every number here is unsigned.
_12, _27, _30, _31 = np.uint64(12), np.uint64(27), np.uint64(30), np.uint64(31)
_WHOLE = np.uint64(0x4330000000000000)
"""2^52: the bits of whole numbers below it may be put behind these."""
_BLOCK = 1024
"""Numbers that are uniforms first and normals then: they stay in the processor's first cache."""

_normal_pair = inlined(normal_pair)


@inlined
def mix(word: np.uint64) -> np.uint64:
    """SplitMix64's step."""
    z = word + _GOLDEN
    z = (z ^ (z >> _30)) * _MIX_1
    z = (z ^ (z >> _27)) * _MIX_2
    return z ^ (z >> _31)


@inlined
def unit(word: np.uint64) -> float:
    """Return core.randomness.unit_interval of a word."""
    whole = np.uint64(word >> _12 | _WHOLE).view(np.float64) - 2.0**52
    return float((whole + 0.5) * 2.0**-52)


@compiled
def write_normals(key: np.uint64, start: int, count: int, out: Real) -> None:
    """Write core.randomness.normals(key, count, start) into ``out``, which is one longer where the count is odd.

    Words first and normals then, block by block: together they would need more registers than there are.
    """
    even = count + count % 2
    for at in range(0, even, _BLOCK):
        size = min(_BLOCK, even - at)
        # Parts of arrays, whose indices start at 0: for others the compiler leaves room to count from the end.
        some, first = out[at : at + size], np.uint64(start + at)
        for i in range(size):
            some[i] = unit(mix(key + mix(first + np.uint64(i))))
        for p in range(size // 2):
            a, b = _normal_pair(some[2 * p], some[2 * p + 1])
            some[2 * p] = a
            some[2 * p + 1] = b
