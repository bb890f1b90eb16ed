"""The round loop, once for every algorithm, strategy, mechanism and engine.

Odd: draw the cohort, send, train, release, aggregate, server step, remember. Even: extrapolate.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from upcycled.core.algorithm import Arrived, Server
from upcycled.core.cohort import Cohort
from upcycled.core.errors import BudgetSpentError, DivergedError
from upcycled.core.memory import ClientMemory
from upcycled.core.release import Charge, Fitted, Release, Setting, Trained
from upcycled.core.strategy import State
from upcycled.core.streams import Purpose
from upcycled.core.work import Engine, Scores, Work
from upcycled.privacy.ledger import Ledger
from upcycled.privacy.ledger_file import run_of
from upcycled.privacy.noise import SeededNoise, SystemNoise
from upcycled.runtime.history import Record
from upcycled.runtime.identity import described
from upcycled.runtime.measure import Meter
from upcycled.runtime.plan import Plan


@dataclass(frozen=True)
class Run:
    """A run between two iterations: the server's state, and what the clients keep."""

    state: State
    memory: ClientMemory
    """What the algorithm remembers of each client, computed from releases."""
    private: ClientMemory
    """What clients keep to themselves (personal models); never read by server code."""
    ledger: Ledger | None
    """What a private run's clients have spent."""
    noise: SystemNoise | None
    """The run's own stream of real noise; None where noise is simulated."""


def start_run(plan: Plan, ledger_run: str | None = None) -> Run:
    """Return the run before its first iteration; ``ledger_run`` names the run whose ledger goes on."""
    algorithm, size, clients = plan.strategy.algorithm, plan.task.layout.size, plan.task.train.num_clients
    return Run(
        state=plan.strategy.start(algorithm.start(plan.initial)),
        memory=ClientMemory(algorithm.remembers, clients, size),
        private=ClientMemory(("model",) if algorithm.is_personal else (), clients, size),
        ledger=None if plan.privacy is None else _ledger(plan, plan.privacy, ledger_run),
        noise=SystemNoise() if plan.noise == "system" else None,
    )


def iterate(plan: Plan, engine: Engine, run: Run) -> Iterator[tuple[Run, Record]]:
    """Yield the run and its record after each iteration until the plan is done; ``run`` may be a resumed one."""
    meter = Meter(plan) if plan.theory else None
    while run.state.iteration < plan.iterations:
        began = time.perf_counter()
        before, release = run.state.server.model, None
        # A run that overflows is told by its model, in one sentence, not by NumPy's warnings on the way there.
        with np.errstate(over="ignore", invalid="ignore"):
            if plan.strategy.kind(run.state) == "data":
                run, release = _data_round(plan, engine, run)
            else:
                run = replace(run, state=plan.strategy.upcycle(run.state, plan.data_rounds))
                if run.ledger is not None:
                    run.ledger.upcycled(run.state.iteration, run.state.data_rounds)
        _check_finite(run.state)
        trained = time.perf_counter()
        scores, global_scores = _score(plan, engine, run)
        state = run.state
        terms = None if meter is None else meter.terms(state.iteration, before, state.server.model, release)
        yield run, _record(plan, state, release, scores, global_scores, terms, trained - began, trained)


def _ledger(plan: Plan, setting: Setting, run: str | None) -> Ledger:
    """Open the run's ledger. A simulation is known by what it was asked to do; a private run cannot be repeated.

    A private run with checkpoints goes on in its own file, also when it was stopped before the first of them.
    """
    if run is None and plan.noise == "system":
        before = None if plan.checkpoint is None or plan.ledger is None else run_of(plan.ledger)
        run = before or secrets.token_hex(8)
    elif run is None:
        asked = f"{described(sorted(plan.settings.items()))} {setting!r} {plan.iterations}"
        run = hashlib.sha256(asked.encode()).hexdigest()[:16]
    return Ledger(plan.mechanism, plan.noise, setting, plan.budget, plan.ledger, run)


def _data_round(plan: Plan, engine: Engine, run: Run) -> tuple[Run, Release]:
    """Sample, send, train, charge, release, aggregate, update, remember."""
    state, task, algorithm, mechanism = run.state, plan.task, plan.strategy.algorithm, plan.mechanism
    cohort, attempt = _cohort(plan, run)
    clients, server, round = cohort.clients, state.server, state.data_rounds + 1
    noise = run.noise or SeededNoise(task.seed, round, attempt)
    memory = run.memory.gather(clients)
    problem = mechanism.problem(algorithm.problem(server, memory), server.model, clients, noise)
    work = Work(round, attempt, cohort, server.model, problem, noise)
    trained = engine.train(work) if clients.size else _nobody(task.layout.size)
    charge = mechanism.charge(clients)
    if run.ledger is not None and charge is not None:
        run.ledger.charge(state.iteration + 1, round, attempt, charge)
    release = mechanism.release(trained, server.model, clients, task.train.sizes_of(clients), noise)
    mean = mechanism.aggregate(release, server.model, noise)
    if mechanism.is_central:
        # Server steps get what is covered: the noisy aggregate, in the place of every release.
        release = replace(release, vectors=np.broadcast_to(mean, release.vectors.shape))
    arrived = Arrived(
        release=release,
        mean=mean,
        step_sums=task.solver.step_sum(release.num_steps),
        num_clients=task.train.num_clients,
    )
    server, memory = algorithm.server_step(server, memory, arrived)
    undoable = None if plan.checkpoint is None else state.iteration + 1
    run.memory.put(clients, memory, undoable)
    if trained.private is not None:
        run.private.put(clients, {"model": trained.private}, undoable)
    noise_std = mechanism.mean_noise_std(release)
    spread = _spread(arrived, state.server, charge, mechanism) if plan.strategy.uses_spread else None
    after = plan.strategy.after_data(state, server, noise_std, mean, spread)
    return replace(run, state=after), release


def _spread(arrived: Arrived, sent: Server, charge: Charge | None, mechanism: Fitted) -> float:
    """Return sum p_i ||r_i - sent||^2 less the known noise in it: from the release and public numbers alone."""
    release = arrived.release
    if not release.clients.size:
        return 0.0
    shares = release.num_samples / release.num_samples.sum()
    drift = release.vectors - sent.model
    found = float(shares @ np.einsum("cd,cd->c", drift, drift, dtype=np.float64, casting="same_kind"))
    if mechanism.is_central:
        noise = mechanism.mean_noise_std(release) ** 2
    else:
        noise = float(shares @ charge.noise_std**2) if charge is not None and charge.kind == "gaussian" else 0.0
    return max(0.0, found - float(drift.shape[-1]) * noise)


def _nobody(size: int) -> Trained:
    """Return the work of an empty cohort, which only secret draws let pass."""
    return Trained(np.zeros((0, size), dtype=np.float32), np.zeros(0, dtype=np.int64))


def _cohort(plan: Plan, run: Run) -> tuple[Cohort, int]:
    """Return the coming round's cohort without the clients whose budget is spent."""
    state, task = run.state, plan.task
    everybody, round, epochs = task.train.num_clients, state.data_rounds + 1, task.solver.local.epochs
    if plan.mechanism.draws_secretly:
        noise = run.noise or SeededNoise(task.seed, round, state.attempt)
        coins = noise.uniforms(np.arange(everybody), 1, Purpose.COHORT)[:, 0]
        drawn = np.flatnonzero(coins < plan.participation.fraction).astype(np.int64)
        return plan.participation.cohort_of(drawn, task.seed, round, epochs, state.attempt), state.attempt
    cohort, attempt = plan.participation.draw_nonempty(task.seed, round, everybody, epochs, state.attempt)
    if plan.budget is None or run.ledger is None:
        return cohort, attempt
    paying = run.ledger.can_pay(plan.mechanism.charge(cohort.clients), round, attempt)
    if not paying.all():
        run.ledger.leave_out(state.iteration + 1, round, attempt, cohort.clients[~paying])
    if not paying.any():
        raise BudgetSpentError(
            f"no client of data round {round} can pay for it: the budget of epsilon "
            f"{plan.budget.epsilon:g} at delta {plan.budget.delta:g} is spent; plan fewer rounds or more noise"
        )
    return Cohort(cohort.clients[paying], cohort.epochs[paying]), attempt


def _check_finite(state: State) -> None:
    if not np.isfinite(state.server.model).all():
        raise DivergedError(
            f"the run diverged: the global model is not finite after iteration {state.iteration}; lower the local "
            "learning rate first, then the server's, FedDyn's 1/alpha or the upcycling coefficient"
        )


def _score(plan: Plan, engine: Engine, run: Run) -> tuple[Scores | None, Scores | None]:
    """Return (personal or global, global) scores where this iteration is to be evaluated."""
    iteration = run.state.iteration
    due = iteration % plan.eval_every == 0 or iteration == plan.iterations
    if plan.task.test is None or not due:
        return None, None
    model = run.state.server.model
    scores = engine.score(model)
    if not run.private.names:
        return scores, scores
    clients = run.private.clients
    return engine.score_personal(model, clients, run.private.gather(clients)["model"]), scores


def _record(
    plan: Plan,
    state: State,
    release: Release | None,
    scores: Scores | None,
    global_scores: Scores | None,
    terms: dict[str, float] | None,
    seconds: float,
    scored_since: float,
) -> Record:
    clients = np.zeros(0, dtype=np.int64) if release is None else release.clients
    steps = clients if release is None else release.num_steps
    vector = 4 * plan.task.layout.size
    return Record(
        iteration=state.iteration,
        kind="upcycled" if release is None else "data",
        data_round=state.data_rounds,
        accuracy=None if scores is None else scores.accuracy,
        loss=None if scores is None else scores.loss,
        global_accuracy=None if global_scores is None else global_scores.accuracy,
        global_loss=None if global_scores is None else global_scores.loss,
        coefficient=None if release is not None else state.rho,
        bytes_up=clients.size * vector,
        bytes_down=clients.size * vector * (1 + len(plan.strategy.algorithm.sends)),
        messages=2 * clients.size,
        gradient_steps=int(steps.sum()) * plan.task.solver.gradients_per_step,
        seconds=seconds,
        eval_seconds=time.perf_counter() - scored_since,
        clients=clients,
        client_steps=steps,
        theory=terms,
    )
