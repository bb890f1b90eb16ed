"""Attack the releases of an experiment and set the certified lower bound beside the claim.

Two worlds: neighbouring data sets, many replays of a data round, a score that is fixed beforehand. One run: a canary
in every client, each a fair coin between two records. The releases are what the server is handed by the real loop.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from upcycled.auditing.canaries import Pair, with_records
from upcycled.auditing.neighbours import furthest_pairs, pairs_of, silent
from upcycled.auditing.outcome import OWN, Audit, Claim, check_claim, claim_of
from upcycled.auditing.worlds import Silence, World, fresh_noise
from upcycled.config.experiment import PLAN_KEYS, Experiment
from upcycled.config.wording import in_keys, named
from upcycled.core.errors import InputError, check_number, unknown
from upcycled.core.shards import Shards
from upcycled.core.strategy import State
from upcycled.core.vectors import Real
from upcycled.privacy.audit import one_run, two_world, two_world_mu
from upcycled.runtime.plan import Plan, make_plan
from upcycled.runtime.publication import publication_of
from upcycled.support.formats import general
from upcycled.support.warned import collected_warnings

CHEAP_REPLAYS, DEAR_REPLAYS = 6000, 500
"""Of each world: where local work is done once, and where every replay trains."""
TESTS, CLAIMS = ("two-world", "one-run"), ("proven", "paper")


def audit(
    experiment: Experiment,
    source: str,
    *,
    test: str = "two-world",
    replays: int | None = None,
    claim: str = "proven",
    delta: float | None = None,
) -> Audit:
    """Attack an experiment's first data round; see :func:`audit_worlds` and :func:`audit_one_run`."""
    if test not in TESTS:
        raise unknown("test", test, TESTS)
    if claim not in CLAIMS:
        raise unknown("--claim", claim, CLAIMS)
    if replays is not None:
        check_number("--replays", replays, at_least=4, integer=True)
    if replays is not None and test == "one-run":
        raise InputError(field="--replays", value=replays, must="left out with --one-run")
    with (
        named(source),
        in_keys(PLAN_KEYS | {"delta": "privacy.delta" if delta is None else "--delta"}),
        collected_warnings() as found,
    ):
        if experiment.privacy is None:
            raise InputError(field="privacy", but="an audit needs a claim: the file must have a table [privacy]")
        data = experiment.build_data()
        plan = make_plan(data, experiment.spec(experiment.seeds[0]))
        if test == "one-run":
            result = audit_one_run(plan, data.train, claim=claim, delta=delta)
        else:
            client = int(np.argmin(data.train.sizes))
            worlds = neighbours(plan, data.train, client)
            result = audit_worlds(plan, worlds, client, replays=replays, claim=claim, delta=delta)
    if publication_of(plan).is_restricted:
        found.append(OWN)
    return replace(result, warnings=tuple(found))


def neighbours(plan: Plan, train: Shards, client: int) -> tuple[Shards, Shards]:
    """Return two data sets that differ in one record of a client, or in all of them where clients are protected."""

    def world(pair: Pair, which: int) -> Shards:
        return with_records(train, {client: pair}, [which], plan.mechanism.promise.unit == "client")

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


def audit_one_run(plan: Plan, train: Shards, *, claim: str = "proven", delta: float | None = None) -> Audit:
    """Put a canary into every client, each a fair coin between two records, and guess all coins from one data round."""
    everybody = np.arange(train.num_clients)
    is_whole = plan.mechanism.promise.unit == "client"
    chosen = furthest_pairs(plan, train)
    low, high = (with_records(train, chosen, [which] * everybody.size, is_whole) for which in (0, 1))
    ends = [silent(plan, shards, everybody) for shards in (low, high)]
    directions = ends[1] - ends[0]
    if plan.mechanism.is_central:
        # One aggregate for all: each client's direction is that of its own canary, alone.
        directions = np.concatenate([silent(plan, high, [i]) - silent(plan, low, [i]) for i in everybody.tolist()])
    coins = np.random.default_rng(plan.task.seed).integers(0, 2, everybody.size)
    world = World(plan, with_records(train, chosen, coins.tolist(), is_whole), everybody)
    try:
        stated = replace(claim_of(world.ledger(), everybody, delta), mu=None)
        check_claim(plan, stated, claim)
        needed = canary_power(stated, claim, everybody.size)
        released = world.replay(fresh_noise(plan, 0, 0)).astype(np.float64)
    finally:
        world.close()
    scores = ((released - (ends[0] + ends[1]) / 2) * directions).sum(axis=1)
    correct = int(((scores > 0) == coins).sum())
    found = one_run(canaries=coins.size, guesses=coins.size, correct=correct, delta=stated.delta)
    return Audit(
        title=f"{plan.mechanism.name}: one run, {coins.size} canaries, {correct} of them guessed right",
        claim=stated,
        tested=claim,
        epsilon_lower=found.epsilon_lower,
        details={
            "test": "one-run",
            "mechanism": plan.mechanism.name,
            "canaries": coins.size,
            "guesses": coins.size,
            "correct": correct,
            "needed": needed,
        },
    )


def canary_power(stated: Claim, claim: str, canaries: int) -> int:
    """Return how many of the canaries must be guessed right to refute the claim; refuse counts that never could.

    Raises:
        InputError: if not even all of them would do.
    """
    epsilon = stated.paper_epsilon if claim == "paper" and stated.paper_epsilon is not None else stated.epsilon

    def refutes(count: int, right: int) -> bool:
        return one_run(canaries=count, guesses=count, correct=right, delta=stated.delta).refutes(epsilon)

    if not refutes(canaries, canaries):
        most = one_run(canaries=canaries, guesses=canaries, correct=canaries, delta=stated.delta).epsilon_lower
        enough = next((count for count in (2**k for k in range(21)) if refutes(count, count)), None)
        but = f"one run with a canary in each can show epsilon {general(most, 3)} at most, and the claim is "
        but += f"{general(epsilon, 4)}: no fault could be found"
        but += "" if enough is None else f"; {enough} clients could show one"
        raise InputError(field="the number of clients", value=canaries, but=f"{but}; the whole audit has more power")
    low, high = 0, canaries
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if refutes(canaries, middle) else (middle, high)
    return high


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
