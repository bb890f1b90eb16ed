"""The loop over iterations, once for every algorithm, strategy, mechanism and engine.

Odd: ask, answer, take. Even: extrapolate.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from upcycled.core.engine import Engine, Scores
from upcycled.core.errors import DivergedError
from upcycled.core.mechanism import Release
from upcycled.core.strategy import State
from upcycled.metrics.measure import GLOBAL, measure
from upcycled.runtime.callbacks import Hooks, Step
from upcycled.runtime.history import Record
from upcycled.runtime.plan import Plan
from upcycled.runtime.publication import publication_of
from upcycled.runtime.round import DataRound, data_round
from upcycled.runtime.scorer import charged_scores, chooser_of, scorer_of
from upcycled.runtime.state import Run


def iterate(
    plan: Plan, engine: Engine, run: Run, probes: Sequence[Hooks] = (), data_round: DataRound = data_round
) -> Iterator[tuple[Run, Record]]:
    """Yield the run and its record after each iteration until the plan is done; ``run`` may be a resumed one.

    What ``probes`` measure of an iteration goes into its record. The record is exact: what of it leaves is not decided
    here. ``data_round`` is how clients are asked: here, or elsewhere.
    """
    shown = publication_of(plan)
    # What NumPy would warn of follows from records.
    quiet: Literal["ignore"] | None = "ignore" if shown.is_restricted else None
    scorer, chooser = scorer_of(plan), chooser_of(plan)
    charged_names = frozenset[str]() if scorer is None else scorer.scores.names
    while run.state.iteration < plan.iterations:
        began = time.perf_counter()
        before, release, traffic = run.state.server.model, None, None
        # A run that overflows is told by its model, in one sentence, not by NumPy's warnings on the way there.
        with np.errstate(over="ignore", invalid="ignore", divide=quiet, under=quiet):
            if plan.strategy.kind(run.state) == "data":
                run, release, traffic = data_round(plan, engine, run)
            else:
                run = replace(run, state=plan.strategy.upcycle(run.state, plan.data_rounds))
                if run.ledger is not None:
                    run.ledger.upcycled(run.state.iteration, run.state.data_rounds)
        _check_finite(run.state)
        trained = time.perf_counter()
        with np.errstate(all=quiet):
            scores, global_scores = _score(plan, engine, run)
            metrics = _measured(plan, engine, run, shown.is_restricted) if plan.metrics else {}
            if chooser is not None and _is_due(plan, run.state.iteration):
                score = chooser.score(run.state)
                metrics[chooser.name] = score
                run = replace(run, best=chooser.better(run.best, run, score))
        if probes:
            step = shown.step(Step(run.state.iteration, before, run.state.server.model, release))
            for probe in probes:
                measured = probe.measure(step)
                # Nobody else's number passes under a charged one's name.
                metrics |= {name: value for name, value in measured.items() if name not in charged_names}
        if scorer is not None:
            with np.errstate(all=quiet):
                metrics |= charged_scores(plan, scorer, run)
        record = _record(plan, run.state, release, scores, global_scores, metrics, trained - began, trained)
        yield run, record if traffic is None else replace(record, **vars(traffic))


def _check_finite(state: State) -> None:
    if not np.isfinite(state.server.model).all():
        raise DivergedError(
            f"the run diverged: the global model is not finite after iteration {state.iteration}; lower the local "
            "learning rate first, then the server's, FedDyn's 1/alpha or the upcycling coefficient"
        )


def _is_due(plan: Plan, iteration: int) -> bool:
    """Say whether an iteration is to be evaluated."""
    return iteration % plan.spec.eval_every == 0 or iteration == plan.iterations


def _score(plan: Plan, engine: Engine, run: Run) -> tuple[Scores | None, Scores | None]:
    """Return (personal or global, global) scores where this iteration is to be evaluated."""
    if plan.task.test is None or not _is_due(plan, run.state.iteration):
        return None, None
    model = run.state.server.model
    scores = engine.score(model, run.state.statistics)
    if not run.private.names:
        return scores, scores
    clients = run.private.clients
    return engine.score_personal(model, clients, run.private.gather(clients)["model"]), scores


def _measured(plan: Plan, engine: Engine, run: Run, is_silent: bool) -> dict[str, float]:
    """Return the plan's metrics where this iteration is to be evaluated: of personal models, and of the global one."""
    test, model = plan.task.test, run.state.server.model
    if test is None or not _is_due(plan, run.state.iteration):
        return {}
    found = measure(plan.metrics, plan.objective, test.y, engine.outputs(model, run.state.statistics), is_silent)
    if not run.private.names:
        return found
    clients = run.private.clients
    own = engine.outputs_personal(model, clients, run.private.gather(clients)["model"])
    personal = measure(plan.metrics, plan.objective, test.y, own, is_silent)
    return personal | {f"{GLOBAL}{name}": value for name, value in found.items()}


def _record(
    plan: Plan,
    state: State,
    release: Release | None,
    scores: Scores | None,
    global_scores: Scores | None,
    metrics: Mapping[str, float],
    seconds: float,
    scored_since: float,
) -> Record:
    clients = np.zeros(0, dtype=np.int64) if release is None else release.clients
    steps = clients if release is None else release.num_steps
    vector = 4 * plan.layout.size
    statistics = 0 if plan.statistics is None else 4 * plan.statistics.size
    return Record(
        iteration=state.iteration,
        kind="upcycled" if release is None else "data",
        data_round=state.data_rounds,
        accuracy=None if scores is None else scores.accuracy,
        loss=None if scores is None else scores.loss,
        global_accuracy=None if global_scores is None else global_scores.accuracy,
        global_loss=None if global_scores is None else global_scores.loss,
        coefficient=None if release is not None else state.rho,
        bytes_up=clients.size * (vector + statistics),
        bytes_down=clients.size * (vector * (1 + len(plan.strategy.algorithm.sends)) + statistics),
        messages=2 * clients.size,
        gradient_steps=int(steps.sum()) * plan.solver.gradients_per_step,
        seconds=seconds,
        eval_seconds=time.perf_counter() - scored_since,
        clients=clients,
        client_steps=steps,
        metrics=metrics,
    )
