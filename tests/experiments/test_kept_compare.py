"""Results folders from Python, against each other and in trackers."""

from __future__ import annotations

import json
import re

import pytest

import upcycled as up
from upcycled.cli.main import main
from upcycled.experiments.compare import compare_kept
from upcycled.trackers import tracker

DATA = up.data.synthetic(0.5, 0.5, clients=4, seed=0)
SPEC = up.RunSpec(algorithm=up.FedAvg(), iterations=4, engine="sequential", progress=False, metrics=["f1_macro"])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("kept")
    for seed in (0, 1, 2):
        up.train(DATA, SPEC.replace(seed=seed), results=home / "vanilla")
        if seed < 2:
            up.train(DATA, SPEC.replace(seed=seed, upcycle=0.5), results=home / "upcycled")
    return home


def test_the_difference_is_that_of_the_seeds_both_have(folders):
    found = compare_kept(folders / "vanilla", folders / "upcycled")
    expected = [
        up.train(DATA, SPEC.replace(seed=s, upcycle=0.5)).accuracy - up.train(DATA, SPEC.replace(seed=s)).accuracy
        for s in (0, 1)
    ]
    assert found.seeds == [0, 1]
    assert list(found.paired.differences) == expected


def test_any_metric_the_runs_have_can_be_asked_for(folders, capsys):
    assert main(["compare", str(folders / "vanilla"), str(folders / "upcycled"), "--metric", "f1_macro", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["judged"] == {"name": "f1_macro", "lower_is_better": False}
    scores = [up.train(DATA, SPEC.replace(seed=s)).metrics["f1_macro"] for s in (0, 1)]
    assert found["sides"][0]["score"]["mean"] == pytest.approx(sum(scores) / 2, abs=1e-12)


def test_the_command_says_it_in_a_table(folders, capsys):
    assert main(["compare", str(folders / "vanilla"), str(folders / "upcycled")]) == 0
    assert "paired by seed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["vanilla"], "results folders"),
        (["vanilla", "nowhere"], "finished seed"),
        (["vanilla", "upcycled", "--metric", "auroc"], r"seed.*common"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(folders, capsys, arguments, said):
    places = [str(folders / one) if "-" not in one and one != "auroc" else one for one in arguments]
    assert main(["compare", *places]) == 2
    assert re.search(said, capsys.readouterr().err)


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_tracker_watches_a_run_from_python(tmp_path, name):
    pytest.importorskip(name, reason=f"the extra {name} is not installed")
    home = tmp_path / "results" / "mine"
    result = up.train(DATA, SPEC, results=home, callbacks=[tracker(name, home)])
    assert result.error is None
    written = home / "seed-0" / "tensorboard" if name == "tensorboard" else home.parent / "mlruns"
    assert any(path.is_file() for path in written.rglob("*"))
