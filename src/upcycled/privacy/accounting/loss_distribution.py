"""The privacy loss distribution of Poisson-sampled Gaussian steps under replace-one, composed by Fourier transforms.

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
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from upcycled.core.vectors import Real
from upcycled.privacy.accounting.gdp import gdp_epsilon

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
