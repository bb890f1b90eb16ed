"""Attack the releases of an experiment and set the certified lower bound beside the claim.

Neighbouring data sets that are hard to keep apart secret: canaries, records made to move a release far.

Which records to put beside which: pairs that move noiseless releases as far as anything that was tried.

Two worlds: neighbouring data sets, many replays of a data round, a score that is fixed beforehand. The releases are
what the server is handed by the real loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from upcycled._utils.messages import collected_warnings
from upcycled.audit.findings import OWN, Audit, check_claim, claim_of
from upcycled.audit.replays import Silence, World, fresh_noise
from upcycled.config.experiment import PLAN_KEYS, Experiment
from upcycled.config.tables import in_keys, named
from upcycled.core.errors import DivergedError, InputError, check_number, unknown
from upcycled.core.objective import TargetKind
from upcycled.core.upcycling import State
from upcycled.core.vectors import Real, Shards, Vector
from upcycled.privacy.audit import two_world, two_world_mu
from upcycled.training.plan import Plan, make_plan
from upcycled.training.publication import publication_of

SCALES = (1.0, 1e2, 1e4)
"""Lengths of canaries, in units of the client's longest record; mechanisms that project make them equal."""

FAR = 1e4
"""Targets that are numbers lie so far on either side, in units of the client's largest."""

_MOST_FEATURES = 2_000
"""Beyond this a direction is drawn, not computed from the client's records."""


@dataclass(frozen=True)
class Pair:
    """Two records: the worlds differ in which of them a client holds."""

    x: tuple[Vector, Vector]
    y: tuple[Any, Any]
    """Classes, or labels or numbers as the data have them."""


def pairs(
    train: Shards, client: int, targets: TargetKind, num_classes: int, start: Vector, is_linear: bool
) -> Iterator[Pair]:
    """Yield pairs of records with opposite targets, for a client that is sent the model ``start``.

    A linear model's own weights are kept out of a direction: it is then undecided about the canary however long that
    is, and either label moves it as far.
    """
    x, y = train.client(client)
    opposite: tuple[Any, Any] = (0, 1)
    if targets == "classes":
        yield Pair((x[0], x[0]), (int(y[0]), (int(y[0]) + 1) % num_classes))
    else:
        far = 1.0 if targets == "labels" else FAR * max(1.0, float(np.nan_to_num(np.abs(y)).max()))
        opposite = (0.0 if targets == "labels" else -far, far)
        yield Pair((x[0], x[0]), opposite)
    if not np.issubdtype(x.dtype, np.floating):
        return  # words of a vocabulary cannot be scaled
    records = x.reshape(len(x), -1).astype(np.float64)
    records = np.where(np.isfinite(records), records, 0.0)
    width = records.shape[1]
    longest = max(float(np.linalg.norm(records, axis=1).max()), 1.0)
    weights = start[: start.size // width * width].reshape(-1, width) if is_linear else np.zeros((1, width))
    for direction in _directions(records, weights.astype(np.float64), client):
        for scale in SCALES:
            canary = (scale * longest * direction).reshape(x.shape[1:]).astype(x.dtype)
            yield Pair((canary, canary), opposite)


def with_records(train: Shards, chosen: Mapping[int, Pair], coins: Sequence[int], whole: bool = False) -> Shards:
    """Return the data with each client's first record (all with ``whole``) replaced by the one its coin says."""
    x, y = np.array(train.x), np.array(train.y)
    for (client, pair), coin in zip(chosen.items(), coins, strict=True):
        first = int(train.offsets[client])
        rows = slice(first, int(train.offsets[client + 1]) if whole else first + 1)
        x[rows], y[rows] = pair.x[coin], pair.y[coin]
    return replace(train, x=x, y=y)


def _directions(records: Real, weights: Real, seed: int) -> Iterator[Real]:
    """Yield a direction that nobody could guess, and the one that the other records use least and weights not at all.

    What the other records hardly use they do not hold back.
    """
    width = records.shape[1]
    drawn = np.random.default_rng(seed).normal(size=width)
    yield np.divide(drawn, np.linalg.norm(drawn))
    if width > _MOST_FEATURES or width <= len(weights):
        return
    # Full QR: the first columns span the weights, the others what they leave free.
    free = np.linalg.qr(weights.T, mode="complete")[0][:, len(weights) :]
    used = records[1:] @ free
    yield free @ np.linalg.eigh(used.T @ used)[1][:, 0]


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


CHEAP_REPLAYS, DEAR_REPLAYS = 6000, 500
"""Of each world: where local work is done once, and where every replay trains."""
CLAIMS = ("proven", "paper")


def audit(
    experiment: Experiment,
    source: str,
    *,
    replays: int | None = None,
    claim: str = "proven",
    delta: float | None = None,
) -> Audit:
    """Attack an experiment's first data round; see :func:`audit_worlds`."""
    if claim not in CLAIMS:
        raise unknown("--claim", claim, CLAIMS)
    if replays is not None:
        check_number("--replays", replays, at_least=4, integer=True)
    with (
        named(source),
        in_keys(PLAN_KEYS | {"delta": "privacy.delta" if delta is None else "--delta"}),
        collected_warnings() as found,
    ):
        if experiment.privacy is None:
            raise InputError(field="privacy", but="an audit needs a claim: the file must have a table [privacy]")
        data = experiment.build_data()
        plan = make_plan(data, experiment.spec(experiment.seeds[0]))
        client = int(np.argmin(data.train.sizes))
        worlds = neighbours(plan, data.train, client)
        result = audit_worlds(plan, worlds, client, replays=replays, claim=claim, delta=delta)
    if publication_of(plan).is_restricted:
        found.append(OWN)
    return replace(result, warnings=tuple(found))


def neighbours(plan: Plan, train: Shards, client: int) -> tuple[Shards, Shards]:
    """Return two data sets that differ in one record of a client, or in all of them where clients are protected."""

    def world(pair: Pair, which: int) -> Shards:
        return with_records(train, {client: pair}, [which], is_whole(plan))

    def distance(pair: Pair) -> float:
        ends = [silent(plan, world(pair, which), [client])[0] for which in (0, 1)]
        found = float(np.linalg.norm(ends[1] - ends[0]))
        return found if np.isfinite(found) else -1.0

    best = max(pairs_of(plan, train, client), key=distance)
    return world(best, 0), world(best, 1)


def audit_worlds(
    plan: Plan,
    worlds: tuple[Shards, Shards],
    client: int,
    *,
    replays: int | None = None,
    claim: str = "proven",
    delta: float | None = None,
) -> Audit:
    """Replay the first data round of a client under two neighbouring data sets, and try to tell them apart.

    The score of a release is its projection on the difference of the noiseless releases. Where the plan has upcycled
    iterations they must give the same bits in both worlds, from the same state of the server, and train nobody.
    """
    made = [World(plan, shards, [client]) for shards in worlds]
    try:
        stated = claim_of(made[0].ledger(), np.array([client]), delta)
        check_claim(plan, stated, claim)
        ends = [world.replay(Silence())[0].astype(np.float64) for world in made]
        direction = _unit(ends[1] - ends[0])
        if replays is None:
            replays = CHEAP_REPLAYS if made[0].is_repeated else DEAR_REPLAYS
        scores = np.empty((2, replays))
        for which, world in enumerate(made):
            for replay in range(replays):
                released = world.replay(fresh_noise(plan, replay, which))[0]
                # Zero half-way between the noiseless releases.
                scores[which, replay] = (released - (ends[0] + ends[1]) / 2) @ direction
        wrong = _upcycled(plan, made)
    finally:
        for world in made:
            world.close()
    found = two_world(scores0=scores[0], scores1=scores[1], delta=stated.delta)
    shifted = None
    if stated.mu is not None and claim == "proven":
        # Between Gaussians the best threshold is half-way. It is fixed beforehand, so that all replays may certify.
        alarms, misses = int((scores[0] > 0).sum()), int((scores[1] <= 0).sum())
        shifted = two_world_mu(false_alarms=alarms, n0=replays, misses=misses, n1=replays)
    size = int(worlds[0].sizes[client])
    return Audit(
        title=f"{plan.mechanism.name}: two worlds, client {client} (n = {size}), {replays} replays of each",
        claim=stated,
        tested=claim,
        epsilon_lower=found.epsilon_lower,
        mu_lower=shifted,
        is_noiseless=bool((np.ptp(scores, axis=1) == 0).all() and scores[0, 0] != scores[1, 0]),
        upcycled=wrong,
        checked_upcycled=_is_upcycled(plan),
        details={
            "test": "two-world",
            "mechanism": plan.mechanism.name,
            "client": client,
            "n": size,
            "replays": replays,
            "false_alarms": found.false_alarms,
            "misses": found.misses,
            "noiseless_distance": float(np.linalg.norm(ends[1] - ends[0])),
        },
    )


def _unit(vector: Real) -> Real:
    """Return the direction of a vector, or any direction where there is none."""
    length = float(np.linalg.norm(vector))
    found: Real = vector / length if length > 0 else np.full(vector.size, vector.size**-0.5)
    return found


def _is_upcycled(plan: Plan) -> bool:
    return plan.strategy.data_rounds(2) == 1 and plan.iterations > 1


def _upcycled(plan: Plan, worlds: list[World]) -> str | None:
    """Return what is wrong with an upcycled iteration: it may use the server's state and nothing of the clients."""
    if not _is_upcycled(plan):
        return None
    run, first, trained = worlds[0].upcycled(None)
    _, second, also = worlds[1].upcycled((run.state, run.memory))
    if trained or also:
        return "an upcycled iteration trained clients"
    if not _same(first, second):
        return "an upcycled iteration gives another model under the neighbouring data, from the same releases"
    return None


def _same(first: State, second: State) -> bool:
    vectors = [{"model": state.server.model, **state.server.vectors} for state in (first, second)]
    return all(vectors[0][name].tobytes() == vectors[1][name].tobytes() for name in vectors[0])
