r"""Renyi divergences at one order, for accounts that a filter holds to a budget.

D_alpha(P, Q) = ln E_Q[(P/Q)^alpha] / (alpha - 1) adds up over releases that are chosen on the way, as long as the order
was fixed beforehand and the sum is held to a bound that was too (Feldman and Zrnic 2021). What adds up to B is

    (B + ln((alpha-1)/alpha) - (ln delta + ln alpha)/(alpha-1), delta)-DP              (Canonne, Kamath, Steinke 2020).

**Gaussian** of shift mu: alpha mu^2/2. **Pure**: min(epsilon, alpha epsilon^2/2). **Poisson-sampled Gaussian**,
replace-one: the pair P = (1-q) N(0, z^2) + q N(1, z^2), Q = (1-q) N(0, z^2) + q N(-1, z^2) is the worst in every
dimension; steps add up. (The bound of Mironov et al. 2019 is about add/remove and does not serve.) ``discrete_noise``
has the proof, and what is charged on top because real noise is integers on a grid.

**Quadrature, rounded upwards.** With p = (1-q) + q e^((2x-1)/(2z^2)) and p' the same at -x, and since p and p' have
mean one under N(0, z^2),

    E_Q[(P/Q)^alpha] - 1 = int N(x; 0, z^2) p' g(ln(p/p')) dx,   g(t) = (e^(alpha t) - 1) - alpha (e^t - 1) >= 0,

so that nothing cancels where the divergence is small. The integrand is analytic in the strip |Im x| < pi z^2, where
the trapezoidal rule converges like e^(-2 pi^2 z^2/h); two grids are compared, and the larger sum is taken and made
larger by one part in 10^9. What lies outside of [-reach, 2 alpha - 1 + reach] falls faster there than a Gaussian, which
bounds it.

Real noise has its probabilities up to a relative e = 2^-44 a draw (``sampling.gaussian_blocks``). Both sides of the
ratio then change by (1 +- e) a draw, which adds (2 alpha - 1)/(alpha - 1) e a draw, to first order.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from upcycled.core.errors import Limits, check_number
from upcycled.core.vectors import Real
from upcycled.privacy.accounting.discrete_noise import lattice_renyi
from upcycled.privacy.accounting.numbers import Floats, broadcast, numbers

ORDER = Limits(above=1)
DELTA = Limits(above=0, below=1)
_DRAW = 2.0**-44 * (1 + 1e-6)
_REACH = 40.0
"""In standard deviations."""
_SLACK = 1e-9
_MOST_POINTS = 4_000_000
ORDERS = 1 + 2.0 ** np.linspace(-8, 20, 28 * 64 + 1)
"""Orders that an account may be opened with, if nobody asks for another."""


def renyi_epsilon(*, spent: float, order: float, delta: float) -> float:
    """Return the epsilon at ``delta`` of a Renyi divergence of ``spent`` at one order.

    >>> round(renyi_epsilon(spent=0.5, order=10.0, delta=1e-5), 4)
    1.418
    """
    return max(0.0, spent + _offset(order, delta))


def renyi_budget(*, epsilon: float, order: float, delta: float) -> float:
    """Return the divergence B at ``order`` that is (epsilon, delta)-DP, rounded down; negative where none is.

    >>> round(renyi_budget(epsilon=1.418, order=10.0, delta=1e-5), 3)
    0.5
    """
    found = epsilon - _offset(order, delta)
    return found - 1e-12 * (abs(epsilon) + abs(_offset(order, delta)))


def best_order(*, epsilon: float, delta: float) -> float:
    """Return the order whose budget lets most Gaussian releases through: the largest 2 B / alpha.

    >>> round(best_order(epsilon=2.0, delta=1e-5), 1)
    10.2
    """
    orders = ORDERS
    offsets = np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return float(orders[np.argmax((epsilon - offsets) / orders)])


def gaussian_renyi(*, squares: ArrayLike, order: float) -> Real:
    """Return alpha mu^2/2 of Gaussian releases, from their (sensitivity / noise_std)^2."""
    found: Real = order * np.asarray(squares, dtype=np.float64) / 2
    return found


def pure_renyi(*, epsilon: ArrayLike, order: float | Real) -> Real:
    """Return min(epsilon, alpha epsilon^2/2) of pure releases.

    >>> pure_renyi(epsilon=[0.1, 1.0], order=4.0)
    array([0.02, 1.  ])
    """
    each = np.asarray(epsilon, dtype=np.float64)
    with np.errstate(over="ignore"):
        found: Real = np.minimum(each, order * each**2 / 2)
    return found


def draws_renyi(*, draws: ArrayLike, order: float) -> Real:
    """Return what the inexactness of so many draws of real noise adds."""
    found: Real = np.asarray(draws, dtype=np.float64) * (_DRAW * (2 * order - 1) / (order - 1))
    return found


def sampled_renyi(
    *, q: ArrayLike, noise_multiplier: ArrayLike, steps: ArrayLike, order: float, draws: ArrayLike = 0
) -> Real:
    """Return the divergence of Poisson-sampled Gaussian steps, replace-one, rounded upwards; infinite without noise.

    Args:
        q: the chance of a record to be in a step's batch, one a client.
        noise_multiplier: the noise's standard deviation over the clip norm.
        steps: noisy steps.
        order: alpha.
        draws: numbers of real noise, on a grid, in all steps; zero for continuous noise.

    Returns:
        The divergence of each client.

    >>> sampled_renyi(q=1.0, noise_multiplier=4.0, steps=3, order=8.0)  # 3 alpha (2/z)^2/2
    array(3.)
    >>> float(sampled_renyi(q=0.01, noise_multiplier=1.0, steps=1, order=8.0))
    0.001984455
    """
    ORDER.check("order", order)
    rates, multipliers, counts, drawn = broadcast(
        q=numbers("q", q, at_least=0, at_most=1),
        noise_multiplier=numbers("noise_multiplier", noise_multiplier, at_least=0),
        steps=numbers("steps", steps, at_least=0, integer=True),
        draws=numbers("draws", draws, at_least=0),
    )
    asked = zip(rates.ravel().tolist(), multipliers.ravel().tolist(), strict=True)
    each = np.array([_step(rate, multiplier, float(order)) for rate, multiplier in asked]).reshape(rates.shape)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        whole = counts * each + lattice_renyi(noise_multiplier=multipliers, draws=drawn, order=order)
        unsampled = counts * (2 * order / multipliers**2)
        return np.where((counts == 0) | (rates == 0), 0.0, np.minimum(whole, unsampled))


def _offset(order: float, delta: float) -> float:
    ORDER.check("order", order)
    DELTA.check("delta", delta)
    return math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


@lru_cache(maxsize=4096)  # clients of one size, and rounds of one run, ask for the same numbers
def _step(q: float, z: float, order: float) -> float:
    check_number("q", q, at_least=0, at_most=1)
    if q == 0:
        return 0.0
    unsampled = math.inf if z == 0 else 2 * order / z**2
    if q == 1 or not math.isfinite(unsampled):
        return unsampled
    step, low, high = min(z, z**2) / 4, -_REACH * z, 2 * order - 1 + _REACH * z
    if 2 * (high - low) / step > _MOST_POINTS:
        return unsampled  # an upper bound: sampling never costs more
    x = np.arange(int(2 * (high - low) / step) + 2, dtype=np.float64) * (step / 2) + low
    logs = _log_integrand(x, q, z, order)
    log_sum = max(_log_total(logs, step / 2), _log_total(logs[::2], step))
    # Below the first point it rises at least like N(0, z^2), past the last it falls at least like N(2 alpha - 1, z^2).
    tails = np.logaddexp(logs[0] + math.log(z / _REACH), logs[-1] + math.log(z**2 / (x[-1] - (2 * order - 1))))
    log_excess = float(np.logaddexp(log_sum, tails)) + _SLACK
    return min(float(np.logaddexp(0.0, log_excess)) / (order - 1) * (1 + 1e-12), unsampled)


def _log_total(logs: Floats, step: float) -> float:
    most = float(logs.max())
    return most + math.log(float(np.exp(logs - most).sum()) * step) if math.isfinite(most) else -math.inf


def _log_integrand(x: Floats, q: float, z: float, order: float) -> Floats:
    """Return ln(N(x; 0, z^2) p' g(ln(p/p')))."""
    log_p, log_other = (_log_mixture(side, q, z) for side in (x, -x))
    t = log_p - log_other
    grown = order * t
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        # Three forms of ln g: by its series near zero, as it is, and where e^(alpha t) is past all numbers.
        near = np.log(order * (order - 1) / 2) + 2 * np.log(np.abs(t)) + np.log1p((order + 1) * t / 3)
        plain = np.log(np.expm1(np.minimum(grown, 700.0)) - order * np.expm1(np.minimum(t, 700.0)))
        far = grown + np.log1p(-np.exp(np.log(order) + t - grown))
        log_g = np.where(np.abs(grown) < 1e-5, near, np.where(grown > 40, far, plain))
    found: Floats = -(x**2) / (2 * z**2) - math.log(z * math.sqrt(2 * math.pi)) + log_other + log_g
    return np.where(np.isnan(found), -np.inf, found)


def _log_mixture(x: Floats, q: float, z: float) -> Floats:
    found: Floats = np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * z**2))
    return found
