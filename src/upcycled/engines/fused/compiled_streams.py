"""The compiled twin of core.streams: the same words, bit for bit; normals up to the rounding of their functions."""

from __future__ import annotations

import numpy as np

from upcycled.engines.fused.workspace import Order, Reals
from upcycled.support.kernel_cache import compiled, inlined

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
# Numba turns uint64 with int64 into float64, so every number here is unsigned.
_12, _27, _30, _31, _32 = np.uint64(12), np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)

# Floating-point numbers by their bits, which vector instructions have no conversions for.
_52 = np.int64(52)
_WHOLE = np.uint64(0x4330000000000000)
"""2^52: the bits of whole numbers below it may be put behind these."""
_HALF_ROOT = np.int64(0x3FE6A09E667F3BCD)
"""sqrt(1/2)."""
_EXPONENT = np.int64(-(1 << 52))
_SHIFT = np.int64(2048)


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


@inlined
def unit(word: np.uint64) -> float:
    """Return core.streams.unit_interval of a word."""
    whole = np.uint64(word >> _12 | _WHOLE).view(np.float64) - 2.0**52
    return float((whole + 0.5) * 2.0**-52)


@inlined
def _log(u: float) -> float:
    """Return the logarithm of a positive number, as fdlibm does: u = 2^k m, m within sqrt(1/2) of 1."""
    bits = np.float64(u).view(np.int64)
    above = bits - _HALF_ROOT
    m = np.int64(bits - (above & _EXPONENT)).view(np.float64)
    # k + 2048 is positive, and joins 2^52 by its bits.
    k = np.int64(np.int64(_WHOLE) + (above >> _52) + _SHIFT).view(np.float64) - (2.0**52 + 2048.0)
    f = m - 1.0
    s = f / (2.0 + f)
    z = s * s
    p = 1.479819860511658591e-01
    p = p * z + 1.531383769920937332e-01
    p = p * z + 1.818357216161805012e-01
    p = p * z + 2.222219843214978396e-01
    p = p * z + 2.857142874366239149e-01
    p = p * z + 3.999999999940941908e-01
    p = p * z + 6.666666666666735130e-01
    half = 0.5 * f * f
    low = s * (half + p * z) + k * 1.90821492927058770002e-10
    return float(k * 6.93147180369123816490e-01 - ((half - low) - f))


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


@compiled
def write_normals(key: np.uint64, start: int, count: int, out: Reals) -> None:
    """Write core.streams.normals(key, count, start) into ``out``, which is one longer where the count is odd.

    The angle 2 pi v is a whole number of right angles and a rest, exactly; cosine and sine are fdlibm's polynomials.
    """
    first = np.uint64(start)
    for p in range((count + 1) // 2):
        word = first + np.uint64(p + p)
        u, v = unit(mix(key + mix(word))), unit(mix(key + mix(word + np.uint64(1))))
        radius = np.sqrt(-2.0 * _log(u))
        right = (4.0 * v + 2.0**52) - 2.0**52
        t = (v - 0.25 * right) * 6.283185307179586
        z = t * t
        sine = 1.58969099521155010221e-10
        sine = sine * z - 2.50507602534068634195e-08
        sine = sine * z + 2.75573137070700676789e-06
        sine = sine * z - 1.98412698298579493134e-04
        sine = sine * z + 8.33333333332248946124e-03
        sine = t + t * z * (sine * z - 1.66666666666666324348e-01)
        cosine = -1.13596475577881948265e-11
        cosine = cosine * z + 2.08757232129817482790e-09
        cosine = cosine * z - 2.75573143513906633035e-07
        cosine = cosine * z + 2.48015872894767294178e-05
        cosine = cosine * z - 1.38888888888741095749e-03
        cosine = cosine * z + 4.16666666666666019037e-02
        cosine = 1.0 - (0.5 * z - z * z * cosine)
        odd = right == 1.0 or right == 3.0
        across, along = (sine, cosine) if odd else (cosine, sine)
        out[2 * p] = radius * (-across if right == 1.0 or right == 2.0 else across)
        out[2 * p + 1] = radius * (-along if right == 2.0 or right == 3.0 else along)
