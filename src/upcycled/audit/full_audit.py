"""The whole audit of a file: what it can find, said first, and then every probe at every client.

All probes together raise a false alarm with probability 0.005 at most. Whatever compares bits, lines or distances is
left to no chance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from upcycled._utils.formats import general
from upcycled._utils.messages import collected_warnings
from upcycled.audit.findings import OWN, AuditedClaim, Finding, Power, check_claim, claim_of
from upcycled.audit.probes.charges import (
    charge_finding,
    go_through,
    has_coins,
    idle_world,
    rate_finding,
    rounds_gone_through,
)
from upcycled.audit.probes.movement import (
    FORGED,
    Moved,
    canary_finding,
    forged_finding,
    forged_moves,
    gradient_finding,
    is_bounded_by_release,
    moved_by_canaries,
    projection_finding,
    unit_of,
)
from upcycled.audit.probes.noise import FAMILIES, REPLAYED, Residuals, noise_findings, noise_power, residuals_of
from upcycled.audit.probes.rehearsal import Seen, rehearse, replay_finding
from upcycled.audit.replays import Bringing, Silence, World, fresh_noise, without_content
from upcycled.config.experiment import PLAN_KEYS, Experiment
from upcycled.config.tables import in_keys, named
from upcycled.core.errors import InputError
from upcycled.core.mechanism import Charge
from upcycled.core.sampling import everybody
from upcycled.core.solvers import NoisySGD, Problem
from upcycled.core.vectors import Shards
from upcycled.privacy.charge_kinds import kind_of
from upcycled.training.plan import Plan, make_plan
from upcycled.training.publication import publication_of

LEVEL = 0.005
"""The chance that any probe raises a false alarm."""
EACH = LEVEL / len(FAMILIES)
"""The part of it for each kind of test."""
ROUNDS, RUNS = 4, 3
"""Data rounds in which everybody takes part, and runs with a seed each."""
TOGETHER = 50
"""Clients of one such round, in rotation."""
NUMBERS, MOST_REPLAYS = 50_000, 1_500
"""Numbers of noise that its scale and tail are tested on at least, and the most replays that make up for few."""


@dataclass(frozen=True, eq=False)
class Scope:
    """What an audit is about to do, and what it can find: nothing has been drawn yet."""

    plan: Plan
    train: Shards
    line: Charge
    """What the mechanism charges everybody for a round."""
    unit: float
    """How far one unit of a client's vector moves what is released."""
    claim: AuditedClaim
    moved: Moved
    rounds: int
    power: tuple[Power, ...]
    warnings: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What is audited, in a line."""
        clients = general(self.train.num_clients)
        return f"{self.plan.mechanism.name}: {clients} clients in rotation, {self.rounds} data rounds, {RUNS} runs"


@dataclass(frozen=True)
class WholeAudit:
    """What all probes found."""

    title: str
    claim: AuditedClaim
    power: tuple[Power, ...]
    findings: tuple[Finding, ...]
    warnings: tuple[str, ...] = ()

    @property
    def is_broken(self) -> bool:
        """Whether anything is not as the claim needs it."""
        return any(one.wrong is not None for one in self.findings)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What is wrong, and the verdict."""
        lines = [f"BROKEN ({one.probe}): {one.wrong}" for one in self.findings if one.wrong is not None]
        epsilon = general(self.claim.epsilon, 4)
        verdict = "BROKEN" if self.is_broken else "not refuted by this audit"
        return (*lines, f"{self.claim.called}, epsilon {epsilon} a round for the worst client, is {verdict}")

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values; None stands for infinity."""
        finite = np.isfinite(self.claim.epsilon)
        return {
            "test": "whole",
            "tested": "proven",
            "broken": self.is_broken,
            "epsilon": self.claim.epsilon if finite else None,
            "delta": self.claim.delta,
            "unit": self.claim.unit,
            "level": LEVEL,
            "power": [one.as_json() for one in self.power],
            "findings": [one.as_json() for one in self.findings],
            "sentences": list(self.sentences),
        }


def survey(experiment: Experiment, source: str) -> Scope:
    """Return what an audit of a file will do, and what it can find."""
    with named(source), in_keys(PLAN_KEYS | {"delta": "privacy.delta"}), collected_warnings() as found:
        if experiment.privacy is None:
            raise InputError(field="privacy", but="an audit needs a claim: the file must have a table [privacy]")
        data = experiment.build_data()
        plan = make_plan(data, experiment.spec(experiment.seeds[0]))
        scope = survey_of(plan, data.train)
    if publication_of(plan).is_restricted:
        found.append(OWN)
    return replace(scope, warnings=tuple(found))


def survey_of(plan: Plan, train: Shards) -> Scope:
    """Return the same for a plan and its training data; an adaptive bound stays at its first."""
    plan = replace(plan, mechanism=replace(plan.mechanism, adaptive=None))
    many = everybody(train.num_clients)
    line = plan.mechanism.charge(many)
    if line is None:
        raise InputError(field="privacy", but="an audit needs a claim")
    world = World(plan, train, many.clients)
    try:
        claim = claim_of(world.ledger(), many.clients, None)
    finally:
        world.close()
    check_claim(plan, claim, "proven")
    unit = unit_of(plan, train, line)
    moved = moved_by_canaries(plan, train, line, unit)
    rounds = min(ROUNDS, plan.data_rounds)
    return Scope(plan, train, line, unit, claim, moved, rounds, _power(plan, train, line, moved, rounds))


def carry_out(scope: Scope) -> WholeAudit:
    """Do what was announced."""
    plan, train = scope.plan, scope.train
    idle, runs = idle_world(plan, train), RUNS + int(is_bounded_by_release(plan))
    releasing = len(_groups(train.num_clients)) if plan.mechanism.is_central else train.num_clients
    residuals = residuals_of(plan.layout.size, releasing * scope.rounds * runs, plan.task.seed)

    def look(seen: Seen) -> None:
        if not _draws_inside(plan):
            residuals.add(idle, seen, 0, scope.unit)

    try:
        schedule = go_through(plan, idle, look)
    finally:
        idle.close()
    for number, clients in enumerate(_groups(train.num_clients)):
        _rotate(scope, clients, residuals, number)
    _replay_idle(scope, residuals)
    apart = scope.moved.found / scope.unit if kind_of(scope.line).is_noisy_vector else np.zeros(train.num_clients)
    replayed = [
        replay_finding(plan, (scope.moved.low, scope.moved.high), clients, scope.rounds)
        for clients in _groups(train.num_clients)
    ]
    rates = scope.line.sampling_rate
    has_rates = rates is not None and has_coins(plan, train, rates)
    maybe = (
        charge_finding(plan, schedule, apart),
        canary_finding(plan, scope.moved),
        forged_finding(plan, train, scope.line, scope.unit),
        gradient_finding(plan, scope.moved.high, scope.line),
        projection_finding(plan, train),
        *noise_findings(residuals, EACH),
        next((one for one in replayed if one.wrong is not None), replayed[0]),
        rate_finding(plan, train, rates) if has_rates and rates is not None else None,
    )
    findings = tuple(one for one in maybe if one is not None)
    return WholeAudit(scope.title, scope.claim, scope.power, findings, scope.warnings)


def _rotate(scope: Scope, clients: list[int], residuals: Residuals, number: int) -> None:
    """Let some clients take part in every round of a few runs, with their own work and with forged models."""
    plan = scope.plan
    if _is_blind(plan, scope.train):
        return
    train = without_content(scope.train) if isinstance(plan.solver, NoisySGD) else scope.train
    seeds = [plan.task.seed + 1 + number * (RUNS + 1) + k for k in range(RUNS + 1)]
    if plan.spec.noise == "system":
        seeds = [plan.task.seed] * (RUNS + 1)  # the noise of two runs has nothing in common, whatever their seeds
    moves = forged_moves(plan, clients, np.full(scope.train.num_clients, FORGED), plan.initial)
    for k, seed in enumerate(seeds):
        is_forged = k == RUNS
        if is_forged and not is_bounded_by_release(plan):
            continue
        made = {"made_of": partial(Bringing, plan=plan, moves=moves)} if is_forged else {}
        world = World(plan, train, clients, seed=seed, **made)
        try:
            for _, seen in rehearse(world, scope.rounds):
                residuals.add(world, seen, k + 1, scope.unit)
        finally:
            world.close()


def _replay_idle(scope: Scope, residuals: Residuals) -> None:
    """Replay the first round of clients that do no work, where a model is so small that there is little noise in it."""
    plan, train = scope.plan, scope.train
    replays = _idle_replays(plan, train.num_clients, scope.rounds)
    if not replays:
        return
    clients = np.arange(train.num_clients)
    world = World(plan, train, clients, made_of=partial(Bringing, plan=plan, moves={}))
    try:
        silent = world.replay(Silence(cohort=frozenset(clients.tolist()))).astype(np.float64)
        seen = Seen(1, clients, silent, silent, plan.initial, Problem(), np.ones_like(clients), scope.line)
        for replay in range(replays):
            released = world.replay(fresh_noise(plan, replay, 0)).astype(np.float64)
            residuals.add(world, replace(seen, released=released), REPLAYED, scope.unit)
    finally:
        world.close()


def _idle_replays(plan: Plan, clients: int, rounds: int) -> int:
    """Return how many such replays there are: none where noise is part of the local work."""
    if _draws_inside(plan):
        return 0
    rows = 1 if plan.mechanism.is_central else clients
    runs = RUNS + int(is_bounded_by_release(plan))
    missing = NUMBERS - rows * rounds * runs * plan.layout.size
    return max(0, min(MOST_REPLAYS, -(-missing // (rows * plan.layout.size))))


def _is_blind(plan: Plan, train: Shards) -> bool:
    """Say whether noise cannot be told from gradients: it is in the steps, and words of a vocabulary have some."""
    return isinstance(plan.solver, NoisySGD) and not np.issubdtype(train.x.dtype, np.floating)


def _draws_inside(plan: Plan) -> bool:
    """Say whether noise is part of the local work, so that idle clients have none."""
    return isinstance(plan.solver, NoisySGD) or plan.mechanism.alpha is not None


def _groups(clients: int) -> list[list[int]]:
    return [list(range(first, min(first + TOGETHER, clients))) for first in range(0, clients, TOGETHER)]


def _power(plan: Plan, train: Shards, line: Charge, moved: Moved, rounds: int) -> tuple[Power, ...]:
    """Return the smallest fault of each kind that is found."""
    together = min(TOGETHER, train.num_clients)
    drawn = 0 if _draws_inside(plan) else rounds_gone_through(plan) * plan.task.cohort_size
    runs = RUNS + int(is_bounded_by_release(plan))
    central = plan.mechanism.is_central
    idle = _idle_replays(plan, train.num_clients, rounds)
    noise = noise_power(plan.layout.size, train.num_clients, together, rounds, runs, EACH, drawn, central, idle)
    if _is_blind(plan, train):
        noise = (Power("noise: scale", "noise inside the steps, on words of a vocabulary", float("inf")),)
    elif kind_of(line).is_pure and plan.mechanism.alpha is None:
        noise = (Power("noise: scale", "noise that is not Gaussian (--two-world attacks it)", float("inf")),)
    ratios = moved.ratios
    all_rounds = rounds_gone_through(plan)
    certain = [] if isinstance(plan.solver, NoisySGD) else [
        Power("canaries", "a sensitivity that is charged too small, at the client where it shows first",
              _or_none(float(ratios.min())), "times"),
        Power("canaries", "the same at every client", _or_none(float(ratios.max())), "times"),
    ]  # fmt: skip
    certain += [
        Power("charges", f"releases of the {all_rounds} first of {plan.data_rounds} rounds that are not charged", 0.0),
        Power("replay", f"what follows from records but not from releases, in {rounds} rounds", 0.0),
    ]
    if plan.mechanism.norm_bound is not None:
        certain.append(Power("projection", "records that are not projected", 0.0))
    if is_bounded_by_release(plan):
        certain.append(Power("clipping", "models that are not clipped, or after the noise", 0.0))
    elif isinstance(plan.solver, NoisySGD) and not _is_blind(plan, train):
        certain.append(Power("clipping", "gradients of records that are not clipped", 0.0))
    if line.sampling_rate is not None and has_coins(plan, train, line.sampling_rate):
        what = "clients" if plan.mechanism.draws_secretly else "records"
        fault = f"coins of {what} that are held against another rate than is charged for"
        certain.append(Power("rate", fault, 0.0))
    return (*noise, *certain)


def _or_none(ratio: float) -> float:
    return ratio if ratio > 0 else float("inf")
