"""Running an experiment: what is written, what is not run twice, and what happens when something fails."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

import upcycled as up
from tests.experiments.small import everything_under, small_file
from upcycled.core.errors import DivergedError, InputError
from upcycled.core.files import WriteError, write_whole
from upcycled.experiments import run as run_module
from upcycled.experiments.config import load_config
from upcycled.experiments.results import mean_and_sd, plain
from upcycled.experiments.run import run_experiment

FILES = ["config.toml", "metrics.jsonl", "model.safetensors", "summary.json"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small_file(tmp_path)
    return tmp_path


def run(*overrides):
    return run_experiment(load_config("small.toml", overrides), "small.toml")


def refuse_to_train(*args, **kwargs):
    raise AssertionError("a seed was run that should not have been")


def test_a_run_writes_what_train_gives(here):
    outcome = run()
    assert [(s.seed, s.status) for s in outcome.seeds] == [(0, "finished"), (1, "finished")]
    experiment = load_config("small.toml")
    for seed in (0, 1):
        folder = here / "results" / "small" / f"seed-{seed}"
        assert sorted(p.name for p in folder.iterdir()) == FILES
        expected = up.train(experiment.build_data(), **experiment.train_arguments(seed), progress=False)
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert [row["accuracy"] for row in rows] == expected.history.column("accuracy")
        assert [row["kind"] for row in rows] == ["data", "upcycled", "data", "upcycled"]
        tensors = load_file(folder / "model.safetensors")
        assert tensors.keys() == expected.model.state_dict().keys()
        assert all(np.array_equal(tensors[k], v) for k, v in expected.model.state_dict().items())
        summary = json.loads((folder / "summary.json").read_text())
        assert (summary["accuracy"], summary["loss"]) == (expected.accuracy, expected.loss)
        # Two data rounds of two clients, one vector of 3 * 2 + 2 float32 down and one up for each.
        assert (summary["data_rounds"], summary["messages"], summary["bytes"]) == (2, 8, 2 * 2 * 2 * 8 * 4)


def test_the_config_beside_a_seed_repeats_that_seed(here):
    run()
    folder = here / "results" / "small" / "seed-1"
    alone = load_config(folder / "config.toml", ["results=again"])
    assert alone.seeds == (1,)
    run_experiment(alone, "config.toml")
    again = here / "again" / "small" / "seed-1" / "model.safetensors"
    assert again.read_bytes() == (folder / "model.safetensors").read_bytes()


def test_the_summary_is_mean_and_sample_deviation_over_seeds(here):
    outcome = run("seeds=[0, 1, 2]")
    losses = [s.summary["loss"] for s in outcome.seeds]
    # By hand: sd^2 = sum (x - mean)^2 / (3 - 1).
    mean = sum(losses) / 3
    sd = (sum((x - mean) ** 2 for x in losses) / 2) ** 0.5
    assert outcome.summary()["loss"] == pytest.approx({"mean": mean, "sd": sd})
    assert mean_and_sd([0.25]) == {"mean": 0.25, "sd": None}
    assert mean_and_sd([None]) == {"mean": None, "sd": None}


def test_a_finished_seed_is_not_run_again(here, monkeypatch):
    first = run()
    before = everything_under(here)
    monkeypatch.setattr(run_module, "train", refuse_to_train)
    second = run()
    assert [s.status for s in second.seeds] == ["reused", "reused"]
    assert second.summary() == first.summary()
    assert everything_under(here) == before


def test_added_seeds_are_run_and_the_others_are_kept(here, monkeypatch):
    run("seeds=[0]")
    trained = []
    train = run_module.train
    monkeypatch.setattr(run_module, "train", lambda *a, **k: trained.append(k["seed"]) or train(*a, **k))
    outcome = run("seeds=[2, 0, 1]")
    assert trained == [2, 1]
    assert [(s.seed, s.status) for s in outcome.seeds] == [(2, "finished"), (0, "reused"), (1, "finished")]


@pytest.mark.parametrize("lost", ["summary.json", "cut short"])
def test_a_seed_without_a_whole_summary_is_run_again(here, lost):
    run("seeds=[0]")
    summary = here / "results" / "small" / "seed-0" / "summary.json"
    if lost == "cut short":
        summary.write_text(summary.read_text()[:20])
    else:
        summary.unlink()
    assert [s.status for s in run("seeds=[0]").seeds] == ["finished"]
    assert json.loads(summary.read_text())["seed"] == 0


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("local.lr=0.1", r"local\.lr is 0\.1, but .*seed-0 holds a run with 0\.05"),
        ("upcycle.coefficient=0.1", r"upcycle\.coefficient is 0\.1, but .* with 0\.7"),
        ("clients.stragglers=0.5", r"clients\.stragglers is 0\.5, but .* with 0\.0"),
        ("data.sizes=21", r"data\.sizes is 21, but .* with 20"),
    ],
)
def test_a_folder_of_another_config_is_refused_and_stays_as_it_is(here, override, words):
    run()
    before = everything_under(here)
    with pytest.raises(InputError, match=rf"^small\.toml: {words}"):
        run(override)
    assert everything_under(here) == before


def test_a_folder_of_something_else_is_refused_and_stays_as_it_is(here):
    folder = here / "results" / "small" / "seed-1"
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("two years of work")
    before = everything_under(here)
    with pytest.raises(InputError, match=r"seed-1 holds something without a readable config\.toml"):
        run()
    assert everything_under(here) == before


def test_data_that_changed_under_the_same_path_is_noticed(here):
    x, client = np.arange(16, dtype=np.float32).reshape(8, 2), np.repeat([0, 1], 4)
    for shift in (0, 1):
        y = (np.arange(8) + shift) % 2
        np.savez(here / "set.npz", train_x=x, train_y=y, train_client=client)
        data = ["data.source=npz", "data.path=set.npz"]
        text = (here / "small.toml").read_text()
        start, end = text.index("alpha"), text.index("[algorithm]")
        (here / "own.toml").write_text(text[:start] + text[end:])
        experiment = load_config("own.toml", data)
        if shift == 0:
            outcome = run_experiment(experiment, "own.toml")
            # Without test samples there is nothing to score, and that is not an error.
            assert outcome.is_complete
            assert outcome.summary()["accuracy"] == {"mean": None, "sd": None}
    with pytest.raises(InputError, match="seed-0 holds a run on other data"):
        run_experiment(experiment, "own.toml")


def test_a_seed_that_diverges_is_reported_and_the_others_finish(here, monkeypatch):
    train = run_module.train

    def diverges_at_seed_0(*args, **kwargs):
        if kwargs["seed"] == 0:
            raise DivergedError("the run diverged: the global model is not finite after iteration 3; lower ...")
        return train(*args, **kwargs)

    monkeypatch.setattr(run_module, "train", diverges_at_seed_0)
    outcome = run()
    assert [s.status for s in outcome.seeds] == ["failed", "finished"]
    assert "after iteration 3" in outcome.seeds[0].error
    assert not outcome.is_complete
    assert not (here / "results" / "small" / "seed-0").exists()
    assert outcome.summary()["loss"]["mean"] == outcome.seeds[1].summary["loss"]


def test_a_really_diverging_run_writes_no_result(here):
    outcome = run("local.lr=1e38")
    assert [s.status for s in outcome.seeds] == ["failed", "failed"]
    assert not [path for path in (here / "results").rglob("*") if path.is_file()]


def test_a_full_disk_is_one_sentence_and_leaves_no_part_of_a_file(here, monkeypatch):
    flush = os.fsync
    calls = []

    def full_at_the_third(handle):
        calls.append(handle)
        if len(calls) >= 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(handle)

    monkeypatch.setattr(os, "fsync", full_at_the_third)
    with pytest.raises(WriteError, match=r"metrics\.jsonl cannot be written \(No space left on device\)"):
        run()
    assert sorted(p.name for p in (here / "results" / "small" / "seed-0").iterdir()) == ["config.toml"]


def test_a_file_in_the_way_of_the_folder_is_one_sentence_before_any_training(here, monkeypatch):
    (here / "results").write_text("not a folder")
    monkeypatch.setattr(run_module, "train", refuse_to_train)
    with pytest.raises(WriteError, match=r"results.* cannot be written"):
        run()


def test_a_failed_write_keeps_the_file_that_was_there(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_whole(path, b"before")

    def fail(handle):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(WriteError, match=r"a\.txt cannot be written"):
        write_whole(path, b"after")
    assert everything_under(tmp_path) == {"a.txt": b"before"}


def test_numbers_that_are_not_finite_become_null():
    row = {"a": float("nan"), "b": [float("inf"), 1.5], "c": None, "d": 2}
    assert plain(row) == {"a": None, "b": [None, 1.5], "c": None, "d": 2}


def test_what_goes_wrong_only_while_training_names_the_file_too(here, monkeypatch):
    def nobody_comes(*args, **kwargs):
        raise InputError("participation is 0.5 of 4 clients, but 10000 Poisson draws in a row were empty")

    monkeypatch.setattr(run_module, "train", nobody_comes)
    with pytest.raises(InputError, match=r"^small\.toml: clients\.participation is 0\.5 of 4 clients"):
        run()


def test_everyone_is_told_and_every_iteration_is_watched(here):
    seen, told = [], []

    class Watcher:
        def __init__(self, seed):
            self.seed = seed

        def start(self, plan, before):
            seen.append((self.seed, plan.iterations))

        def record(self, record, run):
            seen.append((self.seed, record.iteration))

        def finish(self):
            seen.append((self.seed, "end"))

    run_experiment(load_config("small.toml", ["seeds=[3]"]), "small.toml", lambda seed: [Watcher(seed)], told.append)
    assert seen == [(3, 4), (3, 1), (3, 2), (3, 3), (3, 4), (3, "end")]
    assert [(t.seed, t.status) for t in told] == [(3, "finished")]


PRIVATE = """
[privacy]
mechanism = "model_clipping"
clip_norm = 1.0
noise_std = 0.5
noise = "NOISE"
"""


@pytest.mark.parametrize(
    ("noise", "files"), [("seeded", ["ledger.jsonl"]), ("system", ["ledger-2.jsonl", "ledger.jsonl"])]
)
def test_a_private_runs_charges_lie_in_its_folder_and_a_repeat_with_real_noise_is_charged_again(tmp_path, noise, files):
    source = tmp_path / "private.toml"
    text = (Path(__file__).parents[2] / "examples" / "synthetic.toml").read_text()
    source.write_text(text + PRIVATE.replace("NOISE", noise))
    changes = ["iterations=4", "seeds=[0]", f"results={json.dumps(str(tmp_path / 'results'))}"]
    experiment = load_config(source, changes)
    folder = run_experiment(experiment, str(source)).seeds[0].folder
    (folder / "summary.json").unlink()
    run_experiment(experiment, str(source))
    assert sorted(path.name for path in folder.glob("ledger*")) == files
    kinds = [json.loads(line)["kind"] for line in (folder / "ledger.jsonl").read_text().splitlines()[1:]]
    assert kinds == ["data", "upcycled", "data", "upcycled"]
