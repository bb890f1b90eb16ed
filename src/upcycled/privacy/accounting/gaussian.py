r"""Data rounds that each release a vector with Gaussian noise: exact epsilon, delta and noise.

Gaussian differential privacy: the exact trade between epsilon and delta of one Gaussian with shift mu.

A release N(f(D), s^2 I) whose f moves by at most D_2 between neighbours is mu-GDP with mu = D_2 / s, and then

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)          (Balle and Wang 2018)

which is exact: no smaller delta holds. The two terms cancel almost entirely when mu is small or epsilon large, so the
code uses the same number in another form. With u = epsilon/mu - mu/2, v = epsilon/mu + mu/2, the normal density phi
and the Mills ratio M(t) = Phi(-t)/phi(t), v^2 - u^2 = 2 epsilon gives e^epsilon phi(v) = phi(u), hence

    delta = phi(u) (M(u) - M(v))
    d log delta / d epsilon = -M(v) / (M(u) - M(v)),    d log delta / d mu = 1 / (M(u) - M(v)).

M releases with L2 sensitivities D_t and noise stds s_t are together one Gaussian with mu = sqrt(sum (D_t/s_t)^2),
also when each release is chosen after seeing the earlier ones, as long as all D_t/s_t were fixed beforehand. The
adjacency is the one of the sensitivity: replace-one throughout this package unless the caller's D_t says otherwise.
These numbers are exact for unsampled Gaussians; where a client or a batch is drawn in secret they hold but are not
the tightest known.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, log_ndtr, ndtri

from upcycled.core.vectors import Real
from upcycled.privacy.accounting.numbers import Floats, broadcast, numbers, plain

_LEAST = 5e-324
"""The least positive float: a Gaussian's delta is never zero, so one that underflows is rounded up to this."""

_LARGEST = 1e100
"""Beyond this mu, epsilon = mu^2/2 + mu z to all digits, and squares overflow."""

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)


def gdp_delta(*, mu: ArrayLike, epsilon: ArrayLike) -> float | Floats:
    """Return the exact delta of a mu-GDP mechanism at this epsilon, for the adjacency of mu's sensitivity.

    A delta below the least positive float comes back as that float, never as zero.

    Args:
        mu: the sensitivity over the noise's standard deviation.
        epsilon: the epsilon to state delta at.

    Returns:
        The delta. A number, or an array where an argument is one.

    Raises:
        InputError: for a number out of its range, or arrays of lengths that do not fit.

    >>> gdp_delta(mu=1, epsilon=1)
    0.1269367
    """
    shift, loss = _pair(mu, epsilon)
    delta = np.maximum(np.exp(np.minimum(_log_delta(shift, loss), 0.0)), _LEAST)
    return plain(np.where(shift == 0, 0.0, delta))


def gdp_epsilon(*, mu: ArrayLike, delta: ArrayLike) -> float | Floats:
    """Return the least epsilon at which a mu-GDP mechanism has this delta; exact, rounded to the safe side.

    Args:
        mu: the sensitivity over the noise's standard deviation.
        delta: the delta to state epsilon at, between 0 and 1.

    Returns:
        The epsilon. A number, or an array where an argument is one.

    Raises:
        InputError: for a number out of its range, or arrays of lengths that do not fit.

    >>> gdp_epsilon(mu=1, delta=1e-5)
    4.377178
    """
    shift, wanted = broadcast(mu=numbers("mu", mu, at_least=0), delta=numbers("delta", delta, above=0, below=1))
    target = np.log(wanted)
    inner = np.where((shift == 0) | (shift > _LARGEST), 1.0, shift)

    def step(epsilon: Floats) -> Floats:
        gap, (difference, lower) = _log_delta(inner, epsilon) - target, _mills(inner, epsilon)
        return np.maximum(epsilon + gap * difference / lower, 0.0)

    # delta <= Phi(-u), so this start is past the root; log delta is concave in epsilon, so Newton's tangents from there
    # never cross to the unsafe side.
    with np.errstate(over="ignore"):
        start = np.maximum(shift * (shift / 2 - ndtri(wanted)), 0.0)
    found = _newton(step, np.where(shift > _LARGEST, 1.0, start))
    found = _nudge(found, inner, lambda epsilon: _log_delta(inner, epsilon) > target)
    free = (shift == 0) | (_log_delta(inner, np.zeros_like(shift)) <= target)
    return plain(np.where(shift > _LARGEST, start, np.where(free, 0.0, found)))


def gdp_mu(*, epsilon: ArrayLike, delta: ArrayLike) -> float | Floats:
    """Return the largest mu whose mechanism is (epsilon, delta)-DP; exact, rounded to the safe side.

    Args:
        epsilon: what may be spent.
        delta: the delta that goes with it, between 0 and 1.

    Returns:
        The mu. A number, or an array where an argument is one.

    Raises:
        InputError: for a number out of its range, or arrays of lengths that do not fit.

    >>> gdp_mu(epsilon=4.377178096, delta=1e-5)
    1.000000
    """
    loss, wanted = broadcast(
        epsilon=numbers("epsilon", epsilon, at_least=0), delta=numbers("delta", delta, above=0, below=1)
    )
    target, tail = np.log(wanted), -ndtri(wanted)

    def step(shift: Floats) -> Floats:
        return shift - (_log_delta(shift, loss) - target) * _mills(shift, loss)[0]

    # Two starts below the root: delta <= Phi(mu/2 - epsilon/mu) (solved for mu, in the form that does not cancel for
    # either sign of the quantile), and delta <= mu phi(0), which serves at epsilon = 0. log delta is concave in mu, so
    # the tangents stay below the root.
    reach = np.abs(tail) + np.sqrt(tail**2 + 2 * loss)
    start = np.maximum(np.where(tail > 0, 2 * loss / np.maximum(reach, 1e-150), reach), 2.5 * wanted)
    found = _newton(step, start)
    return plain(_nudge(found, -found, lambda shift: _log_delta(shift, loss) > target))


def _pair(mu: ArrayLike, epsilon: ArrayLike) -> tuple[Floats, Floats]:
    shift, loss = broadcast(mu=numbers("mu", mu, at_least=0), epsilon=numbers("epsilon", epsilon, at_least=0))
    return shift, loss


def _mills(shift: Floats, loss: Floats) -> tuple[Floats, Floats]:
    """Return M(u) - M(v) and M(v); u is taken no lower than -30, below which M overflows."""
    ratio = _ratio(shift, loss)
    lower = _mills_ratio(ratio + shift / 2)
    plain_difference = _mills_ratio(np.maximum(ratio - shift / 2, -30.0)) - lower
    # M' = t M - 1. For a narrow gap the integral of -M' keeps the digits that the difference loses.
    narrow = np.minimum(shift, 0.5)[..., None]
    points = ratio[..., None] + narrow / 2 * _NODES
    integral = np.sum(_WEIGHTS * (1 - points * _mills_ratio(points)), axis=-1) * narrow[..., 0] / 2
    difference = np.where(shift < 0.5, integral, plain_difference)
    return np.maximum(difference, 1e-300), lower  # the floor is met only where phi(u) has long underflowed


def _log_delta(shift: Floats, loss: Floats) -> Floats:
    below = _ratio(shift, loss) - shift / 2
    difference, lower = _mills(shift, loss)
    near = _log_density(below) + np.log(difference)
    # Where u is very negative delta is close to 1 and the two terms no longer cancel.
    negative = np.minimum(below, -5.0)
    tail = log_ndtr(-negative)
    far = tail + np.log1p(-np.exp(_log_density(negative) + np.log(lower) - tail))
    result: Floats = np.where(below > -5, near, far)
    return result


def _log_density(t: Floats) -> Floats:
    with np.errstate(over="ignore"):
        result: Floats = -0.5 * t**2 - 0.5 * np.log(2 * np.pi)
    return result


def _mills_ratio(t: Floats) -> Floats:
    result: Floats = np.sqrt(np.pi / 2) * erfcx(t / np.sqrt(2))
    return result


def _ratio(shift: Floats, loss: Floats) -> Floats:
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return np.minimum(loss / shift, 1e150)  # delta has underflowed long before


def _newton(step: Callable[[Floats], Floats], start: Floats) -> Floats:
    """Iterate until nothing moves: the steps shrink quadratically, so one of 1e-12 leaves rounding only."""
    now = start
    for _ in range(200):
        new = step(now)
        if np.all(np.abs(new - now) <= 1e-12 * np.abs(new)):
            return new
        now = new
    return now


def _nudge(found: Floats, scale: Floats, unsafe_of: Callable[[Floats], NDArray[np.bool_]]) -> Floats:
    """Move each unsafe entry by growing multiples of rounding, in the direction of ``scale``, until it is safe."""
    for power in range(60):
        unsafe = unsafe_of(found)
        if not np.any(unsafe):
            break
        found = np.where(unsafe, found + (np.abs(found) + np.abs(scale)) * np.sign(scale) * 2.0 ** (power - 53), found)
    return found


ROOM = 1e-12
"""Calibrated noise is larger by this part, so that adding up its charges never exceeds the budget by rounding."""


def gaussian_epsilon(
    *, rounds: ArrayLike, sensitivity: ArrayLike, noise_std: ArrayLike, delta: ArrayLike
) -> float | Floats:
    """Return the exact epsilon at ``delta`` of ``rounds`` equal Gaussian releases (rounded to the safe side).

    Guarantee: (epsilon, delta)-DP for the adjacency for which ``sensitivity`` bounds the L2 change, no epsilon smaller.
    Every argument may be an array, one entry a client.

    Args:
        rounds: data rounds, M.
        sensitivity: the most one record moves a release, in L2 norm.
        noise_std: the noise's standard deviation per coordinate.
        delta: the delta to state epsilon at, between 0 and 1.

    Returns:
        The epsilon. A number, or an array where an argument is one.

    Raises:
        InputError: for a number out of its range, or arrays of lengths that do not fit.

    >>> gaussian_epsilon(rounds=40, sensitivity=20 / 224, noise_std=0.8, delta=1e-5)
    2.937368
    """
    return gdp_epsilon(mu=_mu(rounds, sensitivity, noise_std), delta=delta)


def gaussian_delta(
    *, rounds: ArrayLike, sensitivity: ArrayLike, noise_std: ArrayLike, epsilon: ArrayLike
) -> float | Floats:
    """Return the exact delta at ``epsilon`` of ``rounds`` equal Gaussian releases, for the sensitivity's adjacency.

    Args:
        rounds: data rounds, M.
        sensitivity: the most one record moves a release, in L2 norm.
        noise_std: the noise's standard deviation per coordinate.
        epsilon: the epsilon to state delta at.

    Returns:
        The delta. A number, or an array where an argument is one.

    Raises:
        InputError: for a number out of its range, or arrays of lengths that do not fit.

    >>> gaussian_delta(rounds=1, sensitivity=1, noise_std=1, epsilon=1)
    0.1269367
    """
    return gdp_delta(mu=_mu(rounds, sensitivity, noise_std), epsilon=epsilon)


def gaussian_noise_std(
    *, rounds: ArrayLike, sensitivity: ArrayLike, epsilon: ArrayLike, delta: ArrayLike
) -> float | Floats:
    """Return the least noise std per coordinate that makes ``rounds`` releases (epsilon, delta)-DP together.

    Exact up to one part in 10^12, which is added so that recomputing epsilon from it, or summing its charges round by
    round, stays within the budget. With ``sensitivity`` (and so the std) per client, equal epsilon for all is sound
    under replace-one with public client sizes only.

    Args:
        rounds: data rounds, M.
        sensitivity: the most one record moves a release, in L2 norm.
        epsilon: what all rounds together may cost.
        delta: the delta that goes with it.

    Returns:
        The standard deviation. A number, or an array where an argument is one.

    Raises:
        InputError: for a number out of its range, or arrays of lengths that do not fit.

    >>> gaussian_noise_std(rounds=1, sensitivity=1, epsilon=1, delta=1e-5)
    3.730632
    """
    count, moves = broadcast(
        rounds=numbers("rounds", rounds, at_least=1, integer=True),
        sensitivity=numbers("sensitivity", sensitivity, above=0),
    )
    mu = np.asarray(gdp_mu(epsilon=epsilon, delta=delta))
    count, moves, mu = broadcast(rounds=count, sensitivity=moves, epsilon=mu)
    return plain(np.sqrt(count) * moves / mu * (1 + ROOM))


def gaussian_mu(*, sensitivities: ArrayLike, noise_stds: ArrayLike) -> float:
    """Return mu = sqrt(sum (D_t/s_t)^2) of releases that differ: give it to ``gdp_epsilon`` or ``gdp_delta``.

    Exact when all D_t and s_t were fixed before the first release; for ones chosen on the way it is the quantity that a
    filter holds below the pre-committed mu.

    Args:
        sensitivities: D_t of each release.
        noise_stds: s_t of each release, or one number for all.

    Returns:
        mu of all releases together.

    Raises:
        InputError: for a number out of its range, or arrays of lengths that do not fit.

    >>> gaussian_mu(sensitivities=[3, 4], noise_stds=1)
    5.0
    """
    moves, stds = broadcast(
        sensitivities=numbers("sensitivities", sensitivities, at_least=0),
        noise_stds=numbers("noise_stds", noise_stds, above=0),
    )
    return float(np.linalg.norm(np.ravel(moves / stds)))


def squared_ratio(sensitivity: Real, noise_std: Real) -> Real:
    """Return (sensitivity / noise_std)^2 of each client, infinite without noise."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio: Real = (sensitivity / noise_std) ** 2
    return ratio


def _mu(rounds: ArrayLike, sensitivity: ArrayLike, noise_std: ArrayLike) -> Floats:
    count, moves, std = broadcast(
        rounds=numbers("rounds", rounds, at_least=0, integer=True),
        sensitivity=numbers("sensitivity", sensitivity, at_least=0),
        noise_std=numbers("noise_std", noise_std, above=0),
    )
    return np.asarray(np.sqrt(count) * moves / std)
