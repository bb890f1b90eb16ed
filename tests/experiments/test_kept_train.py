"""``up.train(..., results=...)`` leaves what ``upcycled run`` leaves."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
import tomli_w
import torch

import upcycled as up
from tests.wording import has_all
from upcycled.cli.main import main
from upcycled.config.experiment import parse
from upcycled.experiments.train import document_of

DATA = {"source": "synthetic", "alpha": 0.5, "beta": 0.5, "clients": 4, "sizes": 30}
FILE = """\
name = "mine"
iterations = 4
engine = "sequential"
[data]
source = "synthetic"
alpha = 0.5
beta = 0.5
clients = 4
sizes = 30
[algorithm]
name = "fedprox"
mu = 0.5
[upcycle]
coefficient = 0.7
"""
SPEC = up.RunSpec(algorithm=up.FedProx(mu=0.5), upcycle=0.7, iterations=4, engine="sequential", progress=False)


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return up.data.synthetic(0.5, 0.5, clients=4, sizes=30)


def inside(folder):
    files = (path for path in Path(folder).rglob("*") if path.is_file() and path.name != ".lock")  # it has the time
    return {path.relative_to(folder).as_posix() for path in files}


def test_the_files_are_those_of_the_command(data):
    result = up.train(data, SPEC, results="python/mine")
    Path("mine.toml").write_text(FILE)
    assert main(["run", "mine.toml", "results=files", "--quiet"]) == 0
    ours, theirs = Path("python/mine/seed-0"), Path("files/mine/seed-0")
    names = {name for name in inside(theirs) if not name.startswith("checkpoint/")}
    assert names == {name for name in inside(ours) if not name.startswith("checkpoint/")}
    for name in ("model.safetensors", "clients.jsonl", "evaluation.json", "model.json"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()
    found, wanted = (json.loads((folder / "summary.json").read_text()) for folder in (ours, theirs))
    assert found.keys() == wanted.keys()
    varying = ("fingerprint", "seconds", "eval_seconds")
    assert {key: found[key] for key in found if key not in varying} == {
        k: wanted[k] for k in wanted if k not in varying
    }
    assert torch.equal(up.load("python/mine").model.state_dict()["weight"], result.model.state_dict()["weight"])
    # The complete file of the run, with a source for its data, is the same experiment.
    config = tomllib.loads((ours / "config.toml").read_text())
    assert config["data"] == {"source": "python", "public": False}
    assert parse(config | {"data": DATA}).spec(0).fingerprint == parse(tomllib.loads(FILE)).spec(0).fingerprint


def test_the_report_sets_runs_of_python_beside_one_another(data):
    for seed in (0, 1):
        up.train(data, SPEC, results="all/upcycled", seed=seed)
        up.train(data, SPEC, results="all/vanilla", seed=seed, upcycle=None)
    assert main(["report", "all"]) == 0
    page = Path("all/report.html").read_text()
    assert "upcycled" in page
    assert "vanilla" in page
    assert "FedProx" in page


def test_asked_for_again_it_is_given_back_and_another_run_is_refused(data):
    first = up.train(data, SPEC, results="r/mine")
    before = {name: Path("r/mine/seed-0", name).read_bytes() for name in inside("r/mine/seed-0")}
    again = up.train(data, SPEC, results="r/mine")
    assert torch.equal(first.params, again.params)
    with pytest.raises(up.InputError, match=r"iterations.*6.*r/mine/seed-0.*4: results"):
        up.train(data, SPEC, results="r/mine", iterations=6)
    with pytest.raises(up.InputError, match=r"algorithm.mu.*0.25.*r/mine/seed-0.*0.5: results"):
        up.train(data, SPEC, results="r/mine", algorithm=up.FedProx(mu=0.25))
    assert before == {name: Path("r/mine/seed-0", name).read_bytes() for name in inside("r/mine/seed-0")}


def test_with_real_noise_the_public_files_have_no_score(data):
    privacy = up.privacy.ModelClipping(1.0, 1.0)
    result = up.train(data, SPEC, results="r/private", privacy=privacy, noise="system")
    folder = Path("r/private/seed-0")
    assert result.accuracy is None
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["restricted"], summary["accuracy"], "sha256" in summary["data"]) == (True, None, False)
    assert {"ledger.jsonl", "private/scores.jsonl", "private/ledger.key"} <= inside(folder)
    assert not (folder / "checkpoint").exists()
    own = [json.loads(line) for line in (folder / "private" / "scores.jsonl").read_text().splitlines()]
    assert own[-1]["accuracy"] is not None
    config = tomllib.loads((folder / "config.toml").read_text())
    asked = {"mechanism": "model_clipping", "clip_norm": 1.0, "noise_std": 1.0, "per_client": True, "noise": "system"}
    assert config["privacy"] == asked


def test_a_run_that_cannot_be_named_is_written_and_not_begun_twice(data, capsys):
    spec = SPEC.replace(
        loss=lambda outputs, targets: torch.nn.functional.cross_entropy(outputs, targets, reduction="none")
    )
    up.train(data, spec, results="r/own")
    said = capsys.readouterr().err
    assert has_all(said, "loss)", "process")
    assert json.loads(Path("r/own/seed-0/summary.json").read_text())["error"] is None
    with pytest.raises(up.InputError, match=r"finished.*results"):
        up.train(data, spec, results="r/own")


def test_a_run_that_diverges_says_so_in_its_folder(data):
    with pytest.raises(up.DivergedError) as stopped:
        up.train(data, SPEC, results="r/far", local=up.LocalSGD(lr=1e38, epochs=20))
    summary = json.loads(Path("r/far/seed-0/summary.json").read_text())
    assert (summary["error"], summary["iterations"]) == (str(stopped.value), 0)


def test_what_results_have_a_place_for_is_refused(data):
    with pytest.raises(up.InputError, match=r"checkpoint.*'c'.*results.*place"):
        up.train(data, SPEC, results="r/mine", checkpoint="c")
    with pytest.raises(up.InputError, match=r"results.*7.*None"):
        up.train(data, SPEC, results=7)


SPECS = {
    "adamw": {"local": up.LocalAdamW(lr=up.schedules.Cosine(0.1, warmup=1), batch_size=None)},
    "adam": {"local": up.LocalAdam(lr=0.1, epochs=2)},
    "sgd": {"local": up.LocalSGD(lr=0.1, momentum=0.5, batch_size=None)},
    "loss": {"loss": up.losses.CrossEntropy(class_weight=(1.0, 2.0)), "metrics": ("auroc",), "keep_best": "loss"},
    "private": {
        "privacy": up.privacy.UpdateClipping(1.0, epsilon=8.0, delta=1e-3),
        "budget": up.Budget(9.0, 1e-3),
        "charged_scores": up.privacy.ChargedScores(noise_std=3.0),
    },
    "mlp": {"model": "mlp", "model_options": {"hidden": (8,)}, "participation": 0.5, "sampling": "poisson"},
    "rule": {"upcycle": up.coefficients.Signal(), "aggregation": up.aggregators.TrimmedMean(0.2), "eval_every": 2},
    "auto": {"upcycle": up.coefficients.Auto(), "algorithm": up.FedDyn(alpha=0.1)},
}


@pytest.mark.parametrize("case", SPECS)
def test_a_spec_comes_back_from_its_document(case):
    spec = up.RunSpec(**{"algorithm": up.FedAvg(), "local": up.LocalSGD()} | SPECS[case])
    document = document_of(spec)
    assert tomllib.loads(tomli_w.dumps(document)) == json.loads(json.dumps(document))
    back = parse(document | {"name": "a", "data": DATA}).spec(spec.seed)
    found, wanted = back.plain(), spec.plain()
    assert {key: found[key] for key in found if key != "model_options"} == {
        key: wanted[key] for key in wanted if key != "model_options"
    }
