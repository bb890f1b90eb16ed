"""All simulated randomness: a 64-bit counter hash keyed (seed, purpose, round, client).

Word ``j`` of a stream is ``mix(key + mix(j))`` with SplitMix64's finaliser ``mix``. Any word of any stream can
be computed without the ones before it, so nothing about randomness is ever stored, two runs with one seed meet
the same clients, stragglers and minibatches whatever else differs between them, and no global generator is
read or set. Not for cryptography: real privacy noise never comes from here.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from upcycled.core.vectors import Ints, Real

Words = NDArray[np.uint64]

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK = 0xFFFFFFFFFFFFFFFF
_GOLDEN_64, _MIX_1_64, _MIX_2_64 = np.uint64(_GOLDEN), np.uint64(_MIX_1), np.uint64(_MIX_2)
_27, _30, _31 = np.uint64(27), np.uint64(30), np.uint64(31)

# Floating-point numbers by their bits.
_1, _52, _62 = np.int64(1), np.int64(52), np.int64(62)
_WHOLE = np.int64(0x4330000000000000 + 2048)
"""2^52 + 2048: the bits of whole numbers may be added to these."""
_HALF_ROOT = np.int64(0x3FE6A09E667F3BCD)
"""sqrt(1/2)."""
_EXPONENT, _SIGN = np.int64(-(1 << 52)), np.int64(-(1 << 63))


class Purpose(IntEnum):
    """What a stream is for; streams of different purposes share nothing."""

    COHORT = 1
    STRAGGLER = 2
    BATCHES = 3
    DROPOUT = 4
    WEIGHTS = 5
    NOISE = 6
    OBJECTIVE = 7
    COVER = 8
    CENTRAL = 9
    POISSON = 10
    SCORES = 11


def mix(word: int) -> int:
    """SplitMix64's step on one Python integer.

    >>> hex(mix(0))  # the first output of SplitMix64 seeded with 0
    '0xe220a8397b1dcdaf'
    """
    z = (word + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
    return z ^ (z >> 31)


def mix_array(words: Words) -> Words:
    """:func:`mix`, elementwise; unsigned arithmetic wraps by itself."""
    z = words + _GOLDEN_64
    z ^= z >> _30
    z *= _MIX_1_64
    z ^= z >> _27
    z *= _MIX_2_64
    z ^= z >> _31
    return z


def round_key(seed: int, purpose: Purpose, round: int, attempt: int = 0) -> int:
    """Return the key shared by the clients of a round; ``attempt`` tells repeats of a failed round apart."""
    return mix(mix(mix(mix(seed & _MASK) ^ int(purpose)) ^ round) ^ attempt)


def round_keys(seed: int, purpose: Purpose, rounds: Ints) -> Words:
    """Return the keys of many rounds at once, of their first attempts.

    >>> [int(key) for key in round_keys(3, Purpose.COHORT, np.array([7]))] == [round_key(3, Purpose.COHORT, 7)]
    True
    """
    shared = np.uint64(mix(mix(seed & _MASK) ^ int(purpose)))
    return mix_array(mix_array(shared ^ rounds.astype(np.uint64)))


def client_keys(seed: int, purpose: Purpose, round: int, clients: ArrayLike, attempt: int = 0) -> Words:
    """Return one key per client: independent of cohort, order and population."""
    return keys_within(np.uint64(round_key(seed, purpose, round, attempt)), clients)


def keys_within(keys: Words | np.uint64, numbers: ArrayLike) -> Words:
    """Return the keys of numbered streams inside of a stream: the steps of a client, the rows of a step, and so on."""
    return mix_array(np.asarray(numbers).astype(np.uint64) ^ keys)


def words(keys: Words, count: int, start: int = 0) -> Words:
    """Return words start .. start+count-1 of every key, shape (*keys.shape, count)."""
    return mix_array(np.asarray(keys, dtype=np.uint64)[..., None] + _counters(start, count))


@lru_cache(maxsize=64)
def _few_counters(start: int, count: int) -> Words:
    mixed = mix_array(np.arange(start, start + count, dtype=np.uint64))
    mixed.flags.writeable = False
    return mixed


def _counters(start: int, count: int) -> Words:
    """Return mix(start), mix(start + 1), ...; short runs are asked for in every round and kept."""
    if count <= 4096:
        return _few_counters(start, count)
    return mix_array(np.arange(start, start + count, dtype=np.uint64))


def uniforms(keys: Words, count: int, start: int = 0) -> Real:
    """Return uniforms in (0, 1), 52 bits each, never 0 or 1."""
    return unit_interval(words(keys, count, start))


def normals(keys: Words, count: int, start: int = 0) -> Real:
    """Return standard normals by Box-Muller: numbers 2j and 2j+1 use words 2j and 2j+1.

    >>> normals(np.array([7], dtype=np.uint64), 3).shape
    (1, 3)
    """
    pairs = (count + 1) // 2
    return box_muller(uniforms(keys, 2 * pairs, start))[..., :count]


def box_muller(uniform: Real) -> Real:
    """Turn an even number of uniforms into as many standard normals, pair by pair."""
    both = normal_pair(uniform[..., 0::2], uniform[..., 1::2])
    return np.stack(both, axis=-1).reshape(uniform.shape)


def normal_pair(u: Any, v: Any) -> tuple[Any, Any]:
    """Return sqrt(-2 log u) times cosine and sine of 2 pi v, for uniforms in (0, 1): arrays, or numbers when compiled.

    Sums, products, one quotient, one root and bits alone, which are rounded the same everywhere: so these normals have
    the same bits on every machine, in NumPy and in compiled code (:mod:`upcycled._utils.compiled_randomness`), where
    several are made at a time. u = 2^k m with m within sqrt(1/2) of 1, and log m as fdlibm has it; the angle is a whole
    number of right angles and a rest, exactly, whose cosine and sine are fdlibm's polynomials.
    """
    bits = np.float64(u).view(np.int64)
    above = bits - _HALF_ROOT
    m = np.int64(bits - (above & _EXPONENT)).view(np.float64)
    # k + 2048 is positive, and joins 2^52 by its bits: vector instructions have no conversion for it.
    k = np.int64((above >> _52) + _WHOLE).view(np.float64) - (2.0**52 + 2048.0)
    f = m - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    even = w * (w * (w * 1.531383769920937332e-01 + 2.222219843214978396e-01) + 3.999999999940941908e-01)
    odd = w * (w * (w * 1.479819860511658591e-01 + 1.818357216161805012e-01) + 2.857142874366239149e-01)
    half = 0.5 * f * f
    low = s * (half + (even + z * (odd + 6.666666666666735130e-01))) + k * 1.90821492927058770002e-10
    radius = np.sqrt(-2.0 * (k * 6.93147180369123816490e-01 - ((half - low) - f)))
    shifted = 4.0 * v + 2.0**52
    right = np.float64(shifted).view(np.int64)
    t = (v - 0.25 * (shifted - 2.0**52)) * 6.283185307179586
    z = t * t
    sine = z * 1.58969099521155010221e-10 - 2.50507602534068634195e-08
    sine = sine * z + 2.75573137070700676789e-06
    sine = sine * z - 1.98412698298579493134e-04
    sine = sine * z + 8.33333333332248946124e-03
    sine = t + t * z * (sine * z - 1.66666666666666324348e-01)
    cosine = z * -1.13596475577881948265e-11 + 2.08757232129817482790e-09
    cosine = cosine * z - 2.75573143513906633035e-07
    cosine = cosine * z + 2.48015872894767294178e-05
    cosine = cosine * z - 1.38888888888741095749e-03
    cosine = cosine * z + 4.16666666666666019037e-02
    cosine = 1.0 - (0.5 * z - z * z * cosine)
    across, along = np.float64(radius * cosine).view(np.int64), np.float64(radius * sine).view(np.int64)
    # One right angle more changes the two places, and the first one's sign; no branch, which would be guessed wrong.
    change = (across ^ along) & -(right & _1)
    first = across ^ change ^ ((right + _1) << _62 & _SIGN)
    second = along ^ change ^ (right << _62 & _SIGN)
    return np.int64(first).view(np.float64), np.int64(second).view(np.float64)


def unit_interval(drawn: Words) -> Real:
    """Map 64-bit words to uniforms in (0, 1), 52 bits each, never 0 or 1."""
    return ((drawn >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def below(word: int, bound: int) -> int:
    """Map a 64-bit word to 0 .. bound-1 by multiply and shift (bias below bound / 2^32)."""
    return ((word >> 32) * bound) >> 32


def permutations(key: int, size: int, epochs: int, first: int = 0) -> Ints:
    """Return the permutations of range(size) of so many epochs from ``first`` on, by Fisher-Yates: (epochs, size).

    Swap ``i`` of epoch ``e`` uses word ``e * size + i``, so an epoch does not depend on how many there are.

    >>> permutations(5, 4, 2).shape
    (2, 4)
    """
    drawn = words(np.array(key, dtype=np.uint64), epochs * size, first * size).reshape(epochs, size) >> np.uint64(32)
    bounds = np.arange(1, size + 1, dtype=np.uint64)
    targets = ((drawn * bounds) >> np.uint64(32)).tolist()
    rows = []
    for row in targets:
        order = list(range(size))
        for i in range(size - 1, 0, -1):
            j = row[i]
            order[i], order[j] = order[j], order[i]
        rows.append(order)
    return np.array(rows, dtype=np.int64).reshape(epochs, size)


def choose(key: int, population: int, count: int) -> Ints:
    """Return ``count`` distinct members of range(population), sorted, at a cost that depends on count only."""
    chosen: Ints = choose_each(np.array([key], dtype=np.uint64), population, count)[0]
    return chosen


def choose_each(keys: Words, population: int, count: int) -> Ints:
    """Return what each of several keys chooses, shape (keys, count)."""
    rows = []
    for drawn in words(keys, count).tolist():
        moved: dict[int, int] = {}
        chosen = []
        for i, word in enumerate(drawn):
            j = i + below(word, population - i)
            chosen.append(moved.get(j, j))
            moved[j] = moved.get(i, i)
        chosen.sort()
        rows.append(chosen)
    return np.array(rows, dtype=np.int64)
