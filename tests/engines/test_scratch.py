"""Temporary folders: gone when they are closed, and when their owner was killed; never while it lives."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from upcycled.engines import processes as scratch
from upcycled.engines.processes import ScratchFolder, drop_abandoned, scratch_folder

OWNER = """
import sys
from upcycled.engines.processes import ScratchFolder
folder = ScratchFolder()
(folder.path / "train.x").write_bytes(b"secret")
print(folder.path, flush=True)
sys.stdin.read()
"""

# A model too large to be stacked: its clients train in worker processes, which map the data from files.
TRAINING = """
import os, signal, sys
import upcycled as up
from upcycled.engines import vectorised

vectorised.workers.FEW_GRADIENTS = 0
vectorised._processes = lambda task, threads: 2  # whatever the machine has
kill = {"alone": lambda: os.kill(os.getpid(), signal.SIGKILL), "group": lambda: os.killpg(0, signal.SIGKILL)}

class Kill:
    def start(self, plan, before): pass
    def record(self, record, run): kill[sys.argv[1]]()
    def finish(self): pass

if __name__ == "__main__":
    data = up.data.synthetic("iid", clients=6, seed=0)
    run = dict(data=data, algorithm=up.FedAvg(), model="mlp", model_options={"hidden": [400, 400]}, callbacks=[Kill()])
    if sys.argv[2] == "many":
        up.train_many([run | dict(engine="sequential", seed=seed) for seed in (0, 1)], progress=False)
    else:
        up.train(**run, engine="vectorised", progress=False)
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def started(code, folder, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_folder_is_its_users_alone_and_goes_when_it_is_closed(temporary):
    with scratch_folder() as path:
        assert path.stat().st_mode & 0o777 == 0o700
        (path / "deep").mkdir()
        (path / "deep" / "file").write_text("x")
    assert not list(temporary.iterdir())


def test_closing_twice_is_closing_once_and_what_nobody_holds_any_more_goes_too(temporary):
    folder = ScratchFolder()
    folder.close()
    folder.close()
    assert not list(temporary.iterdir())
    folder = ScratchFolder()
    assert len(list(temporary.iterdir())) == 2
    del folder
    assert not list(temporary.iterdir())


@pytest.mark.slow
def test_a_living_owner_keeps_its_folder_and_a_killed_one_does_not(temporary):
    with started(OWNER, temporary) as owner:
        left = Path(owner.stdout.readline().strip())
        with scratch_folder() as own:
            drop_abandoned()
            assert (left / "train.x").exists()
            assert own.exists()
        owner.kill()
    assert (left / "train.x").exists()
    with scratch_folder():
        assert not left.exists()
    assert not list(temporary.iterdir())


def test_folders_of_others_and_foreign_files_are_left_alone(temporary):
    (temporary / "upcycled-notes").mkdir()
    (temporary / "upcycled-notes" / "mine").write_text("x")
    (temporary / "other.lock").write_text("")
    drop_abandoned()
    assert sorted(path.name for path in temporary.rglob("*")) == ["mine", "other.lock", "upcycled-notes"]


def test_a_lock_that_is_taken_for_abandoned_before_it_is_locked_is_made_anew(temporary, monkeypatch):
    real, calls = scratch.lock_descriptor, []

    def late(handle, blocking):
        calls.append(handle)
        if len(calls) == 1:  # a second process comes between making the file and locking it
            monkeypatch.setattr(scratch, "lock_descriptor", real)
            drop_abandoned()
            monkeypatch.setattr(scratch, "lock_descriptor", late)
        return real(handle, blocking=blocking)

    monkeypatch.setattr(scratch, "lock_descriptor", late)
    with scratch_folder() as path:
        assert len(calls) == 2
        assert path.with_suffix(".lock").exists()
    assert not list(temporary.iterdir())


def test_without_locks_nothing_is_taken_for_abandoned(temporary, monkeypatch):
    def missing(handle, blocking):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(scratch, "lock_descriptor", missing)
    with scratch_folder() as path:
        drop_abandoned()
        assert path.exists()
    assert not list(temporary.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("how", ["one", "many"])
def test_a_killed_run_leaves_nothing_in_the_temporary_folder(tmp_path, how):
    with started(TRAINING, tmp_path, "alone", how) as run:
        assert run.wait() == -signal.SIGKILL
    until = time.monotonic() + 300  # its workers see within the second that they are orphans
    while left := list(tmp_path.glob("upcycled*")):
        assert time.monotonic() < until, f"{left} are still there after minutes"
        time.sleep(0.1)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("how", ["one", "many"])
def test_what_is_left_when_the_workers_are_killed_too_goes_when_the_next_folder_is_made(temporary, how):
    with started(TRAINING, temporary, "group", how) as run:
        assert run.wait() == -signal.SIGKILL
    assert list(temporary.glob("upcycled-*"))
    ScratchFolder().close()
    assert not list(temporary.glob("upcycled*"))
