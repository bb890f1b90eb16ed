"""Data rounds that each release a vector with Gaussian noise: exact epsilon, delta and noise.

M releases with L2 sensitivities D_t and noise stds s_t are together one Gaussian with mu = sqrt(sum (D_t/s_t)^2),
also when each release is chosen after seeing the earlier ones, as long as all D_t/s_t were fixed beforehand. The
adjacency is the one of the sensitivity: replace-one throughout this package unless the caller's D_t says otherwise.
These numbers are exact for unsampled Gaussians; where a client or a batch is drawn in secret they hold but are not
the tightest known.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from upcycled.core.mechanism import Charge
from upcycled.core.vectors import Real
from upcycled.privacy.accounting.gdp import gdp_delta, gdp_epsilon, gdp_mu
from upcycled.privacy.accounting.numbers import Floats, broadcast, numbers, plain

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


def squared_ratio(charge: Charge) -> Real:
    """Return (sensitivity / noise_std)^2 of each client, infinite without noise."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio: Real = (charge.sensitivity / charge.noise_std) ** 2
    return ratio


def _mu(rounds: ArrayLike, sensitivity: ArrayLike, noise_std: ArrayLike) -> Floats:
    count, moves, std = broadcast(
        rounds=numbers("rounds", rounds, at_least=0, integer=True),
        sensitivity=numbers("sensitivity", sensitivity, at_least=0),
        noise_std=numbers("noise_std", noise_std, above=0),
    )
    return np.asarray(np.sqrt(count) * moves / std)
