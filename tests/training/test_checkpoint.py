"""When a run is kept, what is on the disk, and that it goes on as if nothing had happened."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import numpy as np
import pytest

import upcycled as up
from tests.training.kill_cases import as_json, plan_of, summary_of
from tests.training.watching import QUIET, Watcher, kept_iterations, stop_at
from upcycled.training.checkpoint.files import how_often, read_newest, tidy, write
from upcycled.training.checkpoint.snapshot import from_bytes
from upcycled.training.train import run_plan

# Files


def test_every_bit_of_a_checkpoint_counts(tmp_path):
    older = write(tmp_path, 1, b"older" * 100)
    content = bytes(np.random.default_rng(0).integers(0, 256, 3000, dtype=np.uint8))
    newest = write(tmp_path, 2, content)
    assert read_newest(tmp_path, tell=pytest.fail) == (newest, content)
    rng = np.random.default_rng(1)
    for trial in range(300):
        place, damaged = int(rng.integers(len(content))), bytearray(content)
        damaged[place] ^= 1 << (trial % 8)
        newest.write_bytes(damaged if trial % 3 else content[:place] if trial % 2 else content + b"\0")
        told = []
        assert read_newest(tmp_path, told.append) == (older, b"older" * 100)
        assert len(told) == 1
        assert str(newest) in told[0]
    older.unlink()
    assert read_newest(tmp_path, told.append) is None


def test_what_dead_writers_left_is_removed_and_the_newest_two_stay(federation, tmp_path):
    (tmp_path / ".iteration-000003-aa.safetensors.99.tmp").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    up.train(federation, checkpoint=tmp_path, checkpoint_every=1, **QUIET)
    assert kept_iterations(tmp_path) == [5, 6]
    others = sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("iteration-"))
    assert others == [".lock", "notes.txt"]
    tidy(tmp_path, ())
    assert kept_iterations(tmp_path) == []


def test_a_run_shorter_than_a_second_is_saved_once(federation, tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(
        "upcycled.training.checkpoint.checkpointer.write", lambda *found: saved.append(found[1]) or write(*found)
    )
    up.train(federation, checkpoint=tmp_path, checkpoint_every="100s", **QUIET)
    assert saved == [6]


def test_rounds_are_data_rounds_and_the_end_is_always_saved(federation, tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(
        "upcycled.training.checkpoint.checkpointer.write", lambda *found: saved.append(found[1]) or write(*found)
    )
    up.train(federation, checkpoint=tmp_path, checkpoint_every=2, **QUIET | {"upcycle": 0.5, "iterations": 10})
    # Data rounds 1 to 5 are iterations 1, 3, 5, 7, 9.
    assert saved == [3, 7, 10]


def test_by_the_clock_a_save_that_takes_long_is_made_less_often(federation, tmp_path, monkeypatch):
    clock, saved = iter(range(10**6)), []
    monkeypatch.setattr(
        "upcycled.training.checkpoint.checkpointer.time", SimpleNamespace(perf_counter=lambda: next(clock) / 10)
    )
    monkeypatch.setattr(
        "upcycled.training.checkpoint.checkpointer.write", lambda *found: saved.append(found[1]) or write(*found)
    )
    # A tick of 0.1 s an iteration; a save takes a tick, so 10 of them pass between two saves.
    up.train(federation, checkpoint=tmp_path, checkpoint_every="0.3s", **QUIET | {"iterations": 30})
    assert saved[0] == 3
    assert set(np.diff(saved[:-1])) == {10}


@pytest.mark.parametrize("value", [0, -1, 2.0, True, None, "", "s", "2", "2m", "-1s", "0s", "nans", "1e3s"])
def test_a_wrong_interval_is_answered_by_one_sentence(value):
    with pytest.raises(up.InputError, match=r"^checkpoint_every"):
        how_often(value)


# Going on


@pytest.mark.parametrize("case", ["scaffold-sequential-upcycled", "pfedme-sequential-upcycled", "erm-budget"])
def test_a_run_that_is_stopped_by_ctrl_c_goes_on_after_its_last_finished_iteration(tmp_path, case):
    reference = summary_of(run_plan(plan_of(case), [], threads=1))
    for iteration in (1, 4, 5, 9):
        watcher = Watcher(KeyboardInterrupt(), iteration)
        with pytest.raises(KeyboardInterrupt):
            run_plan(plan_of(case, tmp_path, every="100s"), [watcher], threads=1)
        assert kept_iterations(tmp_path)[-1] == iteration
        assert watcher.finished == 1
    watcher = Watcher()
    result = run_plan(plan_of(case, tmp_path, every="100s"), [watcher], threads=1)
    assert as_json(summary_of(result)) == as_json(reference)
    assert [record.iteration for record in watcher.before] == list(range(1, 10))
    assert watcher.iterations == list(range(10, len(result.history) + 1))


@pytest.mark.parametrize(
    "case", ["scaffold-sequential-upcycled", "pfedme-sequential-upcycled", "feddyn-sequential-vanilla"]
)
def test_an_iteration_that_is_broken_off_leaves_no_trace_in_the_memories(tmp_path, case, monkeypatch):
    reference = summary_of(run_plan(plan_of(case), [], threads=1))
    from upcycled.training import loop

    original = loop._score

    def broken(plan, engine, run):  # by then the memories hold the new rows
        if run.state.iteration == 7:
            raise KeyboardInterrupt
        return original(plan, engine, run)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_score", broken)
        with pytest.raises(KeyboardInterrupt):
            run_plan(plan_of(case, tmp_path, every="100s"), [], threads=1)
    assert kept_iterations(tmp_path) == [6]
    with pytest.raises(KeyboardInterrupt):
        run_plan(plan_of(case, tmp_path / "clean", every="100s"), [Watcher(KeyboardInterrupt(), 6)], threads=1)
    left, clean = (from_bytes(read_newest(folder, pytest.fail)[1]) for folder in (tmp_path, tmp_path / "clean"))
    for rows, others in ((left.memory, clean.memory), (left.private, clean.private)):
        assert rows.clients.tolist() == others.clients.tolist()
        assert [array.tobytes() for array in rows.vectors.values()] == [a.tobytes() for a in others.vectors.values()]
    assert left.memory.vectors or left.private.vectors
    result = run_plan(plan_of(case, tmp_path), [], threads=1)
    assert as_json(summary_of(result)) == as_json(reference)


def test_a_finished_run_is_returned_at_once_without_training(federation, tmp_path, monkeypatch):
    arguments = QUIET | {"checkpoint": tmp_path, "privacy": up.privacy.ModelClipping(10.0, 0.8), "upcycle": 0.5}
    first = up.train(federation, **arguments)
    files = {path: path.read_bytes() for path in tmp_path.iterdir() if path.name != ".lock"}
    monkeypatch.setattr(importlib.import_module("upcycled.training.train"), "iterate", pytest.fail)
    watcher = Watcher()
    again = up.train(federation, callbacks=[watcher], **arguments)
    assert as_json(summary_of(again)) == as_json(summary_of(first))
    assert again.history.column("seconds") == first.history.column("seconds")
    assert (len(watcher.before), watcher.iterations, watcher.finished) == (6, [], 1)
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.name != ".lock"} == files


def test_with_no_whole_checkpoint_the_run_starts_again(federation, tmp_path, capsys):
    arguments = QUIET | {"checkpoint": tmp_path, "checkpoint_every": 1}
    first = up.train(federation, **arguments)
    for path in tmp_path.glob("iteration-*"):
        path.write_bytes(path.read_bytes()[:-1])
    watcher = Watcher()
    again = up.train(federation, callbacks=[watcher], **arguments)
    assert watcher.iterations == [1, 2, 3, 4, 5, 6]
    assert as_json(summary_of(again)) == as_json(summary_of(first))
    assert capsys.readouterr().err.count("is damaged") == 2
    assert read_newest(tmp_path, tell=pytest.fail) is not None
    assert kept_iterations(tmp_path) == [5, 6]


class Length:
    def measure(self, step):
        return {"moved": float(np.linalg.norm(step.after - step.before))}


def test_what_a_probe_measured_is_kept_with_its_record(federation, tmp_path):
    arguments = QUIET | {"algorithm": up.FedProx(mu=1.0), "callbacks": [Length()]}
    whole = up.train(federation, **arguments)
    stop_at(federation, 4, checkpoint=tmp_path, **arguments)
    for _ in range(2):  # going on, and finished
        found = up.train(federation, checkpoint=tmp_path, **arguments)
        assert [record.metrics for record in found.history] == [record.metrics for record in whole.history]
    assert all(record.metrics for record in whole.history)


@pytest.mark.parametrize("engine", ["fused", pytest.param("sequential", marks=pytest.mark.slow)])
def test_a_batch_keeps_and_finds_its_runs_in_threads_and_in_processes(federation, tmp_path, engine):
    runs = [
        {"data": federation} | QUIET | {"engine": engine, "seed": seed, "checkpoint": tmp_path / f"{engine}{seed}"}
        for seed in (0, 1)
    ]
    stop_at(federation, 3, **{key: value for key, value in runs[0].items() if key != "data"})
    found = up.train_many(runs, progress=False)
    alone = [up.train(**{key: value for key, value in run.items() if key != "checkpoint"}) for run in runs]
    assert [as_json(summary_of(result)) for result in found] == [as_json(summary_of(result)) for result in alone]
    again = up.train_many(runs, progress=False)
    assert [r.history.column("seconds") for r in again] == [r.history.column("seconds") for r in found]
