"""The noise inside objective perturbation's objective: vectors of density ~ exp(-rate ||n||), and how exact they are.

The norm is Gamma(shape = D, rate), a sum of D exponentials; the direction is that of a normal vector, whose pairs are
a radius sqrt(2 E), E exponential, at a uniform angle.

Floating point cannot give that density: it leaves gaps. They do no harm here, because nobody sees n. What is needed
is that for every outcome of the coins the computed vector lies close to the one which exact arithmetic would have
given from the same coins and all that would follow: then the minimisers lie close as well, and noise covers their
distance (see ``mechanisms/objective_perturbation.py``). So real noise has full relative precision everywhere: uniforms
of 53 significant bits however small they are, exponentials also near zero, normals from an angle within an octant,
whose sine and cosine lose nothing, and three bits that say which octant. With u = 2^-53, and NumPy's functions within
the 4 ulp, 8u, that its vectorised ones are held to:

- a uniform is cut off after its 53rd bit: 2u;
- an exponential -log(v) with v < 1/2, or -log1p(-v): 2u times at most 1/ln 2, and the function: 11u;
- a radius: half of that, and the root: 7u; sine and cosine of an angle within 4u: 12u; their product: 20u;
- a norm: 11u, s u for the sum of D terms (``sum_error``), and the rate: (s + 12) u;
- the direction: 20u, and 20u more by what that does to its length, (s/2 + 2) u for computing the length; two products.

Together less than (2 s + 64) u of the norm, first order, which ``tilt_error`` doubles as ``rounding.py`` does. What
is left is that fifteen words of zeros in a row count as the last of them having a one: probability 2^-960 a number, far
below what is assumed of the cipher that the words come from.
"""

from __future__ import annotations

import numpy as np

from upcycled.core.mechanism import NoiseSource
from upcycled.core.randomness import Purpose, Words
from upcycled.core.vectors import Ints, Real
from upcycled.privacy.noise.discrete import WordSource

_UNIT = 2.0**-53
_MOST_WORDS = 15
_BLOCK = 256
"""Numbers that are added up in one go."""


def tilt_error(size: int) -> float:
    """Return the part of its norm by which real noise in ``size`` dimensions is off at most: see above."""
    return 2 * _UNIT * (2 * sum_error(size) + 64)


def sum_error(size: int) -> float:
    """Return how many u a sum of ``size`` positive terms is off by at most, its blocks added up in any order."""
    return min(size, _BLOCK) + size / _BLOCK


def row_norms(rows: Real) -> Real:
    """Return the norms of rows, from sums of squares within ``sum_error``."""
    parts = [np.einsum("cd,cd->c", block, block) for block in _blocks(rows)]
    found: Real = np.sqrt(np.sum(parts, axis=0))
    return found


def gamma_norm_noise(
    source: NoiseSource, clients: Ints, size: int, rate: Real, purpose: Purpose, longest: Real | float = np.inf
) -> Real:
    """Return vectors of density ~ exp(-rate ||n||), shape (clients, size); those beyond ``longest`` are shortened."""
    parts = [block.sum(axis=1) for block in _blocks(source.exponentials(clients, size, purpose))]
    norms = np.minimum(np.sum(parts, axis=0) / rate, longest)
    directions = source.normals(clients, size, purpose, start=size)
    scaled: Real = directions * (norms / row_norms(directions))[:, None]
    return scaled


def exponentials_from(words: WordSource, count: int) -> Real:
    """Return standard exponentials of full relative precision."""
    half, spare = _uniforms(words, count)
    half = half / 2
    is_large = (spare & np.uint64(1)).astype(bool)
    return -np.where(is_large, np.log(half), np.log1p(-half))


def normals_from(words: WordSource, count: int) -> Real:
    """Return standard normals of full relative precision, independent of one another."""
    pairs = (count + 1) // 2
    radius = np.sqrt(2 * exponentials_from(words, pairs))
    part, spare = _uniforms(words, pairs)
    angle = np.pi / 4 * part
    near, far = radius * np.cos(angle), radius * np.sin(angle)
    swaps, first, second = ((spare >> np.uint64(bit) & np.uint64(1)).astype(bool) for bit in range(3))
    one, other = np.where(swaps, far, near), np.where(swaps, near, far)
    both = np.stack([np.where(first, -one, one), np.where(second, -other, other)], axis=-1)
    return both.reshape(-1)[:count]


def _uniforms(words: WordSource, count: int) -> tuple[Real, Words]:
    """Return uniforms in (0, 1) cut off after 53 significant bits, and words whose last 12 bits were not used."""
    exponents, left = np.zeros(count, dtype=np.int32), np.arange(count)
    for _ in range(_MOST_WORDS):
        drawn = words(left.size)
        lowest = drawn & (~drawn + np.uint64(1))  # its lowest one; how many zeros follow is geometric
        exponents[left] += np.where(drawn == 0, 64, np.frexp(lowest.astype(np.float64))[1]).astype(np.int32)
        left = left[drawn == 0]
        if not left.size:
            break
    digits = words(count)
    return np.ldexp(1 + (digits >> np.uint64(12)).astype(np.float64) * 2.0**-52, -exponents), digits


def _blocks(rows: Real) -> list[Real]:
    return [rows[:, at : at + _BLOCK] for at in range(0, rows.shape[1], _BLOCK)]
