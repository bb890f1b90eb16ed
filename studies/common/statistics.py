"""What may be claimed from runs with the same seeds: paired differences, families of them, sums of means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from upcycled._utils.statistics import Paired, holm

__all__ = ["CONFIDENCE", "Paired", "better_and_worse", "holm", "paired", "paired_json", "sure", "welch_p_value"]

CONFIDENCE = 0.95


def paired(ours: Iterable[float], theirs: Iterable[float], confidence: float = CONFIDENCE) -> Paired:
    """Return the differences of two results, seed by seed.

    >>> paired([3.0, 5.0], [1.0, 2.0]).mean
    2.5
    """
    return Paired(tuple(float(a) - float(b) for a, b in zip(ours, theirs, strict=True)), confidence)


def sure(family: Sequence[Paired]) -> list[bool]:
    """Return which differences are significant after Holm's correction for all of them."""
    return [p < 1 - one.confidence for p, one in zip(holm([one.p_value for one in family]), family, strict=True)]


def better_and_worse(family: Sequence[Paired], claimed: Sequence[bool] | None = None) -> tuple[int, int]:
    """Count what is claimed on either side of zero: by default, where the interval excludes it.

    >>> better_and_worse([paired([3.0, 3.1], [1.0, 1.0]), paired([1.0, 2.0], [2.0, 1.0])])
    (1, 0)
    """
    kept = [one.is_significant for one in family] if claimed is None else claimed
    means = [one.mean for one, is_kept in zip(family, kept, strict=True) if is_kept]
    return sum(mean > 0 for mean in means), sum(mean < 0 for mean in means)


def paired_json(found: Paired) -> dict[str, Any]:
    low, high = found.interval
    return {
        "mean": round(found.mean, 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "is_significant": found.is_significant,
        "by_seed": [round(value, 4) for value in found.differences],
    }


def welch_p_value(difference: float, variances: Sequence[float], degrees: Sequence[int]) -> float:
    """Return the two-sided p-value that a sum or difference of independent means is zero, by Welch and Satterthwaite.

    ``variances`` are those of the means, each with its degrees of freedom. For two samples of four with standard
    deviation 1 that is t = difference / sqrt(1/2) with 6 degrees of freedom, of which 5 % lie beyond 2.4469:

    >>> round(welch_p_value(2.4469 / 2**0.5, variances=[1 / 4, 1 / 4], degrees=[3, 3]), 4)
    0.05
    """
    from scipy.special import stdtr

    total = sum(variances)
    if total == 0:
        return 1.0
    freedom = total**2 / sum(one**2 / count for one, count in zip(variances, degrees, strict=True))
    return 2 * float(stdtr(freedom, -abs(difference) / total**0.5))
