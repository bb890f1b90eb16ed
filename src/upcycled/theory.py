"""The paper's convergence analysis: constants, condition, rate bound, and estimators of L and B.

The paper's convergence analysis: C1, C2 and C3 with their parts, the bound of Theorem 1, and when it says something.

For Upcycled-FedProx with exact local minimisers, over two consecutive data rounds:

    E f(w(2m+1)) <= f(w(2m-1)) - C1 ||grad f(w(2m-1))||^2 + C2 h1_m + C3 h2_m
    h1_m = ||grad f(w(2m-1))|| ||w(2m-1) - w(2m-2)||,    h2_m = ||w(2m-1) - w(2m-2)||^2

with L the smoothness of every F_i, B the dissimilarity, rho the strong convexity of F_i + mu/2 ||. - w||^2 (not the
upcycling coefficient, which is c = mu/(mu + lambda_m) here), K the clients drawn in a round. C1 = C1_hat - C1_tilde,
C2 and C3 are sums of their parts; hat is the step of all clients, tilde the error of drawing K of them.

What is printed in the paper, and what is right:

- Eq. (c2) has an unbalanced bracket, "(4L^2B + rho L(1+2B)"; without it the printed C2 is the sum of its parts.
- The proof of the hat lemma bounds <grad f, -grad f/mu + Phi> by -(1/mu)||grad f||^2 + **(1/mu)** ||grad f|| ||Phi||.
  That second 1/mu is one too many: Phi already has it. So LB/(mu^2 rho) should be LB/(mu rho), and L^2/(mu^2 rho) +
  (L+mu)/mu^2 should be L^2/(mu rho) + (L+mu)/mu. For mu <= 1 the printed constants are only weaker; for mu > 1 the
  lemma and the theorem as printed are false: one client, f = w^2/2, mu = 10 loses 0.0868 ||grad f||^2 in a step, and
  the printed C1 promises 0.0950.
- The proof of the tilde lemma loses the factor L of L E||w_bar - w_tilde||^2 when it collects terms: 2B^2/(K rho^2),
  4LB/(K rho^2) and 2L^2/(K rho^2) should each have one more L (units show it too). The printed tilde lemma is true
  all the same, because the rest of its bound is loose: see the form "sharp".
- The argument lists print Ĉ3 with B and 1/mu, and C3_tilde with B: they depend on neither.
- E over the choice of S_m in front of f(w(2m+1)) should be over S_(m+1), the clients that made w(2m+1).
- "C1 > 0 must hold when B = 0 (i.i.d. clients)": i.i.d. clients have B = 1, and B >= 1 always, by Jensen's inequality;
  C1 > 0 is a condition then too.

The forms:

- ``"paper"``: as printed.
- ``"repaired"``: the paper's proof with both slips put right. Its C1_hat is attained: by one client with a quadratic.
- ``"sharp"``: the same assumptions, but drawn clients are unbiased, so the first-order term of the sampling error
  vanishes and E f(w_bar) <= f(w_tilde) + L/(2K) E_i ||w_i - w(2m)||^2. No sqrt(2/K) remains.

Estimates of the theorem's L and B from data and model, in float64.

F_i is the mean cross-entropy of client i's training samples, f = sum_i p_i F_i with p_i = n_i / sum_j n_j, the paper's
Eq. (obj): so f is the mean over all samples. Modules are taken in evaluation mode (no dropout).
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real as RealNumber
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.polynomial import Polynomial
from numpy.typing import ArrayLike
from torch import nn
from torch.func import functional_call, grad, grad_and_value, vjp
from torch.nn.functional import cross_entropy

from upcycled.core.errors import InputError, check_number, unknown
from upcycled.core.layout import Layout, layout_of
from upcycled.core.vectors import Ints, Real, Shards
from upcycled.data import FederatedData
from upcycled.losses import softmax_slopes
from upcycled.models.linear import LinearModel, linear_model_of

Form: TypeAlias = Literal["paper", "repaired", "sharp"]
FORMS: tuple[Form, ...] = get_args(Form)

PerRound: TypeAlias = float | Real
"""A number, or one for each data round."""


@dataclass(frozen=True, eq=False)
class Constants:
    """C1, C2, C3 and their parts; C2 and C3 have one entry per data round where lambda does."""

    C1: float
    C2: PerRound
    C3: PerRound
    C1_hat: float
    C2_hat: PerRound
    C3_hat: PerRound
    C1_tilde: float
    C2_tilde: PerRound
    C3_tilde: PerRound
    smoothness: float
    dissimilarity: float
    mu: float
    strong_convexity: float
    cohort: int | None
    lam: PerRound
    form: Form

    @property
    def ratio(self) -> PerRound:
        """mu / (mu + lambda_m), the upcycling coefficient."""
        return ratio_of(self.mu, self.lam)

    @property
    def converges(self) -> bool:
        """Whether C1 > 0, the theorem's condition."""
        return self.C1 > 0

    def in_form(self, form: Form) -> Constants:
        """Return the constants of the same problem in another form."""
        return constants(
            smoothness=self.smoothness,
            dissimilarity=self.dissimilarity,
            mu=self.mu,
            strong_convexity=self.strong_convexity,
            cohort=self.cohort,
            lam=self.lam,
            form=form,
        )


def constants(
    *,
    smoothness: float,
    dissimilarity: float,
    mu: float,
    strong_convexity: float,
    cohort: int | None,
    lam: PerRound | Sequence[float],
    form: Form = "paper",
) -> Constants:
    """Return C1, C2, C3 as the paper prints them, or in another ``form`` (see the module).

    Args:
        smoothness: L, of every F_i (:func:`estimate_smoothness`).
        dissimilarity: B >= 1 (:func:`estimate_dissimilarity`).
        mu: FedProx's mu.
        strong_convexity: rho, of F_i + mu/2 ||. - w||^2: mu plus the lowest second derivative of
            the F_i, so mu for convex ones.
        cohort: K, clients drawn in a data round; None if all take part, which leaves the hat parts alone.
        lam: lambda_m >= 0, a number or one per data round; infinity is plain FedProx.
        form: ``"paper"``, ``"repaired"`` or ``"sharp"``.

    Returns:
        The constants with their parts, and the problem they belong to.

    Raises:
        InputError: for a number that no problem has.

    >>> found = constants(smoothness=1, dissimilarity=1, mu=10, strong_convexity=11, cohort=None, lam=10)
    >>> round(found.C1, 4), round(found.in_form("repaired").C1, 4)
    (0.095, 0.0868)
    """
    check_problem(smoothness, dissimilarity, cohort, form)
    check_number("mu", mu, above=0)
    check_number("strong_convexity", strong_convexity, above=0)
    scale = _checked_lam(lam)
    hat = _hat(smoothness, dissimilarity, mu, strong_convexity, form)
    tilde = _tilde(smoothness, dissimilarity, strong_convexity, cohort, form)
    c = ratio_of(mu, scale)
    return Constants(
        C1=hat[0] - tilde[0],
        C2=(hat[1] + tilde[1]) * c,
        C3=(hat[2] + tilde[2]) * c**2,
        C1_hat=hat[0],
        C2_hat=hat[1] * c,
        C3_hat=hat[2] * c**2,
        C1_tilde=tilde[0],
        C2_tilde=tilde[1] * c,
        C3_tilde=tilde[2] * c**2,
        smoothness=float(smoothness),
        dissimilarity=float(dissimilarity),
        mu=float(mu),
        strong_convexity=float(strong_convexity),
        cohort=None if cohort is None else int(cohort),
        lam=scale,
        form=form,
    )


def ratio_of(mu: float, lam: PerRound) -> PerRound:
    """Return mu / (mu + lambda_m).

    >>> ratio_of(1.0, 3.0), ratio_of(1.0, math.inf)
    (0.25, 0.0)
    """
    return mu / (mu + lam)


def check_problem(smoothness: float, dissimilarity: float, cohort: int | None, form: str) -> None:
    """Refuse what no problem has."""
    check_number("smoothness", smoothness, above=0)
    check_number("dissimilarity", dissimilarity)
    if dissimilarity < 1:
        raise InputError(
            field="dissimilarity", value=dissimilarity, must="a finite number >= 1: i.i.d. clients have B = 1"
        )
    if cohort is not None:
        check_number("cohort", cohort, at_least=1, integer=True)
    if form not in FORMS:
        raise unknown("form", form, FORMS)


def _hat(L: float, B: float, mu: float, rho: float, form: Form) -> tuple[float, float, float]:
    """Return the parts of the step of all clients, before the coefficient."""
    m = mu if form == "paper" else 1.0  # the second 1/mu of the paper's first inequality
    return (
        1 / mu - L * B / (m * mu * rho) - L * B**2 / (2 * rho**2),
        L**2 / (m * mu * rho) + (L + mu) / (m * mu) + L * (L + rho) * B / rho**2,
        L * (L + rho) ** 2 / (2 * rho**2),
    )


def _tilde(L: float, B: float, rho: float, K: int | None, form: Form) -> tuple[float, float, float]:
    """Return the parts of the error of drawing K clients, before the coefficient."""
    if K is None:
        return 0.0, 0.0, 0.0
    if form == "sharp":
        return L * B**2 / (2 * K * rho**2), L**2 * B / (K * rho**2), L**3 / (2 * K * rho**2)
    lost = 1.0 if form == "paper" else L  # the factor that collecting terms loses
    s = math.sqrt(2 / K)
    return (
        lost * 2 * B**2 / (K * rho**2) + (2 * L * B + rho) / rho * s * B / rho,
        lost * 4 * L * B / (K * rho**2) + (2 * L * B + rho) / rho * s * L / rho + 2 * L * (L + rho) / rho * s * B / rho,
        lost * 2 * L**2 / (K * rho**2) + 2 * L * (L + rho) / rho * s * L / rho,
    )


def _checked_lam(lam: PerRound | Sequence[float]) -> PerRound:
    if isinstance(lam, RealNumber) and not isinstance(lam, bool):
        if lam != math.inf:
            check_number("lam", lam, at_least=0)
        return float(lam)
    try:
        values = np.array(lam, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(field="lam", value=lam, must="a number >= 0 or a list of them") from None
    if values.ndim != 1 or values.size == 0:
        raise InputError("must be a number >= 0, or a list with one for each data round", field="lam")
    for wrong in values[~(values >= 0)][:1].tolist():
        check_number("lam", wrong, at_least=0)
    return values


def rate_bound(
    *,
    constants: Constants,
    initial_loss: float,
    h1: Sequence[float] | Real,
    h2: Sequence[float] | Real,
    floor: float = 0.0,
) -> float:
    """Return what Theorem 1 bounds (1/M) sum_m E||grad f(w(2m-1))||^2 by, over the M data rounds given.

    (f(w(0)) - f*) / (M C1) + sum_m (C2 h1_m + C3 h2_m) / (M C1); infinity where C1 <= 0, since the theorem says nothing
    then.

    About the printed theorem: its sums run over m = 0 .. M, but w(-1) does not exist. With the convention w(-1) = w(-2)
    = w(0) the terms h_0 are zero and the lemma at m = 0 is FedProx's own first step, so the sums may as well start at
    m = 1, as here, and the left side may include ||grad f(w(0))||^2; (1/M) is then no mean, but the inequality holds.
    The h terms depend on the clients drawn: an expectation belongs around them too.

    Args:
        constants: C1, C2, C3; C2 and C3 with one entry per data round, or one for all.
        initial_loss: f(w(0)).
        h1: h1_m = ||grad f(w(2m-1))|| ||w(2m-1) - w(2m-2)|| for m = 1 .. M.
        h2: h2_m = ||w(2m-1) - w(2m-2)||^2.
        floor: f*, or anything below it: a cross-entropy is never negative.

    Returns:
        The bound.

    Raises:
        InputError: for terms that are no finite numbers >= 0, or a floor above the initial loss.

    >>> from upcycled.theory import constants
    >>> about = constants(smoothness=1, dissimilarity=1, mu=4, strong_convexity=4, cohort=None, lam=4, form="repaired")
    >>> about.C1, about.C2, about.C3
    (0.15625, 0.8125, 0.1953125)
    >>> rate_bound(constants=about, initial_loss=1.0, h1=[0.5, 0.25], h2=[0.125, 0.0625])
    5.2671875
    """
    check_number("initial_loss", initial_loss)
    check_number("floor", floor)
    if floor > initial_loss:
        raise InputError(field="floor", value=floor, must=f"at most initial_loss, which is {initial_loss!r}")
    first, second = _terms("h1", h1), _terms("h2", h2)
    if first.shape != second.shape:
        raise InputError(f"has {first.size} rounds, but h2 has {second.size}: they must have as many", field="h1")
    sizes = {np.size(values) for values in (constants.C2, constants.C3)} - {1, first.size}
    if sizes:
        raise InputError(
            f"has {sizes.pop()} rounds, but h1 has {first.size}: it must be one number or as many", field="lam"
        )
    if not constants.converges:
        return math.inf
    total = initial_loss - floor + float((constants.C2 * first + constants.C3 * second).sum())
    return total / (first.size * constants.C1)


def _terms(name: str, values: Sequence[float] | Real) -> Real:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or found.size == 0 or not np.isfinite(found).all() or (found < 0).any():
        raise InputError(f"{name} must be a list of finite numbers >= 0, one for each data round")
    return found


def smallest_mu(
    *, smoothness: float, dissimilarity: float, cohort: int | None, curvature: float = 0.0, form: Form = "paper"
) -> float | None:
    """Return the least mu with C1 > 0 (to rounding), or None if no mu has it.

    rho grows with mu: rho = mu + curvature, where ``curvature`` is the lowest second derivative of the F_i (0 if they
    are convex, negative if they are not). C1 mu rho^2 is a polynomial in mu, so its roots decide. For large mu it
    behaves like mu^2 (1 - B sqrt(2/K)): with sampling the paper's condition can be met only if K > 2 B^2. The form
    "sharp" can always be met.

    Args:
        smoothness: L, of every F_i.
        dissimilarity: B >= 1.
        cohort: K, clients drawn in a data round; None if all take part.
        curvature: the lowest second derivative of the F_i.
        form: ``"paper"``, ``"repaired"`` or ``"sharp"``.

    Returns:
        The least mu, or None.

    Raises:
        InputError: for a number that no problem has.

    >>> smallest_mu(smoothness=1, dissimilarity=2, cohort=8) is None
    True
    >>> smallest_mu(smoothness=1, dissimilarity=1, cohort=None, form="repaired")
    1.5
    """
    check_problem(smoothness, dissimilarity, cohort, form)
    check_number("curvature", curvature)

    def positive(mu: float) -> bool:
        rho = mu + curvature
        if mu <= 0 or rho <= 0:
            return False
        return constants(
            smoothness=smoothness,
            dissimilarity=dissimilarity,
            mu=mu,
            strong_convexity=rho,
            cohort=cohort,
            lam=0.0,
            form=form,
        ).converges

    lowest = max(0.0, -curvature)
    # Products of floats leave roots apart that are equal, and a little off the real line.
    roots = [complex(z) for z in _numerator(smoothness, dissimilarity, cohort, curvature, form).roots()]
    ends = sorted({z.real for z in roots if abs(z.imag) <= 1e-6 * abs(z) and z.real > lowest})
    edges = [lowest, *ends]
    insides = [(a + b) / 2 for a, b in itertools.pairwise(edges)] + [2 * edges[-1] + 1]
    for edge, inside in zip(edges, insides, strict=True):
        if positive(inside):
            return _first_above(edge, inside, lowest, positive)
    return None


def _numerator(L: float, B: float, K: int | None, curvature: float, form: Form) -> Polynomial:
    """Return C1 mu^2 rho^2 as a polynomial in mu."""
    mu, rho = Polynomial([0.0, 1.0]), Polynomial([curvature, 1.0])
    sampling = Polynomial([0.0])  # C1_tilde rho^2
    if K is not None and form == "sharp":
        sampling = Polynomial([L * B**2 / (2 * K)])
    elif K is not None:
        lost = 1.0 if form == "paper" else L
        sampling = lost * 2 * B**2 / K + (2 * L * B + rho) * math.sqrt(2 / K) * B
    first = rho if form == "paper" else mu * rho
    return mu * rho**2 - L * B * first - mu**2 * (L * B**2 / 2 + sampling)


def _first_above(edge: float, inside: float, lowest: float, positive: Callable[[float], bool]) -> float:
    """Return the least float above the root near ``edge`` for which C1 > 0, by bisection."""
    low = max(lowest, edge - 1e-3 * abs(edge))
    high = inside
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return high
        low, high = (low, middle) if positive(middle) else (middle, high)


def lambda_schedule(mu: float, rounds: int, c: float = 1.0, *, open_ended: bool = False) -> Real:
    """Return lambda_1 .. lambda_M with mu / (mu + lambda_m) = c / sqrt(M), as the corollary asks for.

    With ``open_ended`` it is c / sqrt(m), an increasing lambda_m as the paper's remark has it: the mean of
    1/sqrt(m) over M rounds is below 2/sqrt(M), so the rate is of the same order. These are the coefficients of
    ``up.coefficients.Decaying(c)``.

    Args:
        mu: FedProx's mu.
        rounds: M, data rounds.
        c: the constant above the root.
        open_ended: whether the root is of m, the round, and not of M.

    Returns:
        lambda_m for m = 1 .. M.

    Raises:
        InputError: for a number out of its range, or c so large that a lambda would be negative.

    >>> lambda_schedule(mu=0.5, rounds=4).tolist()
    [0.5, 0.5, 0.5, 0.5]
    >>> lambda_schedule(mu=0.5, rounds=4, open_ended=True).round(3).tolist()
    [0.0, 0.207, 0.366, 0.5]
    """
    check_number("mu", mu, above=0)
    check_number("rounds", rounds, at_least=1, integer=True)
    least = 1 if open_ended else rounds
    check_number("c", c, above=0)
    if c > math.sqrt(least):
        raise InputError(
            field="c",
            value=c,
            must=(
                f"at most {math.sqrt(least):.6g}: the coefficient c/sqrt({least}) would be above 1, and lambda negative"
            ),
        )
    counts = np.arange(1, rounds + 1, dtype=np.float64) if open_ended else np.full(rounds, float(rounds))
    found: Real = mu * (np.sqrt(counts) / c - 1)
    return found


ROWS_AT_ONCE = 4096
WEIGHTS = ("samples", "equal")
MOST_STEPS = 1000

Point: TypeAlias = ArrayLike | torch.Tensor
"""A flat parameter vector, such as ``result.params``."""


def estimate_smoothness(data: FederatedData, model: str | nn.Module, params: Point | None = None) -> float:
    """Return L: the largest over clients, since every F_i must be L-smooth.

    Without ``params``: the exact bound for all parameters, softmax regression only. Its Hessian is the mean of the
    Kronecker products of diag(p) - p p' and x~ x~', x~ = (x, 1). The largest eigenvalue of diag(p) - p p' over all
    probability vectors is 1/2, at p = (1/2, 1/2, 0, ...), so L_i = lambda_max(X~'X~/n)/2. With a bias it is the
    supremum, not only a bound: zero weights and biases (t, t, -t, -t, ...) bring every sample to that p as t grows;
    with two classes t = 0 does.

    With ``params``: the norm of the Hessian there, for any module, by power iteration on Hessian-vector products, which
    approaches it from below; a local value, which bounds nothing elsewhere.

    Args:
        data: the clients' training samples.
        model: ``"logistic"`` or a torch module.
        params: a flat parameter vector, such as ``result.params``; None for all parameters.

    Returns:
        L.

    Raises:
        InputError: if the model does not fit the data, or has no value for all parameters and no params are given.

    >>> import upcycled as up
    >>> data = up.FederatedData.from_arrays([[[3.0, 0.0], [-3.0, 0.0]]], [[0, 1]])
    >>> estimate_smoothness(data, "logistic")
    4.5
    """
    objective = objective_for(data, model)
    return float(client_smoothness(objective, None if params is None else _point(objective, params)).max())


def estimate_dissimilarity(
    data: FederatedData, model: str | nn.Module, params: Point, *, weights: str = "samples"
) -> float | Real:
    """Return B at a point, or at each of a stack of points (points, D), such as iterates along a run.

    B(w)^2 = E||grad F_i||^2 / ||grad f||^2, the expectation over clients with p_i = n_i/n as in the paper's Eq. (obj);
    ``weights="equal"`` takes all clients alike. The theorem wants one B for all points; its proof uses it at w(0),
    w(1), w(3), ... only, so their maximum serves a run. Infinity where grad f = 0 but clients disagree.

    Args:
        data: the clients' training samples.
        model: ``"logistic"`` or a torch module.
        params: a flat parameter vector, such as ``result.params``, or a stack of them.
        weights: ``"samples"`` or ``"equal"``.

    Returns:
        B, or one for each of the points.

    Raises:
        InputError: if the model does not fit the data, or for other weights.

    >>> import numpy as np, upcycled as up
    >>> data = up.FederatedData.from_arrays([[[1.0]], [[1.0]]], [[0], [0]], num_classes=2)
    >>> estimate_dissimilarity(data, "logistic", np.zeros(4))
    1.0
    """
    if weights not in WEIGHTS:
        raise unknown("weights", weights, WEIGHTS)
    objective = objective_for(data, model)
    clients = objective.train.num_clients
    shares = None if weights == "samples" else np.full(clients, 1 / clients)
    if np.ndim(params) == 2:
        points = [_point(objective, one) for one in params]  # type: ignore[union-attr]
        return np.array([objective.landscape(at, shares).dissimilarity for at in points])
    return objective.landscape(_point(objective, params), shares).dissimilarity


@dataclass(frozen=True, eq=False)
class Landscape:
    """f and the clients' gradients at one point."""

    loss: float
    """f(w)."""
    gradient: Real
    """grad f(w)."""
    gradient_norm: float
    second_moment: float
    """E||grad F_i||^2 over clients."""

    @property
    def dissimilarity(self) -> float:
        """B(w) = sqrt(E||grad F_i||^2) / ||grad f||, at least 1.

        Where grad f = 0: 1 if all clients agree (Li et al. 2020, definition 3), else infinity.
        """
        if self.second_moment == 0:
            return 1.0
        if self.gradient_norm == 0:
            return float("inf")
        # Jensen's inequality makes it 1 at least; rounding may not know.
        return max(1.0, float(np.sqrt(self.second_moment)) / self.gradient_norm)


@dataclass(frozen=True, eq=False)
class LocalObjective:
    """F_i and f as functions of the flat vector: losses, gradients and Hessian products."""

    module: nn.Module
    layout: Layout
    train: Shards
    linear: LinearModel | None
    """Its closed form, where the module is softmax regression."""

    def client(self, client: int, at: Real) -> tuple[float, Real]:
        """Return F_i and its gradient."""
        x, y = self.train.client(client)
        if self.linear is not None:
            exact = _rows(x)
            logits = self.linear.outputs(at, exact)
            logits -= logits.max(axis=1, keepdims=True)
            loss_sum = float((np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]).sum())
            return loss_sum / len(y), self.linear.gradient_sum(at, exact, y, softmax_slopes) / len(y)
        flat, loss, gradient = torch.from_numpy(at), 0.0, np.zeros(at.size)
        for rows in _pieces(len(y)):
            part, value = grad_and_value(self._loss_of(x[rows], y[rows]))(flat)
            loss, gradient = loss + float(value), gradient + part.numpy()
        return loss / len(y), gradient / len(y)

    def landscape(self, at: Real, weights: Real | None = None) -> Landscape:
        """Return f, its gradient and the second moment of the clients' gradients, one client at a time."""
        shares = self.train.sizes / self.train.num_rows if weights is None else weights
        loss, moment, gradient = 0.0, 0.0, np.zeros(at.size)
        for client, share in enumerate(shares.tolist()):
            own_loss, own = self.client(client, at)
            loss += share * own_loss
            moment += share * float(own @ own)
            gradient += share * own
        return Landscape(loss, gradient, float(np.linalg.norm(gradient)), moment)

    def hessian(self, client: int, at: Real) -> Callable[[Real], Real]:
        """Return v -> (Hessian of F_i at this point) v, by differentiating the gradient once more."""
        x, y = self.train.client(client)
        flat = torch.from_numpy(at)
        # Reverse over reverse: every module that can be trained has it; the Hessian is its own transpose.
        products = [vjp(grad(self._loss_of(x[rows], y[rows])), flat)[1] for rows in _pieces(len(y))]

        def product(vector: Real) -> Real:
            along = torch.from_numpy(vector)
            total: Real = sum(one(along)[0].numpy() for one in products) / len(y)
            return total

        return product

    def _loss_of(self, x: Any, y: Ints) -> Callable[[torch.Tensor], torch.Tensor]:
        features, labels = torch.from_numpy(self._as_input(x)), torch.from_numpy(np.array(y))

        def loss(flat: torch.Tensor) -> torch.Tensor:
            logits = functional_call(self.module, self.layout.split(flat), (features,))
            return cross_entropy(logits, labels, reduction="sum")

        return loss

    def _as_input(self, x: Any) -> Any:
        takes_tokens = any(isinstance(layer, nn.Embedding | nn.EmbeddingBag) for layer in self.module.modules())
        return np.array(x, dtype=np.int64 if takes_tokens else np.float64)


def objective_for(data: FederatedData, model: str | nn.Module) -> LocalObjective:
    """Return the objectives of a model on the clients' training samples; a module that is passed is left alone."""
    if not isinstance(model, nn.Module):
        if model != "logistic":
            raise InputError(
                field="model", value=model, must="'logistic' or a module such as result.model or up.models.mlp(...)"
            )
        model = nn.Linear(int(np.prod(data.train.x.shape[1:])), data.num_classes)
    own = copy.deepcopy(model).cpu()
    layout = layout_of(own)
    linear = linear_model_of(own, layout)
    return LocalObjective(own.double().eval(), layout, data.train, linear)


def client_smoothness(objective: LocalObjective, at: Real | None = None) -> Real:
    """Return the smoothness of each F_i: for all parameters, or at a point."""
    if at is not None:
        return np.array([_norm(objective.hessian(i, at), at.size) for i in range(objective.train.num_clients)])
    if objective.linear is None:
        raise InputError(
            "is missing: only softmax regression has a known smoothness for all parameters, any other "
            "model has a local one, at the params given",
            field="params",
        )
    found = []
    for client in range(objective.train.num_clients):
        x = objective.linear.design(_rows(objective.train.client(client)[0]))
        # The smaller of the two Gram matrices has the same largest eigenvalue.
        gram = x.T @ x if x.shape[1] <= x.shape[0] else x @ x.T
        found.append(float(np.linalg.eigvalsh(gram)[-1]) / (2 * len(x)))
    return np.array(found)


def _point(objective: LocalObjective, params: Point) -> Real:
    """Return ``params`` as a flat float64 vector."""
    given = params.detach().cpu().numpy() if isinstance(params, torch.Tensor) else params
    flat: Real = np.array(given, dtype=np.float64)
    if flat.shape != (objective.layout.size,):
        raise InputError(
            f"has shape {flat.shape}, but the model has {objective.layout.size} parameters", field="params"
        )
    if not np.isfinite(flat).all():
        raise InputError("has entries that are not finite numbers", field="params")
    return flat


def _rows(x: Any) -> Real:
    rows: Real = np.asarray(x, dtype=np.float64).reshape(len(x), -1)
    return rows


def _pieces(rows: int) -> list[slice]:
    return [slice(start, min(start + ROWS_AT_ONCE, rows)) for start in range(0, rows, ROWS_AT_ONCE)]


def _norm(product: Callable[[Real], Real], size: int) -> float:
    """Return the largest |eigenvalue| by power iteration.

    ||H v|| for a unit v never exceeds it and never falls from step to step, also where +s and -s are both eigenvalues.
    """
    # A fixed start that favours no coordinate: a run's numbers should be the same each time.
    vector: Real = np.random.default_rng(0).standard_normal(size)
    vector /= np.linalg.norm(vector)
    found = 0.0
    for _ in range(MOST_STEPS):
        image = product(vector)
        size_now = float(np.linalg.norm(image))
        if size_now == 0:
            return 0.0
        if size_now - found <= 1e-9 * size_now:
            return size_now
        found, vector = size_now, image / size_now
    return found


__all__ = [
    "FORMS",
    "Constants",
    "Form",
    "constants",
    "estimate_dissimilarity",
    "estimate_smoothness",
    "lambda_schedule",
    "rate_bound",
    "smallest_mu",
]
