"""The tests of residuals have the level and the power that they state: thousands of draws, counted."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from upcycled.audit.probes.noise import counts_p, least_scale, least_shared, scale_p, sums_p
from upcycled.audit.probes.rehearsal import noise_gain, responses
from upcycled.core.solvers import LocalSGD, MoreauSGD, NoisySGD

TRIES = 2000


def squares(count, rng, scale=1.0):
    return scale**2 * rng.chisquare(count, TRIES)


def test_sums_of_squares_have_the_p_values_of_scipy():
    counts, found = np.array([3.0, 40.0, 1e5]), np.array([9.0, 18.0, 1.02e5])
    two_sided = 2 * np.minimum(stats.chi2.cdf(found, counts), stats.chi2.sf(found, counts))
    assert scale_p(found, counts) == pytest.approx(two_sided, rel=1e-9)
    assert scale_p(np.zeros(1), np.array([5.0])) == 0  # no noise at all


@pytest.mark.parametrize("count", [10, 600])
def test_the_smallest_scale_is_found_with_probability_095_and_sound_noise_at_the_level(count):
    rng, level = np.random.default_rng(count), 1e-3
    small, large = least_scale(count, level)
    for scale in (1 / small, large):
        found = (scale_p(squares(count, rng, scale), np.full(TRIES, count)) <= level).mean()
        assert 0.935 < found < 0.965
    assert (scale_p(squares(count, rng), np.full(TRIES, count)) <= 0.05).mean() == pytest.approx(0.05, abs=0.015)


def test_the_smallest_share_of_common_noise_is_found_with_probability_095():
    rng, rows, size, level = np.random.default_rng(0), 4, 100, 1e-3
    share = least_shared(rows, size, level)
    common, own = rng.normal(size=(TRIES, 1, size)), rng.normal(size=(TRIES, rows, size))
    z = (np.sqrt(share) * common + np.sqrt(1 - share) * own).reshape(-1, size)
    group = np.repeat(np.arange(TRIES), rows)
    found = (sums_p(z, group, group)[0][:TRIES] <= level).mean()
    assert 0.935 < found < 0.965
    sound = sums_p(own.reshape(-1, size), group, group)[0][:TRIES]
    assert (sound <= 0.05).mean() == pytest.approx(0.05, abs=0.015)


def test_counts_have_the_p_values_of_scipy():
    counts, totals, chances = np.array([0, 3, 7, 20]), np.array([20, 20, 20, 20]), np.array([0.1, 0.5, 0.3, 0.9])
    few, many = stats.binom.cdf(counts, totals, chances), stats.binom.sf(counts - 1, totals, chances)
    assert counts_p(counts, totals, chances) == pytest.approx(np.minimum(1, 2 * np.minimum(few, many)), rel=1e-9)


def test_owners_pool_their_groups():
    """Shared noise too weak for any one group is found in all groups of a client."""
    rng = np.random.default_rng(3)
    common, own = rng.normal(size=(40, 1, 20)), rng.normal(size=(40, 3, 20))
    z = (np.sqrt(0.4) * common + np.sqrt(0.6) * own).reshape(-1, 20)
    p, rows = sums_p(z, np.repeat(np.arange(40), 3), np.zeros(120, dtype=np.int64))
    assert p.size == 42
    assert p[:40].min() > 1e-9
    assert p[40] == p[41] < 1e-12
    assert rows[40] == 0


def test_a_steps_noise_is_weighed_as_the_recursion_says():
    sgd = NoisySGD(LocalSGD(lr=0.1, momentum=0.5, batch_size=4), 1.0, np.ones(1))
    # A unit in step 1 of 2: v = 1, x = -0.1; v = 0.5 + a x = 0.48, x = -0.148. In step 2: x = -0.1.
    assert responses(sgd, 0.2, 2) == pytest.approx([-0.148, -0.1])
    assert noise_gain(sgd, 0.2, np.array([2, 2]), np.array([3, 9])) == pytest.approx(
        np.hypot(0.148, 0.1) / np.array([3, 4])
    )
    moreau = NoisySGD(MoreauSGD(LocalSGD(lr=0.5), lam=2.0, inner_steps=1, inner_lr=0.1), 1.0, np.ones(1))
    # Step 1: theta = -0.1, x = 0.5 * 2 * theta = -0.1. Step 2 of the first: theta - x = 0, so nothing moves.
    assert responses(moreau, 0.0, 2) == pytest.approx([-0.1, -0.1])
