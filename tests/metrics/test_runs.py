"""Metrics of runs: engines, records, personal models, files, comparisons, sweeps; what private runs show of them."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from sklearn import metrics as theirs

import upcycled as up
from tests.experiments.small import small_file
from tests.wording import has_all
from upcycled._utils.statistics import Paired
from upcycled.cli.main import main
from upcycled.config.experiment import load_config
from upcycled.engines.fused import FUSED
from upcycled.engines.sequential import SEQUENTIAL
from upcycled.engines.vectorised import open_vectorised
from upcycled.experiments.batch import Options, run_experiment
from upcycled.experiments.compare import compare_experiment
from upcycled.experiments.evaluation import calibration, roc
from upcycled.trackers import numbers_of
from upcycled.training import comparison as comparison_module
from upcycled.training.plan import make_plan
from upcycled.training.progress import shown_metrics

ARGUMENTS = {"algorithm": up.FedAvg(), "iterations": 4, "progress": False}
SLOWLY = {"algorithm": up.FedAvg(), "engine": "sequential"}
"""Without kernels, which take longer to compile than the runs last."""


def federation(classes=3, clients=4, rows=30, targets="classes"):
    rng = np.random.default_rng(1)
    weights = rng.normal(size=(5, classes))
    parts = []
    for _ in range(2):
        xs = [rng.normal(size=(rows + i, 5)).astype(np.float32) for i in range(clients)]
        if targets == "classes":
            ys = [(x @ weights + rng.normal(size=(len(x), classes))).argmax(axis=1) for x in xs]
        elif targets == "labels":
            ys = [(x @ weights > 0).astype(np.float32) for x in xs]
        else:
            ys = [(x @ weights[:, 0] + 1).astype(np.float32) for x in xs]
        parts.append((xs, ys))
    return up.FederatedData.from_arrays(*parts[0], test=parts[1], targets=targets)


DATA = federation()


WAYS = {
    "sequential": SEQUENTIAL.open,
    "fused": FUSED.open,
    "stacked": lambda task, threads: open_vectorised(task, threads, "stacked"),
    "workers": lambda task, threads: open_vectorised(task, threads, "workers"),
}


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_engines_agree_on_outputs_and_the_reference_gives_the_modules_own(model):
    spec = up.RunSpec(algorithm=up.PFedMe(), model=model, iterations=2, progress=False, engine="sequential")
    initial = make_plan(DATA, spec).initial
    flat = initial + 0.1 * np.random.default_rng(2).normal(size=initial.size).astype(np.float32)
    found, personal = {}, {}
    for name, opened in WAYS.items():
        engine = opened(make_plan(DATA, spec).task, 1)
        found[name] = engine.outputs(flat)
        personal[name] = engine.outputs_personal(flat, np.array([2, 0]), np.stack([2 * flat, 0 * flat]))
        assert engine.score(flat).accuracy == pytest.approx((found[name].argmax(1) == DATA.test.y).mean())
        engine.close()
    assert found["sequential"].shape == (DATA.test.num_rows, 3)
    assert found["sequential"].dtype == np.float32
    module = make_plan(DATA, spec).module
    for name, models in (("global", [flat] * 4), ("personal", [0 * flat, flat, 2 * flat, flat])):
        for client, own in enumerate(models):
            torch.nn.utils.vector_to_parameters(torch.from_numpy(own), module.parameters())
            with torch.no_grad():
                expected = module(torch.from_numpy(DATA.test.client(client)[0])).numpy()
            rows = slice(*DATA.test.offsets[client : client + 2])
            for way in WAYS:
                outputs = (found if name == "global" else personal)[way]
                np.testing.assert_allclose(outputs[rows], expected, rtol=1e-5, atol=1e-5)


def test_records_have_the_metrics_of_evaluated_iterations_and_the_result_the_last_ones():
    asked = ["auroc", "f1_macro", "accuracy"]
    run = up.train(DATA, **ARGUMENTS, eval_every=3, metrics=asked)
    assert [set(record.metrics) for record in run.history] == [set(), set(), set(asked), set(asked)]
    with torch.no_grad():
        p = run.model(torch.from_numpy(DATA.test.x)).double().softmax(1).numpy()
    assert run.metrics["auroc"] == pytest.approx(theirs.roc_auc_score(DATA.test.y, p, multi_class="ovr"))
    assert run.metrics["f1_macro"] == pytest.approx(theirs.f1_score(DATA.test.y, p.argmax(1), average="macro"))
    assert run.metrics["accuracy"] == run.accuracy
    assert run.history.column("auroc") == [None, None, run.history[2].metrics["auroc"], run.metrics["auroc"]]
    assert list(run.metrics) == asked
    assert numbers_of(run.history[-1])["auroc"] == run.metrics["auroc"]
    plain = up.train(DATA, **ARGUMENTS, eval_every=3)
    assert torch.equal(plain.params, run.params)
    assert plain.metrics == {}


def test_personal_models_have_the_name_and_the_global_one_a_prefix():
    personal = {"algorithm": up.PFedMe(), "local": up.LocalSGD(lr=0.1, epochs=5)}
    run = up.train(DATA, **ARGUMENTS | personal, metrics=["accuracy", "auroc"])
    assert run.accuracy != run.history[-1].global_accuracy
    assert run.metrics["accuracy"] == run.accuracy
    assert run.metrics["global_accuracy"] == run.history[-1].global_accuracy
    assert list(run.metrics) == ["accuracy", "auroc", "global_accuracy", "global_auroc"]


def test_labels_numbers_and_projected_features_are_scored_as_the_result_predicts():
    labels = up.train(
        federation(targets="labels"), **ARGUMENTS | SLOWLY, local=up.LocalSGD(lr=5.0), metrics=["auroc", "f1_micro"]
    )
    assert 0.5 < labels.metrics["auroc"] <= 1
    data = federation(targets="numbers")
    numbers = up.train(data, **ARGUMENTS | SLOWLY, metrics={"error": lambda y, z: float(np.square(y - z).mean())})
    assert numbers.metrics["error"] == pytest.approx(numbers.loss, rel=1e-5)
    private = up.privacy.ErmOutput(norm_bound=1.0, epsilon=10.0, delta=1e-3, prox_mu=0.1)
    run = up.train(DATA, **ARGUMENTS, privacy=private, metrics=["log_loss"])
    assert run.metrics["log_loss"] == pytest.approx(run.loss, rel=1e-5)


def test_what_does_not_fit_is_refused_before_anything_is_trained():
    with pytest.raises(up.InputError, match=r"metrics.*'sensitivity'"):
        up.train(DATA, **ARGUMENTS, metrics=["sensitivity"])
    with pytest.raises(up.InputError, match=r"records.*another"):
        up.RunSpec(algorithm=up.FedAvg(), metrics={"loss": len})
    with pytest.raises(up.InputError, match=r"metrics.*samples"):
        up.train(up.FederatedData.from_arrays(*_clients(DATA.train)), **ARGUMENTS, metrics=["auroc"])


def test_a_missing_package_is_named_and_own_functions_need_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(up.InputError, match=r"metrics.*'\.\[metrics\]'"):
        up.train(DATA, **ARGUMENTS, metrics=["auroc"])
    assert up.train(DATA, **ARGUMENTS, metrics={"rows": lambda y, p: len(y)}).metrics["rows"] == DATA.test.num_rows


# What private runs show.

REAL = {"privacy": up.privacy.UpdateClipping(1.0, 0.5), "noise": "system"}


def declared(data):
    return up.FederatedData.from_arrays(*(_clients(data.train)), test=_clients(data.test), num_classes=3, repair=True)


def _clients(shards):
    parts = [shards.client(i) for i in range(shards.num_clients)]
    return [x for x, _ in parts], [y for _, y in parts]


class Claims:
    publishes = ("auroc", "global_auroc", "moved")

    def measure(self, step):
        return {"moved": 1.0}


def test_a_restricted_run_keeps_metrics_to_its_holder_whatever_a_probe_says_of_their_names():
    def fails(targets, predictions):
        raise ValueError("one class only")

    run = up.train(declared(DATA), **ARGUMENTS, **REAL, metrics=["auroc", fails], callbacks=[Claims()])
    assert [dict(record.metrics) for record in run.history] == [{"moved": 1.0}] * 4
    assert run.metrics == {"auroc": None, "fails": None}
    assert run.notes == ()
    assert all(0 <= record.metrics["auroc"] <= 1 for record in run.private.history)
    assert "fails" not in run.private.history[-1].metrics


# Warnings.


def test_the_holder_of_a_restricted_run_hears_that_nothing_was_learnt_and_nobody_else():
    # Whatever the noise: nothing is better than an answer that is always right.
    xs, ys = _clients(DATA.test)
    always = [np.full(len(y), np.bincount(DATA.train.y).argmax()) for y in ys]
    data = up.FederatedData.from_arrays(*_clients(DATA.train), test=(xs, always), num_classes=3, repair=True)
    run = up.train(data, **ARGUMENTS, **REAL)
    assert run.notes == ()
    assert any(words.startswith("the model is no better than the majority class") for words in run.private.notes)


def test_a_model_that_has_learnt_nothing_says_so_and_one_that_has_does_not():
    idle = up.LocalSGD(lr=1e-12)
    (words,) = up.train(DATA, **ARGUMENTS, local=idle).notes
    counts = np.bincount(DATA.train.y)
    share = 100 * (DATA.test.y == counts.argmax()).mean()
    assert words.startswith("the model is no better than the majority class: accuracy ")
    assert words.endswith(f"against {share:.2f} %; try another local.lr, or train longer")
    assert up.train(DATA, **ARGUMENTS, local=up.LocalSGD(lr=0.3)).notes == ()
    # Right more often than the majority class, and lost in its own steps all the same.
    far = up.train(DATA, **ARGUMENTS, local=up.LocalSGD(lr=1e5))
    assert 100 * far.accuracy > share
    assert has_all(far.notes[0], "model", "wrong", "loss")
    assert far.notes[0].endswith(" of the classes' shares; try a smaller local.lr")
    data = federation(targets="numbers")
    (words,) = up.train(data, **ARGUMENTS | SLOWLY, local=idle).notes
    assert words.startswith("the model is no better than the mean of the training targets: loss ")
    assert up.train(data, **ARGUMENTS | SLOWLY, local=up.LocalSGD(lr=0.1)).notes == ()


def test_projected_features_are_warned_of_and_by_a_restricted_run_its_holder_alone(capfd):
    xs, ys = _clients(DATA.train)
    scaled = [x * np.array([1, 1, 1, 1, 1000], dtype=np.float32) for x in xs]
    data = up.FederatedData.from_arrays(scaled, ys, test=(scaled, ys), num_classes=3, repair=True)
    private = up.privacy.ErmOutput(norm_bound=1.0, epsilon=10.0, delta=1e-3, prox_mu=0.1)
    run = up.train(data, **ARGUMENTS | {"progress": True}, privacy=private)
    rows = np.concatenate(scaled)
    share = 100 * (np.linalg.norm(rows, axis=1) > 1).mean()
    sizes = np.sqrt((rows.astype(np.float64) ** 2).mean(axis=0))
    assert has_all(run.notes[0], f"norm_bound 1 scales {share:.0f}", "training samples")
    assert run.notes[1].startswith(f"feature 4 is {sizes[4] / sizes[:4].min():,.0f} times as large as feature ")
    assert f"warning: {run.notes[0]}\n" in capfd.readouterr().err
    restricted = up.train(data, **ARGUMENTS | {"progress": True}, privacy=private, noise="system")
    assert restricted.notes == ()
    assert restricted.private.notes[:2] == run.notes[:2]
    assert "warning" not in capfd.readouterr().err
    small = [0.1 * x / np.linalg.norm(x, axis=1, keepdims=True) for x in xs]
    quiet = up.FederatedData.from_arrays(small, ys, test=(small, ys), num_classes=3)
    assert make_plan(quiet, up.RunSpec(**ARGUMENTS, privacy=private)).warned == ()


# Files and commands.


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small_file(
        tmp_path, ("iterations = 4", 'iterations = 4\nmetrics = ["auroc", "log_loss"]'), ("sizes = 20", "sizes = 60")
    )
    return tmp_path


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_files_have_the_metrics_and_the_final_model(here):
    experiment = load_config("small.toml", ["seeds=[0]"])
    folder = run_experiment(experiment, "small.toml", Options(parquet=True)).seeds[0].folder
    run = up.train(experiment.build_data(), experiment.spec(0), progress=False)
    summary, final = (json.loads((folder / name).read_text()) for name in ("summary.json", "evaluation.json"))
    assert summary["metrics"] == run.metrics
    assert lines(folder / "metrics.jsonl")[-1]["auroc"] == run.metrics["auroc"]
    import pyarrow.parquet

    assert (
        pyarrow.parquet.read_table(folder / "metrics.parquet").column("log_loss")[-1].as_py() == run.metrics["log_loss"]
    )
    data = experiment.build_data()
    with torch.no_grad():
        p = run.model(torch.from_numpy(data.test.x)).double().softmax(1).numpy()
    assert final["confusion"] == theirs.confusion_matrix(data.test.y, p.argmax(1)).tolist()
    assert summary["baseline"] == final["baseline"]
    majority = np.bincount(data.train.y).argmax()
    assert final["baseline"]["accuracy"] == pytest.approx((data.test.y == majority).mean())
    for client, row in enumerate(lines(folder / "clients.jsonl")):
        rows = slice(*data.test.offsets[client : client + 2])
        y = data.test.y[rows]
        assert row["log_loss"] == pytest.approx(theirs.log_loss(y, p[rows], labels=[0, 1]))
        expected = theirs.roc_auc_score(y, p[rows][:, 1]) if len(set(y)) > 1 else None
        assert row["auroc"] == pytest.approx(expected)
    false, true, _ = theirs.roc_curve(data.test.y, p[:, 1], drop_intermediate=False)
    assert final["roc"][0]["false"] == pytest.approx(false.tolist())
    assert final["roc"][0]["true"] == pytest.approx(true.tolist())


def test_curves_have_few_points_and_groups_hold_equal_counts():
    rng = np.random.default_rng(0)
    scores, is_it = rng.random(5000), rng.random(5000) < 0.5
    found = roc(is_it, scores)
    assert len(found["true"]) <= 60
    assert (found["true"][0], found["true"][-1], found["false"][-1]) == (0.0, 1.0, 1.0)
    groups = calibration(np.arange(20.0), np.arange(20.0) + 1, "numbers")
    assert groups["samples"] == [2] * 10
    assert np.subtract(groups["predicted"], groups["observed"]).tolist() == [1.0] * 10


def test_a_comparison_by_a_metric_knows_which_way_is_better(here, capsys):
    experiment = load_config("small.toml", ["seeds=[0, 1, 2]"])
    found = compare_experiment(experiment, "small.toml", metric="log_loss")
    (row,) = found.rows
    data = experiment.build_data()
    expected = []
    for seed in (0, 1, 2):
        spec = experiment.spec(seed)
        vanilla, upcycled = (
            up.train(data, spec.replace(progress=False, **changes)).metrics["log_loss"]
            for changes in ({"upcycle": None, "iterations": 2}, {})
        )
        expected.append(upcycled - vanilla)
    assert row.paired.differences == pytest.approx(expected)
    assert row.paired.lower_is_better
    document = json.loads((found.folder / "compare.json").read_text())
    assert document["judged"] == {"name": "log_loss", "lower_is_better": True}
    assert document["rows"][0]["vanilla"]["score"]["mean"] == pytest.approx(
        np.mean([seed.summary.metrics["log_loss"] for seed in row.vanilla.seeds])
    )
    assert Paired((-0.1, -0.11), 0.9, lower_is_better=True).verdict == "significant gain"
    assert Paired((-0.1, -0.11), 0.9).verdict == "significant loss"
    assert main(["compare", "small.toml", "--metric", "aurok"]) == 2
    assert has_all(capsys.readouterr().err, "--metric", "'aurok'", "did you mean 'auroc'?")


def test_a_sweep_chooses_by_a_metric(here, capsys):
    swept = ["data.validation_fraction=0.3", 'sweep={"local.lr"=[0.0001, 0.1]}', "seeds=[0]"]
    assert main(["sweep", "small.toml", *swept, "--metric", "ece", "--json", "--quiet"]) == 0
    document = json.loads(capsys.readouterr().out)
    ranks = [row["score"]["mean"] for row in document["ranking"]]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == 2
    assert document["judged"] == {"name": "ece", "lower_is_better": True}
    folder = here / "results" / "small" / "sweep" / document["chosen"]["folder"] / "seed-0"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["metrics"]["ece"] == document["chosen"]["test"]["score"]["mean"]


def test_runs_in_one_process_compare_by_a_metric_too(monkeypatch):
    found = up.compare(
        DATA, algorithm=up.FedAvg(), iterations=4, seeds=(0, 1, 2), metrics=["kappa"], metric="kappa", progress=False
    )
    kappas = [np.array([run.metrics["kappa"] for run in runs]) for runs in (found.vanilla, found.upcycled)]
    assert list(found.paired.differences) == pytest.approx((kappas[1] - kappas[0]).tolist())
    assert "vanilla kappa" in str(found)
    with pytest.raises(up.InputError, match=r"metric.*'auroc'.*accuracy, loss"):
        up.compare(DATA, algorithm=up.FedAvg(), metric="auroc")
    # Here, and not in processes of their own, which take longer to start.
    monkeypatch.setattr(comparison_module, "train_many", lambda runs, progress: [up.train(**run) for run in runs])
    numbers = up.compare(federation(targets="numbers"), iterations=4, seeds=(0, 1), progress=True, **SLOWLY)
    assert numbers.metric == "loss"
    assert numbers.paired.lower_is_better


def test_a_file_names_known_metrics_only(here, capsys):
    assert main(["run", "small.toml", 'metrics=["aurok"]']) == 2
    assert "did you mean 'auroc'?" in capsys.readouterr().err
    assert main(["run", "small.toml", 'metrics=["rmse"]']) == 2
    assert has_all(capsys.readouterr().err, "metrics", "'rmse'", "classes")
    again = load_config("small.toml")
    assert "metrics" in again.resolved()
    assert "metrics" not in load_config("small.toml", ["metrics=[]"]).resolved()


def test_a_terminal_has_as_many_columns_as_fit():
    assert shown_metrics(["auroc", "f1_macro"], 75) == []
    assert shown_metrics(["auroc", "f1_macro"], 200) == ["auroc", "f1_macro"]


@pytest.mark.slow
def test_the_page_draws_the_final_model_metrics_and_warnings(here, capsys):
    assert main(["run", "small.toml", "--quiet", "seeds=[0]", "local.lr=1e-9", "clients.participation=1.0"]) == 0
    assert has_all(capsys.readouterr().err, "model", "class")
    assert main(["report", "results/small"]) == 0
    page = (here / "results" / "small" / "report.html").read_text()
    for words in (
        "Test auroc",
        "Confusion",
        "ROC",
        "Calibration",
        "majority class",
        "The runs warn:",
        "log_loss over clients",
    ):
        assert words in page, words
    for damage in ("[]", '{"confusion": [[1], [2, 3]], "roc": 3, "calibration": {"predicted": "x"}}', "{"):
        (here / "results" / "small" / "seed-0" / "evaluation.json").write_text(damage)
        assert main(["report", "results/small"]) == 0
        assert "Confusion" not in (here / "results" / "small" / "report.html").read_text()
