"""How many data rounds a budget pays for. The budget is the pair (epsilon, delta)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from upcycled.core.errors import FRACTION, POSITIVE, InputError, Limits, check_number
from upcycled.privacy.accounting.gaussian import gaussian_epsilon, gdp_mu
from upcycled.privacy.accounting.numbers import broadcast, numbers
from upcycled.privacy.accounting.paper import paper_epsilon
from upcycled.privacy.accounting.pure import pure_composition_epsilon
from upcycled.privacy.accounting.sampled import sampled_gaussian_epsilon

MOST = 10**9
"""More rounds than this are never counted."""


def rounds_within(*, budget: Sequence[float], sensitivity: ArrayLike, noise_std: ArrayLike) -> int | NDArray[np.int64]:
    """Return the most Gaussian data rounds that together are (epsilon, delta)-DP; one number a client for arrays.

    Exact, for the sensitivity's adjacency (replace-one in this package). Upcycled iterations come on top, free. The
    count also serves as a filter: rounds may stop earlier for any reason.

    Args:
        budget: the pair (epsilon, delta).
        sensitivity: the most one record moves a release, in L2 norm.
        noise_std: the noise's standard deviation per coordinate.

    Returns:
        The count, 0 where not even one round fits. An array where an argument is one.

    Raises:
        InputError: for a budget that is no such pair, or a number out of its range.

    >>> rounds_within(budget=(2.937369, 1e-5), sensitivity=20 / 224, noise_std=0.8)
    40
    """
    epsilon, delta = _pair(budget, above_zero_delta=True)
    moves, std = broadcast(
        sensitivity=numbers("sensitivity", sensitivity, above=0), noise_std=numbers("noise_std", noise_std, above=0)
    )
    with np.errstate(over="ignore"):
        exact = np.minimum((gdp_mu(epsilon=epsilon, delta=delta) / (moves / std)) ** 2, MOST)
    # The square may be off by rounding, so the integers beside it are tried with the very formula that is reported.
    count = np.floor(exact)
    for candidate in (count, count + 1):
        fits = np.asarray(gaussian_epsilon(rounds=candidate, sensitivity=moves, noise_std=std, delta=delta)) <= epsilon
        count = np.where(fits & (candidate <= MOST), candidate, np.minimum(count, np.maximum(candidate - 1, 0)))
    return int(count) if count.ndim == 0 else count.astype(np.int64)


def pure_rounds_within(*, budget: Sequence[float], epsilon_each: float) -> int:
    """Return the most equal pure rounds within (epsilon, delta), delta = 0 allowed.

    delta = 0 counts plain sums and serves as a filter too; delta > 0 uses optimal composition, and the count is a
    guarantee only for a schedule fixed in advance.

    Args:
        budget: the pair (epsilon, delta).
        epsilon_each: the epsilon of a round, at delta = 0.

    Returns:
        The count, 0 where not even one round fits.

    Raises:
        InputError: for a budget that is no such pair, or a number out of its range.

    >>> pure_rounds_within(budget=(3.4327, 1e-5), epsilon_each=0.092)
    80
    """
    epsilon, delta = _pair(budget, above_zero_delta=False)
    check_number("epsilon_each", epsilon_each, above=0)
    # Room for rounding: ten rounds of 0.1 fit a budget of 1.
    limit = epsilon * (1 + 1e-12)
    if delta == 0:
        return min(int(limit / epsilon_each), MOST)
    return _most(lambda rounds: pure_composition_epsilon(epsilons=np.full(rounds, epsilon_each), delta=delta) <= limit)


def sampled_gaussian_steps_within(
    *, budget: Sequence[float], q: float, noise_multiplier: float, adjacency: str = "replace"
) -> int:
    """Return the most Poisson-sampled Gaussian steps (not rounds) within (epsilon, delta), fixed in advance.

    As tight as :func:`sampled_gaussian_epsilon`; ``q`` = 0 would never end and is refused.

    Args:
        budget: the pair (epsilon, delta).
        q: the chance of a record to be in a step's batch.
        noise_multiplier: the noise's standard deviation over the clip norm.
        adjacency: ``"replace"`` or ``"add_remove"``.

    Returns:
        The count, 0 where not even one step fits.

    Raises:
        InputError: for a budget that is no such pair, or a number out of its range.

    >>> sampled_gaussian_steps_within(budget=(2.0, 1e-5), q=1.0, noise_multiplier=8.0)
    4
    """
    epsilon, delta = _pair(budget, above_zero_delta=True)
    check_number("q", q, above=0, at_most=1)

    def fits(steps: int) -> bool:
        spent = sampled_gaussian_epsilon(
            q=q, noise_multiplier=noise_multiplier, steps=steps, delta=delta, adjacency=adjacency
        )
        return spent <= epsilon

    return _most(fits)


def paper_rounds_within(*, budget: Sequence[float], clip_norm: float, noise_std: float, n: int) -> int:
    """Return the data rounds that the paper's formula allows. Not sound.

    It assumes that one record moves the clipped model by at most tau/n; see ``paper_epsilon``.

    Args:
        budget: the pair (epsilon, delta).
        clip_norm: tau, which the model is clipped to.
        noise_std: sigma, the noise's standard deviation per coordinate.
        n: records of a client.

    Returns:
        The count, 0 where not even one round fits.

    Raises:
        InputError: for a budget that is no such pair, or a number out of its range.

    >>> paper_rounds_within(budget=(1.755838, 1e-5), clip_norm=10, noise_std=0.8, n=224)
    40
    """
    epsilon, delta = _pair(budget, above_zero_delta=True)

    def fits(rounds: int) -> bool:
        spent = paper_epsilon(rounds=rounds, clip_norm=clip_norm, noise_std=noise_std, n=n, delta=delta)
        return float(spent) <= epsilon

    return _most(fits)


def _pair(budget: Sequence[float], *, above_zero_delta: bool) -> tuple[float, float]:
    try:
        epsilon, delta = budget
    except (TypeError, ValueError):
        raise InputError(field="budget", value=budget, must="the pair (epsilon, delta)") from None
    allowed = Limits(above=0, below=1) if above_zero_delta else FRACTION
    return float(POSITIVE.check("epsilon", epsilon, "budget's")), float(allowed.check("delta", delta, "budget's"))


def _most(fits: Callable[[int], bool]) -> int:
    """Return the largest count that fits, for a property that only ever turns from true to false."""
    bad = 1
    while bad <= MOST and fits(bad):
        bad *= 2
    good = bad // 2
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return min(good, MOST)
