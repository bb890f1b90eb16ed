"""The theorem's condition, the corollary's schedule, and the bound itself from plain numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import upcycled as up
from upcycled.theory import constants, lambda_schedule, rate_bound, smallest_mu


def c1(mu, smoothness, dissimilarity, cohort, curvature=0.0, form="paper"):
    return constants(
        smoothness=smoothness,
        dissimilarity=dissimilarity,
        mu=mu,
        strong_convexity=mu + curvature,
        cohort=cohort,
        lam=0.0,
        form=form,
    ).C1


@pytest.mark.parametrize("b", [1.0, 1.7, 4.0])
def test_the_least_mu_of_convex_clients_is_the_hand_derived_one(b):
    # rho = mu: mu C1 = 1 - L B/mu - L B^2/(2 mu), positive for mu > L (B + B^2/2).
    found = smallest_mu(smoothness=3.0, dissimilarity=b, cohort=None, form="repaired")
    assert found == pytest.approx(3 * (b + b**2 / 2), rel=1e-12)


def test_the_least_mu_as_printed_is_the_root_of_its_own_quadratic():
    # mu^3 C1 = mu^2 - (L B^2/2) mu - L B with rho = mu.
    found = smallest_mu(smoothness=3.0, dissimilarity=2.0, cohort=None)
    assert found == pytest.approx(3 + math.sqrt(9 + 6), rel=1e-12)


@settings(max_examples=80)
@given(
    st.floats(0.01, 100), st.floats(1, 20), st.none() | st.integers(1, 2000), st.floats(-1, 1),
    st.sampled_from(up.theory.FORMS),
)  # fmt: skip
def test_c1_is_positive_at_the_least_mu_and_not_below_it(smoothness, b, cohort, share, form):
    curvature = share * smoothness  # the curvature of an L-smooth loss lies between -L and L
    found = smallest_mu(smoothness=smoothness, dissimilarity=b, cohort=cohort, curvature=curvature, form=form)
    if found is None:
        assert form != "sharp"
        assert cohort is not None
        assert cohort <= 2 * b**2 * (1 + 1e-9)
        for mu in np.geomspace(max(1e-3, 1e-9 - curvature), 1e9, 60):
            assert c1(mu, smoothness, b, cohort, curvature, form) <= 0
        return
    assert cohort is None or form == "sharp" or cohort > 2 * b**2
    assert found + curvature > 0
    assert c1(found, smoothness, b, cohort, curvature, form) > 0
    below = found * (1 - 1e-9)
    assume(below + curvature > 1e-6 * smoothness and below > 1e-6 * smoothness)
    assert c1(below, smoothness, b, cohort, curvature, form) <= 0
    # And it stays met above.
    for factor in (1.5, 10, 1e4):
        if form != "paper":
            assert c1(found * factor, smoothness, b, cohort, curvature, form) > 0


def test_the_schedule_gives_the_coefficients_of_the_corollary():
    lam = lambda_schedule(mu=0.3, rounds=50, c=2.0)
    planned, constant = up.coefficients.Proximal(mu=0.3, lam=lam.tolist()), up.coefficients.Decaying(2.0)
    assert [planned.coefficient_at(m, 50) for m in (1, 7, 50)] == pytest.approx(
        [constant.coefficient_at(m, 50) for m in (1, 7, 50)]
    )
    growing = lambda_schedule(mu=0.3, rounds=50, open_ended=True)
    assert (np.diff(growing) > 0).all()
    rho = [up.coefficients.Proximal(mu=0.3, lam=growing.tolist()).coefficient_at(m, None) for m in (1, 7, 50)]
    assert rho == pytest.approx(
        [up.coefficients.Decaying(1.0, open_ended=True).coefficient_at(m, None) for m in (1, 7, 50)]
    )


def test_the_corollary_s_rate_is_of_the_order_of_one_over_the_root_of_m():
    # h1_m <= h d and h2_m <= h^2 as its third assumption has it.
    def bound(rounds):
        about = constants(
            smoothness=1, dissimilarity=1.1, mu=4, strong_convexity=4, cohort=100,
            lam=lambda_schedule(4.0, rounds), form="repaired",
        )  # fmt: skip
        return rate_bound(constants=about, initial_loss=1.0, h1=np.full(rounds, 0.3), h2=np.full(rounds, 0.09))

    scaled = [bound(rounds) * math.sqrt(rounds) for rounds in (100, 10_000, 1_000_000)]
    assert scaled[0] > scaled[1] > scaled[2] > 0
    assert scaled[1] / scaled[2] < 1.2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mu": 0, "rounds": 3}, r"\bmu\b.*\b0\b"),
        ({"mu": 1, "rounds": 0}, r"rounds.*0"),
        ({"mu": 1, "rounds": 4, "c": 2.5}, r"\bc\b.*2.5.*2"),
        ({"mu": 1, "rounds": 4, "c": 1.5, "open_ended": True}, "at most 1"),
        ({"mu": 1, "rounds": 4, "c": 0}, r"\bc\b.*\b0\b"),
    ],
)
def test_schedules_that_would_need_a_negative_lambda_are_refused(arguments, words):
    with pytest.raises(up.InputError, match=words):
        lambda_schedule(**arguments)


def test_the_bound_is_infinite_where_the_condition_is_not_met():
    about = constants(smoothness=1, dissimilarity=1, mu=1, strong_convexity=1, cohort=None, lam=1, form="repaired")
    assert about.C1 < 0
    assert rate_bound(constants=about, initial_loss=1.0, h1=[1.0], h2=[1.0]) == math.inf


def test_the_bound_from_hand_derived_numbers():
    # L = B = 1, mu = rho = 4, lambda = 4 (c = 1/2), repaired: C1 = 1/4 - 1/16 - 1/32 = 5/32,
    # C2 = (1/16 + 5/4 + 5/16)/2 = 13/16, C3 = (25/32)/4 = 25/128.
    about = constants(smoothness=1, dissimilarity=1, mu=4, strong_convexity=4, cohort=None, lam=4, form="repaired")
    assert (about.C1, about.C2, about.C3) == (5 / 32, 13 / 16, 25 / 128)
    found = rate_bound(constants=about, initial_loss=1.5, floor=0.5, h1=[0.5, 0.25], h2=[1.0, 0.5])
    assert found == pytest.approx((1 + 13 / 16 * 0.75 + 25 / 128 * 1.5) / (2 * 5 / 32), rel=1e-15)


def test_each_round_s_terms_meet_that_round_s_lambda():
    about = constants(
        smoothness=1, dissimilarity=1, mu=4, strong_convexity=4, cohort=None, lam=[4.0, math.inf], form="repaired"
    )
    with_second = rate_bound(constants=about, initial_loss=1.0, h1=[0.5, 7.0], h2=[1.0, 9.0])
    assert with_second == pytest.approx((1 + 13 / 16 * 0.5 + 25 / 128) / (2 * 5 / 32), rel=1e-15)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"h1": [1.0]}, r"h1.*1 rounds.*h2.*2"),
        ({"h1": [1.0, -1.0]}, r"h1.*finite.*>= 0"),
        ({"h1": [1.0, 1.0, 1.0], "h2": [1.0, 1.0, 1.0]}, r"lam.*2 rounds.*h1.*3"),
        ({"floor": 2.0}, r"floor.*2.0.*initial_loss"),
        ({"initial_loss": math.nan}, r"initial_loss.*nan"),
    ],
)
def test_terms_that_do_not_fit_together_are_refused(wrong, words):
    about = constants(smoothness=1, dissimilarity=1, mu=4, strong_convexity=4, cohort=None, lam=[1.0, 2.0])
    with pytest.raises(up.InputError, match=words):
        rate_bound(**({"constants": about, "initial_loss": 1.0, "h1": [1.0, 1.0], "h2": [1.0, 1.0]} | wrong))
