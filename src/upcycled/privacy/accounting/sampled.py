"""Gaussian noise on Poisson-sampled batches (DP-SGD), by privacy loss distributions.

The privacy loss distribution of Poisson-sampled Gaussian steps under replace-one, composed by Fourier transforms.

In units of the noise's std, with shift c = 1/z, one step's worst pair is P = (1-q) N(0, 1) + q N(c, 1) against its
mirror image Q = (1-q) N(0, 1) + q N(-c, 1). Its loss L(x) = ln P(x)/Q(x) rises with x and is odd, and L(x) = epsilon at

    c x = epsilon/2 + asinh((1-q)/q e^(c^2/2) sinh(epsilon/2)).

**Every error is upwards**, as in Doroshenko et al. 2022 (arXiv:2207.04380). Losses between two points k h and (k+1) h
of a grid go to both ends so that their mass under P and under Q stays: any such pair has a larger hockey-stick
divergence at every epsilon. Losses past 10.2 standard deviations count as infinite. The sum of all losses is seen
modulo a window; what lies above it is bounded by Chernoff's inequality and joins delta, and what lies below it wraps
around to larger losses. Rounding errors of the transforms remain, as in every such evaluation: of the order of 1e-16 in
delta for each step.

``dp_accounting`` gives the same numbers (a test compares them), more slowly.

One step adds N(0, (z C)^2 I) to a sum of records clipped to norm C, each record in it independently with probability q,
in secret. Replace-one is charged with the pair (1-q) N(0, s^2) + q N(+-C, s^2), add/remove with N(0, s^2) against
(1-q) N(0, s^2) + q N(C, s^2). The distributions are discretised upwards (connect-the-dots), so every number is an upper
bound; the grid is refined until that costs about one part in 10,000. Calibration asks for many of them, for every
client: replace-one has an evaluation of its own there, which agrees with ``dp_accounting``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from upcycled.core.errors import check_number, unknown
from upcycled.core.vectors import Real
from upcycled.privacy.accounting.gaussian import gdp_epsilon, gdp_mu

_REACH = 10.2
"""Standard deviations of noise that are looked at: what is beyond has probability 1e-24."""
_TAIL = 1e-7
"""The part of delta that what lies above the window may take."""
_MOST_WINDOW = 2**22
"""Grid points of a composition: a few hundred megabytes. Calibrations need less than a million."""
_MOST = 600.0
"""e^this is still a number."""


def replace_one_epsilon(q: float, noise_multiplier: float, steps: int, delta: float, interval: float) -> float:
    """Return an upper bound of epsilon at ``delta``, 0 < q < 1, with losses on a grid of this interval."""
    masses, infinite = _one_step(q, 1 / noise_multiplier, interval)
    tail = _TAIL * delta
    window = _window(masses, steps, tail, interval)
    if window > _MOST_WINDOW:
        # Steps without sampling cost more.
        return float(gdp_epsilon(mu=2 * math.sqrt(steps) / noise_multiplier, delta=delta))
    composed = _composed(masses, steps, window, interval)
    left = delta - tail + math.expm1(steps * math.log1p(-infinite))
    return math.inf if left <= 0 else _epsilon(composed, left, interval)


def _one_step(q: float, c: float, interval: float) -> tuple[Real, float]:
    """Return P's masses at losses 0, h, 2h, ..., and at infinity; the mass at -k h is e^(-k h) times that at k h."""
    from scipy.special import ndtr  # takes a while, and few need it

    top = c + _REACH
    largest = _log_mix(q, c * top - c * c / 2) - _log_mix(q, -c * top - c * c / 2)
    epsilons = interval * np.arange(math.ceil(largest / interval) + 2)
    with np.errstate(divide="ignore", over="ignore"):
        log_sinh = epsilons / 2 + np.log(-np.expm1(-epsilons)) - math.log(2)
        logs = math.log1p(-q) - math.log(q) + c * c / 2 + log_sinh
        # asinh of a large number is its logarithm and ln 2.
        turned = np.where(logs > 30, logs + math.log(2), np.arcsinh(np.exp(np.minimum(logs, 30.0))))
    x = (epsilons / 2 + turned) / c
    above = np.stack([ndtr(-(x - centre)) for centre in (0.0, c, -c)])  # the probabilities of more than x
    none, plus, minus = above[:, :-1] - above[:, 1:]
    p, other = (1 - q) * none + q * plus, (1 - q) * none + q * minus
    # What goes to the upper end of each cell.
    with np.errstate(over="ignore", invalid="ignore"):
        upper = (p - np.exp(epsilons[:-1]) * other) / -math.expm1(-interval)
    upper = np.clip(np.nan_to_num(upper, nan=np.inf, posinf=np.inf), 0.0, p)
    masses = np.zeros(epsilons.size)
    masses[:-1] += p - upper
    masses[1:] += upper
    masses[0] *= 2  # from the cell below, which mirrors the first
    return masses, float((1 - q) * above[0, -1] + q * above[1, -1])


def _log_mix(q: float, exponent: float) -> float:
    """Return ln(1 - q + q e^exponent)."""
    return float(np.logaddexp(math.log1p(-q), math.log(q) + exponent))


def _window(masses: Real, steps: int, tail: float, interval: float) -> int:
    """Return a number of grid points that the sum of the losses exceeds with probability ``tail`` at most."""
    size = masses.size
    losses = interval * np.arange(size)
    mirrored = masses * np.exp(-losses)
    mirrored[0] = 0.0  # loss 0 is its own mirror image
    std = math.sqrt(steps * max(float((masses + mirrored) @ losses**2), 1e-300))
    best = float(steps * size)
    for part in (0.35, 0.6, 0.8, 1.0, 1.3):
        order = part * math.sqrt(-2 * math.log(tail)) / std
        if order * losses[-1] < _MOST:
            grown = np.exp(order * losses)
            moment = float(masses @ grown + mirrored @ (1 / grown))
            best = min(best, (steps * math.log(moment) - math.log(tail)) / (order * interval))
    return max(math.ceil(best), size)


def _composed(masses: Real, steps: int, window: int, interval: float) -> Real:
    """Return the masses at 0, h, ... of the sum of all steps' losses, up to the window's end."""
    from scipy.fft import irfft, next_fast_len, rfft

    length = next_fast_len(2 * window + 1, real=True)
    one = np.zeros(length)
    one[: masses.size] = masses
    one[length - masses.size + 1 :] = (masses * np.exp(-interval * np.arange(masses.size)))[:0:-1]
    found: Real = irfft(_power(rfft(one), steps), length)[: window + 1]
    return found


def _power(base: NDArray[np.complex128], exponent: int) -> NDArray[np.complex128]:
    """Return base^exponent by squaring: many times faster than complex powers."""
    found = None
    while True:
        if exponent & 1:
            found = base.copy() if found is None else np.multiply(found, base, out=found)
        exponent >>= 1
        if not exponent:
            break
        base = np.multiply(base, base)
    assert found is not None
    return found


def _epsilon(masses: Real, delta: float, interval: float) -> float:
    """Return the least epsilon >= 0 whose hockey-stick divergence sum_s p_s (1 - e^(epsilon - s))+ is delta at most.

    Between two points that is A - e^(epsilon) B, with A and B the sums of p_s and p_s e^(-s) from the upper one on.
    """
    above = np.cumsum(masses[::-1])[::-1]
    # Where even losses that count in full are few enough; the answer lies below it, and not far.
    last = int(np.flatnonzero(above > delta).max(initial=-1)) + 1
    if last == 0:
        return 0.0
    first = max(0, last - int(_MOST / interval))
    places = np.arange(first, masses.size)
    # Seen from ``last``, so that no exponential is too large.
    scaled = np.cumsum((masses[first:] * np.exp(interval * np.maximum(last - places, -_MOST / interval)))[::-1])[::-1]
    divergence = above[first:] - scaled * np.exp(interval * np.minimum(places - last, _MOST / interval))
    k = int(np.flatnonzero(divergence > delta).max(initial=-1)) + 1
    if k == 0:
        # The first point that was looked at is enough: 0, or a bound where one interval is past all exponentials.
        return interval * first
    k = min(k, places.size - 1)
    return max(0.0, interval * last + math.log((above[first + k] - delta) / scaled[k])) if scaled[k] > 0 else math.inf


OnGrid: TypeAlias = Callable[[float, float, int, float, str, int], float]
"""(q, noise multiplier, steps, delta, adjacency, points) -> epsilon on a grid of so many points."""

LEAST_DELTA = 1e-12
"""Below this the rounding errors of the Fourier transforms are no longer small beside delta."""

_FEWEST_POINTS = 1_000
_MOST_POINTS = 400_000
_SETTLED = 2e-3
"""A refinement that changes epsilon by this part leaves a fifteenth of it."""
_NEARLY_SETTLED = 6e-3
"""The same for calibration, which has many clients to look after."""
_NEARBY = 0.02
"""Between so much less and so much more noise, as parts of it, the slope is taken."""
_ROUNDING = 2e-12
"""Times the steps: the delta below which transforms' rounding errors may show in the fourth figure."""
_FAR = 0.25
"""A coarse grid's root that is off by so much, as a part of the noise, has no slope to go by."""
_STEEP = 4.0
"""Steps by which a result that spends too much is corrected are this much shorter than what it spends too much."""
_ROOM = 1e-4
"""The part of noise that a result has beyond the root."""
_LEAST = 0.01
"""Less noise than this, or than a thousandth of what is needed without sampling, is not sought."""


def sampled_gaussian_epsilon(
    *, q: float, noise_multiplier: float, steps: int, delta: float, adjacency: str = "replace"
) -> float:
    """Return epsilon at ``delta`` of ``steps`` Poisson-sampled Gaussian steps with std = noise_multiplier * clip norm.

    Guarantee: (epsilon, delta)-DP for ``adjacency`` "replace" (one record replaced: this package's meaning of
    epsilon) or "add_remove" (only for numbers labelled so; Opacus and most papers), when batches are secret Poisson
    draws, empty ones included. An upper bound within about one part in 1,000 of the truth, also through the unsampled
    Gaussian, which it never exceeds.

    Args:
        q: the chance of a record to be in a step's batch.
        noise_multiplier: the noise's standard deviation over the clip norm.
        steps: noisy steps in all.
        delta: the delta to state epsilon at.
        adjacency: ``"replace"`` or ``"add_remove"``.

    Returns:
        The epsilon.

    Raises:
        InputError: for a number out of its range, or another adjacency.

    >>> round(sampled_gaussian_epsilon(q=0.01, noise_multiplier=1.1, steps=1000, delta=1e-5), 2)
    2.48
    """
    check_number("noise_multiplier", noise_multiplier, above=0)
    _check(q, steps, delta, adjacency)
    if q == 0 or steps == 0:
        return 0.0
    mu = math.sqrt(steps) * _shift(adjacency) / noise_multiplier
    unsampled = float(gdp_epsilon(mu=mu, delta=delta))
    if q == 1 or unsampled == 0:
        return unsampled
    return min(_refined(_grid_epsilon, q, noise_multiplier, int(steps), delta, adjacency), unsampled)


def quick_sampled_epsilon(q: float, noise_multiplier: float, steps: int, delta: float, *, is_rough: bool) -> float:
    """Return an upper bound of epsilon in milliseconds, for curves of many points; a rough one in less than one."""
    if q == 0 or steps == 0:
        return 0.0
    unsampled = float(gdp_epsilon(mu=math.sqrt(steps) * _shift("replace") / noise_multiplier, delta=delta))
    if q == 1 or unsampled == 0:
        return unsampled
    if is_rough:
        return min(_replace_one(q, noise_multiplier, steps, delta, "replace", _FEWEST_POINTS), unsampled)
    return min(_refined(_replace_one, q, noise_multiplier, steps, delta, "replace"), unsampled)


def sampled_gaussian_noise_multiplier(
    *, q: float, epsilon: float, steps: int, delta: float, adjacency: str = "replace"
) -> float:
    """Return the least noise multiplier, within one part in 1,000, whose ``sampled_gaussian_epsilon`` fits ``epsilon``.

    Less than 0.01, or than a thousandth of what is needed without sampling, is not sought: where a record is drawn with
    a chance of delta or less, no noise at all would do.

    Args:
        q: the chance of a record to be in a step's batch.
        epsilon: what all steps together may cost.
        steps: noisy steps in all.
        delta: the delta that goes with it.
        adjacency: ``"replace"`` or ``"add_remove"``.

    Returns:
        The noise multiplier.

    Raises:
        InputError: for a number out of its range, or another adjacency.

    >>> round(sampled_gaussian_noise_multiplier(q=0.1, epsilon=2.0, steps=10, delta=1e-5), 2)
    1.4
    """
    check_number("q", q, above=0, at_most=1)
    check_number("steps", steps, at_least=1, integer=True)
    check_number("epsilon", epsilon, above=0)
    _check(q, steps, delta, adjacency)
    # Without sampling, more noise than this is never needed.
    enough = math.sqrt(steps) * _shift(adjacency) / float(gdp_mu(epsilon=epsilon, delta=delta)) * (1 + 1e-12)
    if q == 1:
        return enough

    on_grid = _replace_one if adjacency == "replace" else _grid_epsilon
    least = min(_LEAST, 1e-3 * enough)

    def excess(points: int, log_multiplier: float) -> float:
        if log_multiplier < math.log(least):
            return 1.0
        spent = on_grid(q, math.exp(log_multiplier), int(steps), delta, adjacency, points)
        return math.log(max(spent, 1e-3 * epsilon) / epsilon)

    # The mean of many small steps is nearly that of Gaussian ones whose shift is q times as long.
    near = math.log(max(enough * q, least))
    found, slope = _by_slope(excess, near) or (_grid_by_grid(excess, math.log(enough)), _STEEP)
    # What is returned was looked at itself, on a grid that what is stated in the end only refines, and refining lowers
    # epsilon: no noise is ever smaller than needed.
    found += _ROOM
    while math.exp(found) < enough:
        spent = _refined(on_grid, q, math.exp(found), int(steps), delta, adjacency, _NEARLY_SETTLED)
        if spent <= epsilon and steps * _ROUNDING > delta:
            # What transforms round is not small beside delta: what is stated in the end decides.
            spent = _refined(_grid_epsilon, q, math.exp(found), int(steps), delta, adjacency)
        if spent <= epsilon:
            break
        found += math.log(spent / epsilon) / slope + _ROOM
    return min(math.exp(found), enough)


def _by_slope(excess: Callable[[int, float], float], near: float) -> tuple[float, float] | None:
    """Return the root on a fine grid by the slope of a coarse one, and that slope; None where a coarse grid is far off.

    It is where q is small: nearly all of its loss is then that of rounding upwards.
    """
    on_coarse = functools.cache(functools.partial(excess, _FEWEST_POINTS))
    coarse = _root(on_coarse, near, on_coarse(near), tolerance=0.01)
    # How fast ln(epsilon) falls; it hardly depends on the grid.
    slope = max((on_coarse(coarse - _NEARBY) - on_coarse(coarse + _NEARBY)) / (2 * _NEARBY), 0.1)
    found = coarse + on_coarse(coarse) / slope
    points, gap = _FEWEST_POINTS, 1.0
    while abs(gap) > _NEARLY_SETTLED and 4 * points <= _MOST_POINTS:
        points *= 4
        gap = excess(points, found)
        found += gap / slope
    is_far = abs(gap) > _NEARLY_SETTLED or abs(found - coarse) > _FAR
    return None if is_far else (found, slope)


def _grid_by_grid(excess: Callable[[int, float], float], found: float) -> float:
    """Return the root, sought on each grid anew, from where it is on the one before."""
    points, moved = _FEWEST_POINTS, 1.0
    while moved > _NEARLY_SETTLED and points <= _MOST_POINTS:
        # A coarse grid is far off where q is small, so its root need not be sharp.
        on_grid = functools.partial(excess, points)
        gap = on_grid(found)
        found = _root(on_grid, found, gap, tolerance=min(max(abs(gap) / 50, 1e-4), 0.02))
        moved = abs(gap) if points > _FEWEST_POINTS else 1.0  # from one grid to the next
        points *= 4
    return found


def _root(falling: Callable[[float], float], start: float, value: float, *, tolerance: float) -> float:
    """Return the root of a falling function, sought from ``start`` (where it has this value) outwards."""
    from scipy.optimize import brentq  # here, because nothing else needs it

    if value == 0:
        return start
    width = 1.5 * abs(value) + tolerance
    here, there = start, start
    while value * falling(there) > 0:
        here, there, width = there, there + math.copysign(width, value), 2 * width
    return float(brentq(falling, here, there, xtol=tolerance))


def _refined(
    on_grid: OnGrid,
    q: float,
    noise_multiplier: float,
    steps: int,
    delta: float,
    adjacency: str,
    settled: float = _SETTLED,
) -> float:
    """Refine the grid four-fold (the error falls sixteen-fold) until epsilon hardly changes."""
    points = _FEWEST_POINTS
    epsilon = on_grid(q, noise_multiplier, steps, delta, adjacency, points)
    moved = 1.0
    while moved > settled and 4 * points <= _MOST_POINTS:
        points *= 4
        finer = on_grid(q, noise_multiplier, steps, delta, adjacency, points)
        moved = abs(epsilon - finer) / max(finer, 1e-300)
        epsilon = finer
    return epsilon


def _grid_epsilon(q: float, noise_multiplier: float, steps: int, delta: float, adjacency: str, points: int) -> float:
    """Return epsilon on a grid of about ``points`` points: an upper bound on any grid."""
    # Imported here because it takes a second, which no other function of this package should cost.
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    interval = _interval(noise_multiplier, adjacency, points)
    relations = dp_accounting.NeighboringRelation
    relation = relations.REPLACE_ONE if adjacency == "replace" else relations.ADD_OR_REMOVE_ONE
    accountant = PLDAccountant(relation, value_discretization_interval=interval)
    step = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(noise_multiplier))
    with np.errstate(all="ignore"):
        try:
            accountant.compose(step, steps)
            return float(accountant.get_epsilon(delta))
        except OverflowError:  # so little noise that losses are past all exponentials: what is not sampled bounds it
            return math.inf


def _replace_one(q: float, noise_multiplier: float, steps: int, delta: float, adjacency: str, points: int) -> float:
    """Return the same for replace-one, many times faster."""
    return replace_one_epsilon(q, noise_multiplier, steps, delta, _interval(noise_multiplier, adjacency, points))


def _interval(noise_multiplier: float, adjacency: str, points: int) -> float:
    """Return the grid's interval, from the largest loss: noise is cut at 10.2 standard deviations."""
    shift = _shift(adjacency) / noise_multiplier
    return 2 * (shift**2 / 2 + 10.2 * shift) / points


def _shift(adjacency: str) -> float:
    """Return how far the unsampled sum moves, in clip norms."""
    return 2.0 if adjacency == "replace" else 1.0


def _check(q: float, steps: int, delta: float, adjacency: str) -> None:
    check_number("q", q, at_least=0, at_most=1)
    check_number("steps", steps, at_least=0, integer=True)
    check_number("delta", delta, at_least=LEAST_DELTA, below=1)
    if adjacency not in ("replace", "add_remove"):
        raise unknown("adjacency", adjacency, ["replace", "add_remove"])
