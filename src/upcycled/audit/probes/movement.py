"""How far neighbours move a release, beside what the ledger says that they can at most: nothing here is left to chance.

Canaries in every client's data try what solver and projection promise; forged models try what clipping promises, and
records with ever longer features the clipping of single gradients. Bounds are tried just beyond them and far
beyond: a bound with a tolerance holds for what is far.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from upcycled._utils.formats import significant
from upcycled.audit.attacks import furthest_pairs, is_whole, silent, with_records
from upcycled.audit.findings import ROUNDING, Finding
from upcycled.audit.probes.rehearsal import first_gain, gradient_at
from upcycled.audit.replays import Bringing, FirstStep, Silence, World, alike, steps_of
from upcycled.core.mechanism import Charge, keep_data, keep_problem, keep_solver
from upcycled.core.solvers import NoisySGD
from upcycled.core.vectors import Real, Shards, Vector
from upcycled.privacy.charge_kinds import kind_of
from upcycled.training.plan import Plan

ROOM = 1e-5
"""Of a bound, for numbers that were rounded to float32 on their way."""
FORGED = 1e6
"""How far a forged model lies from the one received, and how many times too long a feature vector is."""
NEAR = (1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3)
"""The same, in units of the bound."""
SHORTEST, HALVINGS, AT_THE_BOUND, LONGER = 26.0, 10, 0.999, tuple(1.05**k for k in range(1, 11))
"""Of a search for the canary whose gradient just reaches the clip norm: the powers of 2 that it may be shorter by, how
often they are halved, when the norm is reached, and how many times as long the canaries beyond it are."""


@dataclass(frozen=True, eq=False)
class Moved:
    """How far each client's release was moved, and how far it may be at most, in the same unit."""

    found: Real
    allowed: Real
    low: Shards
    high: Shards
    """The data that moved it: every client has its canary."""

    @property
    def ratios(self) -> Real:
        """What is allowed over what was found: a bound that is so many times too small is found out."""
        with np.errstate(divide="ignore"):
            ratios: Real = self.allowed / self.found
        return np.where(np.isnan(ratios), 0.0, ratios)


def moved_by_canaries(plan: Plan, train: Shards, line: Charge, unit: float) -> Moved:
    """Return how far canaries move the first round's releases, all clients at once where each has its own."""
    everybody = range(train.num_clients)
    chosen = furthest_pairs(plan, train)
    low, high = (with_records(train, chosen, [which] * train.num_clients, is_whole(plan)) for which in (0, 1))
    if plan.mechanism.is_central:
        # One aggregate for all: each client's canary alone.
        ends = tuple(np.concatenate([silent(plan, shards, [i]) for i in everybody]) for shards in (low, high))
    else:
        ends = tuple(silent(plan, shards, everybody) for shards in (low, high))
    if line.epsilon is not None and plan.mechanism.alpha is not None:
        losses = _loss_of_tilt(plan, low, high, ends, plan.mechanism.alpha)
        return Moved(losses, line.epsilon.astype(np.float64), low, high)
    return Moved(_distance(*ends), _apart(line) * unit, low, high)


def canary_finding(plan: Plan, moved: Moved) -> Finding | None:
    """Hold what canaries moved against the ledger's sensitivities; those of noisy SGD are of single gradients."""
    if isinstance(plan.solver, NoisySGD):
        return None
    what = "privacy loss" if plan.mechanism.alpha is not None else "distance"
    looked_at = f"the {what} between neighbours of each of {moved.found.size} clients, beside its ledger line"
    worst = int(np.argmin(moved.ratios))
    if moved.ratios[worst] >= 1 - ROOM:
        return Finding("canaries", looked_at)
    found, allowed = significant(float(moved.found[worst]), 4), significant(float(moved.allowed[worst]), 4)
    return Finding(
        "canaries", looked_at, f"one {plan.mechanism.promise.unit} of client {worst} makes a {what} of {found}, "
        f"but the ledger says {allowed} at most"
    )  # fmt: skip


def is_bounded_by_release(plan: Plan) -> bool:
    """Say whether a mechanism leaves data, objective and solver alone: its release must then bound whatever comes."""
    fit = plan.mechanism
    return fit.prepare is keep_data and fit.problem is keep_problem and fit.solver is keep_solver


def forged_finding(plan: Plan, train: Shards, line: Charge, unit: float) -> Finding | None:
    """Let clients bring models that lie far apart, and hold what leaves them against the ledger's sensitivities."""
    if not is_bounded_by_release(plan):
        return None
    clients = list(range(train.num_clients))
    worlds = [clients] if not plan.mechanism.is_central else [[client] for client in clients]
    looked_at = f"models from the bound to {significant(2 * FORGED, 2)} apart at each of {len(clients)} clients"
    allowed, bound = _apart(line) * unit, _apart(line) / 2
    # A release may bound the model, or its distance from the one received.
    centres = (plan.initial, np.zeros_like(plan.initial))
    lengths = (*(near * bound for near in NEAR), np.full_like(bound, FORGED))
    tried = [(sign * length, centre) for centre in centres for length in lengths for sign in (1, -1)]
    for cohort in worlds:
        ends = _forged(plan, train, cohort, tried)
        for one, other in zip(ends[::2], ends[1::2], strict=True):
            distances = np.broadcast_to(_distance(one, other), len(cohort))
            far = np.flatnonzero(~(distances <= allowed[cohort] * (1 + ROOM)))
            if far.size:
                client, distance = cohort[int(far[0])], significant(float(distances[far[0]]), 4)
                words = f"client {client} releases vectors {distance} apart, but the ledger says "
                return Finding("clipping", looked_at, f"{words}{significant(float(allowed[client]), 4)} at most")
    return Finding("clipping", looked_at)


def gradient_finding(plan: Plan, canaries: Shards, line: Charge) -> Finding | None:
    """Let the gradients of records grow to the clip norm and beyond it, and hold the first step against the ledger.

    ``canaries`` has one as the first record of every client. All records of a client are made like it.
    """
    solver, train = plan.solver, alike(canaries)
    if not isinstance(solver, NoisySGD) or not np.issubdtype(train.x.dtype, np.floating):
        return None
    looked_at = f"gradients of records from the clip norm on, in the first step of each of {train.num_clients} clients"
    steps = steps_of(solver, train, np.arange(train.num_clients), np.full(train.num_clients, solver.local.epochs))
    penalty = 0.0 if plan.setting is None else plan.setting.penalty
    gain = first_gain(solver.at(1, plan.data_rounds), penalty, steps, train.sizes)
    nothing = silent(plan, train, range(train.num_clients), FirstStep(sizes=0 * train.sizes))

    def share(scale: Real) -> Real:
        """Return how much of the bound is used if canaries are so many times as long."""
        longer = np.repeat(scale, train.sizes).reshape(-1, *[1] * (train.x.ndim - 1)).astype(train.x.dtype)
        made = silent(plan, replace(train, x=train.x * longer), range(train.num_clients), FirstStep(sizes=train.sizes))
        return np.nan_to_num(_distance(made, nothing) / (gain * line.sensitivity * train.sizes))

    low, high = np.full(train.num_clients, -SHORTEST), np.zeros(train.num_clients)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        is_below = share(np.exp2(middle)) < AT_THE_BOUND
        low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
    for longer in LONGER:
        used = share(np.exp2(high) * longer)
        client = int(np.argmax(used))
        if used[client] > 2 - AT_THE_BOUND:
            words = f"a record moves a step of client {client} by {significant(float(used[client]), 4)} times the most"
            return Finding("clipping", looked_at, f"{words} that the ledger says")
    return Finding("clipping", looked_at)


def unit_of(plan: Plan, train: Shards, line: Charge) -> float:
    """Return how far one unit of a client's vector moves what is released: 1, or that of the aggregate."""
    if not plan.mechanism.is_central:
        return 1.0
    step = 0.1 * float(line.sensitivity[0])  # within the clip norm
    moved = np.subtract(*_forged(plan, train, [0], [(np.array([length]), plan.initial) for length in (step, 0.0)]))
    return float(np.linalg.norm(moved)) / step


def projection_finding(plan: Plan, train: Shards) -> Finding | None:
    """Look at every client's features as training gets them, and at records just beyond the bound and far beyond it."""
    bound = plan.mechanism.norm_bound
    if bound is None or not np.issubdtype(train.x.dtype, np.floating):
        return None
    flat = np.where(np.isfinite(train.x), train.x, 0).reshape(train.num_rows, -1)
    largest = np.abs(flat).max(axis=1, keepdims=True)
    flat = np.divide(flat, largest, out=np.ones_like(flat), where=largest > 0)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    looked_at = f"the features of all {train.num_rows} records, 1 to {NEAR[-1]:g} times and a million times too long"
    for times in (None, *NEAR, FORGED):
        prepared = plan.task.train
        if times is not None:
            far = (flat * flat.dtype.type(times * bound)).reshape(train.x.shape)
            prepared = plan.mechanism.prepare(replace(train, x=far))
        found = prepared.x.reshape(train.num_rows, -1)
        lengths = np.sqrt(np.einsum("rd,rd->r", found, found, dtype=np.float64, casting="same_kind"))
        row = int(np.argmax(lengths))
        if not lengths[row] <= bound * (1 + ROOM):
            client, length = int(np.searchsorted(train.offsets, row, side="right")) - 1, float(lengths[row])
            words = f"client {client} trains on features of norm {significant(length, 4)}, beyond {bound:g}"
            return Finding("projection", looked_at, words)
    return Finding("projection", looked_at)


def forged_moves(plan: Plan, clients: Iterable[int], lengths: Real, centre: Vector) -> dict[int, Vector]:
    """Return what to add to the first model for models so far from a centre, each client's its own way."""
    moves = {}
    for client in clients:
        way = np.random.default_rng([plan.task.seed, client]).normal(size=plan.layout.size)
        moves[client] = (centre - plan.initial + lengths[client] / np.linalg.norm(way) * way).astype(np.float32)
    return moves


def _distance(one: Real, other: Real) -> Real:
    """Return how far models in float32 lie apart at least, client by client, whatever their rounding did."""
    found: Real = np.linalg.norm(one - other, axis=1) - ROUNDING * np.linalg.norm(one, axis=1)
    return np.where(found < 0, 0.0, found)


def _apart(line: Charge) -> Real:
    """Return how far neighbours may lie apart; a sampled line states how far each lies from being left out."""
    return kind_of(line).distance()


def _forged(plan: Plan, train: Shards, cohort: list[int], tried: Iterable[tuple[Real, Vector]]) -> list[Real]:
    """Return what leaves a cohort without noise, for each of some lengths and centres of the models that it brings."""
    moves: dict[int, Vector] = {}
    world = World(plan, train, cohort, made_of=partial(Bringing, plan=plan, moves=moves))
    found = []
    try:
        for lengths, centre in tried:
            moves |= forged_moves(plan, cohort, lengths, centre)
            world.engine.forget()
            found.append(world.replay(Silence(cohort=frozenset(cohort))).astype(np.float64))
    finally:
        world.close()
    return found


def _loss_of_tilt(plan: Plan, low: Shards, high: Shards, ends: tuple[Real, ...], alpha: Real) -> Real:
    """Return alpha ||grad F_D(x) - grad F_D'(x)|| at either minimiser, whichever is less: a privacy loss that occurs.

    The determinant's part has the one sign at one of them, about, and the other at the other.
    """
    worlds = [World(plan, shards, range(low.num_clients)) for shards in (low, high)]
    try:
        apart = [
            [np.linalg.norm(np.subtract(*(gradient_at(one, client, end[client]) for one in worlds))) for end in ends]
            for client in range(low.num_clients)
        ]
    finally:
        for world in worlds:
            world.close()
    found: Real = alpha * np.array(apart).min(axis=1)
    return found
