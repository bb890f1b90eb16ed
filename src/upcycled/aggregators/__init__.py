"""How releases become one vector: the aggregators, one file each, and the table of their names.

All of it is post-processing of releases: local mechanisms keep their accounting, central ones have an aggregate of
their own. To add one: write its file and add a line to ``AGGREGATORS``; the contract tests find it there.
"""

from __future__ import annotations

from typing import Any

from upcycled.aggregators.precision import Precision
from upcycled.aggregators.robust import Median, TrimmedMean
from upcycled.aggregators.samples import Samples
from upcycled.core.aggregator import Aggregator, Combination, Received, weighted
from upcycled.core.errors import InputError, unknown

AGGREGATORS: dict[str, type[Any]] = {
    "samples": Samples,
    "median": Median,
    "trimmed_mean": TrimmedMean,
    "precision": Precision,
}


def as_aggregator(value: object) -> Aggregator:
    """Turn what a user passes as ``aggregation=`` into an aggregator.

    Args:
        value: a name, one of ``up.aggregators`` with its options, or one's own.

    Returns:
        The aggregator.

    Raises:
        InputError: for a name that is not known, and for anything else.

    >>> as_aggregator("trimmed_mean")
    TrimmedMean(fraction=0.1)
    """
    if isinstance(value, str):
        if value not in AGGREGATORS:
            raise unknown("aggregation", value, AGGREGATORS)
        found: Aggregator = AGGREGATORS[value]()
        return found
    if isinstance(value, Aggregator) and not isinstance(value, type):
        return value
    must = (
        f"one of {', '.join(map(repr, AGGREGATORS))}, one of up.aggregators, or your own: with needs_noise_std, "
        "is_weighted, start and combine"
    )
    raise InputError(field="aggregation", value=value, must=must)


__all__ = [
    "AGGREGATORS",
    "Aggregator",
    "Combination",
    "Median",
    "Precision",
    "Received",
    "Samples",
    "TrimmedMean",
    "as_aggregator",
    "weighted",
]
