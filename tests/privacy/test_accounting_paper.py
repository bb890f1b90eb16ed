"""The paper's two theorems, in both directions, and why the first is reported beside a proven number only."""

from __future__ import annotations

import math

import numpy as np
import pytest

from upcycled.core.errors import InputError
from upcycled.privacy import accounting as acc

RUN = {"rounds": 40, "clip_norm": 10, "n": 224}


def test_the_three_directions_of_output_perturbation_agree() -> None:
    for epsilon, delta in [(0.1, 1e-9), (1.0, 1e-5), (8.0, 1e-3)]:
        std = acc.paper_noise_std(**RUN, epsilon=epsilon, delta=delta)
        assert acc.paper_epsilon(**RUN, noise_std=std, delta=delta) == pytest.approx(epsilon, rel=1e-12)
        assert acc.paper_delta(**RUN, noise_std=std, epsilon=epsilon) == pytest.approx(delta, rel=1e-9)


def test_output_perturbation_by_hand() -> None:
    # a = 2 * 3^2 / (2 * 1^2 * 6^2) = 1/4, ln(1/delta) = 4: epsilon = 1/4 + 2 sqrt(1/4 * 4) = 9/4.
    delta = math.exp(-4)
    assert acc.paper_epsilon(rounds=2, clip_norm=3, noise_std=1, n=6, delta=delta) == pytest.approx(2.25)
    # (9/4 - 1/4)^2 / (4 * 1/4) = 4
    assert acc.paper_delta(rounds=2, clip_norm=3, noise_std=1, n=6, epsilon=2.25) == pytest.approx(delta)
    assert acc.paper_noise_std(rounds=2, clip_norm=3, n=6, epsilon=2.25, delta=delta) == pytest.approx(1.0)


def test_the_papers_delta_is_refused_below_a() -> None:
    # a = 40 * 100 / (2 * 0.64 * 224^2) = 0.06228
    with pytest.raises(InputError, match=r"epsilon.*0\.05.*= 0\.0622"):
        acc.paper_delta(**RUN, noise_std=0.8, epsilon=0.05)
    a = 40 * 100 / (2 * 0.64 * 224**2)
    assert acc.paper_delta(**RUN, noise_std=0.8, epsilon=a) == pytest.approx(1.0)


def test_a_tiny_epsilon_keeps_its_digits() -> None:
    # For epsilon -> 0 the std tends to (tau/n) sqrt(M/2) 2 sqrt(L)/epsilon.
    std = acc.paper_noise_std(**RUN, epsilon=1e-12, delta=1e-5)
    assert std == pytest.approx(10 / 224 * math.sqrt(20) * 2 * math.sqrt(math.log(1e5)) / 1e-12, rel=1e-9)


def test_the_claim_is_below_what_is_true_even_under_its_own_assumption() -> None:
    # A mean of n terms of norm tau moves by 2 tau/n when one is replaced: 2.937 exactly, 1.756 claimed.
    claimed = acc.paper_epsilon(**RUN, noise_std=0.8, delta=1e-5)
    exact = acc.gaussian_epsilon(rounds=40, sensitivity=20 / 224, noise_std=0.8, delta=1e-5)
    assert claimed == pytest.approx(1.756, abs=1e-3)
    assert exact == pytest.approx(2.937, abs=1e-3)


def test_the_smallest_client_pays_far_more_than_the_mean_size_suggests() -> None:
    each = acc.paper_epsilon(rounds=40, clip_norm=10, noise_std=0.8, n=np.array([45, 224]), delta=1e-5)
    assert each.shape == (2,)
    assert each[0] / each[1] == pytest.approx(5.7, abs=0.7)


def test_objective_perturbation_both_ways_by_hand() -> None:
    # 3 rounds of (2*4*1*0.5 + 2.8*1)/(10*0.5) = 3 * 6.8/5
    args = {"u1": 1, "u2": 1, "n": 10, "mu": 0.5, "rounds": 3}
    assert acc.paper_objective_epsilon(alpha=4, **args) == pytest.approx(4.08)
    assert acc.paper_objective_alpha(epsilon=4.08, **args) == pytest.approx(4)
    each = acc.paper_objective_epsilon(alpha=4, u1=1, u2=1, n=[10, 20], mu=0.5, rounds=3)
    assert each.tolist() == pytest.approx([4.08, 2.04])


def test_objective_perturbation_outside_its_theorem_is_refused() -> None:
    with pytest.raises(InputError, match=r"u2.*3.0.*paper's.*u2 <= 0.5.*\bmu\b = 2.5"):
        acc.paper_objective_epsilon(alpha=4, u1=1, u2=3, n=10, mu=0.5, rounds=3)
    with pytest.raises(InputError, match=r"alone costs 1\.68"):
        acc.paper_objective_alpha(epsilon=1, u1=1, u2=1, n=10, mu=0.5, rounds=3)


def test_one_client_outside_the_theorem_is_enough_to_refuse() -> None:
    run = {"u1": 1, "u2": 0.11, "mu": 0.2, "rounds": 80}
    with pytest.raises(InputError, match=r"u2.*0\.11.*= 0\.1$"):  # 0.5 * 1 * 0.2: the client that is furthest off
        acc.paper_objective_alpha(epsilon=8, n=[224, 1], **run)
    with pytest.raises(InputError, match=r"u2.*20\.0.*= 19$"):  # 20 - 19 is more than 3 - 2.5
        acc.paper_objective_epsilon(alpha=4, u1=1, u2=[3, 20], n=[10, 76], mu=0.5, rounds=3)
    with pytest.raises(InputError, match=r"epsilon.*0\.001"):  # 2.8 u2 M/(n mu) = 0.55
        acc.paper_objective_alpha(epsilon=[8, 0.001], n=224, **run)


def test_every_paper_docstring_says_that_it_is_not_to_be_relied_on() -> None:
    for function in (acc.paper_epsilon, acc.paper_delta, acc.paper_noise_std, acc.paper_rounds_within):
        words = " ".join(str(function.__doc__).split())
        assert "Not sound" in words
        assert "assumes that one record moves the clipped model by at most tau/n" in words


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rounds": -1}, r"rounds.*-1"),
        ({"clip_norm": 0}, r"clip_norm.*0"),
        ({"n": 0}, r"\bn\b.*\b0\b"),
        ({"n": 2.5}, r"\bn\b.*2.5.*integer"),
        ({"noise_std": 0}, r"noise_std.*0"),
        ({"delta": 2}, r"delta.*2"),
    ],
)
def test_wrong_numbers_are_named(change: dict[str, float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        acc.paper_epsilon(**({"rounds": 1, "clip_norm": 1, "noise_std": 1, "n": 10, "delta": 1e-5} | change))
