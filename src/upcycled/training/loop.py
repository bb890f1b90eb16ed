"""The loop over iterations, once for every algorithm, strategy, mechanism and engine, and its scores.

Scores beside the engine's: charged ones on held-out samples, and those that choose the best iterate.

Odd: ask, answer, take. Even: extrapolate.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import nn

from upcycled.core.engine import Engine, Scores
from upcycled.core.errors import DivergedError, InputError
from upcycled.core.layout import assign, write_statistics
from upcycled.core.mechanism import Release
from upcycled.core.upcycling import State
from upcycled.core.vectors import Ints, Real, Shards, Vector
from upcycled.engines.determinism import one_thread
from upcycled.engines.flat_module import FlatModule, flat_module
from upcycled.engines.scoring import pieces, score_module
from upcycled.metrics import GLOBAL, measure
from upcycled.privacy.charged_scores import FittedScores, pay_for_scores
from upcycled.training.callbacks import Hooks, Step
from upcycled.training.history import Record
from upcycled.training.plan import Plan
from upcycled.training.publication import publication_of
from upcycled.training.round import DataRound, data_round
from upcycled.training.state import Best, Run

VALIDATION = "validation_"
"""How the names of scores on validation samples begin."""


@dataclass(frozen=True, eq=False)
class Scorer:
    """What counts: a module of its own, and the held-out samples."""

    scores: FittedScores
    module: nn.Module
    test: Shards

    def count(self, model: Vector, clients: Ints) -> Real:
        """Return the exact numbers of clients, which are theirs alone.

        Batches are cut by the public sizes, so a sample's output depends on itself and its place, not on the others:
        a plan refuses models that mix samples.
        """
        assign(self.module, model)
        device = next(self.module.parameters()).device
        found = np.zeros((clients.size, self.scores.numbers))
        for row, client in enumerate(clients.tolist()):
            x, y = self.test.client(client)
            for part in pieces(len(y)):
                with torch.no_grad():
                    logits = self.module(torch.from_numpy(np.array(x[part])).to(device)).cpu().numpy()
                found[row] += self.scores.count(logits, np.asarray(y[part], dtype=np.int64))
        return found


def scorer_of(plan: Plan) -> Scorer | None:
    """Return what gives the plan's charged scores; None where it asks for none."""
    if plan.scores is None or plan.task.test is None:
        return None
    return Scorer(plan.scores, copy.deepcopy(plan.module).eval(), plan.task.test)


def charged_scores(plan: Plan, scorer: Scorer, run: Run) -> dict[str, float]:
    """Return the scores after an iteration, by name; nothing where none are due, or nobody can pay."""
    iteration, round = run.state.iteration, run.state.data_rounds
    if run.ledger is None or not scorer.scores.is_due(iteration):
        return {}
    clients = pay_for_scores(run.ledger, scorer.scores, scorer.test.sizes, iteration, round)
    if not clients.size:
        return {}
    exact = scorer.count(run.state.server.model, clients)
    released = scorer.scores.release(exact, clients, run.noise_for(plan, iteration, 0))
    return scorer.scores.metrics(released, int(scorer.test.sizes_of(clients).sum()))


@dataclass(frozen=True, eq=False)
class Chooser:
    """What scores iterates on validation samples: a module of its own, in plain torch whatever the engine is."""

    by: str
    flat: FlatModule
    validation: Shards

    @property
    def name(self) -> str:
        """What records call the score."""
        return f"{VALIDATION}{self.by}"

    def score(self, state: State) -> float:
        """Return the score of an iterate, with the running statistics that go with it."""
        if state.statistics is not None:
            write_statistics(self.flat.module, state.statistics)
        with one_thread():
            scores = score_module(self.flat, state.server.model, self.validation)
        if self.by == "loss":
            return scores.loss
        if scores.accuracy is None:
            raise InputError(field="keep_best", value=self.by, but="the loss does not know right answers")
        return scores.accuracy

    def better(self, best: Best | None, run: Run, score: float) -> Best | None:
        """Return the better one of the best so far and the run's iterate; of equal ones the first."""
        if math.isnan(score):
            return best
        sign = 1 if self.by == "loss" else -1
        is_better = best is None or sign * score < sign * best.score
        return Best(run.state.iteration, score, run.state.server.model, run.state.statistics) if is_better else best


def chooser_of(plan: Plan) -> Chooser | None:
    """Return what chooses the plan's best iterate; None where none is to be kept."""
    if plan.spec.keep_best is None or plan.validation is None:
        return None
    # Engines write into the task's module.
    own = replace(plan.task, module=copy.deepcopy(plan.module), test=plan.validation)
    return Chooser(plan.spec.keep_best, flat_module(own), plan.validation)


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
            _check_bounded(run.state)
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


def _check_bounded(state: State) -> None:
    """Call a run diverged whose model is not finite, or so large that float32 cannot hold its length squared."""
    model = state.server.model
    if not np.isfinite(np.dot(model, model)):
        what = "so large that float32 cannot hold its squared length" if np.isfinite(model).all() else "not finite"
        raise DivergedError(
            f"the run diverged: the global model is {what} after iteration {state.iteration}; lower the local "
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
        coefficient=None if release is not None else state.coefficient,
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
