"""Exact integer noise from a stream of random words: the discrete Gaussian and the discrete Laplace distribution.

The blocks of the discrete Gaussian sampler: which block of |k| a random word chooses, as whole numbers of words.

Z has P(Z = k) ~ exp(-k^2 / (2 s^2)) on the integers, for s in [2^20, 2^21] (Canonne, Kamath, Steinke 2020,
arXiv:2004.00010). A trial chooses block j, |k| in [j B, (j+1) B) with B = 2^15, with probability
~ exp(-(j B)^2 / (2 S^2)), where S >= s is the next multiple of 2^13, so that few tables serve all s. An offset r in
[0, B) and a sign come from bits. k = j B + r is accepted with probability exp(-x),

    x = r (2 j B + r) / (2 s^2) + (j B)^2 (1/(2 s^2) - 1/(2 S^2)),   0 <= x < 1.74,

and -0 never. Blocks end past 13 S.

**Why every integer is right to a relative 2^-44.** Errors of one k, relative to its weight exp(-k^2 / (2 s^2)):

- Blocks are chosen by alias tables whose columns are whole numbers of the 2^64 words. A table holds blocks whose
  weights are 2^-11 of its first one's at least, and one way out, to the table of all later blocks. Weights are exact to
  2^-120 (integers of 256 bits). A table's weights are together less than 82 times the first, so a block has
  2^64 2^-11 / 82 words at least, and rounding to whole ones costs 2^-47.6; a way out has 2^50 at least, which costs
  2^-51, at most 11 times: 2^-47.5. What is left over, 128 words at most, goes to the likeliest, which has 2^64 / 256 at
  least: 2^-50.
- Acceptance compares 48 bits with exp(-x): off by half a bit, 2^-49 / e^-1.74 = 2^-46.5. x is the sum of two products
  of an exact integer with a constant known to 2^-51: off by 2^-49 at most; exp is off by 2^-52. The shortcut
  "u < 1 - x" decides alike up to the rounding of 1 - x, 2^-53.

Together below 2^-45, and dividing by the sum of all weights, which is off by no more, at most doubles that. What lies
past 13 s has probability below 2^-125.

**What N draws cost.** The exact formulas are about a continuous Gaussian; rounded to integers its probabilities are
P(k) (1 + h(k)) with h = (k^2/s^2 - 1) / (24 s^2): chi^2 = 1/(288 s^4) a draw. By Pinsker's inequality N draws, each
perhaps used in what is asked next, are within total variation sqrt(N chi^2 / 2) = sqrt(N) / (24 s^2), at most
2^-44.58 sqrt(N). The sampler's own error adds sqrt(N/2) 2^-44 = 2^-44.5 sqrt(N), the tail N 2^-125. In all that is less
than 2^-43 sqrt(N); ``accounting.sampler`` turns it into a part of delta.

Integer noise for many clients from one source of random words.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from upcycled.core.randomness import Words
from upcycled.core.vectors import Real

BLOCK_BITS = 15
COARSE = 1 << 13
"""Tables are made for multiples of this."""
REACH = 13
"""Blocks go past this many standard deviations."""
COLUMN_BITS = 8
_COLUMN = 1 << (64 - COLUMN_BITS)
"""Words in a column."""
_FRACTION = 256
"""Bits of a weight."""
_FALL = 11
"""A table holds blocks whose weight is 2^-11 of its first block's at least."""
WAY_OUT = -1
"""Stands for all blocks that are in later tables."""


@dataclass(frozen=True, eq=False)
class BlockTables:
    """Alias tables: in table t a word whose top 8 bits are c chooses outcomes[t, c, 0] if the rest is below
    thresholds[t, c], else outcomes[t, c, 1].
    """

    scale: int
    """S."""
    thresholds: Words
    """Shape (tables, 256)."""
    outcomes: NDArray[np.int16]
    """Shape (tables, 256, 2): a block's number, or WAY_OUT to the next table."""


@cache  # 129 at most, some tens of kilobytes each
def block_tables(scale: int) -> BlockTables:
    """Return the tables for the scale S, a multiple of 2^13 from 2^20 to 2^21."""
    made = [_alias(weights, outcomes) for weights, outcomes in levels(scale)]
    thresholds = np.array([column for column, _ in made], dtype=np.uint64)
    return BlockTables(scale, thresholds, np.array([outcome for _, outcome in made], dtype=np.int16))


def levels(scale: int) -> list[tuple[list[int], list[int]]]:
    """Return, for each table, how many of 2^64 words go to each outcome, and the outcomes."""
    weights = _weights(scale)
    found, first = [], 0
    while first < len(weights):
        least = weights[first] >> _FALL
        end = next((j for j in range(first, len(weights)) if weights[j] < least), len(weights))
        beyond = sum(weights[end:])
        parts = weights[first:end] + ([beyond] if beyond else [])
        found.append((_whole_words(parts), [*range(first, end), *([WAY_OUT] if beyond else [])]))
        first = end
    return found


def _weights(scale: int) -> list[int]:
    """Return exp(-(j B)^2 / (2 S^2)) of every block, in units of 2^-256: powers q^(j^2) of one number."""
    with decimal.localcontext(prec=100):
        q = int((-(decimal.Decimal(1 << BLOCK_BITS) ** 2) / (2 * decimal.Decimal(scale) ** 2)).exp() * 2**_FRACTION)
    weight, ratio, squared, found = 1 << _FRACTION, q, q * q >> _FRACTION, []
    for _ in range(-(-REACH * scale >> BLOCK_BITS)):
        found.append(weight)
        weight, ratio = weight * ratio >> _FRACTION, ratio * squared >> _FRACTION
    return found


def _whole_words(weights: Sequence[int]) -> list[int]:
    """Return shares of 2^64, each the nearest integer but for the largest, which takes what is left over."""
    total = sum(weights)
    found = [((weight << 65) + total) // (2 * total) for weight in weights]
    largest = max(range(len(found)), key=found.__getitem__)
    found[largest] += (1 << 64) - sum(found)
    return found


def _alias(counts: Sequence[int], outcomes: Sequence[int]) -> tuple[list[int], list[tuple[int, int]]]:
    """Deal the words out to columns of 2^56 with two outcomes at most (Walker 1977; Vose 1991), in integers."""
    columns = 1 << COLUMN_BITS
    left = [*counts, *([0] * (columns - len(counts)))]
    names = [*outcomes, *([outcomes[0]] * (columns - len(outcomes)))]
    thresholds, pairs = [_COLUMN] * columns, [(name, name) for name in names]
    small = [i for i, count in enumerate(left) if count < _COLUMN]
    large = [i for i, count in enumerate(left) if count > _COLUMN]
    while small:
        low, high = small.pop(), large[-1]
        thresholds[low], pairs[low] = left[low], (names[low], names[high])
        left[high] -= _COLUMN - left[low]
        if left[high] <= _COLUMN:
            large.pop()
            if left[high] < _COLUMN:
                small.append(high)
    return thresholds, pairs


WordSource: TypeAlias = Callable[[int], Words]
"""Gives so many independent uniform 64-bit words, never the same ones again."""

_MOST_WORDS = 1 << 17
"""Words asked for at a time: a megabyte."""
_LEAST_SCALE, _LARGEST_SCALE = 2**20 * (1 - 1e-12), 2**21
"""log2 may round a little below 2^20 up to it."""


def discrete_gaussian(scales: Real, count: int, words: WordSource) -> Real:
    """Return integers of P(k) ~ exp(-k^2 / (2 scale^2)), shape (scales, count), exact to a relative 2^-44.

    A scale is from 2^20 to 2^21, as ``core.vectors.grid_scale`` gives it, or zero, whose noise is zero. What "exact"
    means and why it is true stands at the top of this file.
    """
    from upcycled.privacy.noise.kernels import gaussian_row

    out = np.zeros((scales.size, count))
    drawn, position = _NO_WORDS, 0
    for i, scale in enumerate(scales.tolist()):
        if scale == 0:
            continue
        if not _LEAST_SCALE <= scale <= _LARGEST_SCALE:
            raise ValueError(f"the scale is {scale}, but it must be from 2^20 to 2^21")
        tables = block_tables(math.ceil(scale / COARSE) * COARSE)
        narrow, wide = rates(scale, tables.scale)
        done = 0
        while done < count:
            done, position = gaussian_row(
                out[i], done, drawn, position, tables.thresholds, tables.outcomes, narrow, wide
            )
            if done < count:
                drawn, position = words(_enough(2.1 * ((scales.size - i) * count - done))), 0
    return out


def rates(scale: float, envelope: int) -> tuple[float, float]:
    """Return 1/(2 s^2), and 1/(2 s^2) - 1/(2 S^2) without cancellation."""
    return 0.5 / scale**2, 0.5 * (envelope - scale) * (envelope + scale) / (scale * envelope) ** 2


def discrete_laplace(scales: Real, count: int, words: WordSource) -> Real:
    """Return integers of P(k) ~ exp(-|k| / t), shape (scales, count), t = ceil(scale); zeros for a scale of zero.

    Exact, without any rounding, and of unlimited reach (Canonne, Kamath, Steinke 2020, algorithms 1 and 2), so that a
    pure epsilon stays pure: a larger scale than was asked for only protects better.
    """
    from upcycled.privacy.noise.kernels import laplace_row

    out = np.zeros((scales.size, count))
    drawn, position = _NO_WORDS, 0
    for i, scale in enumerate(scales.tolist()):
        done, whole = 0, np.uint64(math.ceil(scale))
        while done < count and whole > 0:
            done, position = laplace_row(out[i], done, drawn, position, whole)
            if done < count:
                more = words(_enough(12 * ((scales.size - i) * count - done)))
                drawn, position = np.concatenate([drawn[position:], more]), 0
    return out


_NO_WORDS: Words = np.zeros(0, dtype=np.uint64)


def _enough(expected: float) -> int:
    """Return how many words to ask for: some more than are expected to be used, up to a bound."""
    return min(int(expected) + 64, _MOST_WORDS)
