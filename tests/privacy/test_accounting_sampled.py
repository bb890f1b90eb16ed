"""Poisson-sampled Gaussians against integration of one step and sampling of many."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.special import logsumexp

from upcycled.core.errors import InputError
from upcycled.privacy import accounting as acc
from upcycled.privacy.accounting.sampled import quick_sampled_epsilon, replace_one_epsilon


def log_ratio(x: np.ndarray, q: float, shift: float, adjacency: str) -> tuple[np.ndarray, np.ndarray]:
    """Log densities (up to the same constant) of the two worlds of one step, noise std 1, C = ``shift``."""

    def mixture(centre: float) -> np.ndarray:
        parts = [math.log1p(-q) - x**2 / 2, math.log(q) - (x - centre) ** 2 / 2]
        return np.asarray(logsumexp(np.stack(parts), axis=0))

    return mixture(shift), mixture(-shift) if adjacency == "replace" else -(x**2) / 2


def integrated_delta(q: float, z: float, epsilon: float, adjacency: str) -> float:
    """Hockey-stick divergence of one step, the worse of the two directions, by the trapezoidal rule."""
    x = np.linspace(-14, 14, 400_001)
    first, second = (np.exp(log) / math.sqrt(2 * math.pi) for log in log_ratio(x, q, 1 / z, adjacency))
    sides = [np.maximum(a - math.exp(epsilon) * b, 0.0) for a, b in ((first, second), (second, first))]
    return max(float(np.trapezoid(side, x)) for side in sides)


@pytest.mark.parametrize("adjacency", ["replace", "add_remove"])
@pytest.mark.parametrize(("q", "z"), [(0.3, 1.0), (0.05, 0.7)])
def test_one_step_agrees_with_integrating_the_densities(q: float, z: float, adjacency: str) -> None:
    epsilon = acc.sampled_gaussian_epsilon(q=q, noise_multiplier=z, steps=1, delta=1e-4, adjacency=adjacency)
    assert integrated_delta(q, z, epsilon, adjacency) <= 1e-4 * (1 + 1e-6)
    assert integrated_delta(q, z, epsilon * (1 - 2e-3), adjacency) > 1e-4


@pytest.mark.parametrize("adjacency", ["replace", pytest.param("add_remove", marks=pytest.mark.slow)])
def test_many_steps_agree_with_sampling_the_privacy_loss(adjacency: str) -> None:
    # delta = E_P max(1 - e^(epsilon - total loss), 0); the first world's losses, the worse direction here.
    q, z, steps, rng = 0.2, 1.5, 20, np.random.default_rng(0)
    total = np.zeros(200_000)
    for _ in range(steps):
        x = rng.standard_normal(len(total)) + (rng.random(len(total)) < q) / z
        p, r = log_ratio(x, q, 1 / z, adjacency)
        total += p - r
    epsilon = acc.sampled_gaussian_epsilon(q=q, noise_multiplier=z, steps=steps, delta=0.01, adjacency=adjacency)
    values = np.maximum(-np.expm1(np.minimum(epsilon - total, 0.0)), 0.0)
    assert values.mean() == pytest.approx(0.01, abs=4 * values.std() / math.sqrt(len(values)))


def test_replacing_costs_more_than_adding_and_less_than_twice_the_noise_undone() -> None:
    args = {"q": 0.1, "noise_multiplier": 1.2, "steps": 50, "delta": 1e-5}
    replace = acc.sampled_gaussian_epsilon(**args)
    assert replace == acc.sampled_gaussian_epsilon(**args, adjacency="replace")
    assert replace > acc.sampled_gaussian_epsilon(**args, adjacency="add_remove")
    unsampled = acc.gaussian_epsilon(rounds=50, sensitivity=2, noise_std=1.2, delta=1e-5)
    assert replace < unsampled


def test_a_rate_of_one_is_the_exact_gaussian() -> None:
    args = {"q": 1.0, "noise_multiplier": 3.0, "steps": 10, "delta": 1e-5}
    exact = acc.gaussian_epsilon(rounds=10, sensitivity=2, noise_std=3, delta=1e-5)
    assert acc.sampled_gaussian_epsilon(**args) == exact
    once = acc.gaussian_epsilon(rounds=10, sensitivity=1, noise_std=3, delta=1e-5)
    assert acc.sampled_gaussian_epsilon(**args, adjacency="add_remove") == once
    nearly = acc.sampled_gaussian_epsilon(**(args | {"q": 0.9999}))
    assert exact * (1 - 2e-3) < nearly <= exact
    multiplier = acc.sampled_gaussian_noise_multiplier(q=1.0, epsilon=exact, steps=10, delta=1e-5)
    assert multiplier == pytest.approx(3.0, rel=1e-9)


def test_nothing_sampled_or_no_step_costs_nothing() -> None:
    assert acc.sampled_gaussian_epsilon(q=0.0, noise_multiplier=1, steps=10, delta=1e-5) == 0
    assert acc.sampled_gaussian_epsilon(q=0.5, noise_multiplier=1, steps=0, delta=1e-5) == 0


@pytest.mark.parametrize(
    ("q", "epsilon", "steps", "adjacency"),
    [
        (0.15, 2.0, 120, "replace"),
        pytest.param(0.02, 8.0, 300, "add_remove", marks=pytest.mark.slow),
        (0.5, 0.5, 4, "add_remove"),
        pytest.param(0.5, 0.5, 4, "replace", marks=pytest.mark.slow),
    ],
)
def test_the_noise_for_an_epsilon_spends_it_and_never_more(
    q: float, epsilon: float, steps: int, adjacency: str
) -> None:
    args = {"q": q, "steps": steps, "delta": 1e-5, "adjacency": adjacency}
    multiplier = acc.sampled_gaussian_noise_multiplier(**args, epsilon=epsilon)
    assert acc.sampled_gaussian_epsilon(**args, noise_multiplier=multiplier) <= epsilon
    assert acc.sampled_gaussian_epsilon(**args, noise_multiplier=multiplier * 0.998) > epsilon


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ["replace", "add_remove"])
@pytest.mark.parametrize(("q", "z", "steps"), [(0.01, 1.1, 1000), (1e-3, 0.5, 10_000), (0.1, 0.3, 10), (1e-5, 1.0, 10)])
def test_the_noise_is_found_in_hard_regimes(q: float, z: float, steps: int, adjacency: str) -> None:
    args = {"q": q, "steps": steps, "delta": 1e-5, "adjacency": adjacency}
    epsilon = acc.sampled_gaussian_epsilon(**args, noise_multiplier=z)
    assert acc.sampled_gaussian_noise_multiplier(**args, epsilon=epsilon) == pytest.approx(z, rel=3e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("q", "z", "steps"), [(0.14, 2.0, 280), (0.001, 0.8, 5000), (0.3, 6.0, 1000)])
def test_refinement_agrees_with_a_very_fine_grid(q: float, z: float, steps: int) -> None:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE, 3e-5)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z)), steps)
    ours = acc.sampled_gaussian_epsilon(q=q, noise_multiplier=z, steps=steps, delta=1e-5)
    assert ours == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q": 1.5}, r"\bq\b.*\b1.5\b"),
        ({"noise_multiplier": 0}, r"noise_multiplier.*0"),
        ({"steps": 1.5}, r"steps.*1.5"),
        ({"delta": 0}, r"delta.*0.*>= 1e-12"),
        ({"adjacency": "add-remove"}, r"adjacency.*'add-remove'.*did you mean 'add_remove'"),
    ],
)
def test_wrong_numbers_are_named(change: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        acc.sampled_gaussian_epsilon(**({"q": 0.1, "noise_multiplier": 1, "steps": 2, "delta": 1e-5} | change))


def test_slow_libraries_are_imported_only_where_they_are_used() -> None:
    folder = Path(acc.__file__).parent
    for path in [*folder.glob("*.py"), folder.parent / "audit.py"]:
        for node in ast.parse(path.read_text()).body:  # the top level only
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            slow = [name for name in names if name.startswith(("dp_accounting", "scipy.stats", "scipy.optimize"))]
            assert not slow, (path.name, slow)


@pytest.mark.parametrize(
    ("q", "z", "steps", "points"),
    [(0.16, 47.7, 5600, 1000), (0.032, 20.4, 2560, 4000), (0.3, 1.0, 40, 1000), (0.9999, 3.0, 10, 1000),
     (1e-5, 1.0, 10, 1000), (0.2, 1.5, 1, 1000), (1e-3, 0.5, 1000, 4000)],
)  # fmt: skip
def test_replace_one_losses_compose_as_those_of_dp_accounting(q: float, z: float, steps: int, points: int) -> None:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    interval = 2 * (2 / z**2 + 20.4 / z) / points
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE, interval)
    with np.errstate(all="ignore"):
        accountant.compose(dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z)), steps)
        theirs = float(accountant.get_epsilon(1e-5))
    assert replace_one_epsilon(q, z, steps, 1e-5, interval) == pytest.approx(theirs, rel=1e-6)


@pytest.mark.parametrize("interval", [0.3, 0.05, 0.005])
def test_every_grid_is_an_upper_bound(interval: float) -> None:
    # Without sampling, 10 steps of z = 4 are a Gaussian of mu = 2 sqrt(10) / 4; with it they cost less.
    exact = acc.gaussian_epsilon(rounds=10, sensitivity=2, noise_std=4, delta=1e-5)
    assert replace_one_epsilon(1 - 1e-9, 4.0, 10, 1e-5, interval) >= exact
    fine = replace_one_epsilon(0.2, 4.0, 10, 1e-5, 5e-4)
    assert fine < replace_one_epsilon(0.2, 4.0, 10, 1e-5, interval) < exact + interval * 10


def test_an_epsilon_beyond_what_exponentials_can_hold_is_found() -> None:
    # z = 0.1: nearly every drawn record is told apart, 10 / 0.1^2 / 2 a time and more.
    found = replace_one_epsilon(0.5, 0.1, 100, 1e-5, 0.05)
    unsampled = acc.gaussian_epsilon(rounds=100, sensitivity=2, noise_std=0.1, delta=1e-5)
    assert 700 < found < unsampled


@pytest.mark.parametrize(
    ("q", "epsilon", "steps", "delta"),
    [
        pytest.param(0.008, 0.28, 10, 1e-7, id="a coarse grid is far off"),
        pytest.param(0.0095, 0.79, 42, 1.25e-5, id="the first result spends too much"),
        pytest.param(0.0343, 9.158, 8497, 4.71e-12, id="rounding is not small beside delta"),
        pytest.param(0.0297, 3.68, 2777, 1.68e-12, id="nor is it here"),
    ],
)
def test_the_noise_is_never_less_than_what_is_stated_in_the_end_needs(
    q: float, epsilon: float, steps: int, delta: float
) -> None:
    args = {"q": q, "steps": steps, "delta": delta}
    multiplier = acc.sampled_gaussian_noise_multiplier(**args, epsilon=epsilon)
    assert acc.sampled_gaussian_epsilon(**args, noise_multiplier=multiplier) <= epsilon
    assert acc.sampled_gaussian_epsilon(**args, noise_multiplier=multiplier * 0.995) > epsilon


def test_a_rate_next_to_one_never_needs_more_noise_than_one() -> None:
    args = {"epsilon": 1.0, "steps": 10, "delta": 1e-5}
    whole = acc.sampled_gaussian_noise_multiplier(q=1.0, **args)
    assert acc.sampled_gaussian_noise_multiplier(q=0.99999, **args) == whole
    assert acc.sampled_gaussian_noise_multiplier(q=0.999, **args) < whole


def test_a_quick_bound_of_nobody_or_no_step_is_zero_and_never_below_what_is_stated() -> None:
    for q, steps in ((0.0, 10), (0.5, 0)):
        for is_rough in (True, False):
            assert quick_sampled_epsilon(q, 1.0, steps, 1e-5, is_rough=is_rough) == 0
    stated = acc.sampled_gaussian_epsilon(q=0.1, noise_multiplier=1.2, steps=50, delta=1e-5)
    rough, close = (quick_sampled_epsilon(0.1, 1.2, 50, 1e-5, is_rough=is_rough) for is_rough in (True, False))
    assert rough > close >= stated * (1 - 1e-6)
    assert close == pytest.approx(stated, rel=3e-3)


def test_a_delta_that_covers_all_that_the_worlds_differ_by_leaves_an_epsilon_of_zero() -> None:
    # One step's worlds are q (2 Phi(1/z) - 1) apart in total variation: 0.0683 for q = 0.1, z = 1.
    apart = 0.1 * math.erf(1 / math.sqrt(2))
    assert replace_one_epsilon(0.1, 1.0, 1, apart * 1.01, 1e-3) == 0
    assert replace_one_epsilon(0.1, 1.0, 1, apart * 0.99, 1e-3) > 0
    # All losses from 0 on have a mass below 0.9 together.
    assert replace_one_epsilon(0.1, 1.0, 1, 0.9, 1e-3) == 0


@pytest.mark.parametrize("noise_multiplier", [0.003, 0.001])
def test_hardly_any_noise_costs_hundreds_of_thousands_and_never_nothing(noise_multiplier: float) -> None:
    """One interval of the grid is then past all exponentials; what follows without sampling is an upper bound.

    A record in one batch of ten moves the sum by 2 clip norms, so its loss there is (2/z)^2 / 2 or so; the chance that
    it is in none is 0.35.
    """
    rough, close = (quick_sampled_epsilon(0.1, noise_multiplier, 10, 1e-5, is_rough=r) for r in (True, False))
    unsampled = acc.gdp_epsilon(mu=math.sqrt(10) * 2 / noise_multiplier, delta=1e-5)
    assert (2 / noise_multiplier) ** 2 / 2 < close <= rough < unsampled
    stated = acc.sampled_gaussian_epsilon(q=0.1, noise_multiplier=noise_multiplier, steps=10, delta=1e-5)
    assert (2 / noise_multiplier) ** 2 / 2 < stated <= unsampled


@pytest.mark.parametrize(("q", "steps"), [(1e-4, 1), (1e-5, 1), (1e-6, 5)])
def test_noise_for_records_that_are_hardly_ever_drawn(q: float, steps: int) -> None:
    """Where the chance to be drawn is below delta, none is needed: little is given."""
    found = acc.sampled_gaussian_noise_multiplier(q=q, epsilon=1.0, steps=steps, delta=1e-5)
    assert acc.sampled_gaussian_epsilon(q=q, noise_multiplier=found, steps=steps, delta=1e-5) <= 1.0
    assert found > 0.0035
    if q * steps < 1e-5:
        assert found < 0.0102
