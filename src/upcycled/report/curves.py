"""An experiment over its iterations: mean and standard deviation over seeds, in as many points as a picture needs."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from upcycled.core.vectors import Real
from upcycled.report.collect import Part, Row, Seed, number

MOST_POINTS = 400
"""Of one line."""
MOST_OF_A_PAGE = 12_000
"""Of all lines together."""
SCORES = ("accuracy", "loss")


@dataclass(frozen=True)
class Curve:
    """Columns over the iterations that every seed scored; NaN where something is not known."""

    iteration: Real
    data_round: Real
    is_upcycled: tuple[bool, ...]
    megabytes: Real
    """Sent up and down so far."""
    seconds: Real
    epsilon: Real
    """Of the worst client, so far."""
    mean: Mapping[str, Real]
    """``accuracy`` in percent, ``loss``, and metrics."""
    sd: Mapping[str, Real]
    """Standard deviation over seeds (ddof = 1); NaN with one seed."""

    def __len__(self) -> int:
        return len(self.iteration)


def curve(part: Part, most: int = MOST_POINTS) -> Curve:
    """Return the curve of an experiment; x values that differ between seeds (seconds, epsilon) are their mean."""
    tables = [_cumulated(seed) for seed in part.seeds if seed.rows]
    shared = sorted(set(tables[0]).intersection(*tables[1:])) if tables else []
    first = [tables[0][k] for k in shared]
    kept = thinned([int(row["data_round"]) for row in first], most)
    shared, first = [shared[k] for k in kept], [first[k] for k in kept]

    def column(name: str) -> Real:
        """Return (seeds, iterations)."""
        return np.array([[number(table[k].get(name)) for k in shared] for table in tables], dtype=np.float64)

    scales = {"accuracy": 100.0}
    values = {name: scales.get(name, 1.0) * column(name) for name in (*SCORES, *part.metrics)}
    return Curve(
        np.array(shared, dtype=np.float64),
        _mean(column("data_round")),
        tuple(row.get("kind") == "upcycled" for row in first),
        _mean(column("bytes")) / 1e6,
        _mean(column("elapsed")),
        _mean(column("epsilon")),
        {name: _mean(seeds) for name, seeds in values.items()},
        {name: _sd(seeds) for name, seeds in values.items()},
    )


def thinned(groups: Sequence[int], most: int) -> list[int]:
    """Return the places to keep: whole groups (a data round and what follows it), evenly spread, first and last kept.

    A plain stride could keep only data iterations, or only upcycled ones.

    >>> thinned([1, 1, 2, 2, 3, 3, 4, 4, 5, 5], 6)
    [0, 1, 4, 5, 8, 9]
    """
    names = list(dict.fromkeys(groups))
    if len(groups) <= most or len(names) < 2:
        return list(range(len(groups)))
    count = max(2, most * len(names) // len(groups))
    chosen = {names[round(k)] for k in np.linspace(0, len(names) - 1, count)}
    return [k for k, name in enumerate(groups) if name in chosen]


def _cumulated(seed: Seed) -> dict[int, dict[str, Any]]:
    """Return the scored iterations, with what was sent and how long it took up to then, and epsilon."""
    found, sent, elapsed = dict[int, dict[str, Any]](), 0.0, 0.0
    epsilon_after = _epsilons(seed)
    for row in seed.rows:
        iteration, data_round = number(row.get("iteration")), number(row.get("data_round"))
        sent += _or_zero(row, "bytes_up") + _or_zero(row, "bytes_down")
        elapsed += _or_zero(row, "seconds")
        is_scored = not all(math.isnan(number(row.get(name))) for name in SCORES)
        if is_scored and not math.isnan(iteration + data_round):
            epsilon = epsilon_after(int(iteration), int(data_round))
            found[int(iteration)] = {**row, "bytes": sent, "elapsed": elapsed, "epsilon": epsilon}
    return found


def _epsilons(seed: Seed) -> Callable[[int, int], float]:
    """Return the worst epsilon so far, as a function of iteration and data round."""
    spent = seed.spent
    if spent is None:
        return lambda iteration, data_round: math.nan
    if not spent.is_complete:
        # Computed for some rounds only: the others have none.
        by_round = dict(zip(spent.rounds, spent.worst, strict=True))
        return lambda iteration, data_round: by_round.get(data_round, math.nan)
    # A run that was stopped and went on has charges of iterations it did again: the last of each counts them all.
    after = dict(zip(spent.iterations, spent.worst, strict=True))
    places, values = list(after), list(after.values())

    def so_far(iteration: int, data_round: int) -> float:
        place = bisect_right(places, iteration)
        return values[place - 1] if place else 0.0

    return so_far


def _or_zero(row: Row, name: str) -> float:
    value = number(row.get(name))
    return 0.0 if math.isnan(value) else value


def _mean(values: Real) -> Real:
    found: Real = values.mean(axis=0) if values.size else np.zeros(0)
    return found


def _sd(values: Real) -> Real:
    found: Real = (
        values.std(axis=0, ddof=1) if len(values) > 1 else np.full(values.shape[-1] if values.size else 0, np.nan)
    )
    return found
