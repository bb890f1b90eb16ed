"""Which records to put beside which: pairs that move noiseless releases as far as anything that was tried."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from upcycled.auditing.canaries import Pair, pairs, with_records
from upcycled.auditing.worlds import Silence, World
from upcycled.core.errors import DivergedError
from upcycled.core.shards import Shards
from upcycled.core.vectors import Real
from upcycled.runtime.plan import Plan


def is_whole(plan: Plan) -> bool:
    """Say whether neighbours differ in all records of a client."""
    return plan.mechanism.promise.unit == "client"


def furthest_pairs(plan: Plan, train: Shards) -> dict[int, Pair]:
    """Return for each client the pair of records whose noiseless releases lie furthest apart."""
    clients = range(train.num_clients)
    offered = [list(pairs_of(plan, train, client)) for client in clients]
    furthest, chosen = np.full(train.num_clients, -1.0), {client: offered[client][0] for client in clients}
    for k in range(max(map(len, offered))):
        tried = {client: offered[client][min(k, len(offered[client]) - 1)] for client in clients}
        low, high = (
            silent(plan, with_records(train, tried, [which] * len(tried), is_whole(plan)), clients) for which in (0, 1)
        )
        distances = np.broadcast_to(np.linalg.norm(high - low, axis=1), furthest.shape)
        better = np.nan_to_num(distances, nan=-1.0, posinf=-1.0) > furthest
        furthest = np.where(better, distances, furthest)
        chosen |= {client: tried[client] for client in np.flatnonzero(better).tolist()}
    return chosen


def pairs_of(plan: Plan, train: Shards, client: int) -> Iterator[Pair]:
    """Yield pairs of records for a client that is sent the first model."""
    is_linear = plan.setting is not None and plan.setting.convex is not None
    return pairs(train, client, plan.objective.targets, plan.task.num_classes, plan.initial, is_linear)


def silent(plan: Plan, train: Shards, clients: Iterable[int], noise: Silence | None = None) -> Real:
    """Return the first round's releases without noise; all that is no number where the run would not go on."""
    cohort = tuple(clients)
    world = World(plan, train, cohort)
    try:
        return world.replay(noise or Silence(cohort=frozenset(cohort))).astype(np.float64)
    except DivergedError:
        rows = 1 if plan.mechanism.is_central else len(cohort)
        return np.full((rows, plan.layout.size), np.nan)
    finally:
        world.close()
