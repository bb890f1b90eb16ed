"""Losses, optimisers, learning rates and targets in files mean what they mean in Python."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

import upcycled as up
from tests.experiments.small import SMALL
from upcycled.cli.main import main
from upcycled.config.experiment import NOT_COMPARED, flat, load_config, parse
from upcycled.experiments.batch import run_experiment
from upcycled.losses import OBJECTIVES
from upcycled.training.checkpoint.fingerprint import hash_of
from upcycled.training.plan import make_plan

EXAMPLES = Path(__file__).parents[2] / "examples"

CODE = '''
from dataclasses import dataclass

import torch


def quartic(outputs, targets):
    return (outputs - targets) ** 4


@dataclass(frozen=True)
class Power:
    """A loss with an option."""

    p: float = 2.0
    name = "power"
    targets = "numbers"

    def num_outputs(self, targets):
        return targets

    def per_sample(self, outputs, targets):
        return (outputs.squeeze(-1) - targets).abs() ** self.p

    def is_right(self, outputs, targets):
        return None


def adagrad(parameters):
    return torch.optim.Adagrad(parameters, lr=0.1)


@dataclass(frozen=True)
class Adagrad:
    lr: float = 0.1

    def __call__(self, parameters):
        return torch.optim.Adagrad(parameters, lr=self.lr)


def harmonic(m, M):
    return 0.1 / m


@dataclass(frozen=True)
class Harmonic:
    lr: float = 0.1

    def __call__(self, m, M):
        return self.lr / m
'''


@pytest.fixture
def own_work(tmp_path, monkeypatch):
    (tmp_path / "own_work.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield __import__("own_work")
    sys.modules.pop("own_work", None)


def small(**tables):
    return parse(tomllib.loads(SMALL) | tables)


@pytest.mark.parametrize(
    ("said", "loss"),
    [
        ("mse", up.losses.SquaredError()),
        ({"name": "huber", "threshold": 2}, up.losses.Huber(2.0)),
        ({"name": "quantile", "q": 0.9}, up.losses.Quantile(0.9)),
        ({"name": "cross_entropy", "class_weight": [1, 4]}, up.losses.CrossEntropy((1.0, 4.0))),
        ({"name": "cross_entropy", "label_smoothing": 0.1}, up.losses.CrossEntropy(label_smoothing=0.1)),
        *((name, made()) for name, made in OBJECTIVES.items()),
    ],
)
def test_a_loss_is_a_word_or_a_table(said, loss):
    experiment = small(loss=said)
    assert experiment.spec(0).loss == loss
    assert parse(tomllib.loads(experiment.resolved_toml())) == experiment


LOCALS = [
    ({"kind": "sgd", "lr": 0.2, "nesterov": True, "momentum": 0.5}, up.LocalSGD(0.2, 0.5, nesterov=True)),
    ({"kind": "adam", "lr": 0.2, "betas": [0.8, 0.9]}, up.LocalAdam(0.2, (0.8, 0.9))),
    ({"kind": "adam"}, up.LocalAdam()),
    ({"kind": "adamw"}, up.LocalAdamW()),
    ({"kind": "adamw", "weight_decay": 0.5, "batch_size": "full"}, up.LocalAdamW(weight_decay=0.5, batch_size=None)),
    ({"lr": {"kind": "cosine", "lr": 0.4, "warmup": 2}}, up.LocalSGD(up.schedules.Cosine(0.4, warmup=2))),
    ({"kind": "adam", "lr": {"kind": "warmup", "lr": 1, "warmup": 2}}, up.LocalAdam(up.schedules.Warmup(1.0, 2))),
    ({"lr": {"kind": "step", "lr": 0.4, "every": 3}}, up.LocalSGD(up.schedules.StepDecay(0.4, every=3))),
]


@pytest.mark.parametrize(("table", "local"), LOCALS)
def test_an_optimiser_and_its_rate_are_tables(table, local):
    experiment = small(local=table)
    assert experiment.spec(0).local == local
    assert parse(tomllib.loads(experiment.resolved_toml())) == experiment


def test_code_of_ones_own_stands_in_every_place(own_work):
    experiment = small(loss="own_work:quartic", local={"kind": "own_work:adagrad", "epochs": 3, "batch_size": "full"})
    spec = experiment.spec(0)
    assert spec.loss is own_work.quartic
    assert spec.local == up.LocalOptimizer(own_work.adagrad, 3, None)
    assert parse(tomllib.loads(experiment.resolved_toml())).resolved() == experiment.resolved()
    experiment = small(
        loss={"name": "own_work:Power", "p": 1.5}, local={"kind": "own_work:Adagrad", "lr": 0.3, "epochs": 2}
    )
    assert experiment.spec(0).loss == own_work.Power(1.5)
    assert experiment.spec(0).local == up.LocalOptimizer(own_work.Adagrad(0.3), 2)
    assert small(local={"lr": {"kind": "own_work:harmonic"}}).spec(0).local == up.LocalSGD(own_work.harmonic)
    owned = small(local={"lr": {"kind": "own_work:Harmonic", "lr": 0.5}}).spec(0).local
    assert owned == up.LocalSGD(own_work.Harmonic(0.5))


def test_a_default_has_the_same_fingerprint_stated_or_left_out():
    experiment = small()
    assert experiment.fingerprint(0) == small(local=tomllib.loads(SMALL)["local"] | {"kind": "sgd"}).fingerprint(0)
    assert "loss" not in experiment.resolved()


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold", "feddyn", "fednova"])
def test_the_server_learning_rate_keeps_the_fingerprints_of_files_that_could_not_say_it(name):
    default, other = small(algorithm={"name": name}), small(algorithm={"name": name, "server_lr": 1.5})
    keys = {
        key: value
        for key, value in flat(default.for_seed(0).resolved()).items()
        if key not in (*NOT_COMPARED, "device")
    }
    if name != "fedavg":  # FedAvg's files always had it
        keys.pop("algorithm.server_lr")
    assert default.fingerprint(0) == hash_of(keys)
    assert default.fingerprint(0) != other.fingerprint(0)
    assert default.spec(0).fingerprint != other.spec(0).fingerprint


WRONG = [
    ({"loss": "hubr"}, r"loss\.name.*'hubr'.*did you mean 'huber'\?"),
    ({"loss": 3}, r"loss.*3.*loss.*table \[loss\]"),
    ({"loss": {"threshold": 1.0}}, r"loss\.name.*missing.*'cross_entropy'"),
    ({"loss": {"name": "huber", "q": 0.5}}, r"loss\.q.*0\.5.*\[loss\].*'huber'.*key"),
    ({"loss": {"name": "huber", "threshold": 0}}, r"loss\.threshold.*0.*0"),
    ({"loss": {"name": "cross_entropy", "class_weight": [1, 0]}}, r"loss\.class_weight.*0\.0"),
    ({"loss": "math:pi"}, r"loss\.name.*'math:pi'"),
    ({"local": {"kind": "adagrad"}}, r"local\.kind.*'adagrad'"),
    ({"local": {"kind": "adam", "momentum": 0.5}}, r"local\.momentum.*0\.5.*\[local\].*'adam'"),
    ({"local": {"kind": "adam", "betas": [0.9]}}, r"local\.betas.*\[0\.9\]"),
    ({"local": {"lr": {"kind": "cosin", "lr": 1}}}, r"local\.lr\.kind.*'cosin'"),
    ({"local": {"lr": {"lr": 1}}}, r"local\.lr\.kind.*missing.*'cosine', 'step', 'warmup'"),
    ({"local": {"lr": {"kind": "step", "lr": 1, "every": 0}}}, r"local\.lr\.every.*0.*integer >= 1"),
    ({"local": {"lr": "fast"}}, r"local\.lr.*'fast'.*0"),
    ({"sweep": {"local.kind": ["adam"]}}, r"sweep.*local\.kind.*'adam'.*local\.momentum"),
    ({"data": {"source": "csv", "path": "x.csv", "targets": "number"}}, r"data\.targets.*'number'"),
]


@pytest.mark.parametrize(("tables", "words"), WRONG)
def test_what_is_wrong_is_said_in_one_sentence(tables, words):
    base = tomllib.loads(SMALL)
    base["local"] |= {"momentum": 0.5}
    with pytest.raises(up.InputError) as raised:
        parse(base | tables)
    assert re.search(words, str(raised.value))
    assert "\n" not in str(raised.value)


def test_the_regression_file_is_the_call_in_python():
    experiment = load_config(EXAMPLES / "regression.toml", ["iterations=6"])
    data = up.data.load(
        EXAMPLES / "clinics.csv",
        client="clinic",
        features=["age", "weight", "marker"],
        label="dose",
        targets="numbers",
        test_fraction=0.2,
    ).with_validation(0.1)
    local = up.LocalAdamW(lr=up.schedules.Cosine(0.05, warmup=2), epochs=2, batch_size=8)
    asked = {"algorithm": up.FedAvg(), "loss": up.losses.Huber(1.0), "local": local, "upcycle": 0.3, "iterations": 6}
    by_hand = up.train(data, **asked, engine="sequential", progress=False)
    by_file = up.train(experiment.build_data(), experiment.spec(0).replace(engine="sequential", progress=False))
    assert torch.equal(by_hand.params, by_file.params)
    assert by_hand.loss == by_file.loss


def test_several_label_columns_are_several_numbers(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("client,x,a,b,split\nann,1,0,1.5,train\nann,2,1,2.5,test\nbob,3,1,3.5,train\n")
    data = up.data.load(table, label=["a", "b"], targets="numbers", split="split")
    assert data.train.y.tolist() == [[0.0, 1.5], [1.0, 3.5]]
    assert data.test.y.tolist() == [[1.0, 2.5]]
    assert data.feature_names == ("x",)
    assert data.facts().has_vectors
    assert data.facts().classes == 2
    assert up.data.load(table, label=["a"], targets="labels", features=["x"]).train.y.shape == (3, 1)
    assert up.data.load(table, label="b", targets="numbers", features=["x"]).train.y.tolist() == [1.5, 2.5, 3.5]
    for wrong, words in (
        ({"label": ["a", "b"]}, "label is ['a', 'b'], but it must be one column, unless targets are numbers or labels"),
        ({"label": ["a", "a"], "targets": "numbers"}, "but it must be a column, or a list of one or more different"),
        ({"label": ["a", "c"], "targets": "numbers"}, "label is 'c', but the file has no such column"),
        ({"label": "b", "targets": "labels"}, "must be 0 or 1"),
        ({"label": "split", "targets": "numbers"}, "has 'train' in label column 'split' at row 0 (counted from 0)"),
        ({"label": "b", "targets": "numbers", "num_classes": 3}, "num_classes is 3, but it must be left out: targets"),
        ({"label": "a", "targets": "number"}, "targets"),
    ):
        with pytest.raises(up.InputError, match=r".") as raised:
            up.data.load(table, **({"features": ["x"]} | wrong))
        assert words in str(raised.value)


@pytest.mark.parametrize("targets", ["numbers", "labels"])
def test_an_npz_knows_what_its_targets_are(tmp_path, targets):
    y = [[[0, 1], [1, 1]], [[1, 0]]]
    data = up.FederatedData.from_arrays([[[1.0], [2.0]], [[3.0]]], y, targets=targets)
    up.data.save(data, tmp_path / "set.npz")
    back = up.data.load(tmp_path / "set.npz")
    assert (back.targets, back.num_classes, back.inferred) == (targets, 2, frozenset())
    assert np.array_equal(back.train.y, data.train.y)
    assert up.data.load(tmp_path / "set.npz", targets="numbers").targets == "numbers"
    with pytest.raises(up.InputError, match=r"label.*sample"):
        up.data.load(tmp_path / "set.npz", targets="classes")


def test_numbers_are_described_without_classes(tmp_path):
    data = up.FederatedData.from_arrays([[[1.0], [2.0]]], [[[0.5, 1], [2, 3]]], targets="numbers")
    assert ("one target", "2 numbers") in data.describe().rows()
    assert data.describe().label_skew is None


def test_kinds_are_swept_and_ranked_by_loss_where_there_is_no_accuracy(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["iterations=4", "seeds=[0]", "sweep={'local.kind' = ['adam', 'adamw'], 'local.lr' = [0.01, 0.1]}"]
    assert main(["sweep", str(EXAMPLES / "regression.toml"), *words, "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    losses = [row["loss"]["mean"] for row in found["ranking"]]
    assert losses == sorted(losses)
    assert len(set(losses)) == 4
    assert "Ranked by mean loss (lower is better) on validation samples" in found["notes"][0]
    assert main(["report", "results/regression"]) == 0
    swept = ["sweep={'loss' = ['mse', 'mae']}", "loss=mse"]
    assert main(["sweep", str(EXAMPLES / "regression.toml"), *swept, "--quiet"]) == 2
    assert 'sweep."loss" is swept, but targets that are no classes have no accuracy' in capsys.readouterr().err


def test_a_comparison_without_accuracies_judges_by_the_loss(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["iterations=4", "seeds=[0, 1]", "--json", "--quiet"]
    assert main(["compare", str(EXAMPLES / "regression.toml"), *words]) == 0
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert row["verdict"] in ("significant gain", "significant loss", "no significant difference")
    assert row["vanilla"]["loss"]["mean"] > 0


def test_a_plan_of_a_swept_kind_has_that_kinds_defaults():
    base = tomllib.loads(SMALL) | {"local": {"epochs": 2}, "sweep": {"local.kind": ["sgd", "adam"]}}
    experiment = parse(base)
    assert parse(tomllib.loads(experiment.resolved_toml())) == experiment
    plan = make_plan(experiment.build_data(), parse(base | {"local": {"epochs": 2, "kind": "adam"}}).spec(0))
    assert plan.solver == up.LocalAdam(epochs=2)


def test_balanced_weights_are_those_that_one_would_write():
    """Class 0 has 3 of 4 samples: weights 4 / (2 * 3) and 4 / (2 * 1)."""
    xs = [np.eye(3, 2, dtype=np.float32), np.ones((1, 2), dtype=np.float32)]
    data = up.FederatedData.from_arrays(xs, [[0, 0, 1], [0]], test=(xs, [[0, 0, 1], [0]]), num_classes=2)
    for name in ("cross_entropy", "binary_cross_entropy"):
        asked = {"algorithm": up.FedAvg(), "engine": "sequential", "iterations": 3, "progress": False}
        made = OBJECTIVES[name]
        found = up.train(data, loss=made("balanced"), **asked)
        by_hand = up.train(data, loss=made([4 / 6, 2.0]), **asked)
        assert torch.equal(found.params, by_hand.params)
        assert found.loss == by_hand.loss
        assert not torch.equal(found.params, up.train(data, loss=name, **asked).params)


def test_balanced_weights_are_refused_where_they_would_tell_of_labels():
    data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    loss, privacy = up.losses.CrossEntropy("balanced"), up.privacy.ModelClipping(1.0, 4.0)
    asked = {"algorithm": up.FedAvg(), "loss": loss, "privacy": privacy, "iterations": 2, "progress": False}
    with pytest.raises(up.InputError, match=r"^loss.class_weight.*'balanced'.*counts.*labels"):
        up.train(data, **asked, noise="system")
    simulated = up.train(data, **asked)
    words = dict(simulated.privacy.statement_items(1e-5))
    assert "the weights of classes may be known" in words["the user's word"]
    public = up.data.synthetic("iid", clients=4, sizes=40, seed=0, public=True)
    assert up.train(public, **asked, noise="system").accuracy is not None
    counted = up.FederatedData.from_arrays([[[1.0]], [[2.0]]], [[0], [2]])
    with pytest.raises(up.InputError, match=r"training sample.*class 1"):
        up.train(counted, **(asked | {"privacy": None}))
    with pytest.raises(up.InputError, match="training data"):
        loss.per_sample(torch.zeros(1, 2), torch.tensor([0]))
    with pytest.raises(up.InputError, match=r"0.*class.*'balanced'"):
        up.losses.CrossEntropy("balance")


def test_a_file_with_balanced_weights_runs_and_scores_its_clients(tmp_path):
    words = ["iterations=2", "seeds=[0]", "loss.class_weight=balanced", f"results='{tmp_path}'", "engine=sequential"]
    experiment = load_config(EXAMPLES / "binary.toml", words)
    assert run_experiment(experiment, "binary.toml").is_complete
    rows = [json.loads(line) for line in (tmp_path / "binary/seed-0/clients.jsonl").read_text().splitlines()]
    sizes, losses = (np.array([row[key] for row in rows]) for key in ("test_samples", "loss"))
    summary = json.loads((tmp_path / "binary/seed-0/summary.json").read_text())
    assert (sizes @ losses) / sizes.sum() == pytest.approx(summary["loss"], rel=1e-6)
