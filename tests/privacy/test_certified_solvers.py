"""Certified solvers: what they compute, how near the minimiser they come, and how far one record can move them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import upcycled as up
from tests.privacy.runs import QUIET, server_sees
from tests.reference import softmax_gradient
from upcycled.core.engine import Task
from upcycled.core.layout import layout_of
from upcycled.core.mechanism import Ask
from upcycled.core.sampling import Cohort
from upcycled.core.solvers import CertifiedGD, CertifiedMinimiser, LocalSGD, NominalSGD, Problem
from upcycled.core.vectors import Shards
from upcycled.engines.certified import train_certified
from upcycled.losses import CrossEntropy
from upcycled.privacy.mechanisms.requirements import project

# Two classes, features of norm 1 with a bias: L = 2, S = 1.
LIPSCHITZ, SMOOTHNESS = 2.0, 1.0


def solve(solver, x, y, *, a, b=None, start=None, epochs=None, classes=2, seed=0):
    """One client's solution, in float64."""
    module = nn.Linear(x.shape[1], classes)
    shards = Shards(x.astype(np.float32), y, np.array([0, len(y)]))
    task = Task(module, layout_of(module), classes, shards, None, solver, seed, CrossEntropy())
    model = np.zeros(task.layout.size, dtype=np.float32) if start is None else start
    cohort = Cohort(np.array([0]), np.array([solver.local.epochs if epochs is None else epochs]))
    work = Ask(1, 1, 0, cohort, model, Problem(a, None if b is None else b[None]))
    return train_certified(task, solver, work)


def sample(n, features=4, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, features))
    x /= np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
    return x.astype(np.float32).astype(np.float64), rng.integers(0, 2, n)


def test_gradient_descent_equals_an_independent_implementation_to_rounding():
    x, y = sample(17)
    rng = np.random.default_rng(1)
    start, b = rng.normal(size=10).astype(np.float32), rng.normal(size=10)
    solver = CertifiedGD(SMOOTHNESS, a=0.3, steps=25)
    found = solve(solver, x, y, a=0.3, b=b, start=start)
    point = start.astype(np.float64)
    for _ in range(25):
        point = point - (softmax_gradient(point, x, y, 2) + 0.3 * (point - start) + b) / 1.3
    assert np.abs(found.vectors[0] - point).max() < 1e-13
    assert found.vectors.dtype == np.float64
    assert found.num_steps.tolist() == [25]


def test_a_straggler_stops_after_its_epochs_and_scaffold_divides_by_one_over_a():
    x, y = sample(17)
    solver = CertifiedGD(SMOOTHNESS, a=0.3, steps=25)
    early = solve(solver, x, y, a=0.3, epochs=7)
    whole = solve(CertifiedGD(SMOOTHNESS, a=0.3, steps=7), x, y, a=0.3)
    assert np.array_equal(early.vectors, whole.vectors)
    assert early.num_steps.tolist() == [7]
    assert solver.step_sum(np.array([7, 25])).tolist() == [1 / 0.3] * 2


def test_nominal_sgd_divides_a_short_batch_by_the_nominal_one():
    x, y = sample(11)
    local = LocalSGD(lr=0.2, epochs=3, batch_size=4)
    found = solve(NominalSGD(local), x, y, a=0.1)
    from upcycled.core.randomness import Purpose, client_keys, permutations

    orders = permutations(int(client_keys(0, Purpose.BATCHES, 1, [0])[0]), 11, 3)
    point = np.zeros(10)
    for order in orders:
        for rows in (order[:4], order[4:8], order[8:]):
            mean = softmax_gradient(point, x[rows], y[rows], 2) * len(rows) / 4
            point = point - 0.2 * (mean + 0.1 * point)
    assert np.abs(found.vectors[0] - point).max() < 1e-13
    assert found.num_steps.tolist() == [9]


@pytest.mark.parametrize("a", [0.01, 0.5])
@pytest.mark.parametrize("size", [0.0, 300.0])
def test_the_minimiser_reaches_its_gradient_norm_for_easy_and_for_slow_data(a, size):
    rng = np.random.default_rng(0)
    solver = CertifiedMinimiser(LIPSCHITZ, SMOOTHNESS, a, gamma=1e-9)
    b = rng.normal(size=10)
    b *= size / np.linalg.norm(b)
    slow = np.tile(np.eye(1, 4), (30, 1)), np.arange(30) % 2  # one direction has all the curvature, three have none
    separable = np.repeat([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]], 15, axis=0), np.repeat([0, 1], 15)
    for x, y in (sample(30), slow, separable):
        found = solve(solver, x, y, a=a, b=b).vectors[0]
        assert np.linalg.norm(softmax_gradient(found, x, y, 2) + a * found + b) <= 1e-9
        # What is reported is public: the steps for b = 0.
        assert solve(solver, x, y, a=a, b=b).num_steps.tolist() == [solver.steps_for(0.0)]


def test_the_promised_distance_to_the_minimiser_holds():
    x, y = sample(40)
    exact = solve(CertifiedMinimiser(LIPSCHITZ, SMOOTHNESS, 0.5, gamma=1e-13), x, y, a=0.5).vectors[0]
    for steps in (1, 5, 20):
        found = solve(CertifiedGD(SMOOTHNESS, 0.5, steps), x, y, a=0.5).vectors[0]
        bound = up.privacy.gd_distance(lipschitz=2, smoothness=1, a=0.5, steps=steps)
        assert np.linalg.norm(found - exact) <= bound


def adversarial_neighbours(n):
    """A record labelled 1 where the model is sure of class 0, against its mirror image with the same label.

    Both pull with their full L, features in opposite directions and the bias in the same one.
    """
    x = np.zeros((n, 4))
    y = np.zeros(n, dtype=np.int64)
    x[0, 0], y[0] = 1.0, 1
    other = x.copy(), y.copy()
    other[0][0, 0], other[1][0] = -1.0, 1
    return (x, y), other


@pytest.mark.parametrize("seed", range(3))
def test_one_record_moves_gradient_descent_no_further_than_stated_and_nearly_so_far(seed):
    rng = np.random.default_rng(seed)
    a, steps, n = 0.1, 12, 30
    solver = CertifiedGD(SMOOTHNESS, a, steps)
    bound = up.privacy.gd_sensitivity(lipschitz=2, n=n, a=a, steps=steps, smoothness=1)
    start = np.zeros(10, dtype=np.float32)
    start[8], start[9] = 40.0, -40.0
    one, two = adversarial_neighbours(n)
    worst = np.linalg.norm(
        solve(solver, *one, a=a, start=start).vectors - solve(solver, *two, a=a, start=start).vectors
    )
    for _ in range(20):
        x, y = sample(n, seed=int(rng.integers(1 << 30)))
        x2, y2 = x.copy(), y.copy()
        x2[0], y2[0] = -x[0], 1 - y[0]
        b, w = rng.normal(size=10) * 3, (rng.normal(size=10) * 3).astype(np.float32)
        moved = solve(solver, x, y, a=a, b=b, start=w).vectors - solve(solver, x2, y2, a=a, b=b, start=w).vectors
        worst = max(worst, np.linalg.norm(moved))
    assert worst <= bound
    # The adversarial pair differs by sqrt(2) |2 x| = 2 sqrt(2) of 2 L = 4 (the bias does not flip).
    assert worst >= 0.7 * bound


def test_a_flip_of_label_and_features_nearly_attains_the_bound_of_the_minimiser():
    """The model is sure of class 0; one neighbour labels the record 1, the other 0."""
    n, a = 25, 0.2
    solver = CertifiedMinimiser(LIPSCHITZ, SMOOTHNESS, a, gamma=1e-10)
    x, y = np.zeros((n, 4)), np.zeros(n, dtype=np.int64)
    start = np.zeros(10, dtype=np.float32)
    start[0], start[4], start[8], start[9] = 30.0, -30.0, 30.0, -30.0
    x[0, 0], y[0] = 1.0, 1
    x2, y2 = x.copy(), y.copy()
    x2[0, 0], y2[0] = 1.0, 0
    moved = solve(solver, x, y, a=a, start=start).vectors - solve(solver, x2, y2, a=a, start=start).vectors
    bound = up.privacy.erm_sensitivity(lipschitz=2, n=n, a=a, gamma=2e-10)
    # This pair changes the gradient by L, half of what the bound allows for.
    assert 0.49 * bound <= np.linalg.norm(moved) <= bound


@pytest.mark.parametrize("a", [0.0, 0.3])
def test_one_record_moves_bolt_on_sgd_no_further_than_stated_and_a_good_part_of_it(a):
    rng = np.random.default_rng(5)
    n, local = 22, LocalSGD(lr=0.5, epochs=4, batch_size=5)
    bound = up.privacy.sgd_sensitivity(lipschitz=2, lr=0.5, passes=4, batch=5, n=n, a=a, smoothness=1)
    start = np.zeros(10, dtype=np.float32)
    start[8], start[9] = 40.0, -40.0
    one, two = adversarial_neighbours(n)
    worst = np.linalg.norm(
        solve(NominalSGD(local), *one, a=a, start=start).vectors
        - solve(NominalSGD(local), *two, a=a, start=start).vectors
    )
    for seed in range(20):
        x, y = sample(n, seed=seed)
        x2, y2 = x.copy(), y.copy()
        place = int(rng.integers(n))
        x2[place], y2[place] = -x[place], 1 - y[place]
        moved = (
            solve(NominalSGD(local), x, y, a=a, seed=seed).vectors
            - solve(NominalSGD(local), x2, y2, a=a, seed=seed).vectors
        )
        worst = max(worst, np.linalg.norm(moved))
    # The bound has the record in the last batch of every pass, where nothing is forgotten; here its place is random.
    assert 0.4 * bound <= worst <= bound


def test_features_are_projected_sample_by_sample_and_broken_ones_become_zero():
    x = np.array([[3, 4], [0.3, 0.4], [np.nan, 0], [np.inf, 1], [1e38, 1e38], [0, 0]], dtype=np.float32)
    found = project(Shards(x, np.zeros(6, dtype=np.int64), np.array([0, 6])), 2.0).x.astype(np.float64)
    norms = np.linalg.norm(found, axis=1)
    assert (norms <= 2.0).all()
    assert norms == pytest.approx([2, 0.5, 0, 0, 2, 0], rel=1e-6)
    assert np.array_equal(found[1].astype(np.float32), x[1])
    rng = np.random.default_rng(0)
    many = Shards(rng.normal(size=(1000, 3, 7)) * 50, np.zeros(1000, dtype=np.int64), np.array([0, 1000]))
    assert (np.linalg.norm(project(many, 0.7).x.reshape(1000, -1).astype(np.float64), axis=1) <= 0.7).all()


def test_the_callers_data_are_not_changed_by_projection(federation):
    before = federation.train.x.copy()
    up.train(federation, algorithm=up.FedProx(), privacy=up.privacy.ErmOutput(0.1, 0.1), iterations=1, **QUIET)
    assert np.array_equal(federation.train.x, before)


def test_scaffolds_control_variates_use_a_in_the_place_of_one_over_k_lr(federation, monkeypatch):
    with server_sees("scaffold", monkeypatch) as seen:
        up.train(
            federation,
            algorithm=up.Scaffold(),
            privacy=up.privacy.ErmOutput(1.0, 0.0, prox_mu=0.4),
            iterations=3,
            **QUIET,
        )
    assert all(np.array_equal(arrived.step_sums, np.full(4, 2.5)) for arrived in seen)


def test_a_frozen_bias_and_images_are_solved_as_they_are():
    rng = np.random.default_rng(0)
    images = [rng.normal(size=(12, 2, 3)).astype(np.float32) for _ in range(3)]
    data = up.FederatedData.from_arrays(images, [rng.integers(0, 2, 12) for _ in range(3)], num_classes=2)
    linear = nn.Linear(6, 2)
    linear.bias.requires_grad_(False)
    module = nn.Sequential(nn.Flatten(), linear)
    plain = {"algorithm": up.FedProx(mu=0.5), "iterations": 1, "model": module}
    exact = up.train(data, privacy=up.privacy.ErmOutput(100.0, 0.0, steps=3), **plain, **QUIET)
    # R = 100 without a trained bias: S = 5000, so the same three full-batch steps by SGD.
    local = up.LocalSGD(lr=1 / 5000.5, epochs=3, batch_size=None)
    sgd = up.train(data, local=local, **plain, **QUIET)
    assert torch.allclose(exact.params, sgd.params, atol=1e-6)
    assert exact.params.numel() == 12


def test_a_run_whose_public_vectors_grow_out_of_reach_of_float64_stops_in_one_sentence(federation):
    module = nn.Linear(5, 3)
    with torch.no_grad():
        module.weight.fill_(1e9)
    with pytest.raises(up.DivergedError, match=r"covered.*promise"):
        up.train(
            federation,
            algorithm=up.FedProx(),
            model=module,
            privacy=up.privacy.ErmOutput(1.0, 0.1),
            iterations=1,
            **QUIET,
        )
