"""The audit's statistics: right on known counts, passing what is true, catching what is false."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from upcycled.core.errors import InputError
from upcycled.privacy import accounting as acc
from upcycled.privacy import audit

DELTA = 1e-5


def gaussian_scores(mu: float, replays: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of the best attack on a Gaussian mechanism: the release along the direction in which the worlds differ."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal(replays), mu + rng.standard_normal(replays)


# Two worlds -----------------------------------------------------------------------------------------------------------


def test_no_error_at_all_by_hand() -> None:
    # Clopper-Pearson for 0 of N: 1 - 0.025^(1/N).
    bound = 1 - 0.025 ** (1 / 500)
    expected = math.log((1 - DELTA - bound) / bound)
    assert audit.two_world_epsilon(false_alarms=0, n0=500, misses=0, n1=500, delta=DELTA) == pytest.approx(expected)
    mu = 2 * stats.norm.isf(bound)
    assert audit.two_world_mu(false_alarms=0, n0=500, misses=0, n1=500) == pytest.approx(mu)


@pytest.mark.parametrize(("false_alarms", "misses"), [(3, 40), (40, 3), (0, 99), (100, 0), (7, 7)])
def test_counts_agree_with_exact_binomial_intervals(false_alarms: int, misses: int) -> None:
    n0, n1, delta = 100, 120, 0.01
    fpr = stats.binomtest(false_alarms, n0).proportion_ci(0.95, "exact").high
    fnr = stats.binomtest(misses, n1).proportion_ci(0.95, "exact").high
    values = [math.log(max(1 - delta - b, 1e-300) / a) for a, b in ((fpr, fnr), (fnr, fpr))]
    ours = audit.two_world_epsilon(false_alarms=false_alarms, n0=n0, misses=misses, n1=n1, delta=delta)
    assert ours == pytest.approx(max(0.0, *values), rel=1e-9)
    mu = max(0.0, stats.norm.isf(fpr) - stats.norm.ppf(fnr))
    assert audit.two_world_mu(false_alarms=false_alarms, n0=n0, misses=misses, n1=n1) == pytest.approx(mu, rel=1e-9)


def test_the_bounds_fail_no_more_often_than_stated() -> None:
    # World-0 scores N(0,1), world-1 N(1,1), threshold fixed at 1/2: the true mu is 1, and mu_lower may exceed it in 5%.
    rng, rate = np.random.default_rng(0), stats.norm.sf(0.5)
    false_alarms, misses = rng.binomial(400, rate, 4000), rng.binomial(400, rate, 4000)
    bounds = [
        audit.two_world_mu(false_alarms=int(a), n0=400, misses=int(b), n1=400)
        for a, b in zip(false_alarms, misses, strict=True)
    ]
    assert np.mean(np.array(bounds) > 1.0) <= 0.05
    assert np.mean(bounds) > 0.7  # and they are not idle


def test_a_true_claim_passes_in_at_least_nineteen_of_twenty_seeds() -> None:
    std = acc.gaussian_noise_std(rounds=1, sensitivity=1, epsilon=2, delta=DELTA)
    mu = 1 / std
    results = [
        audit.two_world(scores0=zero, scores1=one, delta=DELTA)
        for zero, one in (gaussian_scores(mu, 4000, seed) for seed in range(20))
    ]
    assert sum(not result.refutes(2.0) for result in results) >= 19
    assert sum(result.mu_lower <= mu for result in results) >= 19


def test_noise_four_times_too_small_is_caught_in_every_seed() -> None:
    mu = 4 / acc.gaussian_noise_std(rounds=1, sensitivity=1, epsilon=2, delta=DELTA)
    for seed in range(20):
        zero, one = gaussian_scores(mu, 4000, seed)
        result = audit.two_world(scores0=zero, scores1=one, delta=DELTA)
        assert result.refutes(2.0)
        assert result.epsilon_lower <= acc.gdp_epsilon(mu=mu, delta=DELTA)
        # The Gaussian claim itself: mu of claim 2 is a quarter of the truth.
        assert audit.two_world(scores0=zero, scores1=one, delta=DELTA, target="mu").mu_lower > mu / 2


def paper_releases(world: int, replays: int, rng: np.random.Generator, noise_std: float = 1.0) -> np.ndarray:
    """The counter-example: squared loss, x_1 = 1, y_1 = +-tau, all other x = 0; minimised, clipped to tau, noised."""
    n, tau = 100, 10.0
    x, y = np.zeros(n), np.zeros(n)
    x[0], y[0] = 1.0, tau if world else -tau
    minimiser = float(x @ y / (x @ x))
    clipped = minimiser * min(1.0, tau / abs(minimiser))
    return clipped + noise_std * rng.standard_normal(replays)


def test_the_papers_claim_is_refuted_on_its_counter_example() -> None:
    claimed = acc.paper_epsilon(rounds=1, clip_norm=10, noise_std=1, n=100, delta=DELTA)
    assert claimed == pytest.approx(0.485, abs=1e-3)
    rng, replays = np.random.default_rng(0), 22_400  # 11,200 certify
    result = audit.two_world(
        scores0=paper_releases(0, replays, rng), scores1=paper_releases(1, replays, rng), delta=DELTA
    )
    assert result.refutes(claimed)
    assert result.epsilon_lower > 8
    # And the proven number for clipping to 10, sensitivity 20, stands: 284.
    assert not result.refutes(acc.gaussian_epsilon(rounds=1, sensitivity=20, noise_std=1, delta=DELTA))
    assert result.mu_lower <= 20


def test_a_std_that_is_the_square_of_the_stated_one_is_caught() -> None:
    # Stated 0.2, used 0.04: sensitivity 0.2 makes mu = 1 of the claim and 5 of the code.
    claim = acc.gaussian_epsilon(rounds=1, sensitivity=0.2, noise_std=0.2, delta=DELTA)
    zero, one = gaussian_scores(0.2 / 0.2**2, 6000, 1)
    assert audit.two_world(scores0=zero, scores1=one, delta=DELTA).refutes(claim)


def test_direction_is_learned_and_identical_worlds_certify_nothing() -> None:
    zero, one = gaussian_scores(3.0, 2000, 0)
    up, down = (audit.two_world(scores0=s * zero, scores1=s * one, delta=DELTA) for s in (1, -1))
    assert (up.above, down.above) == (True, False)
    assert up.epsilon_lower == pytest.approx(down.epsilon_lower)
    assert up.threshold == pytest.approx(-down.threshold)
    same = audit.two_world(scores0=zero, scores1=zero, delta=DELTA)
    assert same.epsilon_lower == 0
    constant = audit.two_world(scores0=np.ones(50), scores1=np.ones(50), delta=DELTA)
    assert (constant.epsilon_lower, constant.mu_lower) == (0.0, 0.0)


def test_the_certifying_half_has_no_say_in_the_threshold() -> None:
    zero, one = gaussian_scores(2.0, 1000, 3)
    before = audit.two_world(scores0=zero, scores1=one, delta=DELTA)
    tampered = zero.copy()
    tampered[1::2] += 100.0
    after = audit.two_world(scores0=tampered, scores1=one, delta=DELTA)
    assert (after.threshold, after.above) == (before.threshold, before.above)
    assert after.false_alarms == after.n0 == 500
    assert after.epsilon_lower == 0


def test_replays_through_a_callable_are_the_same_audit() -> None:
    zero, one = gaussian_scores(2.0, 300, 4)
    called: list[tuple[int, int]] = []

    def score_of(world: int, replay: int) -> float:
        called.append((world, replay))
        return float((zero, one)[world][replay])

    result = audit.two_world_replays(score_of=score_of, replays=300, delta=DELTA)
    assert result == audit.two_world(scores0=zero, scores1=one, delta=DELTA)
    assert len(set(called)) == 600


# One run --------------------------------------------------------------------------------------------------------------


def reference_p_value(epsilon: float, m: int, r: int, v: int, delta: float) -> float:
    """The formula of the paper, term by term."""
    q = 1 / (1 + math.exp(-epsilon))
    binomial = stats.binom(r, q)
    windows = [(binomial.cdf(v - 1) - binomial.cdf(v - i - 1)) / i for i in range(1, v + 1)]
    return float(binomial.sf(v - 1) + 2 * m * delta * max(windows))


@pytest.mark.parametrize(
    ("m", "r", "v", "delta"), [(1000, 100, 95, 1e-5), (200, 200, 150, 0.0), (500, 50, 50, 1e-4), (5000, 400, 260, 1e-6)]
)
def test_the_bound_is_where_the_p_value_crosses_the_level(m: int, r: int, v: int, delta: float) -> None:
    epsilon = audit.one_run(canaries=m, guesses=r, correct=v, delta=delta).epsilon_lower
    assert epsilon > 0
    assert reference_p_value(epsilon - 1e-6, m, r, v, delta) <= 0.05
    assert reference_p_value(epsilon + 1e-6, m, r, v, delta) > 0.05


def test_one_run_by_hand_without_delta() -> None:
    # All r right: q^r = 0.05, epsilon = log(q/(1-q)).
    q = 0.05 ** (1 / 60)
    result = audit.one_run(canaries=60, guesses=60, correct=60, delta=0.0)
    assert result.epsilon_lower == pytest.approx(math.log(q / (1 - q)), rel=1e-8)
    assert result.refutes(2.9)
    assert not result.refutes(3.1)


def test_half_right_or_a_large_delta_certifies_nothing() -> None:
    assert audit.one_run(canaries=100, guesses=100, correct=50, delta=0.0).epsilon_lower == 0
    assert audit.one_run(canaries=100, guesses=100, correct=0, delta=1e-5).epsilon_lower == 0
    assert audit.one_run(canaries=1000, guesses=100, correct=100, delta=0.1).epsilon_lower == 0


def test_more_right_guesses_and_a_smaller_delta_certify_more() -> None:
    by_correct = [
        audit.one_run(canaries=300, guesses=100, correct=v, delta=1e-5).epsilon_lower for v in range(60, 101, 5)
    ]
    assert by_correct == sorted(by_correct)
    by_delta = [audit.one_run(canaries=300, guesses=100, correct=90, delta=d).epsilon_lower for d in (1e-3, 1e-4, 0.0)]
    assert by_delta == sorted(by_delta)
    strict = audit.one_run(canaries=300, guesses=100, correct=90, delta=1e-5, level=0.001)
    assert strict.epsilon_lower < audit.one_run(canaries=300, guesses=100, correct=90, delta=1e-5).epsilon_lower


def one_run_of_gaussians(mu: float, canaries: int, seed: int) -> audit.OneRun:
    """Orthogonal canaries of norm 1 in one noisy sum; each score is the release along the canary."""
    rng = np.random.default_rng(seed)
    inserted = rng.integers(0, 2, canaries)
    scores = inserted * mu + rng.standard_normal(canaries)
    return audit.one_run_scores(scores=scores, inserted=inserted, guesses=canaries // 5, delta=DELTA)


def test_one_run_passes_the_true_claim_and_catches_the_false_one() -> None:
    mu = acc.gdp_mu(epsilon=2.0, delta=DELTA)
    assert sum(not one_run_of_gaussians(mu, 1000, seed).refutes(2.0) for seed in range(20)) >= 19
    assert all(one_run_of_gaussians(4 * mu, 1000, seed).refutes(2.0) for seed in range(20))


def test_guesses_take_the_highest_as_in_and_the_lowest_as_out() -> None:
    result = audit.one_run_scores(
        scores=[5.0, 4.0, 0.0, 0.1, -3.0, -4.0], inserted=[1, 0, 1, 1, 0, 1], guesses=4, delta=0.0
    )
    assert (result.guesses, result.correct, result.canaries) == (4, 2, 6)
    odd = audit.one_run_scores(scores=[3.0, 2.0, 1.0, 0.0], inserted=[1, 1, 0, 0], guesses=3, delta=0.0)
    assert odd.correct == 3


def test_results_are_frozen() -> None:
    result = audit.one_run(canaries=10, guesses=5, correct=5, delta=0.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.correct = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: audit.one_run(canaries=10, guesses=11, correct=1, delta=0), r"guesses.*11"),
        (lambda: audit.one_run(canaries=10, guesses=5, correct=6, delta=0), r"correct.*6"),
        (lambda: audit.one_run(canaries=10, guesses=5, correct=5, delta=0, level=0.6), r"level.*0.6"),
        (lambda: audit.two_world_epsilon(false_alarms=5, n0=4, misses=0, n1=4, delta=0), r"false_alarms.*5"),
        (lambda: audit.two_world(scores0=[1.0, math.nan], scores1=[1.0, 2.0], delta=0), "scores0"),
        (lambda: audit.two_world(scores0=[1.0, 2.0], scores1="ab", delta=0), r"scores1.*array"),
        (lambda: audit.two_world(scores0=[1.0, 2.0], scores1=[1.0, 2.0], delta=2), r"delta.*2"),
        (
            lambda: audit.two_world(scores0=[1.0, 2.0], scores1=[1.0, 2.0], delta=0, target="nu"),
            r"target.*'nu'.*did you mean 'mu'",
        ),
        (lambda: audit.two_world_replays(score_of=lambda w, r: 0.0, replays=3, delta=0), r"replays.*3"),
        (lambda: audit.one_run_scores(scores=[1.0, 2.0], inserted=[1], guesses=1, delta=0), "inserted must hold"),
        (lambda: audit.one_run_scores(scores=[1.0, 2.0], inserted=[1, 2], guesses=1, delta=0), "inserted must hold"),
    ],
)
def test_wrong_input_is_named(call: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()  # type: ignore[operator]
