"""The numbers behind the page's charts: for its script, and still pictures for where none runs.

An experiment over its iterations: mean and standard deviation over seeds, in as many points as a picture needs.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from upcycled._utils.formats import epsilon, fixed
from upcycled.core.vectors import Real
from upcycled.report.collect import Part, Results, Row, Seed, number
from upcycled.report.distributions import ClientValues, Distribution, bins_of, clients_of, distribution
from upcycled.report.settings import families, labels

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


COLOURS = 8
MOST_SHOWN = 8
"""Lines that are switched on when the page opens."""
AXES = ("iteration", "data_round", "megabytes", "seconds", "epsilon")
CLIENT_CHARTS = {
    "accuracy": ("accuracy of a client (%)", " %", 0.0, 100.0),
    "epsilon": ("epsilon of a client", "", 0.0, math.inf),
}
LEFT, RIGHT, TOP, BOTTOM = 52, 512, 10, 262
"""Where the axes of a still picture lie, in 520 by 300."""


@dataclass(frozen=True)
class Drawn:
    """One experiment with all that is drawn of it."""

    part: Part
    label: str
    colour: int
    is_dashed: bool
    curve: Curve
    clients: tuple[ClientValues, ...]


def drawn(results: Results) -> list[Drawn]:
    """Return every experiment that has a finished run: partners share a colour, vanilla is dashed."""
    parts = [part for part in results.parts if part.seeds]
    if not results.documents:
        # Nobody said in which order: partners together, vanilla first.
        own = families(parts)
        order = sorted(range(len(parts)), key=lambda k: (own.index(own[k]), parts[k].is_upcycled))
        parts = [parts[k] for k in order]
    is_mixed = len({part.is_upcycled for part in parts}) > 1
    most = min(MOST_POINTS, max(20, MOST_OF_A_PAGE // len(parts)))
    return [
        Drawn(
            part,
            label,
            family % COLOURS,
            is_mixed and not part.is_upcycled,
            curve(part, most),
            tuple(clients_of(part)),
        )
        for part, label, family in zip(parts, labels(parts, results.documents), families(parts), strict=True)
    ]


def chart_data(every: Sequence[Drawn], scored_on: str) -> dict[str, Any]:
    """Return everything the script needs, but for the convergence record."""
    return {
        "scored": scored_on,
        "parts": [_part(k, one) for k, one in enumerate(every)],
        "metrics": metrics_of(every),
        "clients": {
            name: found
            for name in (*CLIENT_CHARTS, *metrics_of(every))
            if (found := client_chart(every, name)) is not None
        },
    }


def metrics_of(every: Sequence[Drawn]) -> list[str]:
    """Return the names of the experiments' metrics."""
    return list(dict.fromkeys(name for one in every for name in one.part.metrics))


def scored_on(every: Sequence[Drawn]) -> str:
    """Return the data that accuracy and loss are of: "test", or "validation" where something is chosen by them."""
    words = {seed.summary.scored_on for one in every for seed in one.part.seeds}
    return words.pop() if len(words) == 1 else "test or validation"


def known_axes(every: Sequence[Drawn]) -> dict[str, bool]:
    """Return for every axis whether some experiment has a line against it."""
    return {name: any(np.isfinite(getattr(one.curve, name)).any() for one in every) for name in AXES}


def _part(k: int, one: Drawn) -> dict[str, Any]:
    return {
        "id": k,
        "label": one.label,
        "colour": one.colour,
        "dashed": one.is_dashed,
        "upcycled": one.part.is_upcycled,
        "on": k < MOST_SHOWN,
        "curve": _columns(one.curve) if len(one.curve) else None,
        "spent": _spent(one),
    }


def _columns(found: Curve) -> dict[str, Any]:
    columns: dict[str, Any] = {name: getattr(found, name).tolist() for name in AXES}
    columns["upcycled"] = [int(is_upcycled) for is_upcycled in found.is_upcycled]
    for name in found.mean:
        columns[name] = found.mean[name].tolist()
        if not np.isnan(found.sd[name]).all():
            columns[f"{name}_sd"] = found.sd[name].tolist()
    return columns


def _spent(one: Drawn) -> dict[str, Any] | None:
    """Return the worst epsilon over data rounds, the largest over the seeds."""
    worst: dict[int, float] = {}
    for seed in one.part.seeds:
        for data_round, spent in zip(seed.spent.rounds, seed.spent.worst, strict=True) if seed.spent else ():
            worst[data_round] = max(worst.get(data_round, 0.0), spent)
    if not any(map(math.isfinite, worst.values())):
        return None
    rounds = sorted(worst)
    kept = [rounds[round(k)] for k in np.linspace(0, len(rounds) - 1, min(len(rounds), 150))]
    return {"rounds": kept, "worst": [worst[data_round] for data_round in kept]}


def client_chart(every: Sequence[Drawn], name: str) -> dict[str, Any] | None:
    """Return the distributions of a number over clients, in common bins; None if no experiment has it."""
    values = [client.numbers.get(name, math.nan) for one in every for client in one.clients]
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return None
    title, unit, least, most = CLIENT_CHARTS.get(name, (f"{name} of a client", "", -math.inf, math.inf))
    bins = bins_of(known, least, most)
    rows = []
    for k, one in enumerate(every):
        found = distribution(one.clients, name, bins)
        if found is not None:
            rows.append({"part": k, "counts": list(found.counts), "median": found.median, **_words(name, found)})
    return {"name": title, "unit": unit, "limits": [bins.low, bins.high], "log": bins.is_log, "rows": rows}


def _words(name: str, found: Distribution) -> dict[str, str]:
    if name == "accuracy":
        median, worst, best = (f"{fixed(value, 1)} %" for value in (found.median, found.low, found.high))
        short_words = f"median {median}, worst {worst}"
        return {"words": f"{short_words} (client {found.lowest}), best {best}", "short": short_words}
    if name != "epsilon":
        median, low, high = (fixed(value, 3) for value in (found.median, found.low, found.high))
        short_words = f"median {median}"
        words = f"{short_words}, least {low} (client {found.lowest}), most {high} (client {found.highest})"
        return {"words": words, "short": short_words}
    short_words = f"median {epsilon(found.median)}, max {epsilon(found.high)}"
    return {"words": f"{short_words} (client {found.highest})", "short": short_words}


@dataclass(frozen=True)
class Still:
    """A score against data rounds, as the paths of an SVG; only what is finite is drawn."""

    lines: tuple[tuple[Drawn, str], ...]
    rows: tuple[tuple[float, float], ...] = ()
    """Where a line across is, and its value."""
    columns: tuple[tuple[float, float], ...] = ()
    """Where a number of data rounds is, and how many."""
    left: int = LEFT
    right: int = RIGHT
    bottom: int = BOTTOM


def still(every: Sequence[Drawn], score: str) -> Still:
    """Return the picture of a score; without lines where no run has it."""
    lines = [(one, *_last_of_rounds(one, score)) for one in every]
    lines = [(one, xs, ys) for one, xs, ys in lines if xs.size]
    if not lines:
        return Still(())
    x_to, low = max(float(xs.max()) for _, xs, _ in lines), min(float(ys.min()) for _, _, ys in lines)
    high = max(float(ys.max()) for _, _, ys in lines)
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)

    def path(x: Real, y: Real) -> str:
        across = LEFT + (RIGHT - LEFT) * x / max(x_to, 1.0)
        up = BOTTOM - (BOTTOM - TOP) * (y - low) / (high - low)
        return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(across, up, strict=True))

    return Still(
        tuple((one, path(xs, ys)) for one, xs, ys in lines),
        tuple((BOTTOM - (BOTTOM - TOP) * p, low + p * (high - low)) for p in (0.0, 0.25, 0.5, 0.75, 1.0)),
        tuple((LEFT + (RIGHT - LEFT) * p, p * x_to) for p in (0.5, 1.0)),
    )


def _last_of_rounds(one: Drawn, score: str) -> tuple[Real, Real]:
    """Return the model after each data round, and what followed it."""
    ys = one.curve.mean.get(score, np.full(len(one.curve), np.nan))
    last = np.append(np.diff(one.curve.data_round) > 0, True) if len(one.curve) else np.zeros(0, dtype=bool)
    kept = last & np.isfinite(ys)
    return one.curve.data_round[kept], ys[kept]
