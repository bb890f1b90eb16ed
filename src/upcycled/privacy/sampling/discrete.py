"""Integer noise for many clients from one source of random words."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from upcycled.core.streams import Words
from upcycled.core.vectors import Real
from upcycled.privacy.sampling.gaussian_blocks import COARSE, block_tables

WordSource: TypeAlias = Callable[[int], Words]
"""Gives so many independent uniform 64-bit words, never the same ones again."""

_MOST_WORDS = 1 << 17
"""Words asked for at a time: a megabyte."""
_LEAST_SCALE, _LARGEST_SCALE = 2**20 * (1 - 1e-12), 2**21
"""log2 may round a little below 2^20 up to it."""


def discrete_gaussian(scales: Real, count: int, words: WordSource) -> Real:
    """Return integers of P(k) ~ exp(-k^2 / (2 scale^2)), shape (scales, count), exact to a relative 2^-44.

    A scale is from 2^20 to 2^21, as ``core.vectors.grid_scale`` gives it, or zero, whose noise is zero. What "exact"
    means and why it is true stands in ``gaussian_blocks``.
    """
    from upcycled.privacy.sampling.kernels import gaussian_row

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
    from upcycled.privacy.sampling.kernels import laplace_row

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
