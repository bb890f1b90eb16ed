"""What a run with ``theory=True`` measures: a simulation's look at all training data, which no server has."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from upcycled.core.mechanism import Release
from upcycled.core.vectors import Real, Vector
from upcycled.engines.determinism import one_blas_thread, one_thread
from upcycled.runtime.callbacks import Step
from upcycled.runtime.history import Record
from upcycled.runtime.plan import Plan
from upcycled.theory.assumptions import ProblemFacts
from upcycled.theory.empirical_risk import Objective, objective_of
from upcycled.theory.estimators import smoothness_of
from upcycled.theory.terms import PREFIX, terms_of
from upcycled.theory.verdict import Report, judge


class BoundProbe:
    """Measures f, its gradient's norm, B and the terms of the bound after each iteration, in float64: a callback."""

    def __init__(self, plan: Plan) -> None:
        self._initial, self._is_central = plan.initial, plan.mechanism.is_central
        self._objective = objective_of(plan.task.module, plan.task.train)
        self._mu = _mu(plan) or 0.0

    def measure(self, step: Step) -> dict[str, float]:
        """Return the numbers of one iteration: of the point it led to, and, with a release, of the round itself."""
        return {f"{PREFIX}{name}": value for name, value in self._terms(step).items()}

    def _terms(self, step: Step) -> dict[str, float]:
        before, after, release = step.before, step.after, step.release
        with one_thread(), one_blas_thread():
            found = self._point(after)
            if step.iteration == 1:
                found |= {f"initial_{name}": value for name, value in self._point(self._initial).items()}
            if release is None:
                return found
            length = float(np.linalg.norm(after.astype(np.float64) - before.astype(np.float64)))
            found |= {"step": length, "h1": found["gradient_norm"] * length, "h2": length**2}
            return found if self._is_central or not release.clients.size else found | self._local(before, release)

    def _point(self, at: Vector) -> dict[str, float]:
        here = self._objective.landscape(at.astype(np.float64))
        found = {"loss": here.loss, "gradient_norm": here.gradient_norm}
        # Records hold finite numbers: B is left out where clients disagree at a stationary point.
        return found | ({"dissimilarity": here.dissimilarity} if math.isfinite(here.dissimilarity) else {})

    def _local(self, before: Vector, release: Release) -> dict[str, float]:
        """Return how much of the gradient of F_i + mu/2 ||. - w||^2 is left at what the clients sent."""
        start: Real = before.astype(np.float64)
        shares = release.num_samples / release.num_samples.sum()
        left = began = 0.0
        for client, share, sent in zip(release.clients.tolist(), shares.tolist(), release.vectors, strict=True):
            own: Real = sent.astype(np.float64)
            rest = self._objective.client(client, own)[1] + self._mu * (own - start)
            first = self._objective.client(client, start)[1]
            left, began = left + share * float(rest @ rest), began + share * float(first @ first)
        found = {"residual": math.sqrt(left)}
        if began > 0:
            return found | {"inexactness": math.sqrt(left / began)}
        return found | ({"inexactness": 0.0} if left == 0 else {})


def report_of(plan: Plan, records: Sequence[Record]) -> Report:
    """Set the theorem beside a finished run."""
    return judge(facts_of(plan), terms_of(records))


def facts_of(plan: Plan) -> ProblemFacts:
    """Return what the theorem must know about a run, beside what is measured."""
    train, who = plan.task.train, plan.participation
    objective = objective_of(plan.task.module, train)
    is_planned = not plan.mechanism.draws_secretly and plan.spec.budget is None
    is_everybody = who.fraction == 1.0 and is_planned
    is_fixed = who.sampler.name == "fixed" and is_planned
    return ProblemFacts(
        algorithm=plan.strategy.algorithm.name,
        mu=_mu(plan),
        cohort=None if is_everybody else who.expected(train.num_clients),
        is_unbiased=is_everybody or (is_fixed and len(set(train.sizes.tolist())) == 1),
        smoothness=_smoothness(objective),
        curvature=0.0 if objective.softmax is not None else None,
        mechanism=plan.mechanism.name,
    )


def _mu(plan: Plan) -> float | None:
    """Return the weight of the quadratic term; None where the algorithm is not FedProx."""
    algorithm = plan.strategy.algorithm
    if algorithm.name != "fedprox":
        return None
    own = algorithm.problem(algorithm.start(plan.initial), {}).a
    return own + plan.mechanism.prox_mu


def _smoothness(objective: Objective) -> float | None:
    if objective.softmax is None:
        return None
    with one_blas_thread():
        return float(smoothness_of(objective).max())
