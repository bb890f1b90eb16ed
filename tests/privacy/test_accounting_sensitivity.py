"""Sensitivity bounds against training on neighbouring data: never exceeded, and attained where they can be."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from upcycled.core.errors import InputError
from upcycled.privacy import accounting as acc

Array = NDArray[np.float64]


def softmax_gradients(weights: Array, x: Array, y: Array) -> Array:
    """Per-sample gradients of the softmax loss, written out: (p - onehot) x^T."""
    logits = x @ weights.T
    logits -= logits.max(axis=1, keepdims=True)
    p = np.exp(logits)
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return p[:, :, None] * x[:, None, :]


def neighbours(
    rng: np.random.Generator, n: int, dim: int, classes: int, norm: float
) -> tuple[Array, Array, Array, Array]:
    x = rng.standard_normal((n, dim))
    x *= norm / np.linalg.norm(x, axis=1, keepdims=True)
    y = rng.integers(0, classes, n)
    other_x, other_y = x.copy(), y.copy()
    # The opposite record, at some place: as bad as a replacement gets.
    place = rng.integers(n)
    other_x[place], other_y[place] = -x[place], y[place]
    return x, y, other_x, other_y


def descend(x: Array, y: Array, start: Array, a: float, linear: Array, eta: float, steps: int) -> Array:
    w = start.copy()
    for _ in range(steps):
        w = w - eta * (softmax_gradients(w, x, y).mean(axis=0) + a * (w - start) + linear)
    return w


def test_softmax_constants_by_hand() -> None:
    assert acc.softmax_constants(classes=10, norm_bound=3, bias=False) == pytest.approx((math.sqrt(18), 4.5))
    assert acc.softmax_constants(classes=2, norm_bound=3, bias=True) == pytest.approx((math.sqrt(20), 5))
    assert acc.softmax_constants(classes=2, norm_bound=3, bias=False, single_vector=True) == pytest.approx((3, 2.25))
    with pytest.raises(InputError, match=r"classes.*3"):
        acc.softmax_constants(classes=3, norm_bound=1, bias=False, single_vector=True)


def test_softmax_constants_are_never_exceeded_and_nearly_attained() -> None:
    rng, norm = np.random.default_rng(0), 1.7
    for classes in (2, 3, 10):
        lipschitz, smoothness = acc.softmax_constants(classes=classes, norm_bound=norm, bias=False)
        steepest, sharpest = 0.0, 0.0
        for scale in (0.0, 0.5, 2.0, 30.0):
            weights = scale * rng.standard_normal((classes, 5))
            x = rng.standard_normal((200, 5))
            x *= norm / np.linalg.norm(x, axis=1, keepdims=True)
            gradients = softmax_gradients(weights, x, rng.integers(0, classes, 200))
            steepest = max(steepest, float(np.linalg.norm(gradients.reshape(200, -1), axis=1).max()))
        # The Hessian is (diag(p) - p p^T) kron x x^T; two classes at 1/2 each are its worst point.
        for p in (np.full(classes, 1 / classes), np.eye(classes)[0] / 2 + np.eye(classes)[1] / 2):
            sharpest = max(sharpest, float(np.linalg.eigvalsh(np.diag(p) - np.outer(p, p)).max()) * norm**2)
        assert steepest <= lipschitz * (1 + 1e-12)
        assert steepest > 0.98 * lipschitz
        assert sharpest == pytest.approx(smoothness)


@pytest.mark.parametrize("steps", [1, 5, 40])
def test_gradient_descent_moves_no_further_than_stated(steps: int) -> None:
    rng, n, classes, norm, a = np.random.default_rng(steps), 7, 3, 2.0, 0.3
    lipschitz, smoothness = acc.softmax_constants(classes=classes, norm_bound=norm, bias=False)
    bound = acc.gd_sensitivity(lipschitz=lipschitz, n=n, a=a, smoothness=smoothness, steps=steps)
    for _ in range(30):
        x, y, other_x, other_y = neighbours(rng, n, 4, classes, norm)
        start, linear = 3 * rng.standard_normal((classes, 4)), rng.standard_normal((classes, 4))
        run = {"start": start, "a": a, "linear": linear, "eta": 1 / (smoothness + a), "steps": steps}
        moved = np.linalg.norm(descend(x, y, **run) - descend(other_x, other_y, **run))
        assert moved <= bound * (1 + 1e-12)


def test_a_linear_loss_attains_the_descent_and_erm_bounds() -> None:
    # Loss <g, w> with g = +-L u for the replaced record: the iterates differ by 2 L/n times a geometric sum.
    lipschitz, n, a, eta, steps = 2.0, 50, 0.4, 0.6, 9
    w = other = 0.0
    for _ in range(steps):
        w, other = w - eta * (lipschitz / n + a * w), other - eta * (-lipschitz / n + a * other)
    stated = acc.gd_sensitivity(lipschitz=lipschitz, n=n, a=a, steps=steps, step_size=eta)
    assert abs(w - other) == pytest.approx(stated, rel=1e-12)
    # At the minimiser w = -+L/(n a).
    assert acc.erm_sensitivity(lipschitz=lipschitz, n=n, a=a) == pytest.approx(2 * lipschitz / (n * a))


def test_descent_sensitivity_grows_with_steps_to_the_minimisers() -> None:
    values = [acc.gd_sensitivity(lipschitz=2, n=224, a=0.5, smoothness=1, steps=t) for t in (0, 1, 5, 50, 5000)]
    assert values == sorted(values)
    assert values[0] == 0
    assert values[1] == pytest.approx(2 * 2 / 224 / 1.5)  # one step: 2 L eta/n
    assert values[-1] == pytest.approx(acc.erm_sensitivity(lipschitz=2, n=224, a=0.5))
    # A tiny a keeps its digits: 2 L eta T/n in the limit.
    assert acc.gd_sensitivity(lipschitz=2, n=10, a=1e-14, steps=7, step_size=0.1) == pytest.approx(0.28, rel=1e-9)
    # eta a = 1 jumps to the minimiser of a linear loss in one step.
    assert acc.gd_sensitivity(lipschitz=2, n=10, a=0.5, steps=3, step_size=2.0) == pytest.approx(0.8)


def test_erm_sensitivity_pays_for_the_gradient_that_is_left() -> None:
    assert acc.erm_sensitivity(lipschitz=2, n=100, a=0.5, gamma=1e-3) == pytest.approx(0.08 + 0.004)


@pytest.mark.parametrize(
    ("n", "batch", "a", "passes"), [(12, 4, 0.0, 3), (12, 4, 0.5, 3), (11, 4, 0.5, 4), (9, 3, 1.0, 6)]
)
def test_sgd_moves_no_further_than_stated(n: int, batch: int, a: float, passes: int) -> None:
    rng, classes, norm = np.random.default_rng(n + passes), 3, 2.0
    lipschitz, smoothness = acc.softmax_constants(classes=classes, norm_bound=norm, bias=False)
    lr = 0.9 / (smoothness + a)
    bound = acc.sgd_sensitivity(lipschitz=lipschitz, lr=lr, passes=passes, batch=batch, n=n, a=a, smoothness=smoothness)
    largest = 0.0
    for _ in range(30):
        x, y, other_x, other_y = neighbours(rng, n, 4, classes, norm)
        orders = [rng.permutation(n) for _ in range(passes)]
        start = rng.standard_normal((classes, 4))
        ends = []
        for features, labels in ((x, y), (other_x, other_y)):
            w = start.copy()
            for order in orders:
                for first in range(0, n, batch):
                    chosen = order[first : first + batch]
                    # A short batch divides by the nominal batch.
                    data_term = softmax_gradients(w, features[chosen], labels[chosen]).sum(axis=0) / batch
                    w = w - lr * (data_term + a * (w - start))
            ends.append(w)
        largest = max(largest, float(np.linalg.norm(ends[0] - ends[1])))
    assert largest <= bound * (1 + 1e-12)
    assert largest > 0.02 * bound  # the two runs were different at all


def test_a_linear_loss_attains_the_sgd_bounds() -> None:
    # The replaced record sits in the last batch of every pass; n = 6, batch 2: three steps a pass.
    lipschitz, lr, batch, passes, per_pass = 2.0, 0.3, 2, 4, 3
    for a in (0.0, 0.7):
        gap = 0.0
        for _ in range(passes):
            for step in range(per_pass):
                gap = (1 - lr * a) * gap + (2 * lr * lipschitz / batch if step == per_pass - 1 else 0.0)
        stated = acc.sgd_sensitivity(lipschitz=lipschitz, lr=lr, passes=passes, batch=batch, n=6, a=a, smoothness=0.0)
        assert gap == pytest.approx(stated, rel=1e-12)


def test_sgd_forgets_only_where_the_rate_is_small_enough() -> None:
    args = {"lipschitz": 2, "passes": 10, "batch": 32, "n": 224, "a": 0.5}
    convex = 2 * 10 * 2 * 1.2 / 32
    assert acc.sgd_sensitivity(lr=1.2, smoothness=1.0, **args) == pytest.approx(convex)  # 1/1.5 < 1.2 <= 2/1.5
    assert acc.sgd_sensitivity(lr=0.6, smoothness=1.0, **args) < 2 * 10 * 2 * 0.6 / 32
    with pytest.raises(InputError, match=r"\blr\b.*1.4.*2/\(smoothness.*= 1.333"):
        acc.sgd_sensitivity(lr=1.4, smoothness=1.0, **args)
    # A batch larger than the client: floor(n/batch) = 0, nothing is forgotten.
    tiny = acc.sgd_sensitivity(lipschitz=2, lr=0.05, passes=10, batch=32, n=20, a=0.5)
    assert tiny == pytest.approx(2 * 10 * 2 * 0.05 / 32)


def test_descent_ends_as_near_to_the_minimiser_as_stated() -> None:
    rng, n, classes, norm, a = np.random.default_rng(3), 20, 3, 1.5, 0.4
    lipschitz, smoothness = acc.softmax_constants(classes=classes, norm_bound=norm, bias=False)
    x, y, _, _ = neighbours(rng, n, 4, classes, norm)
    start, linear = rng.standard_normal((classes, 4)), 5 * rng.standard_normal((classes, 4))
    run = {"start": start, "a": a, "linear": linear, "eta": 1 / (smoothness + a)}
    exact = descend(x, y, **run, steps=3000)
    for steps in (0, 3, 20):
        stated = acc.gd_distance(
            lipschitz=lipschitz, smoothness=smoothness, a=a, steps=steps, linear_norm=float(np.linalg.norm(linear))
        )
        assert np.linalg.norm(descend(x, y, **run, steps=steps) - exact) <= stated


def test_sensitivities_take_one_size_per_client() -> None:
    n = np.array([45, 224, 1000])
    assert acc.erm_sensitivity(lipschitz=2, n=n, a=0.5).shape == (3,)
    assert acc.gd_sensitivity(lipschitz=2, n=n, a=0.5, smoothness=1, steps=10).shape == (3,)
    each = acc.sgd_sensitivity(lipschitz=2, lr=0.05, passes=10, batch=32, n=n, a=0.5)
    assert each[1] == pytest.approx(0.03194297568)
    assert each[0] > each[1] > each[2]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: acc.erm_sensitivity(lipschitz=2, n=10, a=0), r"\ba\b.*0.*finite.*0"),
        (lambda: acc.erm_sensitivity(lipschitz=2, n=[10, 0], a=1), r"n\[1\].*0"),
        (lambda: acc.erm_sensitivity(lipschitz=-2, n=10, a=1), r"lipschitz.*-2"),
        (lambda: acc.erm_sensitivity(lipschitz=2, n=10, a=1, gamma=-1), r"gamma.*-1"),
        (lambda: acc.gd_sensitivity(lipschitz=2, n=10, a=1, steps=5), r"step_size.*None"),
        (
            lambda: acc.gd_sensitivity(lipschitz=2, n=10, a=1, steps=5, smoothness=1, step_size=0.6),
            r"step_size.*0.6.*1/\(smoothness.*= 0.5",
        ),
        (lambda: acc.gd_sensitivity(lipschitz=2, n=10, a=1, steps=5, step_size=1.1), "1/a = 1"),
        (lambda: acc.sgd_sensitivity(lipschitz=2, lr=0.1, passes=1, batch=4, a=0.5), r"\bn\b.*\bNone\b"),
        (lambda: acc.sgd_sensitivity(lipschitz=2, lr=0.1, passes=1, batch=0), r"batch.*0"),
        (lambda: acc.sgd_sensitivity(lipschitz=2, lr=3, passes=1, batch=4, smoothness=1), r"\blr\b.*\b3\b"),
        # The one that is furthest off is named.
        (
            lambda: acc.sgd_sensitivity(lipschitz=2, lr=[0.1, 5.0, 3.0], passes=1, batch=4, smoothness=1),
            r"\blr\b.*5\.0.*2/\(smoothness.*= 2",
        ),
        (lambda: acc.gd_distance(lipschitz=2, smoothness=1, a=0, steps=5), r"\ba\b.*\b0\b"),
        (lambda: acc.softmax_constants(classes=1, norm_bound=1, bias=True), r"classes.*1"),
        (lambda: acc.softmax_constants(classes=2, norm_bound=-1, bias=True), r"norm_bound.*-1"),
    ],
)
def test_what_the_bounds_need_is_checked(call: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()  # type: ignore[operator]
