"""The exact Gaussian formulas, against high precision, integration, sampling and hand derivations."""

from __future__ import annotations

import itertools
import math
import re

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import erfinv

from upcycled.core.errors import InputError
from upcycled.privacy import accounting as acc

MUS = [1e-10, 1e-6, 1e-3, 0.05, 0.3, 0.49, 0.51, 1.0, 3.0, 11.0, 60.0, 1e3]
DELTAS = [0.9, 0.3, 1e-2, 1e-5, 1e-12, 1e-60, 1e-300]


def precise_delta(mu: float, epsilon: float) -> mpmath.mpf:
    """The textbook formula, with digits enough for its cancellation."""
    with mpmath.workdps(80):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


@pytest.mark.parametrize(("mu", "delta"), list(itertools.product(MUS, DELTAS)))
def test_epsilon_gives_back_delta_in_high_precision(mu: float, delta: float) -> None:
    epsilon = acc.gdp_epsilon(mu=mu, delta=delta)
    if epsilon == 0:
        assert precise_delta(mu, 0.0) <= delta * (1 + 1e-12)
        return
    assert float(precise_delta(mu, epsilon) / mpmath.mpf(delta)) == pytest.approx(1, abs=1e-9)
    assert acc.gdp_delta(mu=mu, epsilon=epsilon) == pytest.approx(delta, rel=1e-9)
    assert acc.gdp_mu(epsilon=epsilon, delta=delta) == pytest.approx(mu, rel=1e-9)


def test_delta_agrees_with_integrating_the_two_densities() -> None:
    # delta = integral of max(p - e^epsilon q, 0) for p = N(mu, 1), q = N(0, 1): no formula of ours involved.
    for mu, epsilon in [(0.2, 0.1), (1.0, 1.0), (2.0, 7.0), (4.0, 3.0)]:

        def positive_part(x: mpmath.mpf, mu: float = mu, epsilon: float = epsilon) -> mpmath.mpf:
            return mpmath.npdf(x, mu) - mpmath.exp(epsilon) * mpmath.npdf(x)

        start = epsilon / mu + mu / 2  # where the likelihood ratio is e^epsilon
        integral = float(mpmath.quad(positive_part, [start, start + 3, start + 10, start + 40]))
        assert acc.gdp_delta(mu=mu, epsilon=epsilon) == pytest.approx(integral, rel=1e-9)


def test_delta_agrees_with_sampling_the_privacy_loss() -> None:
    # Under the first world the loss is N(mu^2/2, mu^2), and delta = E max(1 - e^(epsilon - loss), 0).
    mu, epsilon, rng = 1.5, 2.0, np.random.default_rng(0)
    losses = mu**2 / 2 + mu * rng.standard_normal(400_000)
    values = np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0)
    assert acc.gdp_delta(mu=mu, epsilon=epsilon) == pytest.approx(values.mean(), abs=5 * values.std() / 632)


def test_delta_at_epsilon_zero_is_the_total_variation_distance() -> None:
    for mu in (1e-8, 1e-3, 1.0, 5.0, 30.0):
        assert acc.gdp_delta(mu=mu, epsilon=0) == pytest.approx(math.erf(mu / math.sqrt(8)), rel=1e-12)


def test_mu_at_epsilon_zero_inverts_the_total_variation_distance() -> None:
    for delta in (1e-300, 1e-9, 0.1, 0.5, 0.99):
        assert acc.gdp_mu(epsilon=0, delta=delta) == pytest.approx(math.sqrt(8) * erfinv(delta), rel=1e-12)


def test_delta_of_a_huge_epsilon_is_tiny_but_never_zero() -> None:
    assert acc.gdp_delta(mu=1, epsilon=30) == pytest.approx(float(precise_delta(1, 30)), rel=1e-9)
    assert acc.gaussian_delta(rounds=1, sensitivity=1, noise_std=1, epsilon=1e4) == 5e-324
    assert acc.gdp_delta(mu=1e-300, epsilon=1.0) == 5e-324


def test_no_release_costs_nothing() -> None:
    assert acc.gaussian_epsilon(rounds=0, sensitivity=1, noise_std=1, delta=1e-5) == 0
    assert acc.gaussian_delta(rounds=0, sensitivity=1, noise_std=1, epsilon=0) == 0
    assert acc.gaussian_epsilon(rounds=5, sensitivity=0, noise_std=1, delta=1e-5) == 0


def test_absurdly_little_noise_gives_an_absurd_epsilon_and_no_warning() -> None:
    # For large mu epsilon tends to mu^2/2 + mu z with z the normal quantile of 1 - delta (4.2649 at 1e-5).
    assert acc.gdp_epsilon(mu=1e8, delta=1e-5) == pytest.approx(5e15 + 4.26489079e8, rel=1e-12)
    assert acc.gdp_epsilon(mu=1e120, delta=1e-5) == pytest.approx(5e239)
    assert acc.gdp_epsilon(mu=1e200, delta=1e-5) == math.inf


def test_rounds_count_like_a_square_root() -> None:
    once = acc.gaussian_epsilon(rounds=1, sensitivity=3, noise_std=2, delta=1e-6)
    assert acc.gaussian_epsilon(rounds=9, sensitivity=1, noise_std=2, delta=1e-6) == pytest.approx(once, rel=1e-12)
    assert acc.gaussian_mu(sensitivities=[1, 2, 2], noise_stds=2) == pytest.approx(1.5)
    # Half the data rounds: noise smaller by exactly sqrt(2) at equal epsilon.
    full = acc.gaussian_noise_std(rounds=80, sensitivity=1, epsilon=2, delta=1e-5)
    half = acc.gaussian_noise_std(rounds=40, sensitivity=1, epsilon=2, delta=1e-5)
    assert full / half == pytest.approx(math.sqrt(2), rel=1e-12)


def test_further_values_computed_with_eighty_digits() -> None:
    # Each found by bisection on the textbook formula in mpmath with 80 digits.
    assert acc.gdp_epsilon(mu=0.1, delta=1e-6) == pytest.approx(0.396857377644, rel=1e-6)
    assert acc.gdp_epsilon(mu=5, delta=1e-8) == pytest.approx(39.891146705, rel=1e-6)
    assert acc.gdp_mu(epsilon=3, delta=1e-7) == pytest.approx(0.593169153497, rel=1e-6)


@settings(max_examples=150)
@given(
    rounds=st.integers(1, 10_000),
    log_sensitivity=st.floats(-8, 4),
    log_epsilon=st.floats(-3, 3),
    log_delta=st.floats(-60, -0.01),
)
def test_calibrated_noise_spends_the_budget_and_never_more(
    rounds: int, log_sensitivity: float, log_epsilon: float, log_delta: float
) -> None:
    sensitivity, epsilon, delta = math.exp(log_sensitivity), math.exp(log_epsilon), math.exp(log_delta)
    std = acc.gaussian_noise_std(rounds=rounds, sensitivity=sensitivity, epsilon=epsilon, delta=delta)
    spent = acc.gaussian_epsilon(rounds=rounds, sensitivity=sensitivity, noise_std=std, delta=delta)
    assert spent <= epsilon
    assert spent == pytest.approx(epsilon, rel=1e-6, abs=1e-9)
    assert acc.gaussian_delta(rounds=rounds, sensitivity=sensitivity, noise_std=std, epsilon=epsilon) <= delta


@settings(max_examples=100)
@given(log_mu=st.floats(-13, 7), log_delta=st.floats(-690, -0.001), more=st.floats(1.001, 10))
def test_epsilon_grows_with_mu_and_falls_with_delta(log_mu: float, log_delta: float, more: float) -> None:
    mu, delta = math.exp(log_mu), math.exp(log_delta)
    epsilon = acc.gdp_epsilon(mu=mu, delta=delta)
    assert acc.gdp_epsilon(mu=mu * more, delta=delta) >= epsilon
    assert acc.gdp_epsilon(mu=mu, delta=max(delta**more, 1e-300)) >= epsilon or delta < 1e-300
    # (epsilon, delta) is met by what is returned, in the very formula that is reported.
    assert acc.gdp_delta(mu=mu, epsilon=epsilon) <= delta * (1 + 1e-12)


def test_arrays_give_one_number_per_client() -> None:
    n = np.array([45, 100, 224])
    moves = acc.erm_sensitivity(lipschitz=2, n=n, a=0.5)
    std = acc.gaussian_noise_std(rounds=40, sensitivity=moves, epsilon=2, delta=1e-5)
    assert std.shape == (3,)
    assert std[2] == pytest.approx(0.45035633, rel=1e-6)
    spent = acc.gaussian_epsilon(rounds=40, sensitivity=moves, noise_std=std, delta=1e-5)
    np.testing.assert_allclose(spent, 2.0, rtol=1e-9)
    singles = [acc.gdp_epsilon(mu=m, delta=d) for m, d in [(0.1, 1e-5), (7.0, 0.5), (0.0, 0.1)]]
    np.testing.assert_array_equal(acc.gdp_epsilon(mu=[0.1, 7.0, 0.0], delta=[1e-5, 0.5, 0.1]), singles)
    assert isinstance(singles[0], float)
    assert acc.gdp_mu(epsilon=np.ones((2, 3)), delta=1e-5).shape == (2, 3)
    assert acc.gdp_delta(mu=np.empty(0), epsilon=1.0).shape == (0,)


def test_clients_of_unequal_participation_are_counted_one_by_one() -> None:
    spent = acc.gaussian_epsilon(rounds=[0, 10, 40], sensitivity=0.1, noise_std=1, delta=1e-5)
    assert spent[0] == 0
    assert spent[1] < spent[2] == acc.gaussian_epsilon(rounds=40, sensitivity=0.1, noise_std=1, delta=1e-5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: acc.gdp_epsilon(mu=-1, delta=1e-5), r"\bmu\b.*-1.*>= 0"),
        (lambda: acc.gdp_epsilon(mu=1, delta=0), r"delta.*0.*0.*1"),
        (lambda: acc.gdp_epsilon(mu=1, delta=1.0), r"delta.*1\.0"),
        (lambda: acc.gdp_delta(mu=math.nan, epsilon=1), r"\bmu\b.*\bnan\b"),
        (lambda: acc.gdp_delta(mu=1, epsilon=-0.1), r"epsilon.*-0\.1"),
        (lambda: acc.gdp_mu(epsilon="2", delta=1e-5), r"epsilon.*'2'"),
        (lambda: acc.gdp_mu(epsilon=None, delta=1e-5), r"epsilon.*None"),
        (lambda: acc.gdp_mu(epsilon=True, delta=1e-5), r"epsilon.*True"),
        (lambda: acc.gdp_mu(epsilon=[[1], [1, 2]], delta=1e-5), r"epsilon.*\[\[1\], \[1, 2\]\]"),
        (
            lambda: acc.gaussian_epsilon(rounds=1.5, sensitivity=1, noise_std=1, delta=1e-5),
            r"rounds.*1\.5.*integer >= 0",
        ),
        (
            lambda: acc.gaussian_epsilon(rounds=1, sensitivity=1, noise_std=[1.0, 0.0], delta=1e-5),
            r"noise_std\[1\].*0\.0.*0",
        ),
        (lambda: acc.gaussian_noise_std(rounds=0, sensitivity=1, epsilon=1, delta=1e-5), r"rounds.*0"),
        (lambda: acc.gaussian_noise_std(rounds=1, sensitivity=0, epsilon=1, delta=1e-5), r"sensitivity.*0"),
        (
            lambda: acc.gaussian_epsilon(rounds=1, sensitivity=[1, 2, 3], noise_std=[1, 2], delta=1e-5),
            r"sensitivity.*shape \(3,\), noise_std.*shape \(2,\)",
        ),
    ],
)
def test_wrong_numbers_are_named_in_one_sentence(call: object, words: str) -> None:
    with pytest.raises(InputError) as caught:
        call()  # type: ignore[operator]
    assert re.search(words, str(caught.value))
    assert "\n" not in str(caught.value)
