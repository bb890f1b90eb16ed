"""Two worlds at every client at once: many replays of a round under either of two neighbours, and who can tell.

It checks from end to end what the other probes look at piece by piece, and is weaker than they are: from N replays mu
is known to about 2.5/sqrt(N) only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import bdtri, ndtr

from upcycled.auditing.outcome import Claim
from upcycled.auditing.probes.findings import Finding, Power
from upcycled.auditing.probes.movement_probe import Moved
from upcycled.auditing.worlds import World, fresh_noise
from upcycled.core.mechanism import Charge
from upcycled.core.vectors import Real
from upcycled.privacy.audit import two_world, two_world_mu
from upcycled.runtime.plan import Plan
from upcycled.support.formats import general, significant

REPLAYS, DEAR_REPLAYS = 1000, 40
"""Of each world: where local work is done once, and where every replay trains."""
NUMBERS = 30_000_000
"""Numbers of noise that replays may take in each world."""


@dataclass(frozen=True)
class Attacked:
    """What the attack certified, at the client where it is furthest."""

    client: int
    replays: int
    epsilon_lower: float
    mu_lower: float | None
    finding: Finding

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        numbers = {"client": self.client, "replays": self.replays}
        return numbers | {"epsilon_lower": self.epsilon_lower, "mu_lower": self.mu_lower}


def attack_power(plan: Plan, moved: Moved, line: Charge, unit: float, level: float) -> tuple[int, Power]:
    """Return how many replays there will be, and how much too small noise must be for them to tell."""
    is_repeated = not plan.mechanism.draws_secretly and plan.mechanism.alpha is None and line.kind != "sampled"
    replays = REPLAYS if is_repeated else DEAR_REPLAYS
    rows = 1 if plan.mechanism.is_central else moved.found.size
    replays = max(20, min(replays, NUMBERS // max(1, rows * plan.layout.size)))
    fault = "noise too small, at the client where it shows first"
    if line.kind != "gaussian" or not (line.noise_std > 0).all():
        return replays, Power("attack", "noise that is missing altogether", 0.0)
    distances = moved.found / (line.noise_std * unit)
    claims = line.sensitivity / line.noise_std
    tail = level / (4 * moved.found.size)
    found = [_least(float(d), float(mu), replays, tail) for d, mu in zip(distances, claims, strict=True)]
    return replays, Power("attack", fault, min(found), "times")


def _least(distance: float, mu: float, replays: int, tail: float) -> float:
    """Return the k for which noise k times too small is caught with probability 0.95 by a threshold half-way."""
    chance = math.sqrt(0.95)
    for k in np.exp2(np.arange(0, 12.25, 0.25)).tolist():
        rate = float(ndtr(-k * distance / 2))
        wrong = _quantile(replays, rate, chance)
        bound = two_world_mu(false_alarms=wrong, n0=replays, misses=wrong, n1=replays, tail=tail)
        if bound > mu:
            return float(k)
    return math.inf


def _quantile(count: int, rate: float, chance: float) -> int:
    """Return the least number that a binomial variable stays at or below with this chance."""
    low, high = -1, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if bdtri(middle, count, chance) >= rate else (middle, high)
    return high


def attack(plan: Plan, moved: Moved, line: Charge, claim: Claim, replays: int, level: float) -> Attacked:
    """Replay the first round of everybody under two neighbours, and certify what a threshold can tell."""
    scores = _scores(plan, moved, replays)
    clients = scores.shape[1]
    # Four one-sided bounds at each client.
    tail = level / (4 * clients)
    is_gaussian = line.kind == "gaussian" and bool((line.noise_std > 0).all())
    worst: tuple[float, int, float, float | None, str | None] = (-math.inf, 0, 0.0, None, None)
    for client in range(clients):
        zero, one = scores[0, client], scores[1, client]
        found = two_world(scores0=zero, scores1=one, delta=claim.delta, tail=tail)
        mu, wrong = None, None
        margin = found.epsilon_lower - claim.epsilon
        if margin > 0:
            wrong = f"epsilon is at least {general(found.epsilon_lower, 4)}"
        if is_gaussian:
            alarms, misses = int((zero > 0).sum()), int((one <= 0).sum())
            mu = two_world_mu(false_alarms=alarms, n0=replays, misses=misses, n1=replays, tail=tail)
            stated = float(line.sensitivity[client] / line.noise_std[client])
            margin = max(margin, mu - stated)
            if mu > stated:
                wrong = f"mu is at least {general(mu, 4)}, but the ledger says {general(stated, 4)}"
        if (np.ptp(zero) == 0 and np.ptp(one) == 0) and zero[0] != one[0]:
            margin, wrong = math.inf, "every replay released the very same vector, so there is no noise in it"
        if margin > worst[0]:
            worst = (margin, client, found.epsilon_lower, mu, wrong)
    _, client, epsilon, mu, wrong = worst
    looked_at = f"{replays} replays of each of two neighbours at {clients} clients"
    said = f"found epsilon >= {significant(epsilon, 3)}" + ("" if mu is None else f", mu >= {significant(mu, 3)}")
    finding = Finding("attack", f"{looked_at}; {said}", None if wrong is None else f"client {client}: {wrong}")
    return Attacked(client, replays, epsilon, mu, finding)


def _scores(plan: Plan, moved: Moved, replays: int) -> Real:
    """Return (world, client, replay): each release along the difference of the noiseless ones, 0 half-way between."""
    everybody = range(moved.found.size)
    middle, apart = (moved.ends[0] + moved.ends[1]) / 2, moved.ends[1] - moved.ends[0]
    lengths = np.linalg.norm(apart, axis=1, keepdims=True)
    ways = np.divide(apart, lengths, out=np.full_like(apart, apart.shape[1] ** -0.5), where=lengths > 0)
    # Of an aggregate, one client's at a time: the one that moves it furthest.
    only = int(np.argmax(lengths)) if plan.mechanism.is_central else None
    rows = slice(None) if only is None else slice(only, only + 1)
    found = np.empty((2, 1 if only is not None else moved.found.size, replays))
    for which, shards in enumerate((moved.low, moved.high)):
        world = World(plan, shards, everybody if only is None else [only])
        try:
            for replay in range(replays):
                released = world.replay(fresh_noise(plan, replay, which)).astype(np.float64)
                found[which, :, replay] = ((released - middle[rows]) * ways[rows]).sum(axis=1)
        finally:
            world.close()
    return np.nan_to_num(found, posinf=1e150, neginf=-1e150)
