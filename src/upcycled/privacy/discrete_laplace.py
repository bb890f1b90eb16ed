"""The discrete Laplace distribution, exactly: P(k) proportional to exp(-|k| / scale) over all integers.

Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy" (2020), algorithms 1 and 2, for whole
arrays. Random words are compared with integers, and nothing is computed in floating point: if the words are uniform
then every probability is the stated one, so that a shift by m costs a pure epsilon of |m| / scale and nothing else.
How many words a draw takes depends on the noise alone, never on what it is added to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from upcycled.core.streams import Words
from upcycled.core.vectors import Ints

DrawWords: TypeAlias = Callable[[int], Words]
"""count -> as many uniform 64-bit words, never drawn before."""

_LAST = np.uint64(0xFFFFFFFFFFFFFFFF)
_ONE = np.uint64(1)


def discrete_laplace(scale: Ints, draw_words: DrawWords) -> Ints:
    """Return one draw for each entry of ``scale``, which are positive and below 2^48.

    A magnitude and a sign; a negative zero is drawn anew, since zero has one chance and not two.
    """
    wanted = scale.ravel().astype(np.uint64)
    found, left = np.zeros(wanted.size, dtype=np.int64), np.arange(wanted.size)
    while left.size:
        size = _magnitudes(wanted[left], draw_words).astype(np.int64)
        is_negative = (draw_words(left.size) & _ONE).astype(bool)
        is_good = ~is_negative | (size > 0)
        found[left] = np.where(is_negative, -size, size)
        left = left[~is_good]
    return found.reshape(scale.shape)


def _magnitudes(scale: Words, draw_words: DrawWords) -> Words:
    """Return X >= 0 with P(X = x) proportional to exp(-x / scale): U + scale V.

    U below ``scale`` is kept with probability exp(-U / scale); V counts how often a coin of probability 1/e falls so.
    """
    found, left = np.zeros_like(scale), np.arange(scale.size)
    while left.size:
        tried = _below(scale[left], draw_words)
        is_kept = _coins(tried, scale[left], draw_words)
        found[left[is_kept]] = tried[is_kept]
        left = left[~is_kept]
    left = np.arange(scale.size)
    while left.size:
        ones = np.ones(left.size, dtype=np.uint64)
        left = left[_coins(ones, ones, draw_words)]
        found[left] += scale[left]
    return found


def _coins(over: Words, under: Words, draw_words: DrawWords) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return coins that are true with probability exp(-over/under), for over <= under.

    With K the first k at which a coin of probability (over/under)/k fails, P(K > k) = (over/under)^k / k!, and the
    chance that K is odd is the exponential's alternating series.
    """
    found, left, k = np.zeros(over.size, dtype=np.bool_), np.arange(over.size), 1
    while left.size:
        goes_on = _below(under[left] * np.uint64(k), draw_words) < over[left]
        found[left[~goes_on]] = k % 2 == 1
        left, k = left[goes_on], k + 1
    return found


def _below(bounds: Words, draw_words: DrawWords) -> Words:
    """Return uniform integers from 0 to bound - 1; words beyond the last whole multiple of a bound are drawn anew."""
    last = _LAST - (_LAST % bounds + _ONE) % bounds
    drawn = draw_words(bounds.size)
    left = np.flatnonzero(drawn > last)
    while left.size:
        drawn[left] = draw_words(left.size)
        left = left[drawn[left] > last[left]]
    return drawn % bounds
