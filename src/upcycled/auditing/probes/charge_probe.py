"""The whole schedule, with clients that do no work: is everything charged that is released, and does the sum add up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from upcycled.auditing.probes.findings import Finding
from upcycled.auditing.probes.rehearsal import Seen, rehearse
from upcycled.auditing.probes.stand_ins import Bringing
from upcycled.auditing.worlds import World
from upcycled.core.mechanism import Calibrated
from upcycled.core.shards import Shards
from upcycled.core.vectors import Real
from upcycled.privacy import Ledger
from upcycled.privacy.mechanisms.table import MECHANISMS
from upcycled.runtime.plan import Plan
from upcycled.support.formats import general

MOST_NUMBERS_DRAWN = 100_000_000
"""Rounds beyond this many numbers of noise are left out."""


@dataclass
class Schedule:
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


def go_through(plan: Plan, world: World, look: Callable[[Seen], None]) -> Schedule:
    """Go through the plan's own rounds; ``look`` sees the vectors of each, which are not kept."""
    found, nothing = Schedule(rounds_gone_through(plan)), np.zeros((0, 0))
    for run, seen in rehearse(world, found.rounds):
        look(seen)
        found.seen.append(replace(seen, released=nothing, silent=nothing, sent=nothing))
        found.ledger = run.ledger
    return found


def charge_finding(plan: Plan, schedule: Schedule, moved: Real) -> Finding:
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
        if seen.line is None or seen.line.kind not in ("gaussian", "sampled"):
            continue
        places, steps, draws = seen.line.clients, seen.line.steps, seen.line.draws
        drawn = plan.layout.size * (1 if steps is None else steps)
        is_real = plan.spec.noise == "system" and plan.mechanism.name in MECHANISMS
        if is_real and (draws is None or (draws < drawn).any()):
            return wrong(f"data round {seen.round} is charged for fewer numbers of real noise than it draws")
        if plan.mechanism.is_central:
            continue
        if seen.line.kind == "gaussian" and (seen.line.sensitivity < moved[places] * (1 - 1e-5)).any():
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


def _total(plan: Plan, schedule: Schedule, looked_at: str) -> Finding:
    """Hold what the ledger states in the end against the epsilon that was asked for."""
    asked, ledger = plan.spec.privacy, schedule.ledger
    if not isinstance(asked, Calibrated) or asked.epsilon is None or ledger is None:
        return Finding("charges", looked_at)
    stated = ledger.max_epsilon(ledger.default_delta)
    if stated <= asked.epsilon * (1 + 1e-6):
        return Finding("charges", looked_at)
    words = f"the rounds cost epsilon {general(stated, 5)}, but {general(asked.epsilon, 5)} was asked for"
    return Finding("charges", looked_at, words)
