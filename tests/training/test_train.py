from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import nn

import upcycled as up
from tests.conftest import ragged
from tests.wording import has_all

QUICK = {"iterations": 3, "engine": "sequential", "progress": False}


def test_params_are_the_trainable_parameters_row_major_in_named_order(federation):
    result = up.train(federation, algorithm=up.FedAvg(), **QUICK)
    weight, bias = result.model.weight.detach(), result.model.bias.detach()
    assert torch.equal(result.params, torch.cat([weight.reshape(-1), bias]))
    assert result.params.dtype == torch.float32


def test_a_users_module_starts_from_its_own_weights(federation):
    module = nn.Linear(5, 3)
    with torch.no_grad():
        module.weight.fill_(0.25)
        module.bias.zero_()
    tiny = up.LocalSGD(lr=1e-12, epochs=1, batch_size=None)
    result = up.train(federation, algorithm=up.FedAvg(), model=module, local=tiny, **QUICK)
    assert torch.allclose(result.model.weight, torch.full((3, 5), 0.25))


def test_named_models_start_from_weights_that_the_seed_fixes(federation):
    tiny = up.LocalSGD(lr=1e-12, epochs=1, batch_size=None)
    a, b, c = (up.train(federation, algorithm=up.FedAvg(), local=tiny, seed=s, **QUICK).params for s in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.allclose(a, c)
    # PyTorch's default for 5 inputs: uniform within 1/sqrt(5) = 0.447.
    assert 0.2 < a.abs().max() <= 0.4473


def test_accuracy_and_loss_are_those_of_the_returned_model(federation):
    result = up.train(federation, algorithm=up.FedProx(mu=0.1), **QUICK)
    logits = result.model(torch.from_numpy(federation.test.x))
    labels = torch.from_numpy(federation.test.y)
    assert result.accuracy == pytest.approx((logits.argmax(1) == labels).float().mean().item())
    assert result.loss == pytest.approx(nn.functional.cross_entropy(logits, labels).item(), rel=1e-5)


def test_without_test_data_there_are_no_scores():
    xs, ys = ragged()
    result = up.train(up.FederatedData.from_arrays(xs, ys, num_classes=3), algorithm=up.FedAvg(), **QUICK)
    assert [r.accuracy for r in result.history] == [None, None, None]
    assert result.accuracy is None


def test_eval_every_scores_every_so_many_iterations_and_the_last(federation):
    result = up.train(federation, algorithm=up.FedAvg(), eval_every=3, **(QUICK | {"iterations": 7}))
    assert [r.iteration for r in result.history if r.accuracy is not None] == [3, 6, 7]


def test_personal_models_are_scored_on_their_own_clients_and_others_use_the_global_one(federation):
    result = up.train(
        federation,
        algorithm=up.PFedMe(lam=1.0),
        local=up.LocalSGD(lr=0.2, epochs=5, batch_size=8),
        participation=0.5,
        **(QUICK | {"iterations": 1}),
    )
    trained = result.history[0].clients.tolist()
    assert sorted(result.personal_models) == trained
    assert len(trained) == 2
    right = total = 0
    for client in range(4):
        x, y = federation.test.client(client)
        module = result.personal_models[client] if client in trained else result.model
        right += int((module(torch.from_numpy(x)).argmax(1) == torch.from_numpy(y)).sum())
        total += len(y)
    assert result.history[0].accuracy == pytest.approx(right / total)
    assert result.history[0].global_loss != result.history[0].loss


def test_frozen_parameters_are_neither_trained_nor_counted(federation):
    module = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    module[0].weight.requires_grad_(False)
    frozen = module[0].weight.clone()
    result = up.train(federation, algorithm=up.FedAvg(), model=module, **QUICK)
    assert result.params.numel() == 4 + 12 + 3
    assert torch.equal(result.model[0].weight, frozen)
    assert result.history[0].bytes_up == 4 * 4 * 19


def test_constant_buffers_are_kept(federation):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.tensor(2.0))
            self.linear = nn.Linear(5, 3)

        def forward(self, x):
            return self.linear(x * self.scale)

    result = up.train(federation, algorithm=up.FedAvg(), model=Scaled(), **QUICK)
    assert result.params.numel() == 18
    assert result.model.scale == 2.0


def test_dropout_draws_from_seed_client_and_round_and_changes_the_result(federation):
    def run(p, seed=0):
        torch.manual_seed(5)
        module = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Dropout(p), nn.Linear(16, 3))
        return up.train(federation, algorithm=up.FedAvg(), model=module, seed=seed, **QUICK).params

    torch.manual_seed(1)
    one = run(0.5)
    torch.manual_seed(2)
    assert torch.equal(one, run(0.5))
    assert not torch.equal(one, run(0.5, seed=1))
    assert not torch.equal(one, run(0.0))


def test_an_lstm_learns_from_tokens():
    rng = np.random.default_rng(0)
    xs = [rng.integers(2, 12, (40, 6)) for _ in range(3)]
    ys = [(x < 7).sum(1) > 3 for x in xs]
    data = up.FederatedData.from_arrays(xs, [y.astype(int) for y in ys], num_classes=2).split(0.25)
    options = {"embedding": 8, "hidden": 12}
    result = up.train(
        data,
        model="lstm",
        model_options=options,
        algorithm=up.FedAvg(),
        iterations=12,
        local=up.LocalSGD(lr=0.5, momentum=0.5, epochs=3, batch_size=8),
        engine="sequential",
        progress=False,
    )
    assert result.history[-1].loss < 0.75 * result.history[0].loss


def test_integer_features_are_numbers_for_a_model_without_embedding():
    xs, ys = ragged()
    whole = [np.round(10 * x).astype(np.int64) for x in xs]
    ints = up.FederatedData.from_arrays(whole, ys, num_classes=3)
    floats = up.FederatedData.from_arrays([x.astype(np.float32) for x in whole], ys, num_classes=3)
    one, two = (up.train(d, algorithm=up.FedAvg(), **QUICK) for d in (ints, floats))
    assert torch.equal(one.params, two.params)


def test_an_empty_poisson_cohort_is_drawn_again_and_does_not_count(federation):
    result = up.train(
        federation, algorithm=up.FedAvg(), participation=0.05, sampling="poisson", **(QUICK | {"iterations": 5})
    )
    # Four clients at 5 %: 81 % of the draws are empty, so five rounds in a row at first try have probability 2e-4.
    assert [r.data_round for r in result.history] == [1, 2, 3, 4, 5]
    assert all(r.clients.size >= 1 for r in result.history)


def test_a_client_whose_training_overflows_releases_like_any_other(federation):
    xs, ys = ragged()
    xs[1] = xs[1] * 1e30
    data = up.FederatedData.from_arrays(xs, ys, num_classes=3)
    result = up.train(
        data,
        algorithm=up.FedAvg(),
        privacy=up.privacy.ModelClipping(clip_norm=1.0, noise_std=0.1),
        local=up.LocalSGD(lr=1e5, epochs=5),
        **QUICK,
    )
    assert all(r.clients.size == 4 for r in result.history)
    assert torch.isfinite(result.params).all()


def test_a_diverging_run_stops_with_the_iteration_and_what_to_lower(federation):
    with pytest.raises(up.DivergedError) as error:
        up.train(
            federation,
            # Each step multiplies x - w by |1 - lr mu| = 99, so twenty of them overflow float32 in the first round.
            algorithm=up.FedProx(mu=10.0),
            local=up.LocalSGD(lr=10.0, epochs=20),
            **(QUICK | {"iterations": 50}),
        )
    assert "iteration 1;" in str(error.value)
    assert has_all(str(error.value), "local", "rate")


def test_the_record_of_a_run_is_a_table(federation):
    result = up.train(federation, algorithm=up.FedAvg(), upcycle=0.5, **QUICK)
    frame = result.history.to_frame()
    assert frame["kind"].tolist() == ["data", "upcycled", "data"]
    assert frame["gradient_steps"].tolist() == [sum(-(-n // 32) for n in (23, 7, 41, 12)), 0, 5]
    assert (frame["seconds"] > 0).all()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"data": [1, 2]}, r"data.*FederatedData"),
        ({"algorithm": "fedavg"}, r"algorithm.*'fedavg'.*algorithm.*up\.FedAvg\(\)"),
        ({"algorithm": up.FedAvg}, r"algorithm.*<class"),
        ({"local": {"lr": 0.1}}, r"up\.LocalSGD\(\.\.\.\)"),
        ({"iterations": 0}, r"iterations.*0.*integer >= 1"),
        ({"iterations": 2.5}, r"iterations.*2\.5"),
        ({"eval_every": 0}, r"eval_every.*0"),
        ({"seed": -1}, r"seed.*-1"),
        ({"participation": 0}, r"participation.*0"),
        ({"stragglers": 2}, r"stragglers.*2"),
        ({"stragglers": 0.5, "local": up.LocalSGD(epochs=1)}, r"local\.epochs.*1.*2"),
        ({"sampling": "fix"}, r"did you mean 'fixed'\?"),
        ({"engine": "fussed"}, r"engine.*'fussed'.*did you mean 'fused'\?"),
        ({"upcycle": float("nan")}, r"upcycle.*nan"),
        (
            {"algorithm": up.FedProx(mu=0.5), "upcycle": up.coefficients.Proximal(mu=0.25)},
            r"upcycle\.mu.*0\.25.*0\.5.*fedprox",
        ),
        ({"upcycle": "automatic"}, r"upcycle.*'automatic'.*None, 'auto'"),
        ({"noise": "loud"}, r"noise.*'loud'"),
        ({"progress": 1}, r"progress.*1.*True.*False"),
        ({"checkpoint_every": "often"}, r"checkpoint_every.*'often'.*data rounds"),
        ({"privacy": "clip"}, r"privacy.*'clip'"),
        ({"model": "logistics"}, r"did you mean 'logistic'\?"),
        ({"model": "lstm"}, "integer token ids"),
        ({"model": nn.Linear(5, 2)}, r"labels.*3 classes"),
        ({"model": nn.Linear(4, 3)}, r"model.*samples.*shape \(5,\)"),
        ({"model": nn.Sequential(nn.Linear(5, 3), nn.utils.spectral_norm(nn.Linear(3, 3)))}, r"changes.*training"),
        ({"model": nn.Flatten()}, r"model.*trainable"),
        ({"model": nn.Linear(5, 3).double()}, "model"),
        ({"algorithm": up.PFedMe(), "local": up.LocalSGD(momentum=0.5)}, r"pFedMe.*momentum"),
    ],
)
def test_bad_input_is_answered_by_one_sentence_before_any_work(federation, wrong, words):
    arguments = {"data": federation, "algorithm": up.FedAvg(), "progress": False, "engine": "sequential"} | wrong
    with pytest.raises(up.InputError) as error:
        up.train(**arguments)
    message = str(error.value)
    assert re.search(words, message)
    assert "\n" not in message


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: up.LocalSGD(lr=0), r"LocalSGD \blr\b.*0"),
        (lambda: up.LocalSGD(lr=-0.1), r"LocalSGD \blr\b.*-0\.1.*0"),
        (lambda: up.LocalSGD(momentum=1), r"LocalSGD momentum.*1"),
        (lambda: up.LocalSGD(epochs=0), r"LocalSGD epochs.*0"),
        (lambda: up.LocalSGD(batch_size=0), r"LocalSGD batch_size.*0"),
        (lambda: up.FedProx(mu=-1), r"FedProx \bmu\b.*-1"),
        (lambda: up.FedDyn(alpha=0), r"FedDyn alpha.*0"),
        (lambda: up.FedAvg(server_lr="fast"), r"FedAvg server_lr.*'fast'"),
        (lambda: up.FedAvgM(server_momentum=1.0), r"FedAvgM server_momentum.*1\.0"),
        (lambda: up.PFedMe(lam=float("inf")), "PFedMe lam"),
        (lambda: up.FedYogi(beta1=1.5), r"FedYogi beta1.*1\.5"),
        (lambda: up.privacy.ModelClipping(clip_norm=0, noise_std=1), r"ModelClipping clip_norm.*0"),
    ],
)
def test_a_wrong_hyper_parameter_is_named_where_it_is_made(make, words):
    with pytest.raises(up.InputError) as error:
        make()
    assert re.search(words, str(error.value))


def test_labels_that_are_counted_from_1_are_warned_of_unless_classes_were_given():
    xs, ys = [np.eye(3, dtype=np.float32)] * 2, [np.array([1, 2, 3])] * 2
    few = {"algorithm": up.FedAvg(), "iterations": 1, "progress": False}
    (words,) = up.train(up.FederatedData.from_arrays(xs, ys), **few).notes
    assert words == "no sample is of class 0, the least is 1: take 1 off the labels, or give num_classes"
    assert up.train(up.FederatedData.from_arrays(xs, ys, num_classes=4), **few).notes == ()
    assert up.train(up.FederatedData.from_arrays(xs, [y - 1 for y in ys]), **few).notes == ()
