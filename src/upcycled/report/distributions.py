"""The clients of an experiment, one value each: distributions that a mean would hide."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from upcycled._utils.formats import count, epsilon, fixed
from upcycled.core.vectors import Real
from upcycled.report.collect import Part, number

BINS = 40
WIDE = 50
"""A ratio of largest to smallest from which on a scale is logarithmic."""
MOST_ROWS = 3000
"""Lines of the table of clients, all experiments together; beyond, only the worst of each are shown."""
WORST = 40
COLUMNS: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("train_samples", "training samples", count),
    ("test_samples", "test samples", count),
    ("data_rounds", "data rounds", count),
    ("gradient_steps", "gradient steps", count),
    ("accuracy", "accuracy %", fixed),
    ("loss", "loss", lambda value: fixed(value, 3)),
    ("epsilon", "epsilon", epsilon),
)


@dataclass(frozen=True)
class ClientValues:
    """What became of one client, over the seeds."""

    name: str
    numbers: Mapping[str, float]
    """``train_samples``, ``accuracy`` (percent), ... as means over seeds; ``epsilon`` is the largest."""


@dataclass(frozen=True)
class Distribution:
    """How a number is spread over the clients of one experiment."""

    counts: tuple[int, ...]
    low: float
    median: float
    high: float
    lowest: str
    """The name of the client with the least value."""
    highest: str


def clients_of(part: Part) -> list[ClientValues]:
    """Return every client, in the order of the files."""
    found: dict[str, list[dict[str, Any]]] = {}
    for seed in part.seeds:
        epsilons = () if seed.privacy is None else seed.privacy.epsilon.clients
        rows = seed.clients or tuple({"client": k} for k in range(len(epsilons)))
        for k, row in enumerate(rows):
            own = dict(row)
            if "epsilon" not in own and k < len(epsilons):
                own["epsilon"] = epsilons[k]
            client = own.pop("client", k)
            found.setdefault(str(own.pop("name", client)), []).append(own)
    return [ClientValues(name, _summed_up(rows)) for name, rows in found.items()]


def _summed_up(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    found = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [number(row.get(name)) for row in rows]
        known = [value for value in values if not math.isnan(value)]
        if name == "epsilon":
            # A file has null for an infinite epsilon; a run in which none is provable decides the client's worst case.
            found[name] = max(known) if len(known) == len(values) else math.inf
        elif known:
            found[name] = float(np.mean(known)) * (100 if name == "accuracy" else 1)
    return found


@dataclass(frozen=True)
class Bins:
    """Equal bins between limits that hold all values, on a linear or a logarithmic scale."""

    low: float
    high: float
    is_log: bool

    def counts(self, values: Real) -> tuple[int, ...]:
        """Return how many values lie in each."""
        if self.is_log:
            edges = np.geomspace(self.low, self.high, BINS + 1)
            return tuple(np.histogram(values, bins=edges)[0].tolist())
        return tuple(np.histogram(values, bins=BINS, range=(self.low, self.high))[0].tolist())


def bins_of(values: Sequence[float], least: float = -math.inf, most: float = math.inf) -> Bins:
    """Return bins for all values, within what is possible; logarithmic where few values would squeeze the others."""
    low, high = min(values), max(values)
    if low > 0 and high / low > WIDE:
        return Bins(low / 1.1, high * 1.1, True)
    # Values that differ by rounding alone, such as epsilons that noise was calibrated to, are one value.
    is_one = high - low <= 1e-9 * max(abs(low), abs(high))
    margin = max(0.05 * abs(high), 0.05) if is_one else 0.02 * (high - low)
    return Bins(max(low - margin, least), min(high + margin, most), False)


def distribution(clients: Sequence[ClientValues], name: str, bins: Bins) -> Distribution | None:
    """Return the distribution of a number; None if no client has it."""
    known = [(c.numbers[name], c.name) for c in clients if math.isfinite(c.numbers.get(name, math.nan))]
    if not known:
        return None
    values: Real = np.array([value for value, _ in known])
    return Distribution(
        bins.counts(values),
        float(values.min()),
        float(np.median(values)),
        float(values.max()),
        known[int(values.argmin())][1],
        known[int(values.argmax())][1],
    )


@dataclass(frozen=True)
class ClientTable:
    """The numbers of every client, or of the worst where there are too many."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """Each begins with the experiment and the client."""
    num_worst: int | None
    """How many of each experiment are shown; None if all are."""


def client_table(every: Sequence[tuple[str, Sequence[ClientValues]]], metrics: Sequence[str] = ()) -> ClientTable:
    """Return the numbers of the clients of experiments, which are given by their labels."""
    there = {name for _, clients in every for client in clients for name in client.numbers}
    measured = [(name, name, lambda value: fixed(value, 4)) for name in metrics]
    columns = [column for column in (*COLUMNS, *measured) if column[0] in there]
    is_cut = sum(len(clients) for _, clients in every) > MOST_ROWS
    rows = [
        (label, client.name, *(show(client.numbers.get(name)) for name, _, show in columns))
        for label, clients in every
        for client in (_worst(clients) if is_cut else clients)
    ]
    head = ("experiment", "client", *(title for _, title, _ in columns))
    return ClientTable(head, tuple(rows), WORST if is_cut else None)


def _worst(clients: Sequence[ClientValues]) -> list[ClientValues]:
    """Return those with the largest epsilon, and among equals the least accuracy."""

    def order(client: ClientValues) -> tuple[float, float]:
        return (-client.numbers.get("epsilon", 0.0), client.numbers.get("accuracy", 0.0))

    return sorted(clients, key=order)[:WORST]
