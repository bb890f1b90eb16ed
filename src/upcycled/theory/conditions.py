"""When the theorem says something: the least mu with C1 > 0, the corollary's lambda_m, and what bounds B."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
from numpy.polynomial import Polynomial

from upcycled.core.errors import InputError, check_number
from upcycled.core.vectors import Real
from upcycled.theory.lemma import Form, check_problem, constants


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


def dissimilarity_bound(divergence: float, gradient_norm: float) -> float:
    """Return the bound on B where ||grad f|| >= ``gradient_norm`` and the gradients of clients differ boundedly.

    ``divergence`` is kappa = sqrt(sum p_i kappa_i^2) with ||grad F_i - grad f|| <= kappa_i. Since E||grad F_i||^2 =
    ||grad f||^2 + E||grad F_i - grad f||^2, B <= sqrt(1 + kappa^2 / ||grad f||^2).

    The paper's first lemma says that a bounded divergence alone gives a B for all w; it has no proof there and is
    false: F_1 = (w-1)^2/2 and F_2 = (w+1)^2/2 have kappa_i = 1, and B(w)^2 = 1 + 1/w^2 has no bound near the minimum
    w = 0. Li et al. (2020, corollary 10) ask for ||grad f||^2 > epsilon, as here. So on heterogeneous clients a run
    that converges leaves every B behind in the end.

    Args:
        divergence: kappa.
        gradient_norm: what ||grad f|| is at least.

    Returns:
        The bound on B; infinity where the gradient may vanish and clients differ.

    Raises:
        InputError: for a number out of its range.

    >>> dissimilarity_bound(3.0, 4.0)
    1.25
    """
    check_number("divergence", divergence, at_least=0)
    check_number("gradient_norm", gradient_norm, at_least=0)
    if divergence == 0:
        return 1.0
    return math.inf if gradient_norm == 0 else math.hypot(1.0, divergence / gradient_norm)
