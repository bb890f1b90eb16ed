"""Means over seeds, paired differences with Student's interval, and what may be claimed from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np


@dataclass(frozen=True)
class Paired:
    """Differences of two results with the same seed, over two or more seeds.

    Where all differences are equal there is no spread to judge them by: nothing is claimed then.

    >>> Paired((0.01, 0.02, 0.03), confidence=0.95).interval
    (-0.0048, 0.0448)
    """

    differences: tuple[float, ...]
    confidence: float
    lower_is_better: bool = False

    @property
    def mean(self) -> float:
        return fmean(self.differences)

    @property
    def sd(self) -> float:
        """The sample standard deviation (ddof = 1)."""
        return stdev(self.differences)

    @property
    def interval(self) -> tuple[float, float]:
        """Student's interval of the mean: mean +- t sd / sqrt(n) with n - 1 degrees of freedom."""
        from scipy.special import stdtrit

        count = len(self.differences)
        half = float(stdtrit(count - 1, 0.5 + self.confidence / 2)) * self.sd / count**0.5
        return self.mean - half, self.mean + half

    @property
    def p_value(self) -> float:
        """The two-sided p-value of Student's test that the mean is zero; 1 where there is no spread."""
        from scipy.special import stdtr

        count, sd = len(self.differences), self.sd
        return 1.0 if sd == 0 else 2 * float(stdtr(count - 1, -abs(self.mean) / (sd / count**0.5)))

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes zero."""
        low, high = self.interval
        return self.sd > 0 and (low > 0 or high < 0)

    @property
    def verdict(self) -> str:
        return verdict(self.mean, self.is_significant, self.lower_is_better)


def verdict(mean: float, is_significant: bool, lower_is_better: bool = False) -> str:
    """Return what is said of a difference.

    >>> verdict(0.1, True), verdict(-0.1, True), verdict(0.1, False), verdict(-0.1, True, lower_is_better=True)
    ('significant gain', 'significant loss', 'no significant difference', 'significant gain')
    """
    if not is_significant:
        return "no significant difference"
    return "significant gain" if (mean > 0) != lower_is_better else "significant loss"


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values: with these, the chance of any false claim among all stays below the level.

    The smallest of k is multiplied by k, the next by k - 1 and so on, and none may be below the one before it.

    >>> [round(p, 3) for p in holm([0.04, 0.01, 0.03])]
    [0.06, 0.03, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    found, least = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        least = max(least, min(1.0, p_values[i] * (len(p_values) - rank)))
        found[i] = least
    return found


def mean_and_sd(values: Iterable[float | None]) -> dict[str, float | None]:
    """Return the mean and the sample standard deviation (ddof = 1) of what is known.

    >>> mean_and_sd([1.0, 3.0, None])
    {'mean': 2.0, 'sd': 1.4142135623730951}
    """
    known = [value for value in values if value is not None]
    return {
        "mean": float(np.mean(known)) if known else None,
        "sd": float(np.std(known, ddof=1)) if len(known) > 1 else None,
    }
