"""Gaussian noise in the objective: its Renyi bound against integrals of the densities themselves."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from upcycled.core.errors import InputError
from upcycled.privacy.accounting.renyi import renyi_epsilon
from upcycled.privacy.accounting.tilted_renyi import tilted_epsilon, tilted_noise_std, tilted_renyi

GRID = {1: np.linspace(-1, 1, 20_001), 2: np.linspace(-1, 1, 401), 3: np.linspace(-1, 1, 81)}


def log_density(points, x, y, a, s, b=0.0):
    """ln p(w) of the minimiser of a mean logistic loss on one logit + a/2 ||w||^2 + <b + n, w>, at points (..., D)."""
    z = points @ x.T
    sigma = expit(z)
    gradient = ((sigma - y)[..., None] * x).mean(axis=-2) + a * points + b
    weights = sigma * (1 - sigma) / len(x)
    hessian = np.einsum("...n,nd,ne->...de", weights, x, x) + a * np.eye(x.shape[1])
    size = x.shape[1]
    normal = -(gradient**2).sum(axis=-1) / (2 * s**2) - size / 2 * np.log(2 * np.pi * s**2)
    return normal + np.log(np.linalg.det(hessian))


def softmax_log_density(points, x, y, a, s):
    """The same for K logits of one feature, no bias: points (..., K)."""
    z = points[..., None, :] * x[:, :1]
    p = np.exp(z - z.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    classes = points.shape[-1]
    gradient = ((p - np.eye(classes)[y]) * x[:, :1]).mean(axis=-2) + a * points
    each = p[..., None] * (np.eye(classes) - p[..., None, :]) * (x[:, :1] ** 2)[..., None]
    hessian = each.mean(axis=-3) + a * np.eye(classes)
    normal = -(gradient**2).sum(axis=-1) / (2 * s**2) - classes / 2 * np.log(2 * np.pi * s**2)
    return normal + np.log(np.linalg.det(hessian))


def divergence(density, first, second, dimension, a, s, order):
    """D_alpha of the two densities by the trapezoidal rule, and how much of the first one lies on the grid."""
    reach = (2.0 + order * 8 * s) / a
    axis = GRID[dimension] * reach
    points = np.stack(np.meshgrid(*[axis] * dimension, indexing="ij"), axis=-1)
    p, q = (density(points, *data, a, s) for data in (first, second))
    cell = (axis[1] - axis[0]) ** dimension
    with np.errstate(over="ignore"):
        total = np.exp(order * p + (1 - order) * q).sum() * cell
    return np.log(total) / (order - 1), np.exp(p).sum() * cell


def bound(lipschitz, smoothness, rank, n, a, s, order):
    return float(
        tilted_renyi(
            squares=(2 * lipschitz / (n * s)) ** 2, curvature=smoothness / (n * a), rank=rank, cover=0.0, order=order
        )
    )


def unit(rng, count, size):
    rows = rng.normal(size=(count, size))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("dimension", [1, 2])
def test_one_logit_never_exceeds_the_bound(dimension):
    rng = np.random.default_rng(dimension)
    for _ in range(60 if dimension == 1 else 6):
        n, a, s = int(rng.integers(1, 4)), float(rng.choice([0.1, 0.3, 1.0])), float(rng.choice([0.3, 1.0, 3.0]))
        x, y = unit(rng, n, dimension), rng.integers(0, 2, n).astype(float)
        other_x, other_y = x.copy(), y.copy()
        other_x[0], other_y[0] = unit(rng, 1, dimension)[0] * rng.choice([0.0, 1.0]), 1 - y[0]
        order = 1 + float(rng.choice([0.1, 0.5, 0.9])) * min(4 * n * a, 6.0)
        found, mass = divergence(log_density, (x, y), (other_x, other_y), dimension, a, s, order)
        assert mass == pytest.approx(1, abs=1e-3)
        most = bound(1.0, 0.25, 1, n, a, s, order)
        assert found <= most * (1 + 1e-6)


def test_the_bound_is_nearly_attained_where_both_records_are_wrong():
    # Two records a quarter apart with unlike labels, and a public b that leads to where the model is wrong on both.
    x, other = np.array([[np.cos(0.25), -np.sin(0.25)]]), np.array([[np.cos(0.25), np.sin(0.25)]])
    a, s, order, far = 0.3, 0.5, 1.5, np.array([0.0, 40.0])
    points = np.stack(np.meshgrid(*[GRID[2] * 16] * 2, indexing="ij"), axis=-1) + far
    p = log_density(points, x, np.array([1.0]), a, s, b=-a * far)
    q = log_density(points, other, np.array([0.0]), a, s, b=-a * far)
    cell = (16 * 2 / 400) ** 2
    found = np.log(np.exp(order * p + (1 - order) * q).sum() * cell) / (order - 1)
    most = bound(1.0, 0.25, 1, 1, a, s, order)
    assert 0.9 * most < found <= most


@pytest.mark.slow
def test_three_classes_never_exceed_the_bound():
    rng = np.random.default_rng(3)
    for _ in range(5):
        n, a, s = int(rng.integers(1, 3)), float(rng.choice([0.3, 1.0])), float(rng.choice([0.5, 2.0]))
        x, y = unit(rng, n, 1), rng.integers(0, 3, n)
        other = x.copy()
        other[0] = rng.choice([-1.0, 0.0]) * x[0]
        order = 1 + 0.5 * min(2 * n * a, 4.0)
        found, mass = divergence(softmax_log_density, (x, y), (other, (y + 1) % 3), 3, a, s, order)
        assert mass == pytest.approx(1, abs=2e-2)
        most = bound(np.sqrt(2), 0.5, 2, n, a, s, order)
        assert found <= most * 1.001


def test_without_what_the_curvature_costs_the_bound_would_be_wrong():
    # One record of curvature 1/4 against none: much noise leaves the determinant alone to tell them apart.
    data, other = (np.array([[1.0]]), np.array([1.0])), (np.array([[0.0]]), np.array([1.0]))
    a, s, order = 0.3, 30.0, 1.5
    found, _ = divergence(log_density, other, data, 1, a, s, order)
    as_a_gaussian = order / 2 * (2 / s) ** 2
    assert found > as_a_gaussian
    assert found <= bound(1.0, 0.25, 1, 1, a, s, order)


@pytest.mark.parametrize("rank", [1, 2])
def test_a_records_share_is_the_largest_over_all_predictions(rank):
    rng = np.random.default_rng(rank)
    for _ in range(200):
        c, kappa = rng.uniform(0.001, 1), rng.uniform(0.01, 0.5)
        order = 1 + rng.uniform(0, 0.99) / kappa
        t = np.linspace(0, 1, 4001)
        shares = 0.0
        for k in (kappa**2, kappa**2 / (1 - (order - 1) * kappa)):
            two, several = c / 2 * t**2 + 16 * k * (t * (1 - t)) ** 2, c / 4 * (1 + t) + 4 * k * t * (1 - t)
            shares += (two if rank == 1 else several).max()
        found = float(tilted_renyi(squares=c, curvature=kappa, rank=rank, cover=0.0, order=order))
        assert found == pytest.approx(order / 2 * shares, rel=1e-5)
        assert found >= order / 2 * shares * (1 - 1e-12)


def test_slope_and_curvature_of_softmax_are_within_what_the_proof_takes():
    rng = np.random.default_rng(0)
    for classes in (2, 3, 10):
        p = rng.dirichlet(np.full(classes, 0.3), 5000)
        y = rng.dirichlet(np.full(classes, 0.05), 5000)
        q = (p**2).sum(axis=1)
        curved = p[:, :, None] * np.eye(classes) - p[:, :, None] * p[:, None, :]
        assert (((p - y) ** 2).sum(axis=1) <= 1 + q + 1e-12).all()
        assert ((curved**2).sum(axis=(1, 2)) <= q - q**2 + 1e-12).all()


def test_orders_beyond_the_bound_are_infinite_and_rounds_add_up():
    found = tilted_renyi(squares=0.1, curvature=0.5, rank=1, cover=0.0, order=np.array([2.9, 3.0, 3.1]))
    assert np.isfinite(found).tolist() == [True, False, False]
    about = {"squares": 1e-3, "curvature": 0.01, "rank": 1, "cover": 1e-3}
    total = 40 * tilted_renyi(**about, order=20.0)
    assert tilted_epsilon(**about, rounds=40, delta=1e-5) <= renyi_epsilon(spent=float(total), order=20.0, delta=1e-5)


def test_calibrated_noise_spends_epsilon_and_where_none_is_enough_that_is_said():
    about = {"curvature": 1 / 112, "rank": 1, "cover": 1e-3, "rounds": 40}
    std = tilted_noise_std(moves=4 / 224, epsilon=2.0, delta=1e-5, **about)
    spent = tilted_epsilon(squares=(4 / 224 / std) ** 2, delta=1e-5, **about)
    assert 2 * (1 - 1e-6) < spent <= 2.0
    with pytest.raises(InputError, match="no noise reaches it in 80 rounds"):
        tilted_noise_std(moves=4 / 45, epsilon=1.0, delta=1e-5, **(about | {"curvature": 2 / 45, "rounds": 80}))


def test_noise_smaller_than_what_a_record_moves_is_found_too():
    about = {"curvature": 1e-4, "rank": 1, "cover": 0.0, "rounds": 1, "delta": 1e-5}
    found = tilted_noise_std(moves=0.5, epsilon=50.0, **about)
    assert found < 0.5
    assert tilted_epsilon(squares=(0.5 / found) ** 2, **about) <= 50.0
    assert tilted_epsilon(squares=(0.5 / (0.99 * found)) ** 2, **about) > 50.0
