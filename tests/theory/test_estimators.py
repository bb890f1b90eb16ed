"""L and B from data and model: against finite differences, dense Hessians and hand-derived numbers."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import upcycled as up
from tests.conftest import ragged
from upcycled.core.layout import flatten
from upcycled.theory import client_smoothness, objective_for


class Hidden(nn.Module):
    """Softmax regression that nobody recognises as such: the general path, for the same function."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x):
        return self.linear(x)


def dense_hessian(objective, client, at):
    product = objective.hessian(client, at)
    return np.array([product(row) for row in np.eye(at.size)])


def small_mlp(inputs=5, classes=3):
    return nn.Sequential(nn.Linear(inputs, 4), nn.Tanh(), nn.Linear(4, classes))


@pytest.mark.parametrize("model", ["logistic", "hidden", "mlp"])
def test_gradients_agree_with_finite_differences(federation, model):
    made = {"logistic": "logistic", "hidden": Hidden(5, 3), "mlp": small_mlp()}[model]
    objective = objective_for(federation, made)
    at = 0.3 * np.random.default_rng(1).standard_normal(objective.layout.size)
    step = 1e-6
    for client in (0, 2):
        loss, gradient = objective.client(client, at)
        for place in range(0, at.size, 5):
            moved = np.zeros(at.size)
            moved[place] = step
            high, low = objective.client(client, at + moved)[0], objective.client(client, at - moved)[0]
            assert gradient[place] == pytest.approx((high - low) / (2 * step), abs=1e-8)
        assert low != loss


def test_the_closed_form_of_softmax_regression_is_what_torch_computes(federation):
    closed, general = objective_for(federation, "logistic"), objective_for(federation, Hidden(5, 3))
    assert closed.linear is not None
    assert general.linear is None
    at = np.random.default_rng(2).standard_normal(18)
    one, two = closed.landscape(at), general.landscape(at)
    assert one.loss == pytest.approx(two.loss, rel=1e-13)
    assert one.gradient == pytest.approx(two.gradient, rel=1e-11, abs=1e-14)
    assert one.second_moment == pytest.approx(two.second_moment, rel=1e-12)


def test_f_is_the_mean_over_all_samples_and_its_gradient_too(federation):
    # p_i = n_i/n makes f the pooled mean: what torch computes on all rows at once.
    objective = objective_for(federation, "logistic")
    at = np.random.default_rng(3).standard_normal(18)
    flat = torch.from_numpy(at).requires_grad_()
    logits = torch.from_numpy(federation.train.x).double() @ flat[:15].view(3, 5).T + flat[15:]
    loss = nn.functional.cross_entropy(logits, torch.from_numpy(federation.train.y))
    loss.backward()
    found = objective.landscape(at)
    assert found.loss == pytest.approx(loss.item(), rel=1e-13)
    assert found.gradient == pytest.approx(flat.grad.numpy(), rel=1e-11, abs=1e-14)


def test_long_clients_are_taken_in_pieces(monkeypatch, federation):
    at = np.random.default_rng(4).standard_normal(18)
    whole = objective_for(federation, Hidden(5, 3))
    value, product = whole.landscape(at), dense_hessian(whole, 2, at)
    monkeypatch.setattr("upcycled.theory.ROWS_AT_ONCE", 7)
    pieces = objective_for(federation, Hidden(5, 3))
    assert pieces.landscape(at).gradient == pytest.approx(value.gradient, rel=1e-12, abs=1e-15)
    assert dense_hessian(pieces, 2, at) == pytest.approx(product, rel=1e-12, abs=1e-15)


def test_smoothness_of_hand_derived_data():
    # X~'X~/n = [[mean x^2, mean x], [mean x, 1]]. x = 3, -3: diag(9, 1), so 9; x = 2, 2: [[4, 2], [2, 1]], so 5.
    data = up.FederatedData.from_arrays([[[3.0], [-3.0]], [[2.0], [2.0]]], [[0, 1], [1, 1]])
    assert client_smoothness(objective_for(data, "logistic")) == pytest.approx([4.5, 2.5], rel=1e-14)
    assert up.theory.estimate_smoothness(data, "logistic") == pytest.approx(4.5, rel=1e-14)
    no_bias = nn.Linear(1, 2, bias=False)
    assert client_smoothness(objective_for(data, no_bias)) == pytest.approx([4.5, 2.0], rel=1e-14)
    only_bias = nn.Linear(1, 2)
    only_bias.weight.requires_grad_(False)
    assert client_smoothness(objective_for(data, only_bias)) == pytest.approx([0.5, 0.5], rel=1e-14)


@pytest.mark.parametrize("features", [2, 12])
def test_more_features_than_samples_make_no_difference(features):
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(5, features)) for _ in range(2)]
    data = up.FederatedData.from_arrays(xs, [[0, 1, 0, 1, 1]] * 2)
    for found, x in zip(client_smoothness(objective_for(data, "logistic")), xs, strict=True):
        design = np.hstack([x.astype(np.float32).astype(float), np.ones((5, 1))])
        assert found == pytest.approx(np.linalg.norm(design, 2) ** 2 / 10, rel=1e-12)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.floats(0.01, 30), st.integers(2, 4))
def test_no_hessian_of_softmax_regression_exceeds_its_smoothness(seed, scale, classes):
    xs, ys = ragged(sizes=(9, 4), features=3, classes=classes, seed=seed)
    data = up.FederatedData.from_arrays(xs, ys, num_classes=classes)
    at = scale * np.random.default_rng(seed).standard_normal(4 * classes)
    objective, bound = objective_for(data, Hidden(3, classes)), client_smoothness(objective_for(data, "logistic"))
    for client in range(2):
        spectrum = np.linalg.eigvalsh(dense_hessian(objective, client, at))
        assert spectrum[-1] <= bound[client] * (1 + 1e-12)
        # And the lowest eigenvalue is zero: all classes moved together change nothing.
        assert abs(spectrum[0]) <= 1e-10 * bound[client]


def test_the_smoothness_is_attained_so_no_smaller_one_would_do():
    xs, ys = ragged(sizes=(9, 14), features=3, classes=4)
    data = up.FederatedData.from_arrays(xs, ys, num_classes=4)
    bound = client_smoothness(objective_for(data, "logistic"))
    # Zero weights, biases (t, t, -t, -t): every sample's probabilities tend to (1/2, 1/2, 0, 0).
    at = np.concatenate([np.zeros(12), [40.0, 40.0, -40.0, -40.0]])
    assert client_smoothness(objective_for(data, "logistic"), at) == pytest.approx(bound, rel=1e-8)


@pytest.mark.parametrize("model", ["logistic", "mlp", pytest.param("lstm", marks=pytest.mark.slow)])
def test_power_iteration_finds_the_norm_of_the_dense_hessian(model):
    xs, ys = ragged(sizes=(12, 5), features=3)
    data = up.FederatedData.from_arrays(xs, ys, num_classes=3)
    torch.manual_seed(0)
    made = {"logistic": Hidden(3, 3), "mlp": small_mlp(3)}.get(model)
    if model == "lstm":
        rng = np.random.default_rng(0)
        tokens = [rng.integers(0, 5, (6, 3)) for _ in range(2)]
        data = up.FederatedData.from_arrays(tokens, [[0, 1, 0, 1, 1, 0]] * 2)
        made = up.models.lstm(2, vocabulary=5, embedding=2, hidden=2, dropout=0.5)
    objective = objective_for(data, made)
    at = flatten(objective.module).astype(np.float64)
    spectra = [np.linalg.eigvalsh(dense_hessian(objective, i, at)) for i in range(data.num_clients)]
    norms = [np.abs(one).max() for one in spectra]
    assert client_smoothness(objective, at) == pytest.approx(norms, rel=1e-5)
    assert up.theory.estimate_smoothness(data, made, at) == pytest.approx(max(norms), rel=1e-5)


def test_power_iteration_is_not_misled_by_eigenvalues_of_opposite_sign():
    from upcycled.theory import _norm

    matrix = np.diag([2.0, -2.0, 0.5])
    assert _norm(lambda v: matrix @ v, 3) == pytest.approx(2.0, rel=1e-9)
    assert _norm(lambda v: 0 * v, 3) == 0.0


def hand_made(gradients, sizes):
    """Clients whose gradients at zero are known: one feature x, p = 1/2, gradient of the weights (+-x/2, -+x/2)."""
    xs = [np.full((n, 1), 2 * value) for value, n in zip(gradients, sizes, strict=True)]
    return up.FederatedData.from_arrays(xs, [np.zeros(n, dtype=int) for n in sizes], num_classes=2)


def test_dissimilarity_of_hand_derived_clients():
    # No bias, zero weights: grad F_i = (-v_i, v_i) with v = (1, 3). Sizes 3 and 1: p = (3/4, 1/4).
    data, model = hand_made((1.0, 3.0), (3, 1)), nn.Linear(1, 2, bias=False)
    by_samples = math.sqrt((3 / 4 * 1 + 1 / 4 * 9) / (3 / 4 * 1 + 1 / 4 * 3) ** 2)
    equally = math.sqrt((1 / 2 * 1 + 1 / 2 * 9) / 2**2)
    assert up.theory.estimate_dissimilarity(data, model, np.zeros(2)) == pytest.approx(by_samples, rel=1e-14)
    found = up.theory.estimate_dissimilarity(data, model, np.zeros(2), weights="equal")
    assert found == pytest.approx(equally, rel=1e-14)


def test_dissimilarity_where_f_is_stationary_is_infinite_or_one():
    model = nn.Linear(1, 2, bias=False)
    disagreeing = hand_made((1.0, -1.0), (2, 2))
    assert up.theory.estimate_dissimilarity(disagreeing, model, np.zeros(2)) == math.inf
    agreeing = hand_made((0.0, 0.0), (2, 3))
    assert up.theory.estimate_dissimilarity(agreeing, model, np.zeros(2)) == 1.0


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from(["samples", "equal"]))
def test_dissimilarity_is_at_least_one_and_grows_with_the_divergence_of_gradients(seed, weights):
    xs, ys = ragged(seed=seed)
    data = up.FederatedData.from_arrays(xs, ys, num_classes=3)
    at = np.random.default_rng(seed).standard_normal(18)
    found = up.theory.estimate_dissimilarity(data, "logistic", at, weights=weights)
    objective = objective_for(data, "logistic")
    shares = data.sizes / data.sizes.sum() if weights == "samples" else np.full(4, 0.25)
    gradients = np.array([objective.client(i, at)[1] for i in range(4)])
    mean = shares @ gradients
    divergence = math.sqrt(shares @ ((gradients - mean) ** 2).sum(axis=1))
    assert found >= 1
    # E||grad F_i||^2 = ||grad f||^2 + E||grad F_i - grad f||^2.
    assert found == pytest.approx(math.hypot(1, divergence / np.linalg.norm(mean)), rel=1e-9)


def test_dissimilarity_along_a_run_is_one_number_per_point(federation):
    first = up.train(federation, algorithm=up.FedProx(), iterations=1, progress=False, engine="sequential").params
    second = up.train(federation, algorithm=up.FedProx(), iterations=3, progress=False, engine="sequential").params
    both = up.theory.estimate_dissimilarity(federation, "logistic", torch.stack([first, second]))
    alone = [up.theory.estimate_dissimilarity(federation, "logistic", one) for one in (first, second)]
    assert both.tolist() == alone


def test_the_user_s_module_is_left_alone(federation):
    module = small_mlp().train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    up.theory.estimate_dissimilarity(federation, module, np.zeros(39))
    assert module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert next(module.parameters()).dtype == torch.float32


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda data: up.theory.estimate_smoothness(data, "mlp"), r"model.*'mlp'.*'logistic'"),
        (lambda data: up.theory.estimate_smoothness(data, small_mlp()), r"params.*missing"),
        (lambda data: up.theory.estimate_dissimilarity(data, "logistic", np.zeros(7)), r"model.*18 parameters"),
        (
            lambda data: up.theory.estimate_dissimilarity(data, "logistic", np.full(18, np.nan)),
            "not finite numbers",
        ),
        (
            lambda data: up.theory.estimate_dissimilarity(data, "logistic", np.zeros(18), weights="sample"),
            r"did you mean 'samples'\?",
        ),
    ],
)
def test_bad_input_is_answered_by_one_sentence(federation, call, words):
    with pytest.raises(up.InputError) as error:
        call(federation)
    assert re.search(words, str(error.value))
    assert "\n" not in str(error.value)
