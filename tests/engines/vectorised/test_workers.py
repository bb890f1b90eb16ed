"""Processes, files and threads: nothing is left behind, and none of it shows in the result."""

from __future__ import annotations

import os
import tempfile
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.engines.vectorised.cases import CLASSES, SOLVERS, shards, task_of, work_of
from upcycled.core.errors import UpcycledError
from upcycled.core.vectors import Shards
from upcycled.engines.processes import let_go, receive, send, store, worker_pool
from upcycled.engines.sequential import SEQUENTIAL, channels_last
from upcycled.engines.vectorised import open_vectorised
from upcycled.engines.vectorised import workers as workers_file
from upcycled.engines.vectorised.workers import bundles_of


@pytest.fixture(autouse=True)
def small_rounds_use_processes_too(monkeypatch):
    monkeypatch.setattr(workers_file, "FEW_GRADIENTS", 0)
    monkeypatch.setattr(workers_file, "FEW_PRODUCTS", 1)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["momentum", "full batch", "moreau"])
@pytest.mark.parametrize("kind", ["mlp", "conv", "lstm_fixed"])
def test_the_number_of_workers_does_not_show_in_a_single_bit(kind, solver):
    found = []
    for threads in (1, 2):
        with closing(open_vectorised(task_of(kind, SOLVERS[solver]), threads, "workers")) as engine:
            trained = engine.train(work_of(engine.task))
            found.append((trained.vectors.tobytes(), trained.num_steps.tolist(), engine.score(trained.vectors[0])))
        found[-1] += () if trained.private is None else (trained.private.tobytes(),)
    assert found[0] == found[1]


def in_process(way, kind):
    """Run in a worker: the same round in another process."""
    engine = open_vectorised(task_of(kind), 1, way)
    trained = engine.train(work_of(engine.task))
    return trained.vectors.tobytes(), engine.score(trained.vectors[0])


@pytest.mark.parametrize(("way", "kind"), [pytest.param("stacked", "mlp", marks=pytest.mark.slow), ("workers", "conv")])
def test_a_round_has_the_same_bits_in_another_process_and_in_another_thread(way, kind):
    elsewhere = worker_pool(2).submit(in_process, way, kind).result()
    found = []
    thread = threading.Thread(target=lambda: found.append(in_process(way, kind)))
    thread.start()
    thread.join()
    assert in_process(way, kind) == elsewhere == found[0]


def test_scores_of_many_rows_are_shared_between_workers():
    task = task_of(test=shards("mlp", sizes=(700, 900, 800)))
    alone, model = open_vectorised(task_of(test=task.test), 1, "workers"), work_of(task).model
    with closing(open_vectorised(task, 2, "workers")) as shared:
        assert shared.score(model) == alone.score(model) == SEQUENTIAL.open(task_of(test=task.test), None).score(model)


def test_longest_clients_go_first_and_only_short_ones_share_a_message():
    steps = np.array([1, 500, 2, 30, *[1] * 200])
    bundles = bundles_of(steps, processes=2)
    assert [b.tolist() for b in bundles[:2]] == [[1], [3]]
    assert sorted(np.concatenate(bundles).tolist()) == list(range(len(steps)))
    assert len(bundles) <= 2 * workers_file.BUNDLES_EACH + 1


@pytest.mark.parametrize("way", ["stacked", "workers"])
def test_the_callers_thread_setting_is_restored_and_not_used(way, monkeypatch):
    seen = []

    class Watching(nn.Linear):
        def forward(self, x):
            seen.append(torch.get_num_threads())
            return super().forward(x)

    engine = open_vectorised(task_of(module=Watching(6, CLASSES)), 1, way)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        work = work_of(engine.task)
        engine.train(work)
        engine.score(work.model)
        engine.score_personal(work.model, np.array([0]), work.model[None])
        assert set(seen[-10:]) == {1}
        assert torch.get_num_threads() == 2
        with pytest.raises(IndexError):
            engine.train(work_of(engine.task, clients=(99, 100, 101)))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_folder_goes_when_the_engine_is_closed_and_when_a_round_fails(temporary):
    with closing(open_vectorised(task_of(), 2, "workers")) as engine:
        assert len([path for path in temporary.glob("upcycled-*") if path.is_dir()]) == 1
        with pytest.raises(IndexError):
            engine.train(work_of(engine.task, clients=(0, 1, 99)))
    assert not list(temporary.glob("upcycled-*"))
    engine.close()


def test_nothing_is_written_where_all_is_done_in_process(temporary):
    open_vectorised(task_of(), 1, "workers").close()
    open_vectorised(task_of(), 2, "stacked").close()
    open_vectorised(task_of(cohort_size=1), 2, "workers").close()
    assert not list(temporary.iterdir())


class Mortal(nn.Module):
    """Ends a process other than the one that made it: once, if there is a flag file, or else every time."""

    def __init__(self, flag):
        super().__init__()
        self.linear, self.flag, self.home = nn.Linear(6, CLASSES), flag, os.getpid()

    def forward(self, x):
        if os.getpid() != self.home and self._has_to_die():
            os._exit(1)
        return self.linear(x)

    def _has_to_die(self):
        """Two processes may come here at once: the one that removes the flag is the one that dies."""
        if self.flag is None:
            return True
        try:
            Path(self.flag).unlink()
        except FileNotFoundError:
            return False
        return True


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:A worker stopped:UserWarning")
def test_a_worker_that_dies_once_is_replaced_and_the_round_is_whole(tmp_path):
    flag = tmp_path / "flag"
    module = Mortal(str(flag))
    reference = SEQUENTIAL.open(task_of(module=module), None)
    with closing(open_vectorised(task_of(module=module), 2, "workers")) as engine:
        flag.touch()
        work = work_of(engine.task)
        assert engine.train(work).vectors.tobytes() == reference.train(work).vectors.tobytes()
        assert not flag.exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:A worker stopped:UserWarning")
def test_workers_that_keep_dying_end_in_one_sentence():
    engine = open_vectorised(task_of(module=Mortal(None)), 2, "workers")
    with closing(engine), pytest.raises(UpcycledError, match=r"twice.*round"):
        engine.train(work_of(engine.task))


def test_a_task_survives_the_journey(tmp_path):
    task = task_of("conv")
    send(task, tmp_path)
    back = receive(tmp_path)
    for part in ("x", "y", "offsets"):
        for one, two in ((back.train, task.train), (back.test, task.test)):
            assert np.array_equal(getattr(one, part), getattr(two, part))
            assert getattr(one, part).dtype == getattr(two, part).dtype
    assert (back.layout, back.solver, back.seed) == (task.layout, task.solver, task.seed)
    assert all(torch.equal(a, b) for a, b in zip(back.module.parameters(), task.module.parameters(), strict=True))


@pytest.mark.parametrize("cut", [slice(None), slice(3, 7), slice(0, 0), slice(None, None, 2)])
def test_memory_mapped_data_stay_where_they_are(tmp_path, cut):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.normal(size=(10, 4)).astype(np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")[cut]
    stored = store(np.asarray(mapped), tmp_path / "copy")
    assert np.array_equal(stored.open(), mapped)
    contiguous = mapped.flags.c_contiguous
    assert Path(stored.path).name == ("x.npy" if contiguous else "copy")


def test_rows_that_were_let_go_can_be_read_again(tmp_path):
    task = task_of()
    send(task, tmp_path)
    train = receive(tmp_path).train
    assert np.array_equal(train.x, task.train.x)
    let_go(train)
    assert np.array_equal(train.x, task.train.x)
    let_go(task.train)


def test_a_copy_on_write_map_is_not_trusted_to_equal_its_file(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(4))
    changed = np.load(tmp_path / "x.npy", mmap_mode="c")
    changed[0] = 1.0
    assert store(changed, tmp_path / "copy").open().tolist() == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.slow
def test_memory_mapped_training_gives_the_same_bits(tmp_path):
    plain = task_of()
    np.save(tmp_path / "x.npy", plain.train.x)
    mapped = Shards(np.load(tmp_path / "x.npy", mmap_mode="r"), plain.train.y, plain.train.offsets)
    work = work_of(plain)
    for way in ("stacked", "workers"):
        one = open_vectorised(task_of(), 1, way)
        with closing(open_vectorised(task_of(train=mapped), 2, way)) as two:
            assert one.train(work).vectors.tobytes() == two.train(work).vectors.tobytes()


def test_images_are_laid_out_for_convolutions_and_nothing_else_is():
    assert SEQUENTIAL.open(task_of("conv"), None).has_channels_last
    assert not SEQUENTIAL.open(task_of("mlp"), None).has_channels_last


def test_a_layout_changes_no_value():
    images = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
    assert torch.equal(channels_last(images), images)
    assert channels_last(images).is_contiguous(memory_format=torch.channels_last)
