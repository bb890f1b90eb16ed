"""The example files are real: each runs, in small form."""

from __future__ import annotations

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
        assert summary["accuracy"] is None
        assert 0 < summary["loss"] < 10
    else:
        assert 0 <= summary["accuracy"] <= 1
