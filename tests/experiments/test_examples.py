"""The example files are real: each runs, in small form."""

from __future__ import annotations

from pathlib import Path

import pytest

from upcycled.experiments.config import load_config
from upcycled.experiments.run import run_experiment

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))


def test_there_are_examples():
    assert len(EXAMPLES) >= 3


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_in_small_form(path, tmp_path):
    small = ["iterations=4", "seeds=[0]", "data.clients=5", "data.sizes=40", f"results='{tmp_path}'"]
    outcome = run_experiment(load_config(path, small), str(path))
    assert outcome.is_complete
    assert outcome.experiment.name == path.stem
    assert 0 <= outcome.seeds[0].summary["accuracy"] <= 1
