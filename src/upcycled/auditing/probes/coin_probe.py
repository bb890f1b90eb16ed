"""Secret coins: draws of records or clients that an epsilon relies on must not follow from anything public."""

from __future__ import annotations

from typing import Any

import numpy as np

from upcycled.auditing.probes.findings import Finding, Power
from upcycled.auditing.worlds import World
from upcycled.core.shards import Shards
from upcycled.core.solvers import NoisySGD
from upcycled.core.streams import Purpose
from upcycled.core.vectors import Ints, Real
from upcycled.privacy.noise import SystemNoise
from upcycled.runtime.plan import Plan

REPLAYS = 6


class _Coins:
    """Real coins and no other noise: what differs between two of these is due to the coins."""

    name = "none"

    def __init__(self) -> None:
        self._real = SystemNoise()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def round_key(self, purpose: Purpose) -> int | None:
        """There is none."""
        return None

    def gaussian_steps(
        self, clients: Ints, count: int, scale: Real, purpose: Purpose = Purpose.NOISE, start: int = 0
    ) -> Real:
        """Zero."""
        return np.zeros((clients.size, count))


def chance_of_repeats(plan: Plan, train: Shards) -> Real | None:
    """Return, for each client or for a secret cohort, how likely sound coins all fall alike; None without coins."""
    if plan.mechanism.draws_secretly:
        rates, flips = np.array([plan.participation.sampler.fraction]), np.array([train.num_clients])
    elif isinstance(plan.solver, NoisySGD):
        solver = plan.solver
        rates = np.array([solver.rate_for(int(n)) for n in train.sizes])
        flips = train.sizes * solver.local.num_steps(train.sizes, np.full(train.num_clients, 1))
    else:
        return None
    alike: Real = (rates**2 + (1 - rates) ** 2) ** (flips * (REPLAYS - 1.0))
    return np.where(rates < 1, alike, np.inf)


def coin_power(plan: Plan, train: Shards, level: float) -> Power | None:
    """Return whether coins that are no secret can be told from sound ones."""
    chances = chance_of_repeats(plan, train)
    if chances is None or np.isinf(chances).all():
        return None
    return Power("coins", "coins that follow from the public seed", 0.0 if chances.min() <= level else np.inf)


def coin_finding(plan: Plan, train: Shards, level: float) -> Finding | None:
    """Replay a round without noise and with real coins: where nothing ever changes, the coins are none."""
    chances = chance_of_repeats(plan, train)
    if chances is None or chances.min() > level:
        return None
    everybody = list(range(train.num_clients))
    looked_at = f"{REPLAYS} replays of a round with fresh coins and no other noise"
    # Secret draws ask who takes part themselves.
    world = World(plan, train, everybody)
    seen: list[list[bytes]] = []
    try:
        for _ in range(REPLAYS):
            world.engine.forget()
            world.replay(_Coins())
            release = world.arrived.release
            # What the coins decide: who takes part, or each client's model.
            rows = release.clients[None, :] if plan.mechanism.draws_secretly else release.vectors
            seen.append([row.tobytes() for row in rows])
    finally:
        world.close()
    is_repeated = np.array([len(set(row)) == 1 for row in zip(*seen, strict=True)])
    known = np.flatnonzero(is_repeated & (chances * len(chances) <= level))
    if not known.size:
        return Finding("coins", looked_at)
    whose = "the cohort" if plan.mechanism.draws_secretly else f"the batches of client {int(known[0])}"
    return Finding("coins", looked_at, f"{whose} never change: their coins follow from something that is not secret")
