"""How the command leaves: every error in one sentence, signals as Ctrl-C, streams that cannot be written."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.experiments.small import small_file
from tests.wording import has_all, only_line
from upcycled._utils.messages import say
from upcycled.cli import main as main_module
from upcycled.cli.exit import UNFORESEEN, Terminated, ended_by, ended_like_ctrl_c
from upcycled.cli.main import main


def command(*words):
    return [sys.executable, "-m", "upcycled", *words]


def failing(monkeypatch, error):
    def fail(words):
        raise error

    monkeypatch.setattr(main_module, "_dispatch", fail)


@pytest.mark.parametrize("error", [KeyError("secret record"), RecursionError(), AssertionError(), OSError(5, "x", "y")])
def test_what_nobody_foresaw_is_one_sentence_and_a_log_with_the_traceback(error, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    failing(monkeypatch, error)
    assert main(["run", "a file.toml"]) == UNFORESEEN == 70
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert has_all(err, "error", f"({type(error).__name__})")
    assert "secret" not in err, "what an error says may quote a record"
    (log,) = tmp_path.iterdir()
    assert str(log) in err
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    text = log.read_text()
    assert "upcycled run 'a file.toml'" in text
    assert "Traceback (most recent call last)" in text
    assert type(error).__name__ in text


def test_a_log_that_cannot_be_written_leaves_the_sentence(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    failing(monkeypatch, KeyError("x"))
    assert main(["run"]) == UNFORESEEN
    assert has_all(capsys.readouterr().err, "log", "either")


def test_output_that_cannot_be_written_is_a_sentence_and_no_fault_of_the_program(monkeypatch, capsys):
    failing(monkeypatch, OSError(28, "No space left on device"))
    monkeypatch.setattr(main_module, "silence", lambda stream: None)
    assert main(["run"]) == 1
    assert has_all(only_line(capsys.readouterr().err), "error", "output", "(No space left on device)")


def test_a_full_disk_ends_no_command_in_a_traceback(tmp_path):
    small_file(tmp_path)
    log = tmp_path / "log"
    shell = '"$0" -m upcycled run small.toml --show-config >/dev/full'
    with log.open("w") as stream:
        done = subprocess.run(["bash", "-c", shell, sys.executable], cwd=tmp_path, stdout=stream, stderr=stream)
    assert done.returncode == 1
    assert "Traceback" not in log.read_text()
    assert "Exception ignored" not in log.read_text()


@pytest.mark.parametrize("broken", [None, "closed", "full"])
def test_a_line_that_cannot_be_said_ends_nothing(broken, monkeypatch):
    stream = None if broken is None else open("/dev/full" if broken == "full" else os.devnull, "w")  # noqa: SIM115
    if broken == "closed":
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    say("anything")
    monkeypatch.undo()
    if broken == "full":
        with pytest.raises(OSError, match="No space"):
            stream.close()


def test_a_signal_ends_the_block_as_ctrl_c_and_its_handler_is_put_back():
    before = signal.getsignal(signal.SIGTERM)

    def terminated():
        with ended_like_ctrl_c():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)

    with pytest.raises(KeyboardInterrupt) as stop:
        terminated()
    assert ended_by(stop.value) == ("SIGTERM", 143)
    assert signal.getsignal(signal.SIGTERM) == before


def test_who_ignores_a_signal_goes_on_ignoring_it():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_like_ctrl_c():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_signal_is_known_behind_what_a_run_raised_of_it():
    stop = KeyboardInterrupt("stopped")
    stop.__cause__ = Terminated(signal.SIGTERM)
    assert ended_by(stop) == ("SIGTERM", 143)
    assert ended_by(KeyboardInterrupt()) == ("Ctrl-C", 130)


def wait_for(pattern, folder, process):
    until = time.monotonic() + 300
    while not list(folder.glob(pattern)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("engine", "number"),
    [
        pytest.param("fused", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("sequential", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("sequential", signal.SIGINT, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_sweep_that_is_asked_to_end_keeps_its_checkpoints_and_says_how_to_go_on(tmp_path, engine, number):
    small_file(tmp_path)
    words = ["small.toml", "--quiet", "iterations=2000000", "eval_every=1000", f"engine={engine}"]
    words += ["checkpoint_every=1", "data.validation_fraction=0.2", 'sweep."local.lr"=[0.01, 0.02, 0.03]']
    process = subprocess.Popen(
        command("sweep", *words),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background jobs, and so perhaps these tests, ignore Ctrl-C.
        preexec_fn=lambda: [signal.signal(one, signal.SIG_DFL) for one in (signal.SIGINT, signal.SIGTERM)],
    )
    try:
        wait_for("results/small/**/iteration-*", tmp_path, process)
        os.kill(process.pid, number)
        _, err = process.communicate(timeout=300)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 128 + number
    assert "Traceback" not in err
    name = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}[number]
    last = err.splitlines()[-1]
    assert re.match(rf"error: stopped by {name}; .* are kept; to go on: upcycled sweep small.toml", last)
    assert list(Path(tmp_path).glob("results/small/**/iteration-*"))
