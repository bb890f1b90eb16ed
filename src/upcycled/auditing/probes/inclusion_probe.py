"""Inclusion rates: secret coins must take records into batches, or clients into cohorts, as often as is charged for.

Coins just below the charged rate and just above it show for certain which rate a coin is held against, and that every
record or client has a coin of its own. How many real coins lie below the rate is left to chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.special import bdtr

from upcycled.auditing.probes.findings import ROUNDING, Finding, Power
from upcycled.auditing.probes.residual_tests import counts_p, family, hits_p, least_rate
from upcycled.auditing.probes.stand_ins import Bringing, FirstStep, alike
from upcycled.auditing.worlds import Silence, World, fresh_noise
from upcycled.core.mechanism import NoiseSource
from upcycled.core.shards import Shards
from upcycled.core.solvers import NoisySGD
from upcycled.core.streams import Purpose
from upcycled.core.vectors import Ints, Real
from upcycled.privacy.noise import SystemNoise
from upcycled.runtime.plan import Plan
from upcycled.support.formats import general, significant

FLIPS = 20_000
"""Coins that are counted, as far as the replays allow."""
COHORTS, BATCHES = (20, 1_000), (4, 20)
"""The fewest and the most replays: of rounds without work, and of rounds in which every client trains."""
BESIDE = 1e-9
"""How far from the rate, relatively, marked coins lie."""
ROOM = 0.01
"""Of what half of the records change in a model, for sums in another order."""
MOST_TRIES = 4_000
"""Draws whose sizes are tested."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Marked(Silence):
    """Silence, with coins just below the rate at even places and just above it at odd ones.

    A place is a client's number, or the number of a record within its client.
    """

    rates: Real
    sizes: Ints

    def uniforms(self, clients: Ints, count: int, purpose: Purpose = Purpose.NOISE, start: int = 0) -> Real:
        """Return one coin a client, or those of a client's records, step after step."""
        places = clients[:, None]
        if purpose is Purpose.POISSON:
            places = (start + np.arange(count)) % self.sizes[clients][:, None]
        found: Real = self.rates[clients][:, None] * np.where(places % 2 == 0, 1 - BESIDE, 1 + BESIDE)
        return found


def has_coins(plan: Plan, train: Shards, rates: Real) -> bool:
    """Say whether there are secret coins that can be seen at work: words of a vocabulary hide those of batches."""
    are_records = isinstance(plan.solver, NoisySGD) and np.issubdtype(train.x.dtype, np.floating)
    return (plan.mechanism.draws_secretly or are_records) and bool((rates < 1).any())


def rate_finding(plan: Plan, train: Shards, rates: Real) -> Finding:
    """Replay a round with coins on both sides of the charged rate: those below must be taken, and no others."""
    looked_at = "a round with coins just below the charged rate and just above it"
    everybody = np.arange(train.num_clients)
    marked = _Marked(rates=rates, sizes=train.sizes)
    if plan.mechanism.draws_secretly:
        drawn = np.isin(everybody, _cohorts(plan, train, [marked])[0])
        wrong = np.flatnonzero(drawn != (everybody % 2 == 0))
        words = "client {} is drawn at another rate than is charged for"
    else:
        places = np.arange(train.num_rows) - np.repeat(train.offsets[:-1], train.sizes)
        x = np.array(train.x)
        x[places % 2 == 1] = np.nan  # a record that says nothing, as one that is not taken
        half = _models(plan, replace(train, x=x), [Silence()])[0]
        taken, whole = _models(plan, train, [marked, Silence()])
        # What the other half would change shows how much rounding may.
        room = ROOM * np.linalg.norm(whole - half, axis=1) + ROUNDING * np.linalg.norm(half, axis=1)
        wrong = np.flatnonzero((np.linalg.norm(taken - half, axis=1) > room) & (rates < 1))
        words = "the batches of client {} hold other records than those whose coins lie below the rate charged for"
    return Finding("rate", looked_at, words.format(wrong[0]) if wrong.size else None)


@dataclass(frozen=True, eq=False)
class _Taken:
    """How many of a unit's coins fell below the rate in each replay."""

    names: list[str]
    counts: Ints
    """(replays, units)"""
    coins: Ints
    """Of each unit, in one replay."""
    rates: Real


def inclusion_power(plan: Plan, train: Shards, rates: Real, level: float) -> tuple[Power, ...]:
    """Return which rates are told from those charged."""
    replays, what = _replays(plan, train), "records"
    each = rates * train.sizes * (rates < 1)
    place = int(np.argmax(each))
    coins, units = int(train.sizes[place]), train.num_clients
    if plan.mechanism.draws_secretly:
        what, coins, units = "clients", train.num_clients, train.num_clients + 1
    least = least_rate(float(coins * replays), float(rates[place]), level / (units + 1))
    return (
        Power("rate", f"coins of {what} that are held against another rate than is charged for", 0.0),
        Power("inclusion", f"{what} that are taken too often", least, "times"),
    )


def inclusion_finding(plan: Plan, train: Shards, canaries: Shards, rates: Real, level: float) -> Finding:
    """Count the coins below the rate, real ones, and test their number and how it varies from draw to draw.

    ``canaries`` has one as the first record of every client.
    """
    is_secret = plan.mechanism.draws_secretly
    taken = _clients_taken(plan, train, rates) if is_secret else _records_taken(plan, canaries, rates)
    sums, totals = taken.counts.sum(axis=0), taken.coins * len(taken.counts)
    tested = family("inclusion", np.append(counts_p(sums, totals, taken.rates), _sizes_p(taken)))
    flips = general(int(totals.max() if is_secret else totals.sum()))
    looked_at = f"{flips} secret coins: how many lie below the charged rate, and how their number varies"
    if tested.p_value > level:
        return Finding("inclusion", looked_at, None, tested.p_value)
    words = "the coins of one draw are not independent"
    if tested.worst < len(taken.names):
        share, stated = sums[tested.worst] / totals[tested.worst], taken.rates[tested.worst]
        words = f"{taken.names[tested.worst]} is taken at a rate of {significant(float(share), 3)}, "
        words += f"but the ledger charges for {significant(float(stated), 3)}"
    return Finding("inclusion", looked_at, f"{words} (p = {significant(tested.p_value, 2)})", tested.p_value)


def _replays(plan: Plan, train: Shards) -> int:
    is_secret = plan.mechanism.draws_secretly
    least, most = COHORTS if is_secret else BATCHES
    return max(least, min(most, FLIPS // (train.num_clients if is_secret else train.num_rows)))


def _clients_taken(plan: Plan, train: Shards, rates: Real) -> _Taken:
    """Draw many cohorts, as a run draws them."""
    everybody = np.arange(train.num_clients)
    sources = [fresh_noise(plan, replay, 0) for replay in range(_replays(plan, train))]
    drawn = np.array([np.isin(everybody, cohort) for cohort in _cohorts(plan, train, sources)])
    counts = np.column_stack([drawn, drawn.sum(axis=1)])
    names = [*(f"client {client}" for client in everybody), "a client"]
    coins = np.append(np.ones_like(everybody), everybody.size)
    return _Taken(names, counts, coins, np.append(rates, rates.max()))


def _records_taken(plan: Plan, canaries: Shards, rates: Real) -> _Taken:
    """Draw many batches of records that are all alike: a model then shows how many were taken into its first step."""
    train = alike(canaries)
    sources = [FirstStep(sizes=train.sizes, coins=SystemNoise()) for _ in range(_replays(plan, train))]
    nothing, whole = (_models(plan, train, [FirstStep(sizes=sizes)])[0] for sizes in (0 * train.sizes, train.sizes))
    reach = np.linalg.norm(whole - nothing, axis=1)
    # A record must show beside the rounding of a model in float32.
    some = np.flatnonzero((rates < 1) & (reach > ROUNDING * train.sizes * np.linalg.norm(whole, axis=1)))
    moved = np.array([np.linalg.norm(model - nothing, axis=1) for model in _models(plan, train, sources)])
    counts = np.rint(train.sizes[some] * np.minimum(moved[:, some] / reach[some], 1)).astype(np.int64)
    return _Taken([f"a record of client {client}" for client in some], counts, train.sizes[some], rates[some])


def _sizes_p(taken: _Taken) -> float:
    """Test how often the size of a draw is near its mean: one coin for all, or a fixed size, would change that."""
    hits, chances = 0, []
    for unit in np.flatnonzero(taken.coins > 1)[: max(1, MOST_TRIES // len(taken.counts))].tolist():
        many, rate = int(taken.coins[unit]), float(taken.rates[unit])
        sizes = np.arange(many + 1)
        mass = np.diff(bdtr(sizes, many, rate), prepend=0.0)
        far = np.abs(sizes - many * rate)
        order = np.argsort(far, kind="stable")
        inside = np.cumsum(mass[order])
        most = far[order][int(np.argmin(np.abs(inside - 0.5)))]
        is_near = far <= most
        hits += int(is_near[taken.counts[:, unit]].sum())
        chances += [float(mass[is_near].sum())] * len(taken.counts)
    return hits_p(hits, np.array(chances))


def _cohorts(plan: Plan, train: Shards, sources: Sequence[NoiseSource]) -> list[Ints]:
    """Return who is drawn for the first round with each of these sources."""
    world = World(plan, train, range(train.num_clients), made_of=partial(Bringing, plan=plan, moves={}))
    found = []
    try:
        for noise in sources:
            world.replay(noise)
            found.append(world.arrived.release.clients)
    finally:
        world.close()
    return found


def _models(plan: Plan, train: Shards, sources: Sequence[NoiseSource]) -> list[Real]:
    """Return what everybody releases in the first round with each of these sources."""
    world = World(plan, train, range(train.num_clients))
    try:
        return [world.replay(noise).astype(np.float64) for noise in sources]
    finally:
        world.close()
