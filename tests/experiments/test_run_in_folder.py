"""A finished run keeps no checkpoint that nothing reads; a kill at its end leaves what the next run handles."""

from __future__ import annotations

import json
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import upcycled as up
from tests.experiments.small import SMALL, small_file
from tests.federation.in_process import NAMES, Mail, experiment_of, federation_of, make_site
from upcycled._utils import lock
from upcycled.config.experiment import load_config
from upcycled.core.errors import InputError
from upcycled.experiments import run_in_folder
from upcycled.experiments.batch import prepare_batch, run_experiment
from upcycled.federation import server_run
from upcycled.federation.server_run import run_seed
from upcycled.run_folder import EpsilonSummary, RunFolder, Summary, worst_epsilon

SYSTEM = '[privacy]\nmechanism = "model_clipping"\nclip_norm = 1.0\nnoise_std = 1.0\nnoise = "system"\n'
SPEC = up.RunSpec(algorithm=up.Scaffold(), upcycle=0.7, iterations=4, engine="sequential", progress=False)


class Killed(BaseException):
    pass


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small_file(tmp_path)
    return tmp_path


def run(*overrides):
    return run_experiment(load_config("small.toml", ["seeds=[0]", *overrides]), "small.toml").seeds[0]


def kill(*args, **kwargs):
    raise Killed


def checkpoints(folder):
    return [path for path in Path(folder).rglob("checkpoint") if path.is_dir()]


# Where a finished run is killed: before its summary, and at each call that removes its checkpoint.
PLACES = {"before the summary": (RunFolder, "write_summary"), "before the end": (run_in_folder, "drop_checkpoint")}
PLACES |= {"before the key": (os, "replace"), "before the files": (shutil, "rmtree")}


KILLS = [(place, noise) for place in PLACES for noise in ("seeded", "system")]


# A simulation's data have no key.
@pytest.mark.parametrize(("place", "noise"), [kill for kill in KILLS if kill != ("before the key", "seeded")])
def test_a_kill_at_the_end_of_a_run_leaves_what_the_next_command_finishes(here, monkeypatch, place, noise):
    small_file(here, text=SMALL + SYSTEM.replace("system", noise))
    whole = run("results=whole")
    owner, name = PLACES[place]
    with monkeypatch.context() as patch:
        if name == "replace":  # the removal's own, not those of files that appear whole
            patch.setattr(run_in_folder, "os", type("os", (), {"replace": staticmethod(kill)}))
        else:
            patch.setattr(owner, name, kill)
        with pytest.raises(Killed):
            run()
    assert checkpoints("results")
    again = run()
    assert again.status == ("finished" if place == "before the summary" else "reused")
    assert checkpoints("results") == []
    names = {path.relative_to(again.folder).as_posix() for path in again.folder.rglob("*")}
    assert names == {path.relative_to(whole.folder).as_posix() for path in whole.folder.rglob("*")}
    # Nothing was charged again: the folder has one ledger, with the charges of one run.
    kinds = [json.loads(line)["kind"] for line in (again.folder / "ledger.jsonl").read_text().splitlines()]
    assert kinds[1:] == [*["data", "upcycled"] * 2, "ended"]


@pytest.mark.parametrize("is_killed", [False, True])
def test_the_key_of_the_datas_hashes_outlives_the_checkpoint(here, monkeypatch, is_killed):
    small_file(here, text=SMALL + SYSTEM)
    with monkeypatch.context() as patch:
        if is_killed:
            patch.setattr(shutil, "rmtree", kill)
            with pytest.raises(Killed):
                run()
    folder = run().folder
    key = folder / "private" / "data.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    # The same data leave no note, other data one.
    for expected in (0, 0, 1, 1):
        if expected:
            monkeypatch.setattr("upcycled.experiments.private_files.hash_of_data", lambda data: "0" * 64)
        assert run().status == "reused"
        notes = (folder / "private" / "notes.jsonl").read_text()
        assert notes.count("asked for again with other data") == expected


def test_what_another_command_finishes_after_the_check_is_not_run_and_charged_again(here):
    small_file(here, text=SMALL + SYSTEM)
    late = prepare_batch([load_config("small.toml", ["seeds=[0]"])], "small.toml")
    folder = run().folder
    assert late.run()[0].seeds[0].status == "reused"
    assert [path.name for path in folder.glob("ledger*")] == ["ledger.jsonl"]


def just_before(monkeypatch, module, name, first):
    """Have another command do its work just before the first call of a function."""
    own = getattr(module, name)

    def called(*args, **kwargs):
        monkeypatch.setattr(module, name, own)
        first()
        return own(*args, **kwargs)

    monkeypatch.setattr(module, name, called)


def test_a_federation_that_another_command_finishes_meanwhile_is_not_run_again(federation, here, monkeypatch):
    sites = {name: make_site(federation, i, here) for i, name in enumerate(NAMES)}
    experiment = experiment_of(results=str(here / "results"))

    def once():
        return run_seed(experiment, 3, lambda tell: federation_of(Mail(sites)))

    just_before(monkeypatch, server_run, "locked", once)
    summary, result = once()
    assert result is None
    assert summary.error is None


def test_a_run_without_a_name_that_another_process_finishes_meanwhile_is_not_run_again(here, monkeypatch):
    data = up.data.synthetic(0.5, 0.5, clients=4, sizes=30)
    spec = SPEC.replace(privacy=up.privacy.UpdateClipping(clip_norm=1.0, noise_std=1.0), noise="system")
    spec = spec.replace(metrics=[lambda targets, predictions: 0.5])
    just_before(monkeypatch, lock, "locked", lambda: up.train(data, spec, results="r/mine"))
    with pytest.raises(InputError, match="finished run that cannot be given back"):
        up.train(data, spec, results="r/mine")
    assert [path.name for path in Path("r/mine/seed-0").glob("ledger*")] == ["ledger.jsonl"]


def test_a_run_from_python_keeps_the_checkpoint_that_gives_it_back_and_no_other(here):
    data = up.data.synthetic(0.5, 0.5, clients=4, sizes=30)
    spec = SPEC.replace(checkpoint_every=1)
    first = up.train(data, spec, results="r/mine")
    folder = Path("r/mine/seed-0/checkpoint")
    assert [path.name[:17] for path in folder.glob("*.safetensors")] == ["iteration-000004-"]
    again = up.train(data, spec, results="r/mine")
    assert torch.equal(first.params, again.params)
    assert [record.clients.tolist() for record in first.history] == [r.clients.tolist() for r in again.history]


def test_a_stopped_run_that_goes_on_gets_the_summary_of_what_it_charged(here):
    data = up.data.synthetic(0.5, 0.5, clients=4, sizes=30)
    spec = SPEC.replace(privacy=up.privacy.UpdateClipping(clip_norm=1.0, noise_std=1.0), noise="system")
    folder = RunFolder(Path("r/mine/seed-0"))
    for callbacks, iterations in (([lambda record: up.STOP], 1), ([], 4)):
        up.train(data, spec, results="r/mine", callbacks=callbacks)
        summary = folder.read_summary()
        assert summary.iterations == iterations
        charged = up.privacy.Ledger.read(folder.path / "ledger.jsonl").head
        assert charged.as_json() | {"mac": None} == summary.privacy.head | {"mac": None}


def test_a_finished_run_is_reused_from_a_folder_that_nobody_may_write_to(here, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(run_in_folder, "drop_checkpoint", lambda *args, **kwargs: None)
        run()

    def refuse(path):
        raise OSError("read-only")

    monkeypatch.setattr(shutil, "rmtree", refuse)
    assert run().status == "reused"
    assert len(checkpoints("results")) == 1


def test_a_checkpoint_that_somebody_works_in_is_left_alone(here, monkeypatch):
    from upcycled._utils.lock import locked

    with monkeypatch.context() as patch:
        patch.setattr(run_in_folder, "drop_checkpoint", lambda *args, **kwargs: None)
        folder = run().folder
    with locked(folder / "checkpoint"):
        assert run().status == "reused"
        assert list((folder / "checkpoint").glob("*.safetensors"))
    assert run().status == "reused"
    assert checkpoints("results") == []


def test_a_finished_federation_keeps_no_checkpoint(federation, here, monkeypatch):
    sites = {name: make_site(federation, i, here) for i, name in enumerate(NAMES)}
    experiment = experiment_of(results=str(here / "results"))
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", kill)
        with pytest.raises(Killed):
            run_seed(experiment, 3, lambda tell: federation_of(Mail(sites)))
    assert checkpoints("results")
    summary, result = run_seed(experiment, 3, lambda tell: federation_of(Mail(sites)))
    assert result is None
    assert summary.error is None
    assert checkpoints("results") == []


def test_a_summary_comes_back_as_it_was_written(here):
    small_file(here, text=SMALL + SYSTEM)
    seed = run("privacy.noise='seeded'")
    document = json.loads((seed.folder / "summary.json").read_text())
    found = RunFolder(seed.folder).read_summary()
    assert found == seed.summary
    assert isinstance(found, Summary)
    assert found.as_json() == document
    assert found.privacy.worst_epsilon == worst_epsilon([found]) == document["privacy"]["epsilon"]["max"]
    endless = replace(found, privacy=replace(found.privacy, epsilon=EpsilonSummary(max=None, median=None)))
    assert worst_epsilon([endless, found]) == float("inf")
    assert worst_epsilon([]) is None


@pytest.mark.parametrize("changed", [{"seed": "0"}, {"messages": True}, {"privacy": {}}, {"notes": [1]}])
def test_a_summary_of_another_form_is_damaged(here, changed):
    path = run().folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(up.InputError, match="damaged"):
        RunFolder(path.parent).read_summary()
    assert run().status == "finished"
