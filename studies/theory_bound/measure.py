"""The terms of Theorem 1 along a run: a probe measures them, and the bound is set beside them.

The probe looks at all training data after each iteration, which no server can: it is a simulation's tool.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from torch import nn

import upcycled as up
from upcycled.core.mechanism import Release
from upcycled.core.vectors import Real, Vector
from upcycled.engines.determinism import one_blas_thread, one_thread
from upcycled.theory import FORMS, Constants, Form, constants, objective_for, rate_bound
from upcycled.training.callbacks import Step
from upcycled.training.history import Record
from upcycled.training.plan import Plan

PREFIX = "theory_"
"""Beginning of the terms' names among a record's metrics."""
PROVEN: tuple[Form, ...] = ("repaired", "sharp")
EXACT = 1e-3
"""A local solution counts as exact if it leaves at most this share of the gradient it started with."""


class BoundProbe:
    """A callback that measures f, its gradient's norm, B and the terms of the bound after each iteration, in float64.

    Args:
        data: the clients' samples.
        model: as for ``up.theory.estimate_smoothness``: of the same shape as the run's model.
        mu: FedProx's mu.
    """

    def __init__(self, data: up.FederatedData, model: str | nn.Module, mu: float) -> None:
        self._objective, self._mu = objective_for(data, model), mu

    def start(self, plan: Plan, before: Sequence[Record]) -> None:
        self._initial = plan.initial

    def measure(self, step: Step) -> dict[str, float]:
        """Return the numbers of one iteration: of the point it led to, and, with a release, of the round itself."""
        return {f"{PREFIX}{name}": value for name, value in self._terms(step).items()}

    def _terms(self, step: Step) -> dict[str, float]:
        with one_thread(), one_blas_thread():
            terms = self._point(step.after)
            if step.iteration == 1:
                terms |= {f"initial_{name}": value for name, value in self._point(self._initial).items()}
            if step.release is None:
                return terms
            length = float(np.linalg.norm(step.after.astype(np.float64) - step.before.astype(np.float64)))
            return terms | {"step": length} | self._local(step.before, step.release)

    def _point(self, at: Vector) -> dict[str, float]:
        here = self._objective.landscape(at.astype(np.float64))
        terms = {"loss": here.loss, "gradient_norm": here.gradient_norm}
        # Records hold finite numbers: B is left out where clients disagree at a stationary point.
        return terms | ({"dissimilarity": here.dissimilarity} if math.isfinite(here.dissimilarity) else {})

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
        terms = {"residual": math.sqrt(left)}
        if began > 0:
            return terms | {"inexactness": math.sqrt(left / began)}
        return terms | ({"inexactness": 0.0} if left == 0 else {})


@dataclass(frozen=True, eq=False)
class Terms:
    """One entry per data round m = 1 .. M, at w(2m-1), and the same at w(0)."""

    initial_loss: float
    initial_gradient_norm: float
    initial_dissimilarity: float
    loss: Real
    """f(w(2m-1))."""
    gradient_norm: Real
    dissimilarity: Real
    """B(w(2m-1)); infinity where grad f = 0 and clients disagree."""
    step: Real
    """||w(2m-1) - w(2m-2)||."""
    residual: Real
    """sqrt(E_i ||grad F_i(w_i) + mu (w_i - w(2m-2))||^2) over the clients of the round."""
    inexactness: Real
    """The residual over sqrt(E_i ||grad F_i(w(2m-2))||^2), which is gamma of Li et al. in the mean."""
    coefficient: Real
    """c_m of the upcycled iteration that followed: 0 if none did."""

    @property
    def rounds(self) -> int:
        return self.loss.size

    @property
    def h1(self) -> Real:
        return self.gradient_norm * self.step

    @property
    def h2(self) -> Real:
        return self.step**2

    @property
    def average(self) -> Real:
        """(1/m) sum_{k=1..m} ||grad f(w(2k-1))||^2 for each m: what the theorem bounds."""
        squares: Real = self.gradient_norm**2
        return squares.cumsum() / np.arange(1, self.rounds + 1)

    @property
    def least(self) -> Real:
        """min_{k <= m} ||grad f(w(2k-1))||^2 for each m."""
        squares: Real = np.minimum.accumulate(self.gradient_norm**2)
        return squares

    @property
    def largest_dissimilarity(self) -> float:
        """The B that serves this run: the largest at w(0), w(1), w(3), ..., where the proof uses it."""
        return max(self.initial_dissimilarity, float(self.dissimilarity.max()))


def terms_of(history: Iterable[Record]) -> Terms:
    """Collect the terms of a run with scalar coefficients from its records."""
    rounds: list[dict[str, float]] = []
    coefficients: list[float] = []
    for record in history:
        if record.kind == "data":
            rounds.append({name.removeprefix(PREFIX): value for name, value in record.metrics.items()})
            coefficients.append(0.0)
        else:
            assert record.coefficient is not None
            coefficients[-1] = record.coefficient

    def column(name: str, missing: float = math.nan) -> Real:
        return np.array([terms.get(name, missing) for terms in rounds], dtype=np.float64)

    return Terms(
        initial_loss=rounds[0]["initial_loss"],
        initial_gradient_norm=rounds[0]["initial_gradient_norm"],
        initial_dissimilarity=rounds[0].get("initial_dissimilarity", math.inf),
        coefficient=np.array(coefficients),
        loss=column("loss"),
        gradient_norm=column("gradient_norm"),
        dissimilarity=column("dissimilarity", math.inf),
        step=column("step"),
        residual=column("residual"),
        inexactness=column("inexactness"),
    )


@dataclass(frozen=True, eq=False)
class Judgement:
    """The bound beside the measurement."""

    terms: Terms
    unmet: tuple[str, ...]
    """Assumptions of the theorem that the run does not meet, but for C1 > 0, which is each form's own."""
    constants: Mapping[Form, Constants]
    bounds: Mapping[Form, Real]
    """For each form the bound on ``terms.average``, one entry per data round; what clients left of their gradients is
    in the proven forms. Infinity where C1 <= 0."""

    def applies(self, form: Form = "repaired") -> bool:
        """Whether every assumption holds, C1 > 0 included: then the theorem makes a statement about this run."""
        return not self.unmet and self.constants[form].converges

    def holds(self, form: Form = "repaired") -> bool | None:
        """Whether the measured mean is within the bound in every data round; None where it does not apply."""
        return bool((self.terms.average <= self.bounds[form]).all()) if self.applies(form) else None

    def slack(self, form: Form = "repaired") -> Real:
        """Return what is left of the lemma's inequality from each data round to the next (right minus left side).

        With all clients in every round none may be negative, but for rounding; with sampling that holds in expectation.
        """
        about, t = self.constants[form], self.terms
        g, moves = t.gradient_norm[:-1], (t.coefficient * t.step)[:-1]
        if form in PROVEN:
            change = change_bound(about, g, moves, t.residual[1:])
        else:
            change = -about.C1 * g**2 + (_per_round(about.C2, t) * t.h1 + _per_round(about.C3, t) * t.h2)[:-1]
        left: Real = t.loss[:-1] + change - t.loss[1:]
        return left


def judge(history: Iterable[Record], *, mu: float, smoothness: float, cohort: int | None) -> Judgement:
    """Set the theorem beside a measured run of FedProx on softmax regression (rho = mu).

    ``cohort`` is the number of clients that are drawn, of one size; None if all take part.
    """
    terms = terms_of(history)
    is_met = cohort is None or terms.inexactness.max() <= EXACT
    c = terms.coefficient
    # c = 0 is lambda = infinity: plain FedProx.
    lam = np.divide(mu, c, out=np.full(c.shape, np.inf), where=c > 0) - mu
    by_form = {
        form: constants(
            smoothness=smoothness,
            dissimilarity=terms.largest_dissimilarity,
            mu=mu,
            strong_convexity=mu,
            cohort=cohort,
            lam=np.maximum(lam, 0.0),
            form=form,
        )
        for form in FORMS
    }
    unmet = () if is_met else ("exact local minimisers",)
    return Judgement(terms, unmet, by_form, {form: _bounds(about, terms) for form, about in by_form.items()})


def inexactness(about: Constants, *, gradient_norm: ArrayLike, step: ArrayLike, residual: ArrayLike) -> Real:
    """Return what inexact local work adds to the right side of a round's inequality; zero for exact minimisers.

    The paper assumes that clients find the minimiser. Let e_i = grad F_i(w_i) + mu (w_i - w(2m)) be what is left of the
    gradient at what client i really sent in data round m+1, and ``residual`` = r = sqrt(E_i ||e_i||^2). Following the
    proof with ||w_i - w(2m)|| <= (||grad F_i(w(2m))|| + ||e_i||)/rho, and e_i/mu in Phi, everything stays as it is but
    for B g becoming B g + r, and g r/mu on top. It covers stragglers, SGD and noise, whatever made r.

    Args:
        about: constants in the form "repaired" or "sharp".
        gradient_norm: g = ||grad f(w(2m-1))||.
        step: ||w(2m-1) - w(2m-2)||.
        residual: r, over all clients, of data round m+1.
    """
    g, r = np.asarray(gradient_norm, dtype=np.float64), np.asarray(residual, dtype=np.float64)
    d = about.ratio * np.asarray(step, dtype=np.float64)
    added: Real = change_bound(about, g, d, r) - change_bound(about, g, d, np.zeros_like(r))
    return added


def change_bound(about: Constants, g: Real, d: Real, r: Real) -> Real:
    """Return the proven bound on E f(w(2m+1)) - f(w(2m-1)) before it is sorted by powers.

    g = ||grad f(w(2m-1))||, d = ||w(2m) - w(2m-1)||, r as in :func:`inexactness`.
    """
    L, B, mu, rho, K = about.smoothness, about.dissimilarity, about.mu, about.strong_convexity, about.cohort
    u = (B * g + L * d + r) / rho  # bounds sqrt(E_i ||w_i - w(2m)||^2)
    moved = u + d  # bounds ||w_tilde - w(2m-1)||
    change: Real = -(g**2) / mu + g * (L / mu * moved + r / mu + d) + L / 2 * moved**2
    if K is None:
        return change
    if about.form == "sharp":
        return change + L / (2 * K) * u**2
    return change + math.sqrt(2 / K) * u * (g + 2 * L * moved) + 2 * L / K * u**2


def _bounds(about: Constants, t: Terms) -> Real:
    """Return the theorem's right side for M = 1, 2, ...: terms up to m, and what clients left in rounds up to m."""
    if not about.converges:
        return np.full(t.rounds, math.inf)
    left = np.zeros(t.rounds)
    if about.form in PROVEN:
        # Round m+1 starts from w(2m); the first one from w(0), without an upcycled step before it.
        start = inexactness(
            about, gradient_norm=t.initial_gradient_norm, step=np.zeros(t.rounds), residual=t.residual[0]
        )
        later = inexactness(about, gradient_norm=t.gradient_norm, step=t.step, residual=np.append(t.residual[1:], 0.0))
        left = np.append(start[0], later[:-1])
    first, second = _per_round(about.C2, t), _per_round(about.C3, t)
    return np.array(
        [
            rate_bound(
                constants=replace(about, C2=first[:m], C3=second[:m]),
                initial_loss=t.initial_loss,
                h1=t.h1[:m],
                h2=t.h2[:m],
            )
            + float(left[:m].sum()) / (m * about.C1)
            for m in range(1, t.rounds + 1)
        ]
    )


def _per_round(values: float | Real, t: Terms) -> Real:
    return np.broadcast_to(np.asarray(values, dtype=np.float64), t.rounds)
