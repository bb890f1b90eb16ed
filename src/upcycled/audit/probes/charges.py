"""Probes of charges: is everything charged that is released, and are records sampled as often as is charged for.

The whole schedule, with clients that do no work: is everything charged that is released, and does the sum add up.

Inclusion rates: secret coins must take records into batches, or clients into cohorts, as often as is charged for.

Coins just below the charged rate and just above it show for certain which rate a coin is held against, and that every
record or client has a coin of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from upcycled._utils.formats import general
from upcycled.audit.findings import ROUNDING, Finding
from upcycled.audit.probes.rehearsal import Seen, rehearse
from upcycled.audit.replays import Bringing, Silence, World
from upcycled.core.mechanism import NoiseSource, asked_epsilon
from upcycled.core.randomness import Purpose
from upcycled.core.solvers import NoisySGD
from upcycled.core.vectors import Ints, Real, Shards
from upcycled.privacy import Ledger
from upcycled.privacy.charge_kinds import kind_of
from upcycled.privacy.mechanisms import MECHANISMS
from upcycled.training.plan import Plan

MOST_NUMBERS_DRAWN = 100_000_000
"""Rounds beyond this many numbers of noise are left out."""


@dataclass
class ChargeSchedule:
    """What was seen of the plan's own rounds."""

    rounds: int
    seen: list[Seen] = field(default_factory=list)
    ledger: Ledger | None = None


def rounds_gone_through(plan: Plan) -> int:
    """Return how many of the plan's data rounds can be gone through: usually all."""
    each = max(1, plan.layout.size * plan.task.cohort_size)
    return max(min(plan.data_rounds, 8), min(plan.data_rounds, MOST_NUMBERS_DRAWN // each))


def idle_world(plan: Plan, train: Shards) -> World:
    """Return the plan with its own draws, and clients that bring back what they were sent."""
    return World(plan, train, None, made_of=partial(Bringing, plan=plan, moves={}))


def go_through(plan: Plan, world: World, look: Callable[[Seen], None]) -> ChargeSchedule:
    """Go through the plan's own rounds; ``look`` sees the vectors of each, which are not kept."""
    found, nothing = ChargeSchedule(rounds_gone_through(plan)), np.zeros((0, 0))
    for run, seen in rehearse(world, found.rounds):
        look(seen)
        found.seen.append(replace(seen, released=nothing, silent=nothing, sent=nothing))
        found.ledger = run.ledger
    return found


def charge_finding(plan: Plan, schedule: ChargeSchedule, moved: Real) -> Finding:
    """Hold the ledger of a whole schedule against what was released in it.

    ``moved`` is how far canaries were seen to move each client's release: no round may be charged for less.
    """
    of_all = "all" if schedule.rounds == plan.data_rounds else f"the first {schedule.rounds} of"
    looked_at = f"the ledger of {of_all} {plan.data_rounds} data rounds, as the public schedule draws them"

    def wrong(words: str) -> Finding:
        return Finding("charges", looked_at, words)

    for seen in schedule.seen:
        if not seen.is_charged:
            missing = set(seen.clients.tolist()) - (set() if seen.line is None else set(seen.line.clients.tolist()))
            who = f"client {min(missing)}" if missing else "nobody"
            return wrong(f"data round {seen.round} released what the ledger does not charge {who} for")
        if seen.line is None or not kind_of(seen.line).has_gaussian_noise:
            continue
        places, steps, draws = seen.line.clients, seen.line.steps, seen.line.draws
        drawn = plan.layout.size * (1 if steps is None else steps)
        is_real = plan.spec.noise == "system" and plan.mechanism.name in MECHANISMS
        if is_real and (draws is None or (draws < drawn).any()):
            return wrong(f"data round {seen.round} is charged for fewer numbers of real noise than it draws")
        if plan.mechanism.is_central:
            continue
        if kind_of(seen.line).is_noisy_vector and (seen.line.sensitivity < moved[places] * (1 - 1e-5)).any():
            return wrong(f"data round {seen.round} is charged for less than a neighbour was seen to move")
        taken = seen.num_steps * plan.solver.gradients_per_step
        if steps is not None and ((steps < taken).any() or (seen.line.sensitivity <= 0).any()):
            return wrong(f"data round {seen.round} is charged for fewer steps than it took")
    if plan.setting is not None and not plan.mechanism.draws_secretly:
        took_part = np.zeros(plan.facts.num_clients, dtype=np.int64)
        for seen in schedule.seen:
            took_part[seen.clients] += 1
        if (took_part > plan.setting.rounds).any():
            client = int(np.argmax(took_part - plan.setting.rounds))
            planned = int(plan.setting.rounds[client])
            return wrong(f"client {client} takes part in {took_part[client]} rounds, but noise is for {planned}")
    return _total(plan, schedule, looked_at)


def _total(plan: Plan, schedule: ChargeSchedule, looked_at: str) -> Finding:
    """Hold what the ledger states in the end against the epsilon that was asked for."""
    asked, ledger = asked_epsilon(plan.spec.privacy), schedule.ledger
    if asked is None or ledger is None:
        return Finding("charges", looked_at)
    stated = ledger.max_epsilon(ledger.default_delta)
    if stated <= asked * (1 + 1e-6):
        return Finding("charges", looked_at)
    words = f"the rounds cost epsilon {general(stated, 5)}, but {general(asked, 5)} was asked for"
    return Finding("charges", looked_at, words)


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
