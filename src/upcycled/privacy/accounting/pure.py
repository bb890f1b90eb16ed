"""Composition of pure epsilons: rounds that are each epsilon_t-DP with delta = 0, parameters fixed in advance.

The worst case of epsilon_t-DP is binary randomised response: privacy loss +epsilon_t with probability 1/(1 +
e^-epsilon_t) under one neighbour, else -epsilon_t (Kairouz, Oh and Viswanath 2015; Murtagh and Vadhan 2016). With
T(x) the event "total loss >= x", delta(epsilon) = max_x P(T(x)) - e^epsilon Q(T(x)), so the least epsilon for a delta
is

    max over x of log((P(T(x)) - delta) / Q(T(x))).

This is the best that can be said from the numbers epsilon_t alone; a mechanism about which more is known may compose
better. The adjacency is the one of the epsilon_t.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, gammaln, log_expit

from upcycled.core.errors import check_number
from upcycled.privacy.accounting.numbers import Floats, numbers

_WORK = 1e9
"""The most additions that a composition of unequal rounds may take, a few seconds."""


def pure_composition_epsilon(*, epsilons: ArrayLike, delta: float) -> float:
    """Return the epsilon at ``delta`` of rounds that are each epsilons[t]-DP.

    delta = 0: the plain sum. delta > 0: optimal for equal rounds (exact), and for unequal ones that share a grid;
    others are spread onto a fine grid in a way that can only raise the result (by well under one part in 1,000 up to
    some thousand rounds). Not for rounds chosen on the way: those need a filter on the plain sum.

    Args:
        epsilons: the epsilon of each round.
        delta: 0 for the plain sum, more for optimal composition.

    Returns:
        The epsilon of all rounds.

    Raises:
        InputError: for a number out of its range.

    >>> pure_composition_epsilon(epsilons=[0.092] * 80, delta=1e-5)
    3.432649
    >>> pure_composition_epsilon(epsilons=[0.092] * 80, delta=0)
    7.36
    """
    check_number("delta", delta, at_least=0, below=1)
    each = numbers("epsilons", epsilons, at_least=0).ravel()
    each = each[each > 0]
    total = math.fsum(each)
    if delta == 0 or len(each) == 0:
        return total
    largest = float(each.max())
    if largest - each.min() <= 1e-12 * largest:
        losses, masses = _equal(largest, len(each))
    else:
        losses, masses = _unequal(each)
    return min(_epsilon(losses, masses, delta), total)


def pure_round_epsilon(*, epsilon: float, rounds: int, delta: float) -> float:
    """Return the largest equal epsilon a round that composes to ``epsilon`` at ``delta`` over ``rounds`` rounds.

    The inverse of :func:`pure_composition_epsilon` for equal rounds, rounded to the safe side.

    Args:
        epsilon: what all rounds together may cost.
        rounds: how many.
        delta: 0 for the plain sum, more for optimal composition.

    Returns:
        The epsilon of a round.

    Raises:
        InputError: for a number out of its range.

    >>> pure_round_epsilon(epsilon=7.36, rounds=80, delta=0)
    0.092
    """
    check_number("epsilon", epsilon, above=0)
    check_number("rounds", rounds, at_least=1, integer=True)
    check_number("delta", delta, at_least=0, below=1)
    count = int(rounds)
    safe, unsafe = epsilon / count, epsilon / count
    if delta == 0:
        return safe if math.fsum([safe] * count) <= epsilon else math.nextafter(safe, 0.0)

    def fits(each: float) -> bool:
        return _epsilon(*_equal(each, count), delta) <= epsilon

    while fits(unsafe):
        safe, unsafe = unsafe, 2 * unsafe
    while (middle := (safe + unsafe) / 2) not in (safe, unsafe) and unsafe - safe > 1e-13 * unsafe:
        safe, unsafe = (middle, unsafe) if fits(middle) else (safe, middle)
    return safe


def _epsilon(losses: Floats, log_masses: Floats, delta: float) -> float:
    """Return the least epsilon >= 0, given the positive losses in falling order and the logs of their P masses."""
    upper = np.logaddexp.accumulate(log_masses)
    lower = np.logaddexp.accumulate(log_masses - losses)
    reached = upper > math.log(delta)
    if not reached.any():
        return 0.0
    gap = upper[reached] + np.log1p(-np.exp(math.log(delta) - upper[reached]))
    return max(0.0, float(np.max(gap - lower[reached])))


def _equal(each: float, rounds: int) -> tuple[Floats, Floats]:
    """Return losses and log masses of equal rounds: a binomial count of the rounds that went against the guess."""
    against = np.arange((rounds + 1) // 2, dtype=np.float64)
    ways = gammaln(rounds + 1) - gammaln(against + 1) - gammaln(rounds - against + 1)
    return (rounds - 2 * against) * each, ways + (rounds - against) * log_expit(each) + against * log_expit(-each)


def _unequal(each: Floats) -> tuple[Floats, Floats]:
    """Return losses and log masses of unequal rounds, convolved on a grid (all terms positive: no digits lost)."""
    interval = _dividing_interval(each)
    if interval is None:
        # The spread below adds a variance of at most interval^2/4 a round, small beside the loss's own epsilon_t^2.
        fine = min(float(np.sqrt(np.mean(each**2))) / 64, float(np.sum(each)) / 2**15)
        interval = max(fine, float(np.sum(each)) * len(each) / _WORK)
    masses = np.ones(1)
    for epsilon in each:
        steps, weights = _on_grid(float(epsilon), interval)
        reach = max(steps)
        grown = np.zeros(len(masses) + 2 * reach)
        for step, weight in zip(steps, weights, strict=True):
            if weight > 0:
                grown[reach + step : reach + step + len(masses)] += weight * masses
        masses = grown
    middle = len(masses) // 2
    upper = masses[:middle:-1]
    losses: Floats = np.arange(len(upper), 0, -1, dtype=np.float64) * interval
    kept = upper > 0
    return losses[kept], np.log(upper[kept])


def _on_grid(epsilon: float, interval: float) -> tuple[Sequence[int], Sequence[float]]:
    """Return grid steps and masses for the losses +-epsilon of one round.

    A loss between two grid points goes to both, keeping its P mass and its Q mass (P e^-loss). That is a
    mean-preserving spread of e^-loss; delta is a mean of convex functions of e^-loss, so it can only grow, also after
    composition.
    """
    nearest = round(epsilon / interval)
    if abs(nearest * interval - epsilon) <= 1e-12 * epsilon:
        return (nearest, -nearest), (float(expit(nearest * interval)), float(expit(-nearest * interval)))
    low = math.floor(epsilon / interval)
    above = epsilon - low * interval
    right, wrong = float(expit(epsilon)), float(expit(-epsilon))
    up = math.expm1(-above) / math.expm1(-interval)
    down = math.expm1(above - interval) / math.expm1(-interval)
    return (low + 1, low, -low, -low - 1), (right * up, right * (1 - up), wrong * down, wrong * (1 - down))


def _dividing_interval(each: Floats) -> float | None:
    """Return a grid interval of which every epsilon is a multiple, if there is one coarse enough to work with."""
    distinct = [float(value) for value in np.unique(each)]
    parts = [Fraction(value).limit_denominator(10**6) for value in distinct]
    if any(abs(float(part) - value) > 1e-13 * value for part, value in zip(parts, distinct, strict=True)):
        return None
    scale = 1
    for part in parts:
        scale = math.lcm(scale, part.denominator)
        if scale > 10**12:
            return None
    counts = [int(part * scale) for part in parts]
    common = math.gcd(*counts)
    multiples = np.array([count // common for count in counts], dtype=np.float64)
    # The interval is the largest of the quotients, so that no epsilon is rounded down.
    interval = float(np.max(np.asarray(distinct) / multiples))
    return interval if np.sum(each) / interval * len(each) <= _WORK else None
