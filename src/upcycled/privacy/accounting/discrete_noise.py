r"""What real noise costs because it is drawn as integers, and not from the continuous Gaussian of the formulas.

The Renyi divergence of sampled releases whose noise is integers on a grid, beside that of continuous noise.

**The worst pair.** One step releases a sum with noise of std z, each record being in it with probability q. Given all
other coins, the sum is moved by u if the record is drawn, or by v if the one that replaces it is; ||u||, ||v|| <= 1.
Mixing over the other coins adds nothing, because E_Q[(P/Q)^alpha] is jointly convex. With continuous noise that is the
mean under x ~ N(0, z^2 I) of

    f(x) = p_u^alpha p_v^(1-alpha),   p_u(x) = (1-q) + q exp((<x, u> - ||u||^2/2) / z^2).

- At given norms it falls in <u, v>, which is the covariance of <x, u> and <x, v> up to a factor: its derivative is the
  mean of the mixed second derivative of f, whose one factor that is not positive is alpha (1-alpha). So the worst v
  points away from u.
- In one dimension, with u = a > 0 and v = -b < 0, it grows in a: the derivative is (alpha q/z^2) E_{N(a, z^2)}[(x - a)
  (p_u/p_v)^(alpha-1)], the covariance of two functions that rise with x. It grows in b likewise, by (alpha-1) (q/z^2)
  E_{N(-b, z^2)}[(x + b) (p_u/p_v)^alpha].

So u = 1, v = -1 in one dimension is the worst pair, for every q, z and alpha > 1.

**Integers.** Real noise lies on a grid: a step releases k + Z, where k is the sum in whole grid steps and Z_j is an
integer x with probability ~ exp(-x^2/(2 s_j^2)), s_j >= 2^20. Now u and v are integer vectors with sums of (u_j/s_j)^2
and (v_j/s_j)^2 of 1/z^2 at most (z, the charged noise multiplier, includes the rounding to the grid). Moving Z by an
integer keeps the sum of its weights. So E_Q[(P/Q)^alpha] is the mean under Z of the same f, with p_u(x) = (1-q) + q
exp(sum_j (x_j u_j - u_j^2/2)/s_j^2); its mean under N(0, diag s_j^2) is that of the continuous release. The mean under
Z may be the larger one: the divergence by 4 % at s = 1/2, z = 1/2, q = 1/1000, alpha = 1.05. But it is larger by a
factor 1 + eta at most for each coordinate,

    eta = 2^((alpha+1)/2) / (e^kappa - 1),   kappa = (7/8) pi^2 s z.

*Proof*, one coordinate at a time, with all others at any values. There p_u = (1-q) + A e^(u x/s^2) and p_v = (1-q) +
B e^(v x/s^2) with A, B > 0. If u = v = 0, f does not depend on x. Else let b = max(|u|, |v|), so that 1 <= b <= s/z,
and F(x) = f(x) e^(-x^2/(2 s^2)). In the strip |Im x| <= y = pi s^2/(2 b) the angles u Im x/s^2 and v Im x/s^2 are at
most pi/2. So p_u and p_v have positive real parts there, and F is analytic; |p_u(x + iy)| <= p_u(x), and
|p_v(x + iy)| >= p_v(x)/sqrt(2). Moving the path of the Fourier integral by y gives for every integer m

    |F^(m)| <= 2^((alpha-1)/2) e^(y^2/(2 s^2) - 2 pi |m| y) F^(0) <= 2^((alpha-1)/2) e^(-kappa |m|) F^(0)   (m != 0),

since 2 pi y = pi^2 s^2/b, y^2/(2 s^2) is an eighth of that at most, and s^2/b >= s z. By Poisson's summation formula
the sum of F over the integers is the sum of all F^(m), which is (1 + eta) F^(0) at most. The sum of the weights
e^(-x^2/(2 s^2)) is at least their integral, because their transform is positive. The mean under Z is the quotient. QED.

So the draws of all steps add eta/(alpha-1) each at most. With s >= 2^20 that is nothing to speak of unless z is below
10^-4, and it is charged all the same. Without sampling the discrete divergence is at most the continuous one (Canonne,
Kamath, Steinke 2020, proposition 5); by joint convexity that bounds the sampled one, too.

N draws of ``privacy.sampling`` are within total variation eta = 2^-43 sqrt(N) of rounded continuous Gaussians (the
proof stands in ``sampling.gaussian_blocks``), so what is (epsilon, delta)-DP with the latter is (epsilon, delta +
(1 + e^epsilon) eta)-DP with the former. A part of delta is set aside for that, one of a few fixed ones: noise is
calibrated to the rest, and epsilon is stated at the rest, so that both always agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from upcycled.core.errors import InputError
from upcycled.core.vectors import Ints, Real

GRID_SCALE = 2.0**20
"""The least standard deviation of real noise, in steps of its grid: see ``core.vectors.grid_scale``."""
_LEAST = -690.0
"""The least logarithm of eta: no number that is charged underflows to zero."""


def lattice_renyi(*, noise_multiplier: ArrayLike, draws: ArrayLike, order: float, scale: float = GRID_SCALE) -> Real:
    """Return what noise on a grid, in the place of continuous noise, adds to the divergence of sampled steps at most.

    Args:
        noise_multiplier: the noise's standard deviation over the clip norm.
        draws: numbers of noise in all steps.
        order: alpha.
        scale: the noise's standard deviation in steps of its grid, at least.

    >>> float(lattice_renyi(noise_multiplier=1.0, draws=1e9, order=10.0)) < 1e-280
    True
    """
    kappa = 7 * math.pi**2 / 8 * scale * np.asarray(noise_multiplier, dtype=np.float64)
    with np.errstate(divide="ignore", over="ignore"):
        log_eta = (order + 1) / 2 * math.log(2) - kappa - np.log(-np.expm1(-kappa))
        each = np.exp(np.maximum(log_eta, _LEAST)) / (order - 1)
    found: Real = np.where(np.asarray(draws) == 0, 0.0, np.asarray(draws, dtype=np.float64) * each)
    return found


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
