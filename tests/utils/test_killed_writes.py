"""A process is killed at every write, flush, rename and removal: a model is the old or the new one, and a run goes on.

A call is carried out or not; after a kill none is, so that nothing is cleaned up by the process that was killed.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import signal
import tempfile
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

import upcycled as up
from tests.experiments.small import SMALL, small_file
from tests.utils.test_failing_writes import HalfWritten, results_of
from upcycled.cli.main import main
from upcycled.engines.processes import ScratchFolder
from upcycled.serving.model_files import write_model

DATA = up.data.synthetic("iid", clients=3, dim=2, sizes=8, seed=0)
NAMES = ("fsync", "replace", "rename", "open", "ftruncate", "chmod", "unlink", "mkdir", "rmdir")
ANOTHER = 2**22 + 1
"""The number of a process that is not there."""


class Killed(BaseException):
    """The process is gone; nothing catches this."""


@contextmanager
def killed_at(patch, folder, at=None, kill=None):
    """Kill the process at the at-th call of the system below a folder; yields the list of calls so far."""
    calls = []

    def step(path=str(folder)):
        if not isinstance(path, int) and not str(os.fspath(path)).startswith(str(folder)):
            return
        calls.append(path)
        if at is not None and len(calls) > at:
            if kill is not None:
                kill()
            raise Killed

    for name in NAMES:
        real = getattr(os, name)

        def stepping(path, *args, _real=real, **more):
            step(path)
            return _real(path, *args, **more)

        patch.setattr(os, name, stepping)
    real_open = io.open

    def opened(file, mode="r", *args, **more):
        is_ours = not isinstance(file, int) and str(os.fspath(file)).startswith(str(folder)) and set(mode) & set("wa+x")
        if is_ours:
            step(file)
        stream = real_open(file, mode, *args, **more)
        return HalfWritten(stream, step) if is_ours else stream

    patch.setattr(builtins, "open", opened)
    patch.setattr(io, "open", opened)
    patch.setattr(os, "getpid", lambda: ANOTHER)
    yield calls


def personal(noise, seed):
    """A run with personal models, which are the data holder's own where the noise is real."""
    data = up.FederatedData.from_arrays(
        [np.eye(2, dtype=np.float32).repeat(4, 0)] * 3, [np.arange(8) % 2] * 3, num_classes=2
    )
    privacy = up.privacy.UpdateClipping(1.0, noise_std=9.0)
    more = {"noise": noise, "privacy": privacy} if noise == "system" else {}
    return up.train(data, algorithm=up.PFedMe(), iterations=2, seed=seed, progress=False, **more)


def answers(folder):
    """What the model in a folder answers, and what a client's personal one does."""
    model = up.load(folder)
    return [one.predict_proba([[0.5, 1.0]]).tolist() for one in (model, model.personal(1))]


def leftovers(folder):
    return sorted(str(path) for path in folder.rglob("*") if path.suffix in (".tmp", ".new"))


@pytest.mark.parametrize("noise", ["seeded", "system"])
def test_a_kill_while_a_model_is_saved_leaves_the_old_or_the_new_one(tmp_path, noise):
    folder, (old, new) = tmp_path / "model", (personal(noise, seed).model_files() for seed in (0, 1))
    known = []
    for files in (new, old):
        write_model(folder, *files)
        known.append(answers(folder))
    assert known[0] != known[1]
    with pytest.MonkeyPatch.context() as patch, killed_at(patch, folder) as calls:
        write_model(folder, *new)
    found = []
    for at in range(len(calls)):
        shutil.rmtree(folder)
        write_model(folder, *old)
        with pytest.MonkeyPatch.context() as patch, killed_at(patch, folder, at), pytest.raises(Killed):
            write_model(folder, *new)
        found.append(answers(folder))
        assert found[-1] in known, f"call {at} of {len(calls)}"
        # Killed again, at the same call, and then not.
        with pytest.MonkeyPatch.context() as patch, killed_at(patch, folder, at), pytest.raises(Killed):
            write_model(folder, *old)
        assert answers(folder) in known, f"call {at} of {len(calls)}"
        write_model(folder, *new)
        assert answers(folder) == known[0]
        assert leftovers(folder) == [], f"call {at} of {len(calls)}"
    # One call decides: before it there is the old model, and from then on the new one.
    assert found == sorted(found, key=known[::-1].index)
    assert found[0] == known[1]
    assert found[-1] == known[0]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_real_kill_while_a_model_is_saved_leaves_the_old_or_the_new_one(tmp_path):
    folder, (old, new) = tmp_path / "model", (personal("system", seed).model_files() for seed in (0, 1))
    known = []
    for files in (new, old):
        write_model(folder, *files)
        known.append(answers(folder))
    with pytest.MonkeyPatch.context() as patch, killed_at(patch, folder) as calls:
        write_model(folder, *new)
    seen = set()
    for at in range(len(calls)):
        shutil.rmtree(folder)
        write_model(folder, *old)
        child = os.fork()
        if child == 0:  # it writes files, and nothing else
            kill = partial(os.kill, os.getpid(), signal.SIGKILL)
            with (
                pytest.MonkeyPatch.context() as patch,
                killed_at(patch, folder, at, kill),
            ):
                write_model(folder, *new)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        assert os.WTERMSIG(status) == signal.SIGKILL
        seen.add(known.index(answers(folder)))
        write_model(folder, *new)
        assert answers(folder) == known[0]
        assert leftovers(folder) == []
    assert seen == {0, 1}


PRIVATE = '[privacy]\nmechanism = "update_clipping"\nclip_norm = 1.0\nnoise_std = 5.0\nnoise = "NOISE"\n'


def go_on_after_kills(tmp_path, monkeypatch, capsys, noise, every):
    """Kill a command at some of its calls, and give it again: it goes on, and nothing of the killed one is left."""
    monkeypatch.chdir(tmp_path)
    text = f"{SMALL}{PRIVATE.replace('NOISE', noise)}"
    small_file(tmp_path, ('name = "small"', 'name = "small"\nengine = "sequential"'), ("[0, 1]", "[0]"), text=text)
    folder = tmp_path / "results"
    command = ["run", "small.toml", "--quiet", "checkpoint_every=1", f"results={folder}"]
    with monkeypatch.context() as patch, killed_at(patch, folder) as calls:
        assert main(command) == 0, capsys.readouterr().err
    whole = results_of(folder)
    left = 0
    for at in range(0, len(calls), every):
        shutil.rmtree(folder)
        with monkeypatch.context() as patch, killed_at(patch, folder, at), pytest.raises(Killed):
            main(command)
        left += len(leftovers(folder))
        assert main(command) == 0, f"call {at} of {len(calls)}: {capsys.readouterr().err}"
        assert leftovers(folder) == [], f"call {at} of {len(calls)}"
        if noise == "seeded":
            assert results_of(folder) == whole, f"call {at} of {len(calls)}"
        assert results_of(folder).keys() == whole.keys()
    assert left > 0


@pytest.mark.parametrize("noise", ["seeded", "system"])
def test_nothing_temporary_of_a_killed_run_is_left_when_it_has_gone_on(tmp_path, monkeypatch, capsys, noise):
    go_on_after_kills(tmp_path, monkeypatch, capsys, noise, every=11)


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["seeded", "system"])
def test_nothing_temporary_is_left_whichever_call_was_the_last(tmp_path, monkeypatch, capsys, noise):
    go_on_after_kills(tmp_path, monkeypatch, capsys, noise, every=1)


def test_folders_of_a_killed_process_go_when_its_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scratch = ScratchFolder()
    (scratch.path / "task.pickle").write_bytes(b"training data")
    _, _, (folder, lock, handle), _ = scratch._close.detach()
    os.close(handle)  # as the system does when a process is killed
    assert folder.exists()
    kept = {"algorithm": up.FedAvg(), "iterations": 2, "progress": False, "checkpoint": tmp_path / "kept"}
    up.train(DATA, **kept)
    assert not folder.exists()
    assert not lock.exists()
