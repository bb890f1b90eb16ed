"""The convergence theorem for an experiment file: its constants before a run, its bound beside one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from upcycled.coefficients import ScalarRule
from upcycled.config.experiment import PLAN_KEYS, Experiment
from upcycled.config.wording import in_keys, named
from upcycled.core.errors import InputError
from upcycled.core.strategy import Upcycled
from upcycled.core.vectors import Real
from upcycled.runtime.bound_probe import facts_of
from upcycled.runtime.plan import Plan, make_plan
from upcycled.runtime.train import run_plan
from upcycled.support.formats import general
from upcycled.support.warned import collected_warnings
from upcycled.theory import FORMS, Constants, Form, Report, constants, lambda_schedule, smallest_mu
from upcycled.theory.assumptions import ProblemFacts
from upcycled.theory.empirical_risk import objective_of
from upcycled.theory.estimators import local_curvature_of, local_smoothness_of


@dataclass(frozen=True)
class Estimates:
    smoothness: float
    curvature: float
    is_for_all_parameters: bool
    """Whether these two hold everywhere, or were taken at the initial weights."""
    dissimilarity: float
    """B: the largest along the run, or that of the initial weights."""
    loss: float
    """f of the initial weights."""


@dataclass(frozen=True, eq=False)
class Analysis:
    """The theorem about an experiment file."""

    facts: ProblemFacts
    estimates: Estimates
    rounds: int
    num_clients: int
    lam: Real | None
    """lambda_1 .. lambda_M; None where they are not known in advance."""
    constants: Mapping[Form, Constants]
    """Empty where the theorem is not about this file."""
    smallest_mu: Mapping[Form, float | None]
    schedule: Real | None
    """What the corollary asks for."""
    remarks: tuple[str, ...]
    warnings: tuple[str, ...]
    report: Report | None = None

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values; None stands for infinity and for what is not known."""
        e, f = self.estimates, self.facts
        return {
            "problem": {
                "algorithm": f.algorithm,
                "mu": f.mu,
                "clients": self.num_clients,
                "cohort": f.cohort,
                "data_rounds": self.rounds,
                "lam": None if self.lam is None else [_plain(value) for value in self.lam.tolist()],
            },
            "estimates": {
                "smoothness": e.smoothness,
                "curvature": e.curvature,
                "for_all_parameters": e.is_for_all_parameters,
                "dissimilarity": _plain(e.dissimilarity),
                "initial_loss": e.loss,
            },
            "forms": {form: constants_json(self.constants[form], self.smallest_mu[form]) for form in self.constants},
            "schedule": None if self.schedule is None else self.schedule.tolist(),
            "remarks": list(self.remarks),
            "warnings": list(self.warnings),
            "run": None if self.report is None else self.report.as_json(),
        }


def constants_json(found: Constants, least: float | None) -> dict[str, Any]:
    """Return constants and the least mu as plain values."""
    names = [f"C{i}{part}" for i in (1, 2, 3) for part in ("", "_hat", "_tilde")]
    return {name: _listed(getattr(found, name)) for name in names} | {
        "converges": found.converges,
        "smallest_mu": least,
    }


def analyse(experiment: Experiment, source: str, *, run: bool = False) -> Analysis:
    """Estimate L, B and rho for a file's data and model, and set them into the theorem; with ``run``, measure a run.

    Args:
        experiment: from :func:`upcycled.config.experiment.load_config`; its first seed is used.
        source: the file's name, for error sentences.
        run: train with ``theory=True`` and report bound beside measurement.
    """
    report = None
    with named(source), in_keys(PLAN_KEYS), collected_warnings() as warnings:
        data = experiment.build_data()
        spec = experiment.spec(experiment.seeds[0]).replace(theory=run, progress=False)
        plan = make_plan(data, spec)
        facts, estimates = facts_of(plan), _estimate(plan)
        if run:
            result = run_plan(plan, spec.callbacks, threads=None)
            if result.error is not None:
                raise result.error  # part of a run would be held against a bound for the whole
            report = result.theory
    if report is not None:
        estimates = replace(estimates, dissimilarity=report.terms.largest_dissimilarity)
    lam = lambdas(plan, facts.mu)
    reason = _why_not(facts, estimates, lam)
    found, least = dict[Form, Constants](), dict[Form, float | None]()
    if reason is None and facts.mu is not None and lam is not None:
        about = (estimates.smoothness, estimates.dissimilarity, facts.cohort)
        found, least = every_form(*about, facts.mu, estimates.curvature, lam)
    return Analysis(
        facts=facts,
        estimates=estimates,
        rounds=plan.data_rounds,
        num_clients=plan.task.train.num_clients,
        lam=lam,
        constants=found,
        smallest_mu=least,
        schedule=lambda_schedule(facts.mu, plan.data_rounds) if facts.mu else None,
        remarks=tuple([reason] if reason else []) + _remarks(facts, estimates),
        warnings=tuple(warnings),
        report=report,
    )


def every_form(
    smoothness: float, dissimilarity: float, cohort: int | None, mu: float, curvature: float, lam: float | Real
) -> tuple[dict[Form, Constants], dict[Form, float | None]]:
    """Return the constants in every form, and the least mu that makes C1 positive."""
    found, least = dict[Form, Constants](), dict[Form, float | None]()
    for form in FORMS:
        found[form] = constants(
            smoothness=smoothness,
            dissimilarity=dissimilarity,
            mu=mu,
            strong_convexity=mu + curvature,
            cohort=cohort,
            lam=lam,
            form=form,
        )
        least[form] = smallest_mu(
            smoothness=smoothness, dissimilarity=dissimilarity, cohort=cohort, curvature=curvature, form=form
        )
    return found, least


def _estimate(plan: Plan) -> Estimates:
    facts, objective = facts_of(plan), objective_of(plan.task.module, plan.task.train)
    at: Real = plan.initial.astype(np.float64)
    here = objective.landscape(at)
    if facts.smoothness is not None and facts.curvature is not None:
        return Estimates(facts.smoothness, facts.curvature, True, here.dissimilarity, here.loss)
    smoothness, curvature = float(local_smoothness_of(objective, at).max()), local_curvature_of(objective, at)
    return Estimates(smoothness, curvature, False, here.dissimilarity, here.loss)


def _why_not(facts: ProblemFacts, estimates: Estimates, lam: Real | None) -> str | None:
    """Return why there are no constants for a file, or None."""
    if not facts.mu:
        with_zero = "" if facts.mu is None else " with mu = 0"
        return f"The theorem is about FedProx with mu > 0, but the file's algorithm is {facts.algorithm}{with_zero}."
    if lam is None:
        return "The theorem needs coefficients mu/(mu + lambda_m), known before the run, and the file's are not."
    if facts.mu + estimates.curvature <= 0:
        lowest = general(estimates.curvature, 4)
        return (
            f"mu = {general(facts.mu)} leaves the local objectives non-convex: the curvature of the F_i goes down to "
            f"{lowest}."
        )
    if not math.isfinite(estimates.dissimilarity):
        return "B is infinite: f is stationary where clients disagree."
    return None


def _remarks(facts: ProblemFacts, estimates: Estimates) -> tuple[str, ...]:
    found = []
    if not estimates.is_for_all_parameters:
        found.append(
            "L and the curvature are those at the initial weights: the theorem needs bounds for all parameters, which "
            "are known for softmax regression only."
        )
    if facts.cohort is not None and not facts.is_unbiased:
        found.append(
            "Cohorts are drawn evenly and averaged by n_i: with clients of different sizes that is not the unbiased "
            "mean that the proof needs."
        )
    return tuple(found)


def lambdas(plan: Plan, mu: float | None) -> Real | None:
    """Return lambda_m with mu/(mu + lambda_m) = the file's coefficient; infinity for a vanilla run."""
    if not mu:
        return None
    if not isinstance(plan.strategy, Upcycled):
        return np.full(plan.data_rounds, math.inf)
    rule = plan.strategy.rule
    if not isinstance(rule, ScalarRule):
        return None
    c = np.array([rule.coefficient.rho(m, plan.data_rounds) for m in range(1, plan.data_rounds + 1)])
    if (c > 1).any():
        return None
    found: Real = np.maximum(0.0, np.divide(mu, c, out=np.full(c.shape, np.inf), where=c > 0) - mu)
    return found


def calculate(values: Mapping[str, Any]) -> tuple[dict[Form, Constants], dict[Form, float | None]]:
    """Return constants and least mu in every form from plain numbers; without rho it is mu, as for convex losses."""
    given = {name: value for name, value in values.items() if value is not None}
    for name in ("smoothness", "dissimilarity", "mu"):
        if name not in given:
            raise InputError(field=name, but="the constants need it")
    rho = given.get("strong_convexity", given["mu"])
    about = (given["smoothness"], given["dissimilarity"], given.get("cohort"))
    return every_form(*about, given["mu"], rho - given["mu"], given.get("lam", 0.0))


def _listed(value: float | Real) -> float | list[float]:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
