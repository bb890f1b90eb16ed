"""Probes of noise: its scale and its tail at every client, and whether any of it is used twice.

Tests of residuals: what is left of releases without their noise-free part, over the noise that the ledger states.

If the ledger is right they are independent standard normals, and every p-value here is exact or close to it:

    scale        the squares of a release, or of all releases of a client, sum up to a chi-square
    sums         sum_r z_r / sqrt(R) over R releases is a standard normal vector again, unless they share noise
    tail         how many numbers lie beyond 2 to 4 is binomial

A family of tests is rejected when its smallest p-value times the number of its tests is at most its part of the level.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import betainc, chdtrc, chdtri, gammainc, ndtr

from upcycled._utils.formats import general, significant
from upcycled.audit.findings import Finding, Power
from upcycled.audit.probes.rehearsal import SERVER, Seen, sample_of, whitened
from upcycled.audit.replays import World
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


FAMILIES = ("scale", "tail", "rounds", "clients", "runs")
TAILS = np.array([2.0, 2.5, 3.0, 3.25, 3.5, 4.0])
"""How many std away the tails begin that are counted."""
REPLAYED = -1
"""Stands for a run where the first round was replayed: tested for the scale and the tail of a client's noise only."""
MOST_ROWS = 2_000
"""Releases of the whole schedule that are looked at for more than their scale and tail."""


@dataclass
class Residuals:
    """Residuals of many releases, and where each comes from."""

    size: int
    """D."""
    sample: Ints
    rows: list[Real] = field(default_factory=list)
    places: list[tuple[int, int, int]] = field(default_factory=list)
    """(run, round, client) of each row."""
    squares: list[float] = field(default_factory=list)
    """Sums over all numbers of a release, not only the sample's."""
    beyond: list[Ints] = field(default_factory=list)
    """How many of these numbers lie beyond each of ``TAILS``."""
    squared_places: list[tuple[int, int, int]] = field(default_factory=list)
    of_schedule: int = 0
    """Rows of the plan's own schedule, which is run 0."""

    def add(self, world: World, seen: Seen, run: int, unit: float) -> None:
        """Take in a data round; one whose noise nobody can tell apart is left out."""
        z = whitened(world, seen, unit)
        if z is None:
            return
        z = np.nan_to_num(z, nan=0.0, posinf=1e150, neginf=-1e150)
        clients = [SERVER] if len(z) == 1 and world.plan.mechanism.is_central else seen.clients.tolist()
        self.squares += np.einsum("rd,rd->r", z, z).tolist()
        self.beyond += list(np.stack([(np.abs(z) > tail).sum(axis=1) for tail in TAILS], axis=1))
        self.squared_places += [(run, seen.round, client) for client in clients]
        if run == REPLAYED:
            return
        for row, client in zip(z, clients, strict=True):
            if run > 0 or self.of_schedule < MOST_ROWS:
                self.of_schedule += run == 0
                self.rows.append(row[self.sample])
                self.places.append((run, seen.round, client))


def residuals_of(size: int, rows: int, seed: int) -> Residuals:
    """Return an empty collection for so many releases of so many numbers."""
    return Residuals(size, sample_of(size, rows, seed))


def families_of(found: Residuals) -> tuple[tuple[Family, str], ...]:
    """Return the tests of each kind, and the worst of each in words."""
    z = np.array(found.rows) if found.rows else np.zeros((0, found.sample.size))
    run, round_, client = (np.array(found.places, dtype=np.int64).reshape(-1, 3)[:, i] for i in range(3))
    made = [_scale(found), _tail(found)]
    for name, others, owner in (
        ("rounds", (run, client), client),
        ("clients", (run, round_), run),
        ("runs", (round_, client), client),
    ):
        p_values, rows = sums_p(z, others[0] * (1 << 32) + others[1], owner)
        tested = family(name, p_values)
        words = ""
        if tested.tests:
            row = int(rows[tested.worst])
            about = {"rounds": f"of {_client(int(client[row]))}", "clients": f"of round {round_[row]}"}
            words = f"{name} share noise, such as those {about.get(name, f'at {_client(int(client[row]))}')}"
        made.append((tested, words))
    return tuple(made)


def _scale(found: Residuals) -> tuple[Family, str]:
    """Test the scale of every release, of all releases of each client, and of all together."""
    squares, places = np.array(found.squares), np.array(found.squared_places, dtype=np.int64).reshape(-1, 3)
    if not squares.size:
        return family("scale", squares), ""
    clients, which, rows = np.unique(places[:, 2], return_inverse=True, return_counts=True)
    alone = np.flatnonzero(places[:, 0] != REPLAYED)
    sums = np.concatenate([squares[alone], np.bincount(which, squares), [squares.sum()]])
    counts = np.concatenate([np.ones(alone.size), rows, [squares.size]]) * found.size
    tested = family("scale", scale_p(sums, counts))
    ratio, place = float(np.sqrt(sums[tested.worst] / counts[tested.worst])), tested.worst - alone.size
    if place < 0:
        run, round_, client = places[alone[tested.worst]].tolist()
        where = f"round {round_} of {_client(client)} (run {run})"
    else:
        where = _client(int(clients[place])) if place < clients.size else "all releases"
    return tested, f"the noise of {where} is {significant(ratio, 3)} times what the ledger states"


def _tail(found: Residuals) -> tuple[Family, str]:
    """Test how many numbers lie far out, of all releases of each client and of all together."""
    if not found.beyond:
        return family("tail", np.zeros(0)), ""
    beyond, owner = np.array(found.beyond), np.array(found.squared_places, dtype=np.int64)[:, 2]
    clients, which, rows = np.unique(owner, return_inverse=True, return_counts=True)
    sums = np.zeros((clients.size + 1, TAILS.size))
    np.add.at(sums, which, beyond)
    sums[-1] = beyond.sum(axis=0)
    totals = np.append(rows, len(beyond))[:, None] * float(found.size)
    tested = family("tail", counts_p(sums, totals, 2 * ndtr(-TAILS)))
    place, tail = divmod(tested.worst, TAILS.size)
    where = _client(int(clients[place])) if place < clients.size else "all releases"
    expected = significant(float(totals[place, 0] * 2 * ndtr(-TAILS[tail])), 3)
    words = f"{general(int(sums[place, tail]))} numbers of the noise of {where} lie beyond {TAILS[tail]:g} std"
    return tested, f"{words}, and a Gaussian has {expected}"


def noise_findings(found: Residuals, level: float) -> tuple[Finding, ...]:
    """Return what the tests say, each kind of them at this level."""
    findings = []
    for tested, words in families_of(found):
        if not tested.tests:
            continue
        p = tested.p_value
        looked_at = LOOKED_AT[tested.name].format(general(tested.tests))
        wrong = f"{words} (p = {significant(p, 2)})" if p <= level else None
        findings.append(Finding(f"noise: {tested.name}", looked_at, wrong, p))
    return tuple(findings)


LOOKED_AT = {
    "scale": "the scale of noise in releases, and in all of a client, beside the ledger: {} tests",
    "tail": "how many numbers of each client's noise lie beyond 2 to 4 std: {} tests",
    "rounds": "noise that the rounds of a client share: {} tests",
    "clients": "noise that the clients of a round share: {} tests",
    "runs": "noise that runs share: {} tests",
}


def noise_power(
    size: int,
    clients: int,
    together: int,
    rounds: int,
    runs: int,
    each: float,
    extra: int,
    is_central: bool,
    replays: int,
) -> tuple[Power, ...]:
    """Return the smallest faults that the tests find, each kind at the level ``each``, before anything is tested.

    ``together`` of the clients have their rounds in common; ``extra`` releases more are looked at one by one: those of
    the whole schedule. ``replays`` of the first round are for scale and tail.
    """
    shared = "of their variance"
    groups = -(-clients // together)
    releasing = groups if is_central else clients
    rows = releasing * rounds * runs + extra
    seen, tests = sample_of(size, releasing * rounds * runs, 0).size, rows + releasing + 1
    of_client = size * (rounds * runs + replays)
    of_all = size * (rows + replays * (1 if is_central else clients))
    one_client, one_release = least_scale(of_client, each / tests), least_scale(size, each / tests)
    by_rounds, by_runs = each / (releasing * (runs + 1) + 1), each / (releasing * (rounds + 1) + 1)
    found = [
        Power("noise: scale", "noise too small at all clients", least_scale(of_all, each / tests)[0], "times"),
        Power("noise: scale", "noise too small at one client", one_client[0], "times"),
        Power("noise: scale", "noise too small in one release", one_release[0], "times"),
        _tail_power(of_all, each / (TAILS.size * (releasing + 1))),
        Power("noise: rounds", "noise that the rounds of one client share",
              least_shared(rounds, seen * runs, by_rounds), shared),
        Power("noise: runs", "noise that the runs share at one client",
              least_shared(runs, seen * rounds, by_runs), shared),
    ]  # fmt: skip
    if not is_central:
        least = least_shared(together, seen * rounds, each / (runs * (rounds + 1) + 1))
        found.insert(5, Power("noise: clients", "noise that the clients of a round share", least, shared))
    return tuple(found)


def _tail_power(numbers: float, level: float) -> Power:
    """Return the furthest end of noise that is found: so many numbers and none beyond it."""
    found = [float(tail) for tail in TAILS if 2 * (1 - 2 * float(ndtr(-tail))) ** numbers <= level]
    end, least = (max(found), 0.0) if found else (float(TAILS[0]), float("inf"))
    return Power("noise: tail", f"noise that ends at {end:g} std, at all clients", least)


def _client(number: int) -> str:
    return "the server" if number == SERVER else f"client {number}"
