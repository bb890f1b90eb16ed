"""Attack the releases of an experiment and set the certified lower bound beside the claim.

Two worlds: neighbouring data sets, many replays of a data round, a score that is fixed beforehand. The releases are
what the server is handed by the real loop.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from upcycled.auditing.canaries import Pair, with_records
from upcycled.auditing.neighbours import is_whole, pairs_of, silent
from upcycled.auditing.outcome import OWN, Audit, check_claim, claim_of
from upcycled.auditing.worlds import Silence, World, fresh_noise
from upcycled.config.experiment import PLAN_KEYS, Experiment
from upcycled.config.wording import in_keys, named
from upcycled.core.errors import InputError, check_number, unknown
from upcycled.core.shards import Shards
from upcycled.core.strategy import State
from upcycled.core.vectors import Real
from upcycled.privacy.audit import two_world, two_world_mu
from upcycled.runtime.plan import Plan, make_plan
from upcycled.runtime.publication import publication_of
from upcycled.support.warned import collected_warnings

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
