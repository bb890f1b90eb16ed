"""Tests of residuals: what is left of releases without their noise-free part, over the noise that the ledger states.

If the ledger is right they are independent standard normals, and every p-value here is exact or close to it:

    scale        the squares of a release, or of all releases of a client, sum up to a chi-square
    sums         sum_r z_r / sqrt(R) over R releases is a standard normal vector again, unless they share noise
    tail         how many numbers lie beyond 2 to 4 is binomial

A family of tests is rejected when its smallest p-value times the number of its tests is at most its part of the level.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import betainc, chdtrc, chdtri, gammainc

from upcycled.core.vectors import Ints, Real

DETECTED = 0.95
"""The chance with which the smallest fault of a power table is found."""


@dataclass(frozen=True)
class Family:
    """Tests of one kind of fault: how many there were, and the worst of them."""

    name: str
    tests: int
    p_value: float
    """The smallest, times the number of tests; at most 1."""
    worst: int
    """Which of the tests that was."""


def family(name: str, p_values: Real) -> Family:
    """Return the worst of some tests, corrected for their number.

    >>> family("scale", np.array([0.2, 0.001, 0.9])).p_value
    0.003
    """
    flat = np.asarray(p_values).reshape(-1)
    if not flat.size:
        return Family(name, 0, 1.0, -1)
    worst = int(np.argmin(flat))
    return Family(name, flat.size, min(1.0, float(flat[worst]) * flat.size), worst)


def scale_p(squares: Real, counts: Real) -> Real:
    """Return two-sided p-values of sums of squares of so many standard normals.

    >>> scale_p(np.array([100.0, 25.0, 400.0]), np.array([100.0, 100.0, 100.0])).round(3).tolist()
    [0.962, 0.0, 0.0]
    """
    below = gammainc(np.asarray(counts) / 2, np.asarray(squares) / 2)
    found: Real = np.minimum(1.0, 2 * np.minimum(below, chdtrc(counts, squares)))
    return found


def sums_p(z: Real, group: Ints, owner: Ints) -> tuple[Real, Ints]:
    """Return upper p-values of shared noise: of each group of rows, of each owner's groups, and of all together.

    ``z`` is (rows, D); ||sum of a group's R rows||^2 / R is a chi-square, and noise that they share makes it up to R
    times as large. Groups of one row say nothing. Beside the p-values stands a row of the group, or of the first of
    the groups, that each is of.

    >>> z = np.random.default_rng(0).normal(size=(6, 50))
    >>> z[3:] = z[3]
    >>> p, rows = sums_p(z, np.array([0, 0, 0, 1, 1, 1]), np.array([0, 0, 0, 1, 1, 1]))
    >>> p.round(3).tolist(), rows.tolist()
    ([0.575, 0.0, 0.575, 0.0, 0.0], [0, 3, 0, 3, 0])
    """
    _, first, which, counts = np.unique(group, return_index=True, return_inverse=True, return_counts=True)
    sums = np.zeros((counts.size, z.shape[1]))
    np.add.at(sums, which, z)
    shared = np.flatnonzero(counts > 1)
    if not shared.size:
        return np.zeros(0), np.zeros(0, dtype=np.int64)
    squares = np.einsum("gd,gd->g", sums[shared], sums[shared]) / counts[shared]
    rows, size = first[shared], float(z.shape[1])
    _, owned_first, owned, many = np.unique(owner[rows], return_index=True, return_inverse=True, return_counts=True)
    of_owners = chdtrc(many * size, np.bincount(owned, squares))
    of_all = chdtrc(shared.size * size, squares.sum())
    return (
        np.concatenate([chdtrc(size, squares), of_owners, [of_all]]),
        np.concatenate([rows, rows[owned_first], rows[:1]]).astype(np.int64),
    )


def counts_p(counts: Real | Ints, totals: Real | Ints, chances: Real) -> Real:
    """Return two-sided p-values of how often something happened in so many independent tries.

    >>> counts_p(np.array([50, 70]), np.array([100, 100]), np.array([0.5, 0.5])).round(4).tolist()
    [1.0, 0.0001]
    """
    many, few = _at_least(counts, totals, chances), _at_least(totals - counts, totals, 1 - chances)
    found: Real = np.minimum(1.0, 2 * np.minimum(few, many))
    return found


# What the tests can see, before anything is measured.


def least_scale(count: float, level: float) -> tuple[float, float]:
    """Return how many times too small, and too large, noise must be to be found by a test of so many numbers.

    >>> [round(k, 3) for k in least_scale(600, 1e-5)]
    [1.197, 1.186]
    """
    low, high = _chi_square(count, 1 - level / 2), _chi_square(count, level / 2)
    return (
        math.sqrt(_chi_square(count, 1 - DETECTED) / low) if low > 0 else math.inf,
        math.sqrt(high / _chi_square(count, DETECTED)),
    )


def least_shared(rows: int, size: int, level: float) -> float:
    """Return the share of its variance that noise of ``rows`` releases must have in common, or infinity.

    >>> round(least_shared(4, 610, 1e-5), 3), least_shared(1, 610, 1e-5)
    (0.131, inf)
    """
    if rows < 2:
        return math.inf
    share = (_chi_square(size, level) / _chi_square(size, DETECTED) - 1) / (rows - 1)
    return share if share <= 1 else math.inf


def _at_least(counts: Any, totals: Any, chances: Any) -> Any:
    """Return the probability that something happens so often, or more often, in so many tries."""
    return np.where(np.asarray(counts) > 0, betainc(np.maximum(counts, 1), totals - counts + 1, chances), 1.0)


def _chi_square(count: float, above: float) -> float:
    """Return what a chi-square exceeds with this probability."""
    return float(chdtri(count, above))
