"""A certified solver's error, and the noise that covers it in objective perturbation, against what charges assume.

The error is seen at the models that clients trained. For the noise they bring a model of zeros, so that a release is
this noise alone: beside any other model float32 would hide it.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from upcycled.auditing.probes.findings import Finding, Power
from upcycled.auditing.probes.residual_tests import family, least_scale, scale_p
from upcycled.auditing.probes.stand_ins import Bringing, Keeping
from upcycled.auditing.probes.tilts import gradient_at
from upcycled.auditing.worlds import World, fresh_noise
from upcycled.core.engine import Work
from upcycled.core.mechanism import Trained
from upcycled.core.shards import Shards
from upcycled.core.solvers import CertifiedMinimiser, ShiftedMinimiser
from upcycled.runtime.plan import Plan
from upcycled.support.formats import general, significant

NUMBERS, MOST_REPLAYS = 20_000, 200


def solver_finding(plan: Plan, train: Shards) -> Finding | None:
    """Hold the gradient at the models that a certified solver gives against the norm that it promises."""
    if not isinstance(plan.solver, CertifiedMinimiser | ShiftedMinimiser):
        return None
    done: list[tuple[Work, Trained]] = []
    world = World(plan, train, range(train.num_clients), made_of=partial(Keeping, done=done))
    try:
        world.replay(fresh_noise(plan, 0, 0))
        work, trained = done[0]
        norms = []
        for client, x in enumerate(trained.vectors.astype(np.float64)):
            b = 0.0 if work.problem.b is None else work.problem.b[client]
            norms.append(np.linalg.norm(gradient_at(world, client, x) + work.problem.a * (x - work.model) + b))
    finally:
        world.close()
    worst, allowed = int(np.argmax(norms)), 2 * plan.solver.gamma  # as much again is for rounding
    looked_at = f"the gradient at the models of {train.num_clients} clients, beside the norm that the solver promises"
    if norms[worst] <= allowed:
        return Finding("solver", looked_at)
    words = f"the solver of client {worst} leaves a gradient of norm {significant(float(norms[worst]), 3)}"
    return Finding("solver", looked_at, f"{words}, and promises {significant(allowed, 3)}")


def cover_scale(plan: Plan) -> float | None:
    """Return T = sqrt(D)/cover_alpha, the scale of the Laplace noise; None where a mechanism has no such noise."""
    rate = plan.mechanism.shared.get("cover_alpha")
    return None if rate is None or plan.mechanism.alpha is None else math.sqrt(plan.layout.size) / rate


def cover_power(plan: Plan, clients: int, level: float) -> Power | None:
    """Return how much too small this noise must be to be found."""
    if cover_scale(plan) is None:
        return None
    numbers = _replays(plan, clients) * clients * plan.layout.size
    # A sum of absolute values over T is half a chi-square of twice as many degrees, and grows with the scale itself.
    least = least_scale(2 * numbers, level / (clients + 1))[0] ** 2
    return Power("noise: cover", "noise over the solver's error too small at all clients", least, "times")


def cover_finding(plan: Plan, train: Shards, level: float) -> Finding | None:
    """Test the scale of this noise at every client, and at all together."""
    scale = cover_scale(plan)
    if scale is None:
        return None
    clients, replays = list(range(train.num_clients)), _replays(plan, train.num_clients)
    nothing = -plan.initial.astype(np.float32)
    world = World(plan, train, clients, made_of=partial(Bringing, plan=plan, moves=dict.fromkeys(clients, nothing)))
    sums = np.zeros(len(clients))
    try:
        for replay in range(replays):
            sums += np.abs(world.replay(fresh_noise(plan, replay, 0)).astype(np.float64)).sum(axis=1)
    finally:
        world.close()
    numbers = np.append(np.full(sums.size, 1.0), sums.size) * replays * plan.layout.size
    sums = np.append(sums, sums.sum()) / scale
    tested = family("cover", scale_p(2 * sums, 2 * numbers))
    looked_at = f"the scale of the noise over the solver's error: {general(tested.tests)} tests"
    if tested.p_value > level:
        return Finding("noise: cover", looked_at, None, tested.p_value)
    where = f"client {tested.worst}" if tested.worst < len(clients) else "all clients"
    ratio = significant(float(sums[tested.worst] / numbers[tested.worst]), 3)
    words = f"the noise over the solver's error of {where} is {ratio} times what is charged for"
    return Finding("noise: cover", looked_at, f"{words} (p = {significant(tested.p_value, 2)})", tested.p_value)


def _replays(plan: Plan, clients: int) -> int:
    return min(MOST_REPLAYS, -(-NUMBERS // (clients * plan.layout.size)))
