"""The example files are real: each runs, in small form."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from upcycled.config.experiment import load_config
from upcycled.experiments.batch import run_experiment

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))


def test_there_are_examples():
    assert len(EXAMPLES) >= 3


SMALL = {
    "synthetic": ["iterations=4", "data.clients=5", "data.sizes=40"],
    "csv": ["iterations=4", "engine=sequential"],
    "femnist": ["iterations=2", "data.devices=3"],
    "sent140": ["iterations=2", "model.hidden=4", "clients.participation=0.02"],
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_in_small_form(path, tmp_path, request, monkeypatch):
    source = load_config(path).data.source
    if source not in ("synthetic", "csv"):
        monkeypatch.setenv("UPCYCLED_DATA", str(request.getfixturevalue("shared_data")))  # skips where there is none
    small = [*SMALL[source], "seeds=[0]", f"results='{tmp_path}'"]
    outcome = run_experiment(load_config(path, small), str(path))
    assert outcome.is_complete
    assert outcome.experiment.name == path.stem
    summary = outcome.seeds[0].summary
    if path.stem == "regression":
        assert summary.accuracy is None
        assert 0 < summary.loss < 10
    else:
        assert 0 <= summary.accuracy <= 1


SCRIPTS = sorted(EXAMPLES[0].parent.glob("own_*.py"))


def _marked(stem, value):
    """Any optimiser of torch's imports its compiler, which takes seconds."""
    return pytest.param(value, id=stem, marks=[pytest.mark.slow] * (stem == "own_optimiser"))


@pytest.mark.parametrize("path", [_marked(path.stem, path) for path in SCRIPTS])
def test_a_script_runs_and_says_a_number(path, monkeypatch, capsys):
    assert len(path.read_text().splitlines()) < 45
    monkeypatch.chdir(path.parents[1])
    runpy.run_path(str(path), run_name="__main__")
    numbers = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert numbers
    assert all(0 < number < 5 for number in numbers)


OWN = {
    "own_loss": ("regression", ["loss=own_loss:log_cosh"]),
    "own_optimiser": ("synthetic", ["local={kind = 'own_optimiser:Rprop', lr = 0.1, epochs = 2}"]),
    "own_metric": ("binary", ["metrics=['own_metric:missed']", "loss={name = 'cross_entropy'}"]),
    "own_aggregator": ("synthetic", ["aggregation={kind = 'own_aggregator:Nearest'}"]),
    "own_rule": ("synthetic", ["upcycle={kind = 'own_rule:FedExP', most = 1.5}"]),
    "own_schedule": ("synthetic", ["local.lr={kind = 'own_schedule:triangle'}"]),
}


@pytest.mark.parametrize("name", [_marked(name, name) for name in OWN])
def test_a_file_names_what_a_script_defines(name, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES[0].parent))
    file, words = OWN[name]
    path = EXAMPLES[0].parent / f"{file}.toml"
    source = load_config(path).data.source
    small = [*SMALL[source], *words, "seeds=[0]", f"results='{tmp_path}'", "engine=sequential", "sweep={}"]
    assert run_experiment(load_config(path, small), str(path)).is_complete
    assert {path.stem for path in SCRIPTS} >= set(OWN)
