"""Inclusion rates: secret coins must take records into batches, or clients into cohorts, as often as is charged for.

Coins just below the charged rate and just above it show for certain which rate a coin is held against, and that every
record or client has a coin of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from upcycled.auditing.probes.findings import ROUNDING, Finding
from upcycled.auditing.probes.stand_ins import Bringing
from upcycled.auditing.worlds import Silence, World
from upcycled.core.mechanism import NoiseSource
from upcycled.core.shards import Shards
from upcycled.core.solvers import NoisySGD
from upcycled.core.streams import Purpose
from upcycled.core.vectors import Ints, Real
from upcycled.runtime.plan import Plan

BESIDE = 1e-9
"""How far from the rate, relatively, marked coins lie."""
ROOM = 0.01
"""Of what half of the records change in a model, for sums in another order."""


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
        drawn = np.isin(everybody, _cohort(plan, train, marked))
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


def _cohort(plan: Plan, train: Shards, noise: NoiseSource) -> Ints:
    """Return who is drawn for the first round with this source."""
    world = World(plan, train, range(train.num_clients), made_of=partial(Bringing, plan=plan, moves={}))
    try:
        world.replay(noise)
        return world.arrived.release.clients
    finally:
        world.close()


def _models(plan: Plan, train: Shards, sources: Sequence[NoiseSource]) -> list[Real]:
    """Return what everybody releases in the first round with each of these sources."""
    world = World(plan, train, range(train.num_clients))
    try:
        return [world.replay(noise).astype(np.float64) for noise in sources]
    finally:
        world.close()
