"""What a checkpoint folder refuses: other runs, second holders, full disks, and ledgers that lack something."""

from __future__ import annotations

import errno
import importlib
import json
import os
import threading
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

import upcycled as up
from tests.training.watching import QUIET, SELDOM, Watcher, kept_iterations, stop_at
from upcycled._utils.files import WriteError
from upcycled._utils.lock import InUseError, locked
from upcycled.core.upcycling import State
from upcycled.training.checkpoint.files import read_newest
from upcycled.training.checkpoint.fingerprint import versions

# Refusals


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"seed": 1},
            r"^seed.*1.*checkpoint.*'.*'.*0",
        ),
        (
            {"algorithm": up.FedProx(mu=0.5)},
            r"^algorithm.*FedProx\(mu=0.5\).*FedAvg\(server_lr",
        ),
        ({"iterations": 5}, r"^iterations.*5.*6"),
        ({"iterations": 7}, r"^iterations.*7.*6"),
        ({"eval_every": 2}, r"^eval_every.*2"),
        ({"local": up.LocalSGD(lr=0.5)}, r"^local.*LocalSGD"),
        ({"upcycle": 0.5}, r"^upcycle.*0.5.*None"),
        ({"engine": "vectorised"}, r"^engine.*'vectorised'.*'sequential'"),
        ({"model": "mlp"}, "other model"),
        ({"privacy": up.privacy.ModelClipping(1.0, 1.0)}, r"^privacy.*ModelClipping"),
        ("weights", "initial weights"),
        ("training data", "training data"),
        ("test data", "test data"),
    ],
)
def test_a_folder_of_another_run_is_refused_in_one_sentence_and_not_touched(federation, tmp_path, changes, words):
    from torch import nn

    module = nn.Linear(5, 3)
    up.train(federation, checkpoint=tmp_path, **QUIET | {"model": module})
    files = {path: path.read_bytes() for path in tmp_path.iterdir() if path.name != ".lock"}
    data, arguments = federation, QUIET | {"model": module}
    if changes == "weights":
        arguments["model"] = nn.Linear(5, 3)
    elif changes == "training data":
        x = data.train.x.copy()
        x[-1, -1] += 1
        data = replace(data, train=replace(data.train, x=x))
    elif changes == "test data":
        data = replace(data, test=replace(data.test, y=1 - np.minimum(data.test.y, 1)))
    else:
        arguments |= changes
    with pytest.raises(up.InputError, match=words) as error:
        up.train(data, checkpoint=tmp_path, **arguments)
    assert "\n" not in str(error.value)
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.name != ".lock"} == files


def test_a_checkpoint_of_another_format_is_refused(federation, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("upcycled.training.checkpoint.snapshot.FORMAT", 2)
        up.train(federation, checkpoint=tmp_path, **QUIET)
    with pytest.raises(up.InputError, match=r"format 2.*version.*upcycled.*format 3"):
        up.train(federation, checkpoint=tmp_path, **QUIET)


def one_over(m):
    return 1 / m


def test_a_schedule_given_as_a_function_is_known_again_by_its_name(federation, tmp_path):
    kept = QUIET | {"upcycle": up.coefficients.LambdaHalf(one_over), "privacy": up.privacy.ModelClipping(10.0, 0.8)}
    stop_at(federation, 3, checkpoint=tmp_path, **kept)
    assert len(up.train(federation, checkpoint=tmp_path, **kept).history) == 6


def test_a_function_without_a_name_trains_and_cannot_be_kept(federation, tmp_path):
    nameless = QUIET | {"upcycle": up.coefficients.LambdaHalf(lambda m: 1 / m)}
    assert len(up.train(federation, **nameless).history) == 6
    with pytest.raises(up.InputError, match=r"<lambda>.*upcycle\)"):
        up.train(federation, checkpoint=tmp_path / "kept", **nameless)
    assert not (tmp_path / "kept").exists()


def test_a_run_kept_by_other_versions_goes_on_only_when_told_to(federation, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("upcycled.training.checkpoint.checkpointer.versions", lambda: {**versions(), "torch": "1.0"})
        stop_at(federation, 3, checkpoint=tmp_path, **QUIET)
    with pytest.raises(up.InputError, match=r"1\.0.*resume_anyway=True"):
        up.train(federation, checkpoint=tmp_path, **QUIET)
    whole = up.train(federation, **QUIET)
    assert torch.equal(up.train(federation, checkpoint=tmp_path, resume_anyway=True, **QUIET).params, whole.params)


# The disk


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_fills_up_ends_the_run_in_one_sentence(federation, tmp_path, monkeypatch, call):
    arguments = QUIET | {"checkpoint": tmp_path} | SELDOM
    stop_at(federation, 3, **arguments)
    files = {path: path.read_bytes() for path in tmp_path.glob("iteration-*")}

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(WriteError, match=r"iteration-000006-.*\(No space left on device\)"):
            up.train(federation, **arguments)
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.name != ".lock"} == files
    assert len(up.train(federation, **arguments).history) == 6


def test_a_ledger_that_cannot_be_written_ends_the_run_before_its_release_leaves(federation, tmp_path, monkeypatch):
    arguments = QUIET | {"privacy": up.privacy.ModelClipping(10.0, 0.8), "checkpoint": tmp_path} | SELDOM
    stop_at(federation, 3, **arguments)

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("upcycled.privacy.mechanisms.clipping.Clipped.release", pytest.fail)
        patch.setattr("upcycled.privacy.ledger.ledger_file.os.fsync", full)
        with pytest.raises(WriteError, match=r"ledger\.jsonl.*\(No space left on device\)"):
            up.train(federation, **arguments)
    assert kept_iterations(tmp_path) == [3]


def test_a_file_in_the_folders_place_is_told_before_any_work(federation, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr(importlib.import_module("upcycled.training.train"), "iterate", pytest.fail)
    for folder in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with pytest.raises(WriteError, match=r"file.*written"):
            up.train(federation, checkpoint=folder, **QUIET)
    assert (tmp_path / "file").read_text() == "mine"


def test_an_error_of_the_run_is_not_hidden_by_a_full_disk(federation, tmp_path, monkeypatch):
    def full(*arguments):
        raise WriteError("full")

    monkeypatch.setattr("upcycled.training.checkpoint.checkpointer.write", full)
    with pytest.raises(ZeroDivisionError):
        up.train(federation, checkpoint=tmp_path, callbacks=[Watcher(ZeroDivisionError(), 2)], **QUIET)


def test_two_threads_cannot_be_in_one_folder_and_the_next_one_can(tmp_path):
    entered, leave, refusals = threading.Event(), threading.Event(), []

    def first():
        with locked(tmp_path):
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=first)
    thread.start()
    assert entered.wait(60)
    try:
        with locked(tmp_path):
            refusals.append("got in")
    except InUseError as error:
        refusals.append(str(error))
    leave.set()
    thread.join()
    assert len(refusals) == 1
    assert f"is in use by process {os.getpid()} since " in refusals[0]
    assert "\n" not in refusals[0]
    with locked(tmp_path):
        assert (tmp_path / ".lock").read_text().startswith(str(os.getpid()))


def test_without_locks_nobody_is_kept_out_of_a_public_folder(tmp_path, monkeypatch):
    import fcntl

    def missing(*arguments):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", missing)
    with locked(tmp_path), locked(tmp_path):
        pass


# The ledger


def test_the_ledger_lies_in_the_folder_unless_another_file_is_named(federation, tmp_path):
    arguments = QUIET | {"privacy": up.privacy.ModelClipping(10.0, 0.8)}
    up.train(federation, checkpoint=tmp_path / "a", **arguments)
    up.train(federation, checkpoint=tmp_path / "b", ledger=tmp_path / "own.jsonl", **arguments)
    up.train(federation, checkpoint=tmp_path / "c", **QUIET)
    assert (tmp_path / "a" / "ledger.jsonl").read_text() == (tmp_path / "own.jsonl").read_text()
    assert not list(tmp_path.glob("[bc]/ledger*"))


def test_nobody_is_advised_to_remove_a_folder_that_holds_the_ledger_of_real_noise(federation, tmp_path):
    arguments = QUIET | {"privacy": up.privacy.ModelClipping(10.0, epsilon=2.0, delta=1e-5)}
    arguments |= {"noise": "system", "checkpoint": tmp_path}
    stop_at(federation, 4, **arguments)
    for changes in ({"seed": 1}, {"noise": "seeded"}, {"iterations": 12}):
        with pytest.raises(up.InputError, match="choose another") as refused:
            up.train(federation, **arguments | changes)
        assert "remove" not in str(refused.value)


@pytest.mark.parametrize("noise", ["seeded", "system"])
def test_a_ledger_that_lacks_what_the_checkpoint_knows_is_refused(federation, tmp_path, noise):
    arguments = QUIET | {"privacy": up.privacy.ModelClipping(10.0, 0.8), "noise": noise, "checkpoint": tmp_path}
    stop_at(federation, 4, **arguments)
    path = tmp_path / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    says = r"ledger\.jsonl' holds 3 entries, but it held 4 when the checkpoint in .*: put that file back, or choose "
    advice = "another folder and keep that folder" if noise == "system" else "another folder, or remove that folder"
    with pytest.raises(up.InputError, match=says + advice):
        up.train(federation, **arguments)
    path.unlink()
    with pytest.raises(up.InputError, match=r"ledger\.jsonl' holds 0 entries, but it held 4"):
        up.train(federation, **arguments)
    assert not path.exists()
    path.write_text("".join(lines))
    assert len(up.train(federation, **arguments).history) == 6


def test_the_ledger_of_another_private_run_is_refused(federation, tmp_path):
    arguments = QUIET | {"privacy": up.privacy.ModelClipping(10.0, 0.8), "noise": "system"}
    stop_at(federation, 4, checkpoint=tmp_path / "a", **arguments)
    up.train(federation, checkpoint=tmp_path / "b", **arguments)
    (tmp_path / "b" / "ledger.jsonl").replace(tmp_path / "a" / "ledger.jsonl")
    with pytest.raises(up.InputError, match=r"charges.*another"):
        up.train(federation, checkpoint=tmp_path / "a", **arguments)


def test_more_iterations_do_not_go_on_in_a_ledger_that_planned_fewer(federation, tmp_path):
    """Killed before its first checkpoint, a run is known by its ledger alone, which states epsilon for its plan."""
    arguments = QUIET | {"privacy": up.privacy.ModelClipping(10.0, 0.8), "noise": "system", "checkpoint": tmp_path}
    stop_at(federation, 2, **arguments)
    for path in tmp_path.glob("iteration-*"):
        path.unlink()
    charged = (tmp_path / "ledger.jsonl").read_bytes()
    with pytest.raises(up.InputError, match=r"charges.*another"):
        up.train(federation, **arguments | {"iterations": 7})
    assert (tmp_path / "ledger.jsonl").read_bytes() == charged
    assert up.train(federation, **arguments).privacy.rounds.tolist() == [8] * 4


def test_notes_that_cost_nothing_are_on_the_disk_before_the_checkpoint_that_counts_them(
    federation, tmp_path, monkeypatch
):
    calls, fsync = [], os.fsync
    path = tmp_path / "ledger.jsonl"

    def spy(handle):
        calls.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", spy)
    arguments = QUIET | {"upcycle": 0.5, "iterations": 2, "privacy": up.privacy.ModelClipping(10.0, 0.8)} | SELDOM
    up.train(federation, checkpoint=tmp_path, **arguments)
    names = [name.replace(str(tmp_path), "").partition("-")[0] for name in calls]
    # Header and its folder, the charge, the note of iteration 2, the checkpoint and its folder, the end.
    assert names == ["/ledger.jsonl", "", "/ledger.jsonl", "/ledger.jsonl", "/.iteration", "", "/ledger.jsonl"]
    assert len(path.read_text().splitlines()) == 4


def test_a_system_run_names_itself_once_and_stores_no_noise(federation, tmp_path):
    arguments = QUIET | {"privacy": up.privacy.ModelClipping(10.0, 0.8), "noise": "system", "checkpoint": tmp_path}
    stop_at(federation, 3, **arguments)
    run = json.loads((tmp_path / "ledger.jsonl").read_text().splitlines()[0])["run"]
    result = up.train(federation, **arguments)
    assert result.privacy.run == run
    assert result.privacy.rounds.tolist() == [6] * 4
    other = up.train(federation, **arguments | {"checkpoint": tmp_path / "other"})
    assert other.privacy.run != run
    assert not (other.params == result.params).any()
    content = read_newest(tmp_path, tell=pytest.fail)[1]
    header = json.loads(json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]["upcycled"])
    assert set(header["facts"]) == {"identity", "way", "ledger"}
    assert set(header["state"]) == {field.name for field in fields(State)}
