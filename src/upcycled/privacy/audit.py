"""Lower bounds on epsilon from attacks: statistics of games that were played elsewhere.

An audit can refute a claim and never prove one: a bound below the claim says only that this attack, with this many
replays, found nothing. All bounds hold with 95% confidence, for the adjacency of the worlds that were played.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, betaincinv, gammaln, ndtri

from upcycled.core.errors import InputError, check_number, unknown

__all__ = [
    "OneRun",
    "TwoWorlds",
    "one_run",
    "one_run_scores",
    "two_world",
    "two_world_epsilon",
    "two_world_mu",
    "two_world_replays",
]

TAIL = 0.025
"""The chance that each one-sided Clopper-Pearson bound of the two-world test is wrong."""

LEVEL = 0.05
"""The chance that the one-run test's bound is wrong."""


@dataclass(frozen=True)
class TwoWorlds:
    """What the two-world test certified, and the counts that it rests on."""

    epsilon_lower: float
    """No (epsilon, delta) claim with a smaller epsilon is true (95% confidence)."""
    mu_lower: float
    """No Gaussian mechanism with a smaller mu does this: refutes a claim that rests on the Gaussian formula."""
    delta: float
    threshold: float
    """World 1 was guessed for scores above it (below it when ``above`` is False)."""
    above: bool
    false_alarms: int
    n0: int
    misses: int
    n1: int

    def refutes(self, epsilon: float) -> bool:
        """Return whether the claim (epsilon, this delta) is broken."""
        return self.epsilon_lower > epsilon


@dataclass(frozen=True)
class OneRun:
    """What the one-run test certified, and the counts that it rests on."""

    epsilon_lower: float
    """No (epsilon, delta) claim with a smaller epsilon is true (at the level's confidence)."""
    delta: float
    canaries: int
    guesses: int
    correct: int
    level: float

    def refutes(self, epsilon: float) -> bool:
        """Return whether the claim (epsilon, this delta) is broken."""
        return self.epsilon_lower > epsilon


def two_world_epsilon(*, false_alarms: int, n0: int, misses: int, n1: int, delta: float, tail: float = TAIL) -> float:
    """Return max(ln((1-delta-FNR)/FPR), ln((1-delta-FPR)/FNR)), at least 0, from Clopper-Pearson upper bounds.

    ``false_alarms`` of ``n0`` replays of world 0 were taken for world 1, ``misses`` of ``n1`` the other way round, by a
    test fixed before these replays. The bound is wrong with probability at most 2 ``tail``. Not the tightest known:
    joint confidence regions for the two rates certify somewhat more from the same counts.

    Args:
        false_alarms: replays of world 0 that were taken for world 1.
        n0: replays of world 0.
        misses: replays of world 1 that were taken for world 0.
        n1: replays of world 1.
        delta: of the claim.
        tail: the chance that each of the two one-sided bounds is wrong.

    Returns:
        A lower bound on epsilon, at least 0.

    Raises:
        InputError: for a number out of its range.

    >>> two_world_epsilon(false_alarms=0, n0=10000, misses=0, n1=10000, delta=1e-5)
    7.904823
    """
    check_number("delta", delta, at_least=0, below=1)
    fpr, fnr = _rates(false_alarms, n0, misses, n1, tail)
    return float(_epsilon_lower(np.array(fpr), np.array(fnr), delta))


def two_world_mu(*, false_alarms: int, n0: int, misses: int, n1: int, tail: float = TAIL) -> float:
    """Return Phi^-1(1 - FPR) - Phi^-1(FNR), at least 0: the least mu of a Gaussian mechanism that is caught this often.

    Args:
        false_alarms: replays of world 0 that were taken for world 1.
        n0: replays of world 0.
        misses: replays of world 1 that were taken for world 0.
        n1: replays of world 1.
        tail: the chance that each of the two one-sided bounds is wrong.

    Returns:
        A lower bound on mu, at least 0.

    Raises:
        InputError: for a number out of its range.

    >>> two_world_mu(false_alarms=0, n0=10000, misses=0, n1=10000)
    6.750386
    """
    return float(_mu_lower(*(np.array(rate) for rate in _rates(false_alarms, n0, misses, n1, tail))))


def two_world(
    *,
    scores0: ArrayLike,
    scores1: ArrayLike,
    delta: float,
    target: Literal["epsilon", "mu"] = "epsilon",
    tail: float = TAIL,
) -> TwoWorlds:
    """Audit a mechanism from an attack's scores over replays of two neighbouring worlds.

    Every other replay, from the first, goes into choosing the threshold and its direction (the ones that would certify
    most for ``target``); the rest certify, with two Clopper-Pearson bounds.

    Args:
        scores0: the attack's score of each replay of world 0.
        scores1: the same of world 1.
        delta: of the claim.
        target: what the threshold is to certify most of.
        tail: the chance that each of the two bounds is wrong.

    Returns:
        The bounds, and the counts that they rest on.

    Raises:
        InputError: for scores that are no finite numbers, fewer than two of them, or another target.

    >>> result = two_world(scores0=[0.0] * 2000, scores1=[1.0] * 2000, delta=1e-5)
    >>> result.epsilon_lower, result.n0, result.threshold
    (5.600577, 1000, 0.5)
    """
    if target not in ("epsilon", "mu"):
        raise unknown("target", target, ["epsilon", "mu"])
    check_number("delta", delta, at_least=0, below=1)
    world0, world1 = _scores("scores0", scores0), _scores("scores1", scores1)
    threshold, above = _threshold(world0[0::2], world1[0::2], delta, target)
    held0, held1 = world0[1::2], world1[1::2]
    alarms0 = int(np.sum(held0 > threshold)) if above else int(np.sum(held0 < threshold))
    alarms1 = int(np.sum(held1 > threshold)) if above else int(np.sum(held1 < threshold))
    counts = {"false_alarms": alarms0, "n0": len(held0), "misses": len(held1) - alarms1, "n1": len(held1)}
    return TwoWorlds(
        epsilon_lower=two_world_epsilon(**counts, delta=delta, tail=tail),
        mu_lower=two_world_mu(**counts, tail=tail),
        delta=delta,
        threshold=threshold,
        above=above,
        **counts,
    )


def two_world_replays(
    *,
    score_of: Callable[[int, int], float],
    replays: int,
    delta: float,
    target: Literal["epsilon", "mu"] = "epsilon",
) -> TwoWorlds:
    """Audit by calling ``score_of(world, replay)`` for worlds 0 and 1, ``replays`` times each, half of them to certify.

    Each call must use fresh noise.

    Args:
        score_of: (world, replay) -> the attack's score.
        replays: how many of each world, at least 4.
        delta: of the claim.
        target: what the threshold is to certify most of.

    Returns:
        The bounds, and the counts that they rest on.

    Raises:
        InputError: for a number out of its range, or a score that is not finite.

    >>> import random
    >>> coin = random.Random(0)
    >>> found = two_world_replays(score_of=lambda world, _: coin.gauss(3.0 * world, 1.0), replays=1000, delta=1e-5)
    >>> found.n0, found.refutes(1.0)
    (500, True)
    """
    check_number("replays", replays, at_least=4, integer=True)
    scores = [[score_of(world, replay) for replay in range(int(replays))] for world in (0, 1)]
    return two_world(scores0=scores[0], scores1=scores[1], delta=delta, target=target)


def one_run(*, canaries: int, guesses: int, correct: int, delta: float, level: float = LEVEL) -> OneRun:
    """Audit a mechanism from one run with m canaries, each in or out by a fair coin (Steinke, Nasr and Jagielski 2023).

    Of ``guesses`` guesses, a number fixed beforehand, ``correct`` were right. A claim is rejected when its p-value

        P[Bin(r, q) >= v] + 2 m delta max_{1<=i<=v} P[v-i <= Bin(r, q) < v]/i,    q = 1/(1 + e^-epsilon)

    is at most ``level``; the result is the first epsilon that is not. It audits the unit of the canaries: clients for
    client-level claims, replaced records for replace-one. Later analyses certify somewhat more from the same counts.

    Args:
        canaries: m, each in or out by a fair coin.
        guesses: r, of how many of them it was guessed.
        correct: v, how many guesses were right.
        delta: of the claim.
        level: the chance that the bound is wrong.

    Returns:
        The bound, and the counts that it rests on.

    Raises:
        InputError: for a number out of its range.

    >>> one_run(canaries=1000, guesses=100, correct=95, delta=1e-5).epsilon_lower
    2.165176
    """
    check_number("canaries", canaries, at_least=1, integer=True)
    check_number("guesses", guesses, at_least=1, at_most=canaries, integer=True)
    check_number("correct", correct, at_least=0, at_most=guesses, integer=True)
    check_number("delta", delta, at_least=0, below=1)
    check_number("level", level, above=0, below=0.5)
    m, r, v = int(canaries), int(guesses), int(correct)
    # The p-value need not grow with epsilon everywhere, so the first crossing is sought: whatever the true epsilon, its
    # own p-value is small with probability at most the level, and then alone can the first crossing lie beyond it.
    top = 1.0
    while _p_value(top, m, r, v, delta) <= level:
        top *= 2
    grid = np.linspace(0.0, top, 257)
    first = next(i for i, epsilon in enumerate(grid) if _p_value(float(epsilon), m, r, v, delta) > level)
    low, high = float(grid[max(first - 1, 0)]), float(grid[first])
    while high - low > 1e-10:
        middle = (low + high) / 2
        low, high = (middle, high) if _p_value(middle, m, r, v, delta) <= level else (low, middle)
    return OneRun(epsilon_lower=low, delta=delta, canaries=m, guesses=r, correct=v, level=level)


def one_run_scores(
    *, scores: ArrayLike, inserted: ArrayLike, guesses: int, delta: float, level: float = LEVEL
) -> OneRun:
    """Audit one run from a score per canary: the highest half of the guesses say "in", the lowest half "out".

    ``inserted`` holds the coins. ``guesses`` must not be chosen by looking at them.

    Args:
        scores: the attack's score of each canary.
        inserted: its coin: 1 in, 0 out.
        guesses: how many to make.
        delta: of the claim.
        level: the chance that the bound is wrong.

    Returns:
        The bound, and the counts that it rests on.

    Raises:
        InputError: for scores that are no finite numbers, coins that are not 0 or 1, or a number out of its range.

    >>> found = one_run_scores(scores=range(100), inserted=[0] * 50 + [1] * 50, guesses=40, delta=1e-5)
    >>> found.correct, found.epsilon_lower
    (40, 2.551127)
    """
    values = _scores("scores", scores)
    coins = np.asarray(inserted)
    if coins.shape != values.shape or not np.isin(coins, (0, 1)).all():
        raise InputError(f"must hold a 0 or 1 for each of the {len(values)} scores", field="inserted")
    check_number("guesses", guesses, at_least=1, at_most=len(values), integer=True)
    order = np.argsort(values, kind="stable")
    lowest, highest = order[: int(guesses) // 2], order[len(order) - (int(guesses) - int(guesses) // 2) :]
    correct = int(np.sum(coins[highest] == 1) + np.sum(coins[lowest] == 0))
    return one_run(canaries=len(values), guesses=int(guesses), correct=correct, delta=delta, level=level)


def _p_value(epsilon: float, canaries: int, guesses: int, correct: int, delta: float) -> float:
    if correct == 0:
        return 1.0
    # Both tails of the fair-coin odds, so that neither logarithm loses digits at a large epsilon.
    log_right, log_wrong = -math.log1p(math.exp(-epsilon)), -epsilon - math.log1p(math.exp(-epsilon))
    counts = np.arange(correct, dtype=np.float64)
    ways = gammaln(guesses + 1) - gammaln(counts + 1) - gammaln(guesses - counts + 1)
    masses = np.exp(ways + counts * log_right + (guesses - counts) * log_wrong)
    below = np.cumsum(masses[::-1]) / np.arange(1, correct + 1)
    return float(betainc(correct, guesses - correct + 1, math.exp(log_right)) + 2 * canaries * delta * below.max())


def _rates(false_alarms: int, n0: int, misses: int, n1: int, tail: float) -> tuple[float, float]:
    check_number("n0", n0, at_least=1, integer=True)
    check_number("n1", n1, at_least=1, integer=True)
    check_number("false_alarms", false_alarms, at_least=0, at_most=n0, integer=True)
    check_number("misses", misses, at_least=0, at_most=n1, integer=True)
    check_number("tail", tail, above=0, below=0.5)
    return (float(_upper(np.array(false_alarms), n0, tail)), float(_upper(np.array(misses), n1, tail)))


def _upper(count: NDArray[np.int64], total: int, tail: float) -> NDArray[np.float64]:
    """Clopper-Pearson: the largest rate at which so few events still have probability ``tail``."""
    bound = betaincinv(count + 1.0, np.maximum(total - count, 0.5), 1 - tail)
    result: NDArray[np.float64] = np.where(count >= total, 1.0, bound)
    return result


def _epsilon_lower(fpr: NDArray[np.float64], fnr: NDArray[np.float64], delta: float) -> NDArray[np.float64]:
    first = np.maximum(1 - delta - fnr, 0.0) / fpr
    second = np.maximum(1 - delta - fpr, 0.0) / fnr
    return np.log(np.maximum(np.maximum(first, second), 1.0))


def _mu_lower(fpr: NDArray[np.float64], fnr: NDArray[np.float64]) -> NDArray[np.float64]:
    result: NDArray[np.float64] = np.maximum(-ndtri(fpr) - ndtri(fnr), 0.0)
    return result


def _threshold(
    scores0: NDArray[np.float64], scores1: NDArray[np.float64], delta: float, target: str
) -> tuple[float, bool]:
    pooled = np.unique(np.concatenate([scores0, scores1]))
    if len(pooled) < 2:
        return float(pooled[0]), True
    between = (pooled[1:] + pooled[:-1]) / 2
    over0 = len(scores0) - np.searchsorted(np.sort(scores0), between, side="right")
    over1 = len(scores1) - np.searchsorted(np.sort(scores1), between, side="right")
    best, choice = -1.0, (float(between[0]), True)
    for above in (True, False):
        alarms0, alarms1 = (over0, over1) if above else (len(scores0) - over0, len(scores1) - over1)
        fpr, fnr = _upper(alarms0, len(scores0), TAIL), _upper(len(scores1) - alarms1, len(scores1), TAIL)
        value = _epsilon_lower(fpr, fnr, delta) if target == "epsilon" else _mu_lower(fpr, fnr)
        index = int(np.argmax(value))
        if value[index] > best:
            best, choice = float(value[index]), (float(between[index]), above)
    return choice


def _scores(field: str, values: ArrayLike) -> NDArray[np.float64]:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{field} must be an array of numbers") from None
    if array.ndim != 1 or len(array) < 2 or not np.isfinite(array).all():
        raise InputError(f"{field} has shape {array.shape}, but it must be a row of at least two finite numbers")
    return array
