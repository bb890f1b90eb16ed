"""Scores beside the engine's: charged ones on held-out samples, and those that choose the best iterate."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from upcycled.core.errors import InputError
from upcycled.core.layout import assign
from upcycled.core.running_statistics import write_statistics
from upcycled.core.shards import Shards
from upcycled.core.strategy import State
from upcycled.core.vectors import Ints, Real, Vector
from upcycled.engines.determinism import one_thread
from upcycled.engines.flat_module import FlatModule, flat_module
from upcycled.engines.scoring import pieces, score_module
from upcycled.privacy.charged_scores import FittedScores, pay_for_scores
from upcycled.runtime.plan import Plan
from upcycled.runtime.state import Best, Run

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
