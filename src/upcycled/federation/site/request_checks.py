"""What a data holder does not do, in one sentence each: it follows from its file, its account and the request alone.

Everything is computed anew from what was asked, by the code that is installed here: whatever the server says of its
noise counts for nothing.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled._utils.formats import general
from upcycled.config.experiment import NOT_OF_CLIENTS, flat, parse
from upcycled.core.errors import InputError, UpcycledError
from upcycled.core.mechanism import Ask, Charge
from upcycled.core.sampling import Cohort
from upcycled.core.solvers import Solver
from upcycled.core.user_code import names_code
from upcycled.core.vectors import Ints
from upcycled.data import FederatedData
from upcycled.federation.messages import Fields, Request, RunTerms, ScoreRequest
from upcycled.federation.site.policy import Policy
from upcycled.privacy.charge_kinds import kind_of
from upcycled.privacy.noise.sources import SeededNoise
from upcycled.training.plan import Plan, parameters_of
from upcycled.training.protection import penalty_of
from upcycled.training.spec import RunSpec, local_of

STAND_IN = {"source": "synthetic", "alpha": "iid"}
"""What stands in the place of an experiment's data, which every site has its own of."""
ROOM = 1e-9
"""Sums and products are rounded: a ratio of noise this little below what a file asks for is that ratio."""


class Refused(UpcycledError):
    """A site does not do what it was asked; the text is what the server is told."""


def check_message(policy: Policy, fields: Fields) -> None:
    """Refuse vectors that are longer than any model that the site's file allows, before they are copied.

    Raises:
        Refused: in one sentence.
    """
    longest = max((len(value) for value in fields.values() if isinstance(value, bytes)), default=0)
    _check_most("parameters", longest // 8, policy.limits.parameters)


def spec_of(policy: Policy, terms: RunTerms) -> RunSpec:
    """Return what a run asks for, if nothing in its file alone is refused.

    Raises:
        Refused: in one sentence.
    """
    limits = policy.limits
    _check_most("clients", terms.clients, limits.clients)
    try:
        raw = json.loads(terms.config)
    except (ValueError, RecursionError):
        raw = None
    if not isinstance(raw, dict):
        raise Refused("the run's file is no table")
    # Before anything looks a name up: importing is running.
    for key, value in flat(raw).items():
        for name in _texts(value):
            if names_code(name) and name not in policy.privacy.code:
                raise Refused(f"{key} names the code '{name}', which this site's file does not list: it runs its own")
    raw = {key: value for key, value in raw.items() if key not in NOT_OF_CLIENTS}
    try:
        experiment = parse({**raw, "data": STAND_IN, "name": "asked", "seeds": [terms.seed]})
        spec = experiment.spec(terms.seed)
    except InputError as error:
        raise Refused(f"the run's file cannot be read here: {error}") from error
    _check_most("iterations", spec.iterations, limits.iterations)
    _check_most("epochs", local_of(spec).local.epochs, limits.epochs)
    if spec.privacy is None:
        _check_named(policy, "none")
    elif spec.noise != "system" and not policy.simulation:
        raise Refused("the noise is seeded, which protects nobody, and this site's file does not say simulation = true")
    if spec.charged_scores is not None and not policy.privacy.evaluations:
        raise Refused("scores are releases, and this site's file does not say evaluations = true")
    return spec


def check_size(policy: Policy, spec: RunSpec, data: FederatedData) -> None:
    """Hold local work to the site's file, before a plan is made of it: planning alone allocates the model.

    Raises:
        Refused: in one sentence.
    """
    size = parameters_of(spec, data.facts())
    if size is not None:
        _check_most("parameters", size, policy.limits.parameters)
    _check_steps(policy, spec, spec.algorithm.solver(local_of(spec)), data.sizes)


def check_plan(policy: Policy, plan: Plan) -> None:
    """Hold the mechanism, as it was fitted here, to the site's file.

    Raises:
        Refused: in one sentence.
    """
    mechanism, limits = plan.mechanism, policy.privacy
    _check_steps(policy, plan.spec, plan.solver, plan.facts.sizes)  # a mechanism may bring its own solver
    if plan.setting is None:
        return
    _check_named(policy, mechanism.name)
    if mechanism.draws_secretly:
        raise Refused("cohorts are drawn in secret, and a site cannot be charged for rounds that it is not asked in")
    if mechanism.promise.sees == "aggregates" and not limits.trusts_server:
        raise Refused(
            f"'{mechanism.name}' leaves the noise to the server, and this site's file does not say trusts_server = true"
        )
    if mechanism.adaptive is not None:
        raise Refused("the clipping bound follows releases, which a site is not told: it must be fixed")
    bound = mechanism.norm_bound
    if limits.norm_bound is not None and bound is not None and bound > limits.norm_bound:
        raise Refused(f"norm_bound is {general(bound)}, and this site's file allows {general(limits.norm_bound)}")
    charge = charge_of(plan)
    if charge is None or not mechanism.promise.is_claimed or not kind_of(charge).is_claimed:
        raise Refused(f"'{mechanism.name}' claims no epsilon as it is set here")
    _check_noise(policy, charge)


def client_of(asked: Ask) -> int:
    """Return the one client that a request is for.

    Raises:
        Refused: in one sentence.
    """
    clients = asked.cohort.clients
    if clients.shape != (1,) or clients.dtype != np.int64 or clients[0] < 0:
        raise Refused("a request must be for one client")
    return int(clients[0])


def check_request(plan: Plan, request: Request) -> None:
    """Hold one request to the plan that this site made of its run.

    Raises:
        Refused: in one sentence.
    """
    asked, rounds, size = request.ask, plan.data_rounds, plan.layout.size
    client, problem = client_of(asked), asked.problem
    if not 1 <= asked.round <= rounds or not 1 <= asked.iteration <= plan.iterations:
        raise Refused(f"data round {asked.round} is asked for, and the run has {rounds}")
    _check_array("the model", asked.model, (size,))
    if problem.b is not None:
        _check_array("b", problem.b, (1, size))
    if (asked.statistics is None) != (plan.statistics is None):
        raise Refused("running statistics do not fit the model")
    if asked.statistics is not None and plan.statistics is not None:
        _check_array("statistics", asked.statistics, (plan.statistics.size,))
    own = penalty_of(plan.strategy.algorithm, plan.initial)  # no server may change it
    if problem.a != own:
        raise Refused(f"a is {general(problem.a)}, and the run's algorithm has {general(own)}")
    if asked.clip_scale != 1.0:
        raise Refused(f"clip_scale is {general(asked.clip_scale)}, and this site's clipping bound is fixed")
    who, seed, epochs = plan.participation, plan.spec.seed, plan.solver.local.epochs
    drawn = who.draw(seed, asked.round, request.terms.clients, epochs, asked.attempt)
    if client not in drawn.clients:
        raise Refused(f"client {client} is not drawn in data round {asked.round}, attempt {asked.attempt}")
    mine = own_part(plan, asked)
    if not np.array_equal(asked.cohort.epochs, mine.cohort.epochs):
        raise Refused(f"the epochs of client {client} are not those of data round {asked.round}")
    try:
        # A mechanism may find its public vectors too large: better before anything is charged.
        plan.mechanism.problem(problem, asked.model, mine.cohort, SeededNoise(0, asked.round))
    except UpcycledError as error:
        raise Refused(str(error)) from error


def check_scored(policy: Policy, plan: Plan, request: ScoreRequest) -> None:
    """Say whether scores may be given.

    Raises:
        Refused: in one sentence.
    """
    if not policy.privacy.evaluations:
        raise Refused("scores are releases, and this site's file does not say evaluations = true")
    if plan.spec.has_real_noise:
        raise Refused("exact scores are asked for beside real noise, and no epsilon covers them")
    if plan.task.test is None:
        raise Refused("this site holds no test samples")
    _check_array("the model", request.model, (plan.layout.size,))


def charge_of(plan: Plan) -> Charge | None:
    """Return what a round costs this site, as client 0 of its own account."""
    ids = plan.facts.ids
    assert ids is not None  # a client's own plan
    charge = plan.mechanism.charge(Cohort(ids, np.ones(1, dtype=np.int64), np.zeros(1, dtype=np.int64)))
    if charge is None:
        return None
    (place,) = np.flatnonzero(charge.clients == ids[0])[:1]
    return replace(charge[np.array([place])], clients=np.zeros(1, dtype=np.int64))


def own_part(plan: Plan, asked: Ask) -> Ask:
    """Return what is asked with the epochs that this client trains: a function of the seed, and not of what it is told.

    Rows are those of this site's own data.
    """
    client, epochs = asked.cohort.clients, plan.solver.local.epochs
    drawn = plan.participation.cohort_of(client, plan.spec.seed, asked.round, epochs, asked.attempt)
    return replace(asked, cohort=replace(drawn, rows=plan.facts.rows_of(client)))


def _check_steps(policy: Policy, spec: RunSpec, solver: Solver, sizes: Ints) -> None:
    (each,) = solver.local.num_steps(sizes, np.full(1, solver.local.epochs)).tolist()
    _check_most("steps", each * solver.gradients_per_step * spec.iterations, policy.limits.steps)


def _check_most(name: str, value: int, most: int) -> None:
    if value > most:
        raise Refused(f"the run has {value} {name}, and this site's file allows {most} (limits.{name})")


def _check_named(policy: Policy, mechanism: str) -> None:
    accepted = policy.privacy.mechanisms
    if mechanism not in accepted:
        words = "no mechanism" if not accepted else " and ".join(f"'{name}'" for name in accepted)
        raise Refused(f"what would leave is that of the mechanism '{mechanism}', and this site's file accepts {words}")


def _check_noise(policy: Policy, charge: Charge) -> None:
    limits = policy.privacy
    kind = kind_of(charge)
    if kind.is_pure:
        spent = float(kind.pot_cost()[0])
        if limits.most_epsilon is None or spent > limits.most_epsilon * (1 + ROOM):
            most = "says no most_epsilon" if limits.most_epsilon is None else f"allows {general(limits.most_epsilon)}"
            raise Refused(f"a release would cost epsilon {general(spent)}, and this site's file {most}")
        return
    if not kind.has_gaussian_noise:
        raise Refused(f"this site cannot compare a charge of kind '{charge.kind}' with its file")
    sensitivity, std = float(charge.sensitivity[0]), float(charge.noise_std[0])
    ratio = std / sensitivity if sensitivity > 0 else float("inf")
    if limits.least_noise is None or not ratio >= limits.least_noise * (1 - ROOM):
        least = "says no least_noise" if limits.least_noise is None else f"asks for {general(limits.least_noise)}"
        raise Refused(f"the noise would be {general(ratio)} times the sensitivity, and this site's file {least}")


def _check_array(name: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    if array.shape != shape or array.dtype != np.float32:
        raise Refused(
            f"{name} has {array.size} numbers of type {array.dtype}, and the run's model takes {math.prod(shape)} of "
            "float32"
        )
    if not np.isfinite(array).all():
        raise Refused(f"{name} is not finite")


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for inner in value.values() for text in _texts(inner)]
    return [text for inner in value for text in _texts(inner)] if isinstance(value, list) else []
