"""What real noise costs because it is drawn as integers, and not from the continuous Gaussian of the formulas.

N draws of ``privacy.sampling`` are within total variation eta = 2^-43 sqrt(N) of rounded continuous Gaussians (the
proof stands in ``sampling.gaussian_blocks``), so what is (epsilon, delta)-DP with the latter is (epsilon, delta +
(1 + e^epsilon) eta)-DP with the former. A part of delta is set aside for that, one of a few fixed ones: noise is
calibrated to the rest, and epsilon is stated at the rest, so that both always agree.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from upcycled.core.errors import InputError
from upcycled.core.vectors import Ints, Real

PARTS = (2.0**-20, 2.0**-10, 2.0**-7, 0.1)
"""Parts of delta that may be set aside; more than the last is refused."""
_ETA = 2.0**-43
_RELATIVE = 2.0**-44
"""Every integer's probability is right up to this part."""
_TAIL = 2.0**-125
"""What lies past the sampler's reach."""


def sampler_delta(*, epsilon: ArrayLike, draws: ArrayLike) -> Real:
    """Return (1 + e^epsilon) 2^-43 sqrt(draws), what so many draws add to delta.

    >>> float(sampler_delta(epsilon=2.0, draws=40 * 155_800))
    2.4e-09
    """
    with np.errstate(over="ignore", invalid="ignore"):
        found: Real = (1 + np.exp(np.asarray(epsilon, dtype=np.float64))) * _ETA * np.sqrt(draws)
    return np.where(np.asarray(draws) == 0, 0.0, found)


def part_of_delta(*, epsilon: float, delta: float, draws: ArrayLike) -> Real:
    """Return the part of delta that is set aside for so many draws: none for none.

    Raises:
        InputError: if it would be more than a tenth.
    """
    cost = sampler_delta(epsilon=epsilon, draws=draws)
    found: Real = np.select([cost == 0, *(cost <= part * delta for part in PARTS)], [0.0, *PARTS], np.inf)
    if not np.isfinite(found).all():
        most = int(np.max(draws))
        if 10 * cost.max() >= 1:
            largest = float(np.log(delta / 10 / sampler_delta(epsilon=-np.inf, draws=most)))
            raise InputError(
                field="epsilon",
                value=epsilon,
                must=f"{largest:.3g} or less at delta {delta:g}: real noise of {most} numbers is not exact enough",
            )
        raise InputError(
            field="delta",
            value=delta,
            must=f"{10 * float(cost.max()):.2g} or more at epsilon {epsilon:g}: real noise of {most} numbers is exact "
            "up to a tenth of that",
        )
    return found


def most_draws(*, epsilon: float, delta: float, part: float) -> float:
    """Return how many draws a part of delta pays for."""
    return float((part * delta / sampler_delta(epsilon=epsilon, draws=1)) ** 2)


def epsilon_of_draws(exact: Callable[[Ints, float], Real], mu: Real, draws: Ints, delta: float) -> Real:
    """Return the least epsilon at ``delta`` that is proven for noise of so many draws; zero draws: simulated noise.

    It is exact(places, delta') at a delta' that leaves room for the draws. Where epsilon is so large that there is
    none, it follows from the discrete Gaussian's own divergence, which is that of the continuous one with shift ``mu``
    (an upper bound, for sampled releases too); infinite where not even the sampler's reach is enough.
    """
    found, left = np.full(draws.size, np.inf), np.arange(draws.size)
    for part in (0.0, *PARTS):
        tried = left[sampler_delta(epsilon=0.0, draws=draws[left]) <= part * delta]
        if tried.size:
            epsilon = exact(tried, delta * (1 - part))
            fits = sampler_delta(epsilon=epsilon, draws=draws[tried]) <= part * delta
            found[tried[fits]] = epsilon[fits]
            left = np.setdiff1d(left, tried[fits])
    if left.size:  # at delta = 0 there is none left, and no such bound
        found[left] = _by_divergence(mu[left], draws[left], delta)
    return found


def _by_divergence(mu: Real, draws: Ints, delta: float) -> Real:
    """Return epsilon by zero-concentrated DP, rho = mu^2/2 (Canonne, Kamath, Steinke 2020, propositions 5 and 12).

    P(k) (1 +- e) in the place of P(k) multiplies the probability of whatever N draws give by (1 +- e)^N at most, which
    adds 3 N e to epsilon and makes delta larger by e^(N e); the tail adds e^epsilon N 2^-125.
    """
    rho = np.maximum(mu[:, None] ** 2, 1e-12) / 2
    rest = np.log(1 / (delta * (1 - 2.0**-10)))
    # Every order above 1 gives a bound; the best is near 1 + sqrt(rest / rho).
    above = np.sqrt(rest / rho) * 2.0 ** np.linspace(-2, 2, 161)
    order = 1 + above
    bounds = order * rho + np.log(above / order) + (rest - np.log(order)) / above
    found: Real = np.maximum(bounds.min(axis=1), 0.0) + 3 * draws * _RELATIVE
    with np.errstate(over="ignore"):
        is_reached = (draws * _RELATIVE <= 2.0**-12) & (np.exp(found) * draws * _TAIL <= delta * 2.0**-12)
    return np.where(is_reached, found, np.inf)
