"""A data round in four functions, the same for a simulator and for a federation of separate machines.

    server   ask     the cohort, what is sent to it, the algorithm's part of its problem
    client   answer  the mechanism's part of the problem, training, the charge, the release
    server   take    aggregate, server step, remember
    server   repeat  a round that did not happen is tried again

``Ask`` and ``Answer`` are all that crosses between them. A simulator answers once for the whole cohort; a client
answers its own part of what was asked (``asked.of(client)``), knowing its own data and nobody else's size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np

from upcycled.core.aggregator import Combination, Received
from upcycled.core.algorithm import RoundResult, Server, noise_gain, own_shares
from upcycled.core.engine import Engine
from upcycled.core.errors import BudgetSpentError
from upcycled.core.mechanism import Ask, Charge, Fitted, NoiseSource, Release, Trained
from upcycled.core.randomness import Purpose
from upcycled.core.sampling import Cohort
from upcycled.core.vectors import Ints, Real, Vector, weighted_mean
from upcycled.privacy.charge_kinds import kind_named
from upcycled.privacy.ledger.ledger import Ledger
from upcycled.training.plan import Plan
from upcycled.training.plan_checks import check_problem, check_proven_for, check_stepped, own_copy
from upcycled.training.state import Run


@dataclass(frozen=True)
class Answer:
    """What clients give back."""

    release: Release
    """The only part that leaves them."""
    charge: Charge | None
    """What it cost them; None without privacy."""
    private: Vector | None = None
    """What stays with them: personal models."""


@dataclass(frozen=True)
class Traffic:
    """What a data round really sent, where it was counted: a federation's messages, unanswered ones included."""

    messages: int
    bytes_up: int
    bytes_down: int


DataRound: TypeAlias = Callable[[Plan, Engine, Run], tuple[Run, Release, Traffic | None]]
"""Carries out a data round: (plan, engine, run) -> the run after it, what was released, what it sent."""


def data_round(plan: Plan, engine: Engine, run: Run) -> tuple[Run, Release, Traffic | None]:
    """Carry out a data round here, with an engine that has everybody's data; it sends nothing."""
    asked = ask(plan, run)
    noise = run.noise_for(plan, asked.round, asked.attempt)
    answered = answer(plan, engine, asked, noise, run.ledger)
    return *take(plan, run, asked, answered, noise), None


def ask(plan: Plan, run: Run) -> Ask:
    """Draw the coming round's cohort, without clients whose budget is spent, and say what it is to work on.

    Raises:
        BudgetSpentError: if nobody is left who can pay.
    """
    algorithm, state = plan.strategy.algorithm, run.state
    cohort, attempt = _cohort(plan, run)
    problem = algorithm.problem(state.server, run.memory.gather(cohort.clients))
    check_problem(algorithm.name, problem, cohort.clients.size, plan.layout.size)
    round, model, statistics = state.data_rounds + 1, state.server.model, state.statistics
    return Ask(state.iteration + 1, round, attempt, cohort, model, problem, statistics, state.clip_scale)


def answer(plan: Plan, engine: Engine, asked: Ask, noise: NoiseSource, ledger: Ledger | None = None) -> Answer:
    """Do what is asked of the clients that are here; their charge is in the ledger before their release exists.

    Raises:
        InputError: if privacy was proven for another quadratic term than is asked for.
    """
    check_proven_for(plan.setting, asked.problem, asked.round)
    mechanism, cohort = plan.mechanism.at(asked.clip_scale), asked.cohort
    if plan.facts.ids is not None:
        cohort = replace(cohort, rows=plan.facts.rows_of(cohort.clients))
    problem = mechanism.problem(asked.problem, asked.model, cohort, noise)
    work = replace(asked, cohort=cohort, problem=problem)
    trained = engine.train(work, noise) if cohort.clients.size else _nobody(plan.layout.size)
    charge = mechanism.charge(cohort)
    if ledger is not None and charge is not None:
        ledger.charge(asked.iteration, asked.round, asked.attempt, charge)
    release = mechanism.release(trained, asked.model, cohort, plan.facts.sizes[cohort.rows], noise)
    return Answer(release, charge, trained.private)


def take(plan: Plan, run: Run, asked: Ask, answered: Answer, noise: NoiseSource) -> tuple[Run, Release]:
    """Return the run after the round, and what was released; the answer may be of a part of the cohort only."""
    mechanism, algorithm, state = plan.mechanism.at(asked.clip_scale), plan.strategy.algorithm, run.state
    release, charge = answered.release, answered.charge
    if mechanism.adaptive is not None:
        state = replace(state, clip_scale=mechanism.adaptive.after(asked.clip_scale, release, asked.model, noise))
        if charge is not None:  # charges are those at scale 1, and here it is the noise that counts
            charge = replace(charge, noise_std=asked.clip_scale * charge.noise_std)
    combination = None
    if plan.aggregator is not None:
        combination, own = plan.aggregator.combine(state.aggregator, _received(plan, mechanism, asked, release))
        state = replace(state, aggregator=own)
    if combination is None:
        mean = mechanism.aggregate(release, asked.model, noise)
    else:
        mean = combination.mean_of(release.vectors)
    if release.statistics is not None:
        samples = release.num_samples.astype(np.float64)
        average = partial(weighted_mean, samples) if combination is None else combination.mean_of
        state = replace(state, statistics=average(release.statistics))
    if mechanism.is_central:
        # Server steps get what is covered: the noisy aggregate, in the place of every release.
        release = replace(release, vectors=np.broadcast_to(mean, release.vectors.shape))
    arrived = RoundResult(
        release=release,
        mean=mean,
        step_sums=plan.solver.at(asked.round, plan.data_rounds).step_sum(release.num_steps),
        num_clients=plan.facts.num_clients,
        all_samples=plan.num_samples,
        average=None if combination is None else combination.mean_of,
    )
    clients = release.clients
    server, memory = algorithm.server_step(own_copy(state.server), run.memory.gather(clients), arrived)
    check_stepped(algorithm.name, server, state.server)
    undoable = None if plan.spec.checkpoint is None else asked.iteration
    run.memory.put(clients, memory, undoable)
    if answered.private is not None:
        run.private.put(clients, {"model": answered.private}, undoable)
    noise_std = mechanism.mean_noise_std(release) if combination is None else _noise_std(combination, charge)
    if plan.strategy.uses_noise_energy:
        state = replace(state, noise_energy=_noise_energy(plan, mechanism, combination, release))
    # Where draws are secret it would tell an empty cohort from others: rules then go by the aggregate alone.
    is_told = plan.strategy.uses_spread and not mechanism.draws_secretly
    weights = None if combination is None else combination.weights
    spread = _spread(arrived, state.server, charge, mechanism, weights) if is_told else None
    after = plan.strategy.after_data(state, server, noise_std, mean, spread)
    # By its constructor, which takes a third of the time of dataclasses.replace: small rounds last 0.1 ms.
    return Run(after, run.memory, run.private, run.ledger, run.noise, run.best), release


def repeat(run: Run) -> Run:
    """Return the run with its coming data round to be tried once more, with other draws."""
    return replace(run, state=replace(run.state, attempt=run.state.attempt + 1))


def joined(asked: Ask, answers: Sequence[Answer]) -> Answer:
    """Return separate clients' answers as one, in the order in which they were asked: sums then have the same bits."""
    clients = np.concatenate([one.release.clients for one in answers])
    order = np.argsort(_places(asked, clients))
    statistics = [one.release.statistics for one in answers if one.release.statistics is not None]
    release = Release(
        clients[order],
        np.concatenate([one.release.vectors for one in answers])[order],
        np.concatenate([one.release.num_samples for one in answers])[order],
        np.concatenate([one.release.num_steps for one in answers])[order],
        np.concatenate(statistics)[order] if statistics else None,
    )
    charges = [one.charge for one in answers if one.charge is not None]
    private = [one.private for one in answers if one.private is not None]
    return Answer(
        release,
        Charge.joined(charges)[order] if charges else None,
        np.concatenate(private)[order] if private else None,
    )


def _places(asked: Ask, clients: Ints) -> list[int]:
    """Return where these clients stand in the cohort that was asked."""
    place = {client: i for i, client in enumerate(asked.cohort.clients.tolist())}
    return [place[client] for client in clients.tolist()]


def _cohort(plan: Plan, run: Run) -> tuple[Cohort, int]:
    """Return the coming round's cohort without the clients whose budget is spent."""
    state, seed = run.state, plan.spec.seed
    everybody, round, epochs = plan.facts.num_clients, state.data_rounds + 1, plan.solver.local.epochs
    if plan.mechanism.draws_secretly:
        noise = run.noise_for(plan, round, state.attempt)
        coins = noise.uniforms(np.arange(everybody), 1, Purpose.COHORT)[:, 0]
        drawn = np.flatnonzero(coins < plan.participation.sampler.fraction).astype(np.int64)
        return plan.participation.cohort_of(drawn, seed, round, epochs, state.attempt), state.attempt
    cohort, attempt = plan.participation.draw_nonempty(seed, round, everybody, epochs, state.attempt)
    if run.ledger is None or not run.ledger.is_limited:
        return cohort, attempt
    paying = run.ledger.can_pay(plan.mechanism.charge(cohort), round, attempt)
    if not paying.all():
        run.ledger.leave_out(state.iteration + 1, round, attempt, cohort.clients[~paying])
    if not paying.any():
        most = plan.spec.budget or run.ledger.account
        assert most is not None  # what limits it
        raise BudgetSpentError(
            f"no client of data round {round} can pay for it: the budget of epsilon "
            f"{most.epsilon:g} at delta {most.delta:g} is spent; plan fewer rounds or more noise"
        )
    return cohort[paying], attempt


def _received(plan: Plan, mechanism: Fitted, asked: Ask, release: Release) -> Received:
    """Return what an aggregator may look at: the release, what was asked, and public numbers."""
    known = mechanism.release_noise_std
    a, b = asked.problem.a, asked.problem.b
    offsets = None
    if b is not None and a > 0:
        # The answer may be of a part of those who were asked.
        offsets = b[_places(asked, release.clients)] / a
    return Received(
        release=release,
        sent=asked.model,
        shares=own_shares(plan.strategy.algorithm, release.num_samples),
        noise_std=None if known is None else known(release),
        offsets=offsets,
        horizon=plan.data_rounds,
        directions=plan.directions,
    )


def _noise_std(combination: Combination, charge: Charge | None) -> float:
    """Return the known std per coordinate of the noise in a mean with weights; zero where it is not known."""
    if combination.weights is None or charge is None or not kind_named(charge.kind).is_noisy_vector:
        return 0.0
    return float(np.sqrt(np.square(combination.weights * charge.noise_std).sum()))


def _noise_energy(plan: Plan, mechanism: Fitted, combination: Combination | None, release: Release) -> float | None:
    """Return the expected squared norm of the noise that a round brings into the model, from public numbers."""
    algorithm, known = plan.strategy.algorithm, mechanism.release_noise_std
    weights = own_shares(algorithm, release.num_samples) if combination is None else combination.weights
    gain = noise_gain(algorithm)
    if known is None or weights is None or gain is None:
        return None
    return gain**2 * plan.directions.dimension * float(np.square(weights * known(release)).sum())


def _nobody(size: int) -> Trained:
    """Return the work of an empty cohort, which only secret draws let pass."""
    return Trained(np.zeros((0, size), dtype=np.float32), np.zeros(0, dtype=np.int64))


def _spread(
    arrived: RoundResult, sent: Server, charge: Charge | None, mechanism: Fitted, weights: Real | None
) -> float:
    """Return sum p_i ||r_i - sent||^2 less the known noise in it: from the release and public numbers alone.

    p_i are the aggregator's weights, where it has some.
    """
    release = arrived.release
    if not release.clients.size:
        return 0.0
    shares = release.num_samples / release.num_samples.sum() if weights is None else weights
    drift = release.vectors - sent.model
    found = float(shares @ np.einsum("cd,cd->c", drift, drift, dtype=np.float64, casting="same_kind"))
    if mechanism.is_central:
        noise = mechanism.mean_noise_std(release) ** 2
    else:
        is_known = charge is not None and kind_named(charge.kind).is_noisy_vector
        noise = float(shares @ charge.noise_std**2) if charge is not None and is_known else 0.0
    return max(0.0, found - float(drift.shape[-1]) * noise)
