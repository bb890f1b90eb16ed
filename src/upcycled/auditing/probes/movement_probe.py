"""How far neighbours move a release, beside what the ledger says that they can at most: nothing here is left to chance.

Canaries in every client's data try what solver and projection promise; forged models try what clipping promises; one
record among records that say nothing tries the clipping of single gradients.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from upcycled.auditing.canaries import Pair, with_records
from upcycled.auditing.neighbours import furthest_pairs, is_whole, silent
from upcycled.auditing.probes.findings import Finding
from upcycled.auditing.probes.noise_gain import farthest_of_one
from upcycled.auditing.probes.stand_ins import Bringing, steps_of, without_content
from upcycled.auditing.probes.tilts import gradient_at
from upcycled.auditing.worlds import Silence, World
from upcycled.core.mechanism import Charge, keep_data, keep_problem, keep_solver
from upcycled.core.shards import Shards
from upcycled.core.solvers import NoisySGD
from upcycled.core.vectors import Real, Vector
from upcycled.runtime.plan import Plan
from upcycled.support.formats import significant

ROOM = 1e-5
"""Of a bound, for numbers that were rounded to float32 on their way."""
FORGED = 1e6
"""How far a forged model lies from the one received."""


@dataclass(frozen=True, eq=False)
class Moved:
    """How far each client's release was moved, and how far it may be at most, in the same unit."""

    found: Real
    allowed: Real
    low: Shards
    high: Shards
    """The data that moved it: every client has its canary."""
    ends: tuple[Real, Real]
    """The releases without noise, of either."""

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
        ends = [np.concatenate([silent(plan, shards, [i]) for i in everybody]) for shards in (low, high)]
    else:
        ends = [silent(plan, shards, everybody) for shards in (low, high)]
    both = (ends[0], ends[1])
    found = np.linalg.norm(ends[1] - ends[0], axis=1)
    if isinstance(plan.solver, NoisySGD):
        return Moved(*_one_record(plan, train, chosen, line), low, high, both)
    if line.epsilon is not None and plan.mechanism.alpha is not None:
        losses = _loss_of_tilt(plan, low, high, both, plan.mechanism.alpha)
        return Moved(losses, line.epsilon.astype(np.float64), low, high, both)
    return Moved(found, _apart(line) * unit, low, high, both)


def canary_finding(plan: Plan, moved: Moved) -> Finding:
    """Hold what canaries moved against the ledger's sensitivities."""
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
    looked_at = f"models {significant(2 * FORGED, 2)} apart at each of {len(clients)} clients"
    for cohort in worlds:
        ends = [_forged(plan, train, cohort, sign * FORGED) for sign in (1, -1)]
        distances = np.linalg.norm(ends[1] - ends[0], axis=1)
        for client, distance in zip(cohort, np.broadcast_to(distances, (len(cohort),)).tolist(), strict=True):
            allowed = float(_apart(line)[client]) * unit
            if not distance <= allowed * (1 + ROOM):
                said = f"client {client} releases vectors {significant(distance, 4)} apart, but the ledger says "
                return Finding("clipping", looked_at, f"{said}{significant(allowed, 4)} at most")
    return Finding("clipping", looked_at)


def unit_of(plan: Plan, train: Shards, line: Charge) -> float:
    """Return how far one unit of a client's vector moves what is released: 1, or that of the aggregate."""
    if not plan.mechanism.is_central:
        return 1.0
    step = 0.1 * float(line.sensitivity[0])  # within the clip norm
    moved = _forged(plan, train, [0], step) - _forged(plan, train, [0], 0.0)
    return float(np.linalg.norm(moved)) / step


def projection_finding(plan: Plan, train: Shards) -> Finding | None:
    """Look at every client's features as its solver gets them, with records made far too long."""
    bound = plan.mechanism.norm_bound
    if bound is None or not np.issubdtype(train.x.dtype, np.floating):
        return None
    far = replace(train, x=np.where(np.isfinite(train.x), train.x, 0) * np.array(1e6, train.x.dtype))
    flat = plan.mechanism.prepare(far).x.reshape(far.num_rows, -1).astype(np.float64)
    lengths = np.sqrt(np.einsum("rd,rd->r", flat, flat))
    looked_at = f"the features of all {far.num_rows} records, made a million times as long"
    row = int(np.argmax(lengths))
    if lengths[row] <= bound * (1 + ROOM):
        return Finding("projection", looked_at)
    client, length = int(np.searchsorted(train.offsets, row, side="right")) - 1, significant(float(lengths[row]), 4)
    return Finding("projection", looked_at, f"client {client} trains on features of norm {length}, beyond {bound:g}")


def forging(plan: Plan, clients: Iterable[int], length: float) -> partial[Bringing]:
    """Return what makes an engine whose clients bring a model so far from the one received, each its own way."""
    rng = np.random.default_rng(plan.task.seed)
    ways = rng.normal(size=(plan.facts.num_clients, plan.layout.size))
    ways *= length / np.linalg.norm(ways, axis=1, keepdims=True)
    moves: dict[int, Vector] = {client: ways[client].astype(np.float32) for client in clients}
    return partial(Bringing, plan=plan, moves=moves)


def _apart(line: Charge) -> Real:
    """Return how far neighbours may lie apart; a sampled line states how far each lies from being left out."""
    return 2 * line.sensitivity if line.kind == "sampled" else line.sensitivity


def _forged(plan: Plan, train: Shards, cohort: list[int], length: float) -> Real:
    made = forging(plan, cohort, length)
    world = World(plan, train, cohort, made_of=made)
    try:
        return world.replay(Silence(cohort=frozenset(cohort))).astype(np.float64)
    finally:
        world.close()


def _one_record(plan: Plan, train: Shards, chosen: dict[int, Pair], line: Charge) -> tuple[Real, Real]:
    """Return how far one record moves noisy SGD where all others say nothing, and how far the ledger lets it."""
    solver, everybody = plan.solver, range(train.num_clients)
    assert isinstance(solver, NoisySGD)
    nothing = np.zeros(train.num_clients)
    if not np.issubdtype(train.x.dtype, np.floating):
        return nothing, nothing + np.inf  # words of a vocabulary always say something
    empty = without_content(train)
    with_one = with_records(empty, chosen, [1] * train.num_clients)
    found = np.linalg.norm(silent(plan, with_one, everybody) - silent(plan, empty, everybody), axis=1)
    epochs = np.full(train.num_clients, solver.local.epochs)
    steps = steps_of(solver, train, np.arange(train.num_clients), epochs)
    penalty = 0.0 if plan.setting is None else plan.setting.penalty
    first = solver.at(1, plan.data_rounds)
    allowed = [
        farthest_of_one(replace(first, clip_norm=float(clip)), penalty, int(k), int(n))
        for clip, k, n in zip(line.sensitivity, steps, train.sizes, strict=True)
    ]
    return found, np.array(allowed)


def _loss_of_tilt(plan: Plan, low: Shards, high: Shards, ends: tuple[Real, Real], alpha: Real) -> Real:
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
