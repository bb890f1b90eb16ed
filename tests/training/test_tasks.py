"""Losses, optimisers and targets, as a user asks for them."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import upcycled as up

QUIET = {"progress": False, "iterations": 6, "algorithm": up.FedProx(mu=0.1), "upcycle": 0.3}
LOCAL = up.LocalSGD(lr=0.05, epochs=2, batch_size=8)
SIZES = (23, 7, 41, 12)


def clients(make, seed=0):
    rng = np.random.default_rng(seed)
    xs = [rng.normal(size=(n, 5)).astype(np.float32) for n in SIZES]
    return xs, [make(x, rng) for x in xs]


def numbers():
    return clients(lambda x, rng: x @ np.array([1.0, -2.0, 0.5, 0.0, 3.0]) + rng.normal(0, 0.1, len(x)))


def federation(make_targets, targets, **changes):
    xs, ys = make_targets()
    return up.FederatedData.from_arrays(xs, ys, test=(xs, ys), targets=targets, **changes)


def squared(outputs, targets):
    return (outputs - targets) ** 2


@pytest.mark.parametrize("loss", ["mse", "mae", "huber", "quantile", squared])
def test_a_regression_gets_close_and_every_engine_that_takes_it_agrees(loss):
    data = federation(numbers, "numbers")
    found = {}
    for engine in ("sequential", "vectorised", "fused"):
        if engine == "fused" and loss not in ("mse", "huber"):
            with pytest.raises(up.InputError, match="Huber loss"):
                up.train(data, loss=loss, engine=engine, local=LOCAL, **QUIET)
            continue
        result = up.train(data, loss=loss, engine=engine, local=LOCAL, **(QUIET | {"iterations": 20}))
        assert result.accuracy is None
        assert result.loss < {"mse": 0.6}.get(loss if isinstance(loss, str) else "mse", 0.6)
        found[engine] = result.params
    for params in found.values():
        torch.testing.assert_close(params, found["sequential"], atol=1e-4, rtol=1e-4)


def test_whole_numbers_are_numbers_where_the_loss_says_so():
    xs, ys = clients(lambda x, rng: rng.integers(0, 9, len(x)))
    data = up.FederatedData.from_arrays(xs, ys)
    assert data.targets == "classes"
    asked = {"loss": "poisson", "local": LOCAL, "engine": "sequential", **QUIET}
    as_numbers = up.train(federation(lambda: (xs, ys), "numbers"), **asked)
    assert torch.equal(up.train(data, **asked).params, as_numbers.params)
    assert as_numbers.params.numel() == 6


def test_two_classes_on_one_logit_answer_by_its_sign():
    xs, ys = clients(lambda x, rng: (x[:, 0] > 0).astype(int))
    data = up.FederatedData.from_arrays(xs, ys, test=(xs, ys))
    result = up.train(data, loss="binary_cross_entropy", local=up.LocalAdamW(lr=0.05, epochs=3), **QUIET)
    assert result.params.numel() == 6
    logits = result.model(torch.from_numpy(np.concatenate(xs))).detach().numpy()[:, 0]
    assert result.accuracy == pytest.approx(np.mean((logits > 0) == np.concatenate(ys)))
    assert result.accuracy > 0.8


def test_several_labels_have_a_logit_each():
    xs, ys = clients(lambda x, rng: (x[:, :3] > 0).astype(np.float32))
    data = up.FederatedData.from_arrays(xs, ys, test=(xs, ys), targets="labels")
    result = up.train(data, local=up.LocalSGD(lr=0.5, epochs=3), **(QUIET | {"iterations": 20}))
    assert result.settings["loss"] is None  # the usual one for such targets
    assert result.params.numel() == 18
    assert result.loss < 0.35


def test_a_schedule_is_over_data_rounds_and_upcycled_iterations_do_not_count():
    seen = []

    def spied(round, rounds):
        seen.append((round, rounds))
        return 0.1 / round

    data = up.data.synthetic("iid", clients=3, sizes=20, seed=0)
    up.train(data, local=up.LocalSGD(lr=spied, epochs=1), engine="sequential", **QUIET)
    assert sorted(set(seen)) == [(1, 3), (2, 3), (3, 3)]


def test_scaffold_divides_by_the_rate_of_the_round():
    data = up.data.synthetic(0.5, 0.5, clients=4, sizes=30, seed=0)
    asked = {"algorithm": up.Scaffold(), "iterations": 4, "progress": False, "engine": "sequential"}
    halves = up.train(data, local=up.LocalSGD(lr=up.schedules.StepDecay(0.2, every=9)), **asked)
    plain = up.train(data, local=up.LocalSGD(lr=0.2), **asked)
    assert torch.equal(halves.params, plain.params)
    falling = up.train(data, local=up.LocalSGD(lr=lambda m, rounds: 0.2 / m), **asked)
    assert not torch.equal(falling.params, plain.params)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"loss": "hinge"}, r"loss.*'hinge'"),
        ({"loss": 3}, r"loss.*3.*cross_entropy"),
        ({"loss": "multilabel"}, r"several labels.*0.*1.*sample.*data.*class labels"),
        ({"loss": "binary_cross_entropy"}, r"2 classes.*3"),
        ({"loss": functional.cross_entropy}, r"loss.*sample"),
        ({"loss": up.losses.CrossEntropy(class_weight=[1, 2])}, r"class_weight.*3"),
        ({"loss": "mse", "model": nn.Linear(5, 4)}, r"outputs.*shape .4,..*sample.*target.*shape"),
        ({"algorithm": up.Scaffold(), "local": up.LocalAdam()}, r"up.LocalSGD.*max_grad_norm.*Scaffold"),
        ({"algorithm": up.PFedMe(), "local": up.LocalSGD(weight_decay=0.1)}, r"PFedMe.*steps"),
        ({"privacy": up.privacy.DPSGD(1.0, 1.0), "local": up.LocalAdamW()}, r"DPSGD.*steps.*SGD"),
        ({"privacy": up.privacy.ErmOutput(1.0, noise_std=1.0), "loss": "mse"}, "linear model"),
        ({"local": up.LocalOptimizer(lambda p: None), "engine": "sequential"}, r"return.*optimiser"),
        ({"local": up.LocalSGD(lr=lambda m, rounds: 1.0 - m), "engine": "sequential"}, r"data round 1.*3"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value[:24],
)
def test_what_does_not_fit_together_is_one_sentence(arguments, words):
    xs, ys = clients(lambda x, rng: rng.integers(0, 3, len(x)))
    data = up.FederatedData.from_arrays(xs, ys, num_classes=3)
    with pytest.raises(up.InputError, match=words):
        up.train(data, **(QUIET | arguments))


@pytest.mark.parametrize(
    ("ys", "options", "words"),
    [
        ([[0.5, 1.0]], {}, r"labels.*0.*.or targets='numbers'"),
        ([[0.5, np.nan]], {"targets": "numbers"}, r"nan.*row 1.*targets.*float32"),
        ([[[0, 2], [1, 0]]], {"targets": "labels"}, r"targets.*0.*1"),
        ([[0.5, 1.0]], {"targets": "number"}, r"targets.*'number'.*did you mean 'numbers'"),
        ([[0.5, 1.0]], {"targets": "numbers", "num_classes": 2}, r"num_classes.*2"),
        ([[[0.5], [1.0]]], {}, r"label.*sample"),
    ],
)
def test_targets_that_are_none_are_refused(ys, options, words):
    with pytest.raises(up.InputError, match=words):
        up.FederatedData.from_arrays([np.zeros((2, 3))], ys, **options)


def test_repaired_numbers_are_finite_and_noted():
    data = up.FederatedData.from_arrays([np.zeros((2, 3))], [[0.5, np.inf]], targets="numbers", repair=True)
    assert data.train.y.tolist() == [0.5, 0.0]
    assert "1 targets that are not a finite float32 count as 0" in data.notes[0]


@pytest.mark.parametrize(
    "privacy",
    [
        up.privacy.ErmOutput(1.0, noise_std=0.01),
        up.privacy.ObjectivePerturbation(20.0, norm_bound=1.0),
        up.privacy.BoltOnSGD(1.0, noise_std=0.01),
    ],
    ids=lambda mechanism: mechanism.name,
)
@pytest.mark.parametrize("engine", ["sequential", "fused"])
def test_a_model_trained_on_projected_features_is_scored_and_used_on_such(privacy, engine):
    """Features of about 700 and 0.1, which training never saw: the second decides, and only its direction is left."""
    rng = np.random.default_rng(0)
    xs = [np.stack([rng.normal(0, 700, 60), rng.normal(0, 300, 60)], axis=1).astype(np.float32) for _ in range(3)]
    ys = [(x[:, 1] > 0).astype(int) for x in xs]
    data = up.FederatedData.from_arrays(xs, ys, test=(xs, ys))
    local = None if privacy.name != "bolt_on_sgd" else up.LocalSGD(lr=0.2, epochs=5, batch_size=10)
    asked = {"algorithm": up.FedProx(mu=0.5), "privacy": privacy, "engine": engine, "local": local}
    result = up.train(data, **asked, iterations=20, progress=False)
    raw, labels = torch.from_numpy(np.concatenate(xs)), torch.from_numpy(np.concatenate(ys))
    with torch.no_grad():
        logits = result.model(raw)
        ways = raw / raw.norm(dim=1, keepdim=True)
        by_hand = ways @ result.params[:4].reshape(2, 2).T + result.params[4:]
    torch.testing.assert_close(logits, by_hand, atol=1e-5, rtol=1e-5)
    assert result.accuracy == pytest.approx(float((logits.argmax(1) == labels).double().mean()))
    assert result.loss == pytest.approx(float(functional.cross_entropy(logits.double(), labels)), rel=1e-5)
    if privacy.name != "objective_perturbation":
        assert result.accuracy > 0.9
