"""How many data rounds a budget pays for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from upcycled.core.errors import InputError
from upcycled.privacy import accounting as acc


@settings(max_examples=100)
@given(rounds=st.integers(1, 5000), ratio=st.floats(1e-3, 5.0), log_delta=st.floats(-50, -2))
def test_what_rounds_cost_pays_for_exactly_those_rounds(rounds: int, ratio: float, log_delta: float) -> None:
    delta = math.exp(log_delta)
    cost = acc.gaussian_epsilon(rounds=rounds, sensitivity=ratio, noise_std=1.0, delta=delta)
    if cost > 0:
        assert acc.rounds_within(budget=(cost, delta), sensitivity=ratio, noise_std=1.0) == rounds
        almost = acc.rounds_within(budget=(math.nextafter(cost, 0.0), delta), sensitivity=ratio, noise_std=1.0)
        assert almost == rounds - 1


@settings(max_examples=100)
@given(rounds=st.integers(1, 5000), log_epsilon=st.floats(-3, 3), log_delta=st.floats(-50, -2))
def test_calibrated_noise_lasts_for_its_rounds(rounds: int, log_epsilon: float, log_delta: float) -> None:
    budget = (math.exp(log_epsilon), math.exp(log_delta))
    std = acc.gaussian_noise_std(rounds=rounds, sensitivity=0.3, epsilon=budget[0], delta=budget[1])
    assert acc.rounds_within(budget=budget, sensitivity=0.3, noise_std=std) == rounds


def test_each_client_has_its_own_count() -> None:
    moves = acc.erm_sensitivity(lipschitz=2, n=np.array([45, 224, 1000]), a=0.5)
    counts = acc.rounds_within(budget=(2.0, 1e-5), sensitivity=moves, noise_std=0.45035634)
    assert counts.dtype == np.int64
    assert counts[1] == 40  # the calibrated std for 40 rounds at n = 224
    assert counts.tolist() == [int(c) for c in np.floor(40.0000001 * (np.array([45, 224, 1000]) / 224) ** 2)]
    assert acc.rounds_within(budget=(0.01, 1e-5), sensitivity=10.0, noise_std=1.0) == 0
    assert acc.rounds_within(budget=(1e6, 1e-5), sensitivity=1e-9, noise_std=1.0) == 10**9


def test_pure_rounds_add_up_or_compose() -> None:
    assert acc.pure_rounds_within(budget=(1.0, 0), epsilon_each=0.1) == 10
    assert acc.pure_rounds_within(budget=(0.05, 0), epsilon_each=0.1) == 0
    epsilon = acc.pure_composition_epsilon(epsilons=[0.1] * 57, delta=1e-6)
    assert acc.pure_rounds_within(budget=(epsilon, 1e-6), epsilon_each=0.1) == 57
    assert acc.pure_rounds_within(budget=(epsilon * 0.999, 1e-6), epsilon_each=0.1) == 56


def test_the_papers_count_and_sampled_steps_invert_their_formulas() -> None:
    run = {"clip_norm": 10, "noise_std": 0.8, "n": 224}
    epsilon = acc.paper_epsilon(rounds=33, delta=1e-5, **run)
    assert acc.paper_rounds_within(budget=(epsilon, 1e-5), **run) == 33
    assert acc.paper_rounds_within(budget=(epsilon * 0.999, 1e-5), **run) == 32
    steps = acc.sampled_gaussian_steps_within(budget=(2.0, 1e-5), q=0.2, noise_multiplier=4.0)
    args = {"q": 0.2, "noise_multiplier": 4.0, "delta": 1e-5}
    assert (
        acc.sampled_gaussian_epsilon(steps=steps, **args) <= 2.0 < acc.sampled_gaussian_epsilon(steps=steps + 1, **args)
    )


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (2.0, r"budget.*2.0.*pair \(epsilon, delta\)"),
        ((1, 2, 3), "budget is"),
        ((0, 1e-5), r"budget's epsilon.*0"),
        ((1, 0), r"budget's delta.*0"),
    ],
)
def test_a_wrong_budget_is_named(budget: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        acc.rounds_within(budget=budget, sensitivity=1.0, noise_std=1.0)  # type: ignore[arg-type]
