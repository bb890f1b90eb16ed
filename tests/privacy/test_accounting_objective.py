"""Objective perturbation: the stated epsilon against the true ratio of the release's densities."""

from __future__ import annotations

import math

import numpy as np
import pytest

from upcycled.core.errors import InputError
from upcycled.privacy import accounting as acc

RUN = {"classes": 2, "norm_bound_squared": 2.0, "n": 224, "a": 0.5, "rounds": 40}


def softmax_log_density(
    weights: np.ndarray, x: np.ndarray, y: np.ndarray, a: float, alpha: float, centre: np.ndarray
) -> float:
    """Log density (up to a constant) of releasing ``weights``: noise b = -gradient, times |det db/dw|."""
    classes, dim = weights.shape
    logits = x @ weights.T
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    hot = np.eye(classes)[y]
    gradient = ((p - hot)[:, :, None] * x[:, None, :]).mean(axis=0) + a * (weights - centre)
    hessian = a * np.eye(classes * dim)
    for features, probabilities in zip(x, p, strict=True):
        curvature = np.diag(probabilities) - np.outer(probabilities, probabilities)
        hessian += np.kron(curvature, np.outer(features, features)) / len(x)
    return float(-alpha * np.linalg.norm(gradient) + np.linalg.slogdet(hessian)[1])


@pytest.mark.parametrize(("classes", "n", "alpha"), [(2, 3, 5.0), (3, 4, 1.0), (4, 2, 0.1)])
def test_no_release_is_more_telling_than_stated(classes: int, n: int, alpha: float) -> None:
    rng, dim, norm, a = np.random.default_rng(classes), 2, 1.5, 0.2
    stated = acc.objective_round_epsilon(alpha=alpha, classes=classes, norm_bound_squared=norm**2, n=n, a=a)
    worst = 0.0
    for _ in range(150):
        x = rng.standard_normal((n, dim))
        x *= norm / np.linalg.norm(x, axis=1, keepdims=True)
        y = rng.integers(0, classes, n)
        other_x, other_y = x.copy(), y.copy()
        other_x[0], other_y[0] = -x[0], y[0]
        centre = rng.standard_normal((classes, dim))
        scale = 10.0 ** rng.uniform(-1, 1.5)
        release = centre + scale * rng.standard_normal((classes, dim))
        ratio = softmax_log_density(release, x, y, a, alpha, centre) - softmax_log_density(
            release, other_x, other_y, a, alpha, centre
        )
        worst = max(worst, abs(ratio))
    assert worst <= stated
    assert worst > 0.3 * stated  # the search was not idle


def test_the_determinant_term_is_attained_by_a_single_record() -> None:
    # n = 1: against a record at x = 0 the determinants' ratio at w = 0 is det(I + R^2 (I/K - 11'/K^2)/a), all K-1
    # eigenvalues being 1/K.
    classes, norm, a = 4, 1.3, 0.6
    centre = np.zeros((classes, 1))
    with_record = softmax_log_density(centre, np.array([[norm]]), np.array([0]), a, 0.0, centre)
    without = softmax_log_density(centre, np.array([[0.0]]), np.array([0]), a, 0.0, centre)
    limit = acc.objective_round_epsilon(alpha=1e-12, classes=classes, norm_bound_squared=norm**2, n=1, a=a)
    assert with_record - without == pytest.approx(limit, rel=1e-9)


def test_one_round_by_hand_with_and_without_cover() -> None:
    # 2*20*2/224 + ln(1 + 2/(2*224*0.5))
    args = {"alpha": 20, "classes": 2, "norm_bound_squared": 2, "n": 224, "a": 0.5}
    plain = 80 / 224 + math.log(1 + 1 / 112)
    assert acc.objective_round_epsilon(**args) == pytest.approx(plain)
    covered = acc.objective_round_epsilon(**args, gamma=1e-10, cover_alpha=2.5e6)
    assert covered - plain == pytest.approx(0.001, rel=1e-9)
    with pytest.raises(InputError, match=r"cover_alpha.*0"):
        acc.objective_round_epsilon(**args, gamma=1e-10)


def test_the_sound_constant_doubles_the_papers_number() -> None:
    # u1 = 2 in place of 1, over the paper's 7.25.
    assert acc.objective_epsilon(alpha=20, **RUN) == pytest.approx(14.64, abs=5e-3)
    assert acc.ranked_objective_epsilon(alpha=20, u1=1, u2=0.11, rank=1, n=224, a=0.5, rounds=40) < 7.2529


def test_softmax_is_the_ranked_bound_with_evenly_shared_curvature() -> None:
    for classes in (2, 5):
        softmax = acc.objective_epsilon(alpha=3, classes=classes, norm_bound_squared=2, n=50, a=0.1, rounds=4)
        ranked = acc.ranked_objective_epsilon(alpha=3, u1=2, u2=2 / classes, rank=classes - 1, n=50, a=0.1, rounds=4)
        assert softmax == pytest.approx(ranked)


def test_a_rank_is_a_whole_number() -> None:
    with pytest.raises(InputError, match=r"rank.*1\.5.*integer >= 1"):
        acc.ranked_objective_epsilon(alpha=3, u1=2, u2=1, rank=1.5, n=50, a=0.1, rounds=4)  # type: ignore[arg-type]


def test_delta_composes_optimally_and_sizes_may_differ() -> None:
    each = acc.objective_round_epsilon(alpha=5, classes=2, norm_bound_squared=2, n=[100, 224], a=0.5)
    total = acc.objective_epsilon(alpha=5, classes=2, norm_bound_squared=2, n=[100, 224], a=0.5, rounds=40, delta=1e-5)
    for i in range(2):
        assert total[i] == acc.pure_composition_epsilon(epsilons=[float(each[i])] * 40, delta=1e-5)
    assert acc.objective_epsilon(alpha=5, **(RUN | {"rounds": 0})) == 0
    assert acc.objective_epsilon(alpha=5, **(RUN | {"rounds": 0}), delta=1e-5) == 0


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_the_rate_for_an_epsilon_spends_it_and_never_more(delta: float) -> None:
    for n in (224, np.array([100, 224, 3000])):
        args = RUN | {"n": n, "delta": delta, "gamma": 1e-9, "cover_alpha": 1e5}
        alpha = acc.objective_alpha(epsilon=6.0, **args)
        spent = np.asarray(acc.objective_epsilon(alpha=alpha, **args))
        assert np.all(spent <= 6.0)
        np.testing.assert_allclose(spent, 6.0, rtol=1e-8)


def test_an_epsilon_that_no_noise_reaches_is_refused() -> None:
    # The determinant alone: 40 * ln(1 + 1/112) = 0.3556
    with pytest.raises(InputError, match=r"epsilon.*0\.3 .*no noise.*it.*raise.*rounds"):
        acc.objective_alpha(epsilon=0.3, **RUN)
    assert acc.objective_alpha(epsilon=0.36, **RUN) > 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"alpha": 0}, r"alpha.*0"),
        ({"classes": 1}, r"classes.*1"),
        ({"norm_bound_squared": 0}, r"norm_bound_squared.*0"),
        ({"n": 0}, r"\bn\b.*\b0\b"),
        ({"a": 0}, r"\ba\b.*0.*finite.*0"),
        ({"rounds": -1}, r"rounds.*-1"),
        ({"delta": 1}, r"delta.*1"),
    ],
)
def test_wrong_numbers_are_named(change: dict[str, float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        acc.objective_epsilon(**({"alpha": 20} | RUN | change))
