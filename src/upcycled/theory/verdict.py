"""Theorem 1 beside a run that was measured with ``theory=True``: its assumptions, its bound, what really happened."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from upcycled.core.errors import InputError, check_number
from upcycled.core.vectors import Real
from upcycled.support.formats import general
from upcycled.theory.assumptions import Assumption, ProblemFacts, assumptions_of
from upcycled.theory.lemma import FORMS, Constants, Form, constants
from upcycled.theory.terms import Terms
from upcycled.theory.theorem import change_bound, inexactness, rate_bound

PROVEN: tuple[Form, ...] = ("repaired", "sharp")


class HasReport(Protocol):
    @property
    def theory(self) -> Report | None:
        """Its report."""


@dataclass(frozen=True, eq=False)
class Report:
    """The bound beside the measurement. ``print`` shows it."""

    facts: ProblemFacts
    terms: Terms
    assumptions: tuple[Assumption, ...]
    """All but C1 > 0, which is each form's own."""
    constants: Mapping[Form, Constants]
    """Empty where L, rho or B is not known."""
    bounds: Mapping[Form, Real]
    """For each form the bound on ``terms.average``, one entry per data round; what clients left of their gradients is
    in the proven forms. Infinity where C1 <= 0."""

    def applies(self, form: Form = "repaired") -> bool:
        """Whether every assumption holds, C1 > 0 included: then the theorem makes a statement about this run."""
        return all(one.holds for one in self.assumptions) and form in self.constants and self.constants[form].converges

    def holds(self, form: Form = "repaired") -> bool | None:
        """Whether the measured mean is within the bound in every data round; None where it does not apply."""
        return bool((self.terms.average <= self.bounds[form]).all()) if self.applies(form) else None

    def looseness(self, form: Form = "repaired") -> float | None:
        """Return how many times the bound is the measured mean, over the whole run; None where it does not apply."""
        return float(self.bounds[form][-1] / self.terms.average[-1]) if self.applies(form) else None

    def slack(self, form: Form = "repaired") -> Real:
        """Return what is left of the lemma's inequality from each data round to the next (right minus left side).

        With all clients in every round none may be negative, but for rounding; with sampling that holds in expectation.
        """
        if form not in self.constants:
            return np.zeros(0)
        about, t = self.constants[form], self.terms
        g, r = t.gradient_norm[:-1], np.nan_to_num(t.residual[1:])
        moves = (t.coefficient * t.step)[:-1]
        if form in PROVEN:
            change = change_bound(about, g, moves, r)
        else:
            change = (
                -about.C1 * g**2 + _per_round(about.C2, t)[:-1] * t.h1[:-1] + _per_round(about.C3, t)[:-1] * t.h2[:-1]
            )
        left: Real = t.loss[:-1] + change - t.loss[1:]
        return left

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values; None stands for infinity and for what is not known."""
        t = self.terms
        return {
            "rounds": t.rounds,
            "assumptions": [{"name": a.name, "holds": a.holds, "words": a.words} for a in self.assumptions],
            "estimates": {
                "smoothness": self.facts.smoothness,
                "curvature": self.facts.curvature,
                "dissimilarity": _plain(t.largest_dissimilarity),
                "mu": self.facts.mu,
                "cohort": self.facts.cohort,
                "floor": self.facts.floor,
            },
            "forms": {form: self._form_json(form) for form in self.constants},
            "measured": {
                "loss": [t.initial_loss, *t.loss.tolist()],
                "gradient_norm": [t.initial_gradient_norm, *t.gradient_norm.tolist()],
                "dissimilarity": [_plain(b) for b in (t.initial_dissimilarity, *t.dissimilarity.tolist())],
                "step": t.step.tolist(),
                "inexactness": [_plain(value) for value in t.inexactness.tolist()],
                "coefficient": [_plain(value) for value in t.coefficient.tolist()],
                "average": t.average.tolist(),
                "least": t.least.tolist(),
            },
        }

    def _form_json(self, form: Form) -> dict[str, Any]:
        about, slack = self.constants[form], self.slack(form)
        return {
            "C1": about.C1,
            "C2": np.broadcast_to(about.C2, self.terms.rounds).tolist(),
            "C3": np.broadcast_to(about.C3, self.terms.rounds).tolist(),
            "applies": self.applies(form),
            "holds": self.holds(form),
            "bound": [_plain(value) for value in self.bounds[form].tolist()],
            "looseness": self.looseness(form),
            "least_slack": float(slack.min()) if slack.size else None,
        }

    def __str__(self) -> str:
        return "\n".join([*self.assumption_lines(), *self.bound_lines()])

    def assumption_lines(self) -> list[str]:
        return [f"{'ok ' if a.holds else 'NO '} {a.name}: {a.words}" for a in self.assumptions]

    def bound_lines(self) -> list[str]:
        """Return the measurement, and a line for the bound in each form."""
        t = self.terms
        mean, least = general(t.average[-1], 4), general(t.least[-1], 4)
        lines = [f"mean of ||grad f||^2 over {t.rounds} data rounds: {mean} (least {least})"]
        for form in self.constants:
            lines.append(f"bound, {form}: {general(self.bounds[form][-1], 4)} ({self.verdict(form)})")
        return lines

    def verdict(self, form: Form) -> str:
        """Say in words what the theorem says in this form about the run."""
        about = self.constants[form]
        C1 = f"C1 = {general(about.C1, 3)}"
        if not about.converges:
            return f"says nothing: {C1} is not positive"
        if form not in PROVEN:
            within = bool((self.terms.average <= self.bounds[form]).all())
            return f"{C1}; as printed, which is not proven; the run is {'within' if within else 'above'} it"
        looseness = self.looseness(form)
        if looseness is None:
            return f"{C1}, but not every assumption holds"
        if not self.holds(form):
            return f"{C1}; VIOLATED"
        return f"{C1}; holds, {general(looseness, 3)} times the measurement"


def judge(facts: ProblemFacts, terms: Terms) -> Report:
    """Set the theorem beside what was measured."""
    found: dict[Form, Constants] = {}
    bounds: dict[Form, Real] = {}
    B, c = terms.largest_dissimilarity, terms.coefficient
    rho = None if facts.mu is None or facts.curvature is None else facts.mu + facts.curvature
    if facts.mu and facts.smoothness and rho is not None and rho > 0 and math.isfinite(B) and np.isfinite(c).all():
        # c = 0 is lambda = infinity: plain FedProx.
        lam = np.divide(facts.mu, c, out=np.full(c.shape, np.inf), where=c > 0) - facts.mu
        for form in FORMS:
            found[form] = constants(
                smoothness=facts.smoothness,
                dissimilarity=B,
                mu=facts.mu,
                strong_convexity=rho,
                cohort=facts.cohort,
                lam=np.maximum(lam, 0.0),
                form=form,
            )
            bounds[form] = _bounds(found[form], facts, terms)
    return Report(facts, terms, assumptions_of(facts, terms, rho), found, bounds)


def report(
    result: HasReport,
    *,
    smoothness: float | None = None,
    curvature: float | None = None,
    floor: float | None = None,
) -> Report:
    """Return the report of a run that was trained with ``theory=True``, perhaps with numbers of your own.

    Args:
        result: what ``up.train`` gave back.
        smoothness: L, where the model's is not known for all parameters.
        curvature: the lowest curvature of the F_i (rho = mu + curvature), likewise.
        floor: anything below f*; 0 if left out.

    Returns:
        The report, judged anew.

    Raises:
        InputError: for a run without ``theory=True``, or a number out of its range.

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=4, sizes=30, seed=0)
    >>> local = up.LocalSGD(lr=0.2, epochs=60, batch_size=None)
    >>> result = up.train(data, algorithm=up.FedProx(mu=4), upcycle=0.5, iterations=8, local=local, theory=True,
    ...     progress=False)
    >>> found = up.theory.report(result)
    >>> found.applies(), found.holds()
    (True, True)
    """
    if result.theory is None:
        raise InputError("the run has no terms of the bound: it must be trained with theory=True")
    facts = result.theory.facts
    if smoothness is not None:
        check_number("smoothness", smoothness, above=0)
        facts = replace(facts, smoothness=float(smoothness))
    if curvature is not None:
        check_number("curvature", curvature)
        facts = replace(facts, curvature=float(curvature))
    if floor is not None:
        check_number("floor", floor)
        facts = replace(facts, floor=float(floor))
    return judge(facts, result.theory.terms)


def _bounds(about: Constants, facts: ProblemFacts, t: Terms) -> Real:
    """Return the theorem's right side for M = 1, 2, ...: terms up to m, and what clients left in rounds up to m."""
    left = np.zeros(t.rounds)
    if about.form in PROVEN:
        # Round m+1 starts from w(2m); the first one from w(0), without an upcycled step before it.
        start = inexactness(
            about, gradient_norm=t.initial_gradient_norm, step=np.zeros(t.rounds), residual=t.residual[0]
        )
        left[0] = np.nan_to_num(start[0])
        later = inexactness(about, gradient_norm=t.gradient_norm, step=t.step, residual=np.append(t.residual[1:], 0.0))
        left[1:] = np.nan_to_num(later[:-1])
    first, second = _per_round(about.C2, t), _per_round(about.C3, t)
    return np.array(
        [
            rate_bound(
                constants=replace(about, C2=first[:m], C3=second[:m]),
                initial_loss=t.initial_loss,
                floor=facts.floor,
                h1=t.h1[:m],
                h2=t.h2[:m],
                extra=float(left[:m].sum()),
            )
            for m in range(1, t.rounds + 1)
        ]
    )


def _per_round(values: float | Real, t: Terms) -> Real:
    return np.broadcast_to(np.asarray(values, dtype=np.float64), t.rounds)


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
