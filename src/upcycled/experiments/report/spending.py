"""What a private run has cost its worst client after each charge, from the lines of its ledger.

The ledger's own rules, over time: Gaussian releases compose by (sensitivity / noise_std)^2, pure ones by epsilon,
sampled ones by (rate, noise multiplier, steps). The last value is the run's own worst epsilon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from upcycled.core.vectors import Real
from upcycled.privacy.accounting import gdp_epsilon, pure_composition_epsilon, sampled_gaussian_epsilon

Charge: TypeAlias = Mapping[str, Any]
"""A line of the ledger."""
Sampled: TypeAlias = Callable[..., float]

MOST_COMPUTED = {"pure": 60, "sampled": 8}
"""Where an epsilon takes long to compute, it is computed after so many charges, evenly spread."""


@dataclass(frozen=True)
class Spending:
    """Worst epsilon over the run, at a fixed delta."""

    delta: float
    iterations: tuple[int, ...]
    """After which iterations it is stated."""
    rounds: tuple[int, ...]
    """Data rounds up to then."""
    worst: tuple[float, ...]
    """Infinite where nothing is provable."""
    is_complete: bool = True
    """Whether it is stated after every charge."""


def spending(lines: Sequence[Charge], delta: float, sampled: Sampled = sampled_gaussian_epsilon) -> Spending | None:
    """Return the worst client's epsilon after each charged data round; None if nothing was charged.

    ``sampled`` may be a cached :func:`sampled_gaussian_epsilon`: runs of one experiment ask for the same numbers, and
    each takes a tenth of a second.

    >>> header = {"kind": "run", "noise": "system", "num_clients": 2}
    >>> charge = {"kind": "data", "charge": "pure", "attempt": 0, "clients": [0, 1], "epsilon": [0.1, 0.2]}
    >>> spending([header, *(charge | {"iteration": m, "round": m} for m in (1, 2))], delta=0).worst
    (0.2, 0.4)
    """
    charges = _charges(lines)
    if not charges:
        return None
    kind = str(charges[-1]["charge"])
    last = len(charges) - 1
    if kind in MOST_COMPUTED:
        kept = sorted({round(k) for k in np.linspace(0, last, min(last + 1, MOST_COMPUTED[kind]))})
    else:
        kept = list(range(last + 1))
    over_time = {"gaussian": _gaussian, "pure": _pure, "sampled": _sampled}.get(kind, _nothing)
    return Spending(
        delta,
        tuple(int(charges[k]["iteration"]) for k in kept),
        tuple(int(charges[k]["round"]) for k in kept),
        tuple(over_time(charges, kept, delta, sampled)),
        len(kept) == len(charges),
    )


def _charges(lines: Sequence[Charge]) -> list[Charge]:
    """Return the charged rounds; with seeded noise a repeated (round, attempt) is the same release."""
    is_simulation = bool(lines) and str(lines[0].get("noise", "")).startswith("simulation")
    data = [line for line in lines if line.get("kind") == "data"]
    if not is_simulation:
        return data
    first: dict[tuple[int, int], Charge] = {}
    for line in data:
        first.setdefault((line["round"], line["attempt"]), line)
    return list(first.values())


def _gaussian(charges: Sequence[Charge], kept: Sequence[int], delta: float, _: Sampled) -> Iterable[float]:
    squares, most = np.zeros(_clients(charges)), np.zeros(len(charges))
    for k, charge in enumerate(charges):
        with np.errstate(divide="ignore"):
            ratios = np.asarray(charge["sensitivity"], dtype=float) / np.asarray(charge["noise_std"], dtype=float)
        np.add.at(squares, charge["clients"], ratios**2)
        most[k] = squares.max()
    found = np.full(len(kept), np.inf)
    shifts: Real = np.sqrt(most[list(kept)])
    finite = np.isfinite(shifts)
    # Epsilon grows with mu, so the worst client is the one with the largest.
    found[finite] = gdp_epsilon(mu=shifts[finite], delta=delta)
    return found.tolist()


def _pure(charges: Sequence[Charge], kept: Sequence[int], delta: float, _: Sampled) -> Iterable[float]:
    spent: dict[int, list[float]] = {}
    wanted = set(kept)
    epsilon_of = cache(lambda each: float(pure_composition_epsilon(epsilons=np.array(each), delta=delta)))
    for k, charge in enumerate(charges):
        for client, epsilon in zip(charge["clients"], charge["epsilon"], strict=True):
            spent.setdefault(client, []).append(float(epsilon))
        if k in wanted:
            paid = {tuple(sorted(each)) for each in spent.values()}
            equal = _worst({(each[0], float(len(each))) for each in paid if each[0] == each[-1]})
            unequal = (each for each in paid if each[0] != each[-1])
            yield max(map(epsilon_of, [*((e,) * int(count) for e, count in equal), *unequal]), default=0.0)


def _sampled(charges: Sequence[Charge], kept: Sequence[int], delta: float, sampled: Sampled) -> Iterable[float]:
    clients = _clients(charges)
    steps, rates, multipliers = np.zeros(clients), np.zeros(clients), np.full(clients, np.inf)
    wanted = set(kept)
    for k, charge in enumerate(charges):
        who = charge["clients"]
        steps[who] += np.asarray(charge["steps"], dtype=float)
        rates[who] = np.maximum(rates[who], charge["sampling_rate"])
        ratio = np.asarray(charge["noise_std"], dtype=float) / np.asarray(charge["sensitivity"], dtype=float)
        multipliers[who] = np.minimum(multipliers[who], ratio)
        if k in wanted:
            paid = np.stack([steps, rates, -multipliers], axis=1)[steps > 0]
            yield max(
                (
                    sampled(q=q, noise_multiplier=-less, steps=int(count), delta=delta) if less < 0 else float("inf")
                    for count, q, less in _worst(set(map(tuple, paid.tolist())))
                ),
                default=0.0,
            )


def _worst(points: set[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """Return those that no other one reaches in every coordinate: more is worse, so the others need no computing.

    >>> sorted(_worst({(1.0, 5.0), (2.0, 5.0), (3.0, 1.0)}))
    [(2.0, 5.0), (3.0, 1.0)]
    """
    found: list[tuple[float, ...]] = []
    for point in sorted(points, reverse=True):
        if not any(all(a <= b for a, b in zip(point, other, strict=True)) for other in found):
            found.append(point)
    return found


def _nothing(charges: Sequence[Charge], kept: Sequence[int], delta: float, _: Sampled) -> Iterable[float]:
    """No guarantee is claimed."""
    return [float("inf")] * len(kept)


def _clients(charges: Sequence[Charge]) -> int:
    return 1 + max(max(charge["clients"], default=0) for charge in charges)
