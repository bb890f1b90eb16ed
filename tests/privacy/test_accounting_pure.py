"""Composition of pure epsilons against brute force, the closed theorem, and another implementation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from upcycled.core.errors import InputError
from upcycled.privacy import accounting as acc


def brute_force_delta(epsilons: list[float], epsilon: float) -> float:
    """delta by listing all 2^k outcomes of k randomised responses under both neighbours."""
    delta = 0.0
    for answers in itertools.product((1, -1), repeat=len(epsilons)):
        p = math.prod(1 / (1 + math.exp(-s * e)) for s, e in zip(answers, epsilons, strict=True))
        q = math.prod(1 / (1 + math.exp(s * e)) for s, e in zip(answers, epsilons, strict=True))
        delta += max(0.0, p - math.exp(epsilon) * q)
    return delta


def theorem_delta(each: float, rounds: int, i: int) -> float:
    """Kairouz, Oh and Viswanath, Theorem 3.3: delta_i at epsilon = (k - 2 i) eps."""
    total = sum(
        math.comb(rounds, j) * (math.exp((rounds - j) * each) - math.exp((rounds - 2 * i + j) * each)) for j in range(i)
    )
    return total / (1 + math.exp(each)) ** rounds


def test_without_delta_epsilons_add_up() -> None:
    assert acc.pure_composition_epsilon(epsilons=[0.1, 0.2, 0.3], delta=0) == pytest.approx(0.6)
    assert acc.pure_composition_epsilon(epsilons=[0.1] * 10, delta=0) == 1.0
    assert acc.pure_composition_epsilon(epsilons=[], delta=0) == 0
    assert acc.pure_composition_epsilon(epsilons=[], delta=0.1) == 0
    assert acc.pure_composition_epsilon(epsilons=[0.0, 0.0], delta=1e-5) == 0
    assert acc.pure_composition_epsilon(epsilons=0.7, delta=0) == 0.7


def test_one_round_by_hand() -> None:
    # p - e^x (1 - p) = delta with p = e/(1+e): x = log((p - delta)/(1 - p)).
    p = 1 / (1 + math.exp(-1))
    assert acc.pure_composition_epsilon(epsilons=[1.0], delta=0.1) == pytest.approx(math.log((p - 0.1) / (1 - p)))
    # From delta = tanh(1/2) = 2 p - 1 on, nothing is left to pay.
    assert acc.pure_composition_epsilon(epsilons=[1.0], delta=0.463) == 0


@pytest.mark.parametrize(("each", "rounds"), [(0.3, 1), (0.3, 7), (1.2, 10), (0.01, 9), (4.0, 5)])
@pytest.mark.parametrize("delta", [1e-9, 1e-4, 0.05, 0.3])
def test_equal_rounds_agree_with_listing_all_outcomes(each: float, rounds: int, delta: float) -> None:
    epsilon = acc.pure_composition_epsilon(epsilons=[each] * rounds, delta=delta)
    if epsilon == 0:
        assert brute_force_delta([each] * rounds, 0.0) <= delta * (1 + 1e-9)
    else:
        assert brute_force_delta([each] * rounds, epsilon) == pytest.approx(delta, rel=1e-7)


@pytest.mark.parametrize(("each", "rounds"), [(0.092, 80), (0.5, 30), (0.02, 400)])
def test_equal_rounds_agree_with_the_closed_theorem_at_its_own_points(each: float, rounds: int) -> None:
    for i in (1, rounds // 10, rounds // 3):
        delta = theorem_delta(each, rounds, i)
        if delta > 1e-12:  # the closed form cancels below
            ours = acc.pure_composition_epsilon(epsilons=[each] * rounds, delta=delta)
            assert ours == pytest.approx((rounds - 2 * i) * each, rel=1e-6)


@pytest.mark.parametrize(
    "epsilons",
    [
        [0.5, 0.25, 1.0, 0.75, 0.25],  # a grid of 0.25 divides
        [0.1, 0.2, 0.3, 0.1, 0.1, 0.7],
        [1.0, 0.0, 3.0],
    ],
)
@pytest.mark.parametrize("delta", [1e-8, 1e-3, 0.1])
def test_unequal_rounds_on_a_common_grid_are_exact(epsilons: list[float], delta: float) -> None:
    epsilon = acc.pure_composition_epsilon(epsilons=epsilons, delta=delta)
    assert brute_force_delta(epsilons, epsilon) == pytest.approx(delta, rel=1e-7)


@settings(max_examples=25)
@given(epsilons=st.lists(st.floats(1e-3, 3.0), min_size=2, max_size=9), log_delta=st.floats(-30, -1.5))
def test_unequal_rounds_without_a_common_grid_are_bounded_closely_from_above(
    epsilons: list[float], log_delta: float
) -> None:
    delta = math.exp(log_delta)
    ours = acc.pure_composition_epsilon(epsilons=epsilons, delta=delta)
    assert brute_force_delta(epsilons, ours) <= delta * (1 + 1e-7) + 1e-14  # what listing outcomes rounds by
    closer = ours - 1e-3 * ours - 1e-6
    assert closer <= 0 or brute_force_delta(epsilons, closer) > delta * (1 - 1e-9) - 1e-14


def test_many_unequal_rounds_lie_between_their_equal_neighbours() -> None:
    rng = np.random.default_rng(0)
    epsilons = 0.1 + 0.002 * rng.random(300)  # no common grid
    ours = acc.pure_composition_epsilon(epsilons=epsilons, delta=1e-6)
    low = acc.pure_composition_epsilon(epsilons=[0.1] * 300, delta=1e-6)
    high = acc.pure_composition_epsilon(epsilons=[0.102] * 300, delta=1e-6)
    assert low < ours < high
    middle = acc.pure_composition_epsilon(epsilons=[float(np.sqrt(np.mean(epsilons**2)))] * 300, delta=1e-6)
    assert ours == pytest.approx(middle, rel=5e-4)


def test_two_groups_agree_with_an_independent_privacy_loss_distribution() -> None:
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as pld

    composed = pld.identity(value_discretization_interval=0.01)
    for each, count in ((0.05, 20), (0.11, 30), (0.2, 3)):
        one = pld.from_privacy_parameters(common.DifferentialPrivacyParameters(each, 0.0), 0.01)
        composed = composed.compose(one.self_compose(count))
    epsilons = [0.05] * 20 + [0.11] * 30 + [0.2] * 3
    ours = acc.pure_composition_epsilon(epsilons=epsilons, delta=1e-5)
    assert ours == pytest.approx(composed.get_epsilon_for_delta(1e-5), rel=1e-6)


def test_tiny_delta_and_many_rounds_keep_their_digits() -> None:
    # At a delta below every outcome's probability nothing is gained over the sum.
    assert acc.pure_composition_epsilon(epsilons=[1.0] * 5, delta=1e-300) == pytest.approx(5.0, rel=1e-12)
    # Many small rounds are nearly one Gaussian with mu = eps sqrt(k) (central limit).
    many = acc.pure_composition_epsilon(epsilons=np.full(100_000, 0.001), delta=1e-6)
    assert many == pytest.approx(acc.gdp_epsilon(mu=0.001 * math.sqrt(100_000), delta=1e-6), rel=1e-3)
    assert acc.pure_composition_epsilon(epsilons=[800.0, 1.0], delta=1e-5) <= 801


def test_many_rounds_off_the_grid_cost_hardly_more_than_on_it() -> None:
    rng = np.random.default_rng(1)
    on_grid = 0.005 * rng.integers(2, 40, 1000)
    exact = acc.pure_composition_epsilon(epsilons=on_grid, delta=1e-5)
    ours = acc.pure_composition_epsilon(epsilons=on_grid + 1e-8 * rng.random(1000), delta=1e-5)
    assert exact < ours < exact * (1 + 3e-4)
    # zCDP of the same rounds: rho = sum eps^2/2, epsilon = rho + 2 sqrt(rho ln 1/delta), never better than optimal.
    rho = float(np.sum(on_grid**2) / 2)
    assert ours < rho + 2 * math.sqrt(rho * math.log(1e5))


def test_a_delta_above_every_outcomes_chance_leaves_nothing_to_pay() -> None:
    # One round's guess is right with p = 1/(1 + e^-0.1) = 0.525; two different ones' both with 0.289.
    for epsilons, delta in (([0.1], 0.6), ([0.1, 0.2], 0.6)):
        assert acc.pure_composition_epsilon(epsilons=epsilons, delta=delta) == 0
        assert brute_force_delta(epsilons, 0.0) <= delta
    assert acc.pure_round_epsilon(epsilon=0.5, rounds=1, delta=0.3) > 0.5  # what delta forgives is no part of epsilon


def test_fractions_without_a_common_grid_are_spread_on_one_that_can_be_worked_with() -> None:
    # Their denominators' product has 400 digits: no grid of that interval exists.
    primes = [n for n in range(999_000, 10**6) if all(n % k for k in range(2, 1000))]
    epsilons = [(n // 10) / n for n in primes]
    assert len(epsilons) > 60
    ours = acc.pure_composition_epsilon(epsilons=epsilons, delta=1e-6)
    around = [acc.pure_composition_epsilon(epsilons=[e] * len(epsilons), delta=1e-6) for e in (min(epsilons), 0.1)]
    assert around[0] < ours < around[1] * (1 + 1e-3)


@pytest.mark.parametrize(
    ("epsilon", "rounds", "delta"), [(3.0, 80, 1e-5), (0.2, 7, 1e-9), (1.0, 1, 0.0), (2.0, 30, 0.0)]
)
def test_the_round_epsilon_spends_the_total_and_never_more(epsilon: float, rounds: int, delta: float) -> None:
    each = acc.pure_round_epsilon(epsilon=epsilon, rounds=rounds, delta=delta)
    total = acc.pure_composition_epsilon(epsilons=[each] * rounds, delta=delta)
    assert total <= epsilon
    assert total == pytest.approx(epsilon, rel=1e-9)


def test_equal_rounds_never_add_up_to_more_than_was_asked_by_rounding() -> None:
    places = [(epsilon, rounds) for epsilon in (0.1, 0.7, 1.1) for rounds in range(1, 100)]
    assert any(math.fsum([epsilon / rounds] * rounds) > epsilon for epsilon, rounds in places)
    for epsilon, rounds in places:
        each = acc.pure_round_epsilon(epsilon=epsilon, rounds=rounds, delta=0)
        assert math.fsum([each] * rounds) <= epsilon
        assert each == pytest.approx(epsilon / rounds, rel=1e-15)


@pytest.mark.parametrize(
    ("epsilons", "delta", "words"),
    [
        ([0.1, -0.1], 0.0, r"epsilons\[1\].*-0.1"),
        ([0.1, math.inf], 0.0, r"epsilons\[1\].*inf"),
        ([0.1], 1.0, r"delta.*1.0"),
        ([0.1], -1e-5, r"delta.*-1e-05"),
        ("0.1", 0.0, r"epsilons.*'0.1'"),
    ],
)
def test_wrong_numbers_are_named(epsilons: object, delta: float, words: str) -> None:
    with pytest.raises(InputError, match=words):
        acc.pure_composition_epsilon(epsilons=epsilons, delta=delta)  # type: ignore[arg-type]
