"""The command, killed from outside and started again: the same bits, whichever way its runs are carried out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.experiments.small import small_file
from tests.wording import has_all

COMMAND = [sys.executable, "-m", "upcycled", "run", "small.toml", "--quiet"]


def start(folder, *words):
    """Start the command as from a terminal: a shell's background jobs, and so perhaps these tests, ignore Ctrl-C."""
    return subprocess.Popen(
        [*COMMAND, *words],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def finished(process):
    _, err = process.communicate(timeout=1200)
    assert process.returncode == 0, err


def wait_for_checkpoints(folder, process):
    """Wait until every seed has been saved at least once."""
    until = time.monotonic() + 900
    while time.monotonic() < until:
        if all(list(folder.glob(f"seed-{k}/checkpoint/iteration-*")) for k in (0, 1)):
            return
        assert process.poll() is None, "the runs were over before they could be stopped"
        time.sleep(0.02)
    raise AssertionError("no checkpoint was written in a quarter of an hour")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["fused", "sequential"])
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT], ids=lambda stop: stop.name)
def test_a_command_that_was_stopped_goes_on_and_ends_in_the_same_bits(tmp_path, engine, stop):
    # Long enough for the second worker to start late and the first not to be done by then.
    iterations = {"fused": 8000, "sequential": 500}[engine]
    words = [f"iterations={iterations}", f"engine={engine}", "checkpoint_every=1", "eval_every=100"]
    seldom = [*words[:2], "checkpoint_every=1s", words[3]]
    small_file(tmp_path)
    stopped = start(tmp_path, *words)
    try:
        wait_for_checkpoints(tmp_path / "results" / "small", stopped)
    except BaseException:
        stopped.kill()
        stopped.communicate()
        raise
    os.kill(stopped.pid, stop)
    _, err = stopped.communicate(timeout=600)
    if stop == signal.SIGINT:
        assert stopped.returncode == 130
        assert has_all(err.splitlines()[-1], "upcycled", f"small.toml --quiet {' '.join(words)}")
    else:
        assert stopped.returncode == -signal.SIGKILL
    assert not list((tmp_path / "results").rglob("summary.json")), "it was stopped too late to show anything"
    # At once: the workers of a killed command have to be waited for.
    finished(start(tmp_path, *seldom))
    finished(start(tmp_path, *seldom, "results=whole"))
    for seed in (0, 1):
        for name in ("model.safetensors", "clients.jsonl"):
            here, there = (tmp_path / root / "small" / f"seed-{seed}" / name for root in ("results", "whole"))
            assert here.read_bytes() == there.read_bytes()


@pytest.mark.slow
def test_a_second_command_in_the_same_folder_is_told_who_is_there(tmp_path):
    small_file(tmp_path)
    first = start(tmp_path, "iterations=2000000", "eval_every=1000")
    try:
        wait_for_checkpoints(tmp_path / "results" / "small", first)
        second = start(tmp_path, "iterations=2000000", "eval_every=1000")
        _, err = second.communicate(timeout=600)
    finally:
        first.kill()
        first.communicate()
    assert second.returncode == 1
    assert has_all(err, "error: results/small", f"process {first.pid}")
    assert err.count("\n") == 1
