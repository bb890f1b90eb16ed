"""Theorem 1: the bound on the mean squared gradient norm, from a run's own terms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from upcycled.core.errors import InputError, check_number
from upcycled.core.vectors import Real
from upcycled.theory.lemma import Constants


def rate_bound(
    *,
    constants: Constants,
    initial_loss: float,
    h1: Sequence[float] | Real,
    h2: Sequence[float] | Real,
    floor: float = 0.0,
    extra: float = 0.0,
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
        extra: what else a round's inequality holds, summed over rounds (:func:`inexactness`).

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
    total = initial_loss - floor + float((constants.C2 * first + constants.C3 * second).sum()) + extra
    return total / (first.size * constants.C1)


def inexactness(constants: Constants, *, gradient_norm: ArrayLike, step: ArrayLike, residual: ArrayLike) -> Real:
    """Return what inexact local work adds to the right side of a round's inequality; zero for exact minimisers.

    The paper assumes that clients find the minimiser. Let e_i = grad F_i(w_i) + mu (w_i - w(2m)) be what is left of the
    gradient at what client i really sent in data round m+1, and ``residual`` = r = sqrt(E_i ||e_i||^2). Following the
    proof with ||w_i - w(2m)|| <= (||grad F_i(w(2m))|| + ||e_i||)/rho, and e_i/mu in Phi, everything stays as it is but
    for B g becoming B g + r, and g r/mu on top. It covers stragglers, SGD and noise, whatever made r.

    Args:
        constants: in the form "repaired" or "sharp".
        gradient_norm: g = ||grad f(w(2m-1))||.
        step: ||w(2m-1) - w(2m-2)||.
        residual: r, over all clients, of data round m+1.

    Returns:
        What is added, for each of the rounds given.

    Raises:
        InputError: in the form "paper", whose proof does not hold.

    >>> from upcycled.theory import constants
    >>> about = constants(smoothness=1, dissimilarity=1, mu=4, strong_convexity=4, cohort=None, lam=4, form="repaired")
    >>> inexactness(about, gradient_norm=[1.0, 1.0], step=[0.0, 0.0], residual=[0.0, 0.5]).tolist()
    [0.0, 0.1953125]
    """
    if constants.form == "paper":
        raise InputError(
            "is 'paper', but it must be 'repaired' or 'sharp': the printed proof does not hold", field="form"
        )
    g, r = np.asarray(gradient_norm, dtype=np.float64), np.asarray(residual, dtype=np.float64)
    d = constants.ratio * np.asarray(step, dtype=np.float64)
    found: Real = change_bound(constants, g, d, r) - change_bound(constants, g, d, np.zeros_like(r))
    return found


def change_bound(about: Constants, g: Real, d: Real, r: Real) -> Real:
    """Return the proven bound on E f(w(2m+1)) - f(w(2m-1)) before it is sorted by powers.

    g = ||grad f(w(2m-1))||, d = ||w(2m) - w(2m-1)||, r as in :func:`inexactness`.
    """
    L, B, mu, rho, K = about.smoothness, about.dissimilarity, about.mu, about.strong_convexity, about.cohort
    u = (B * g + L * d + r) / rho  # bounds sqrt(E_i ||w_i - w(2m)||^2)
    moved = u + d  # bounds ||w_tilde - w(2m-1)||
    found: Real = -(g**2) / mu + g * (L / mu * moved + r / mu + d) + L / 2 * moved**2
    if K is None:
        return found
    if about.form == "sharp":
        return found + L / (2 * K) * u**2
    return found + math.sqrt(2 / K) * u * (g + 2 * L * moved) + 2 * L / K * u**2


def _terms(name: str, values: Sequence[float] | Real) -> Real:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or found.size == 0 or not np.isfinite(found).all() or (found < 0).any():
        raise InputError(f"{name} must be a list of finite numbers >= 0, one for each data round")
    return found
