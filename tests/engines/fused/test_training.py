"""The kernels against an independent float64 implementation, to 1e-4 after several rounds."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from tests.engines.fused.exact import distance, federation, open_fused, rounds, stack, task_for
from upcycled.core.solvers import LocalSGD, MoreauSGD
from upcycled.engines.fused.supported import loss_of, stack_of
from upcycled.engines.fused.training_kernels import gram_pays
from upcycled.engines.fused.workspace import workspace_for

RAGGED = (23, 7, 70, 41, 1)
COHORTS = [
    ([0, 1, 2, 3, 4], [3, 3, 3, 3, 3]),
    ([3, 1, 4], [1, 3, 2]),
    ([2, 0], [2, 3]),
    ([0, 2, 3, 4], [3, 1, 2, 3]),
]
"""Everybody; then fewer clients in any order, some of them stragglers."""

MODULES = {
    "linear 20-2": (lambda: nn.Linear(20, 2), (20,), 2),
    "linear 5-3 without bias": (lambda: nn.Linear(5, 3, bias=False), (5,), 3),
    "linear 16-10": (lambda: nn.Linear(16, 10), (16,), 10),
    "linear 32-7 without bias": (lambda: nn.Linear(32, 7, bias=False), (32,), 7),
    "linear 129-13": (lambda: nn.Linear(129, 13), (129,), 13),
    "flatten 4x5-3": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(20, 3)), (4, 5), 3),
    "stack 12-9-4": (lambda: stack(12, 9, 4), (12,), 4),
    "stack 3x6-33-17-8-5": (lambda: stack(18, 33, 17, 8, 5, flattens=True), (3, 6), 5),
    "stack 10-16-3 without bias": (lambda: stack(10, 16, 3, bias=False), (10,), 3),
}

WIDE = {
    "linear 129-13": MODULES["linear 129-13"],
    "stack 150-21-12-5": (lambda: stack(150, 21, 12, 5), (150,), 5),
    "stack 200-33-4 without bias": (lambda: stack(200, 33, 4, bias=False), (200,), 4),
}


def worst(task, a=0.0, with_b=False, threads=1):
    """The largest distance over the rounds; also checks the steps and the private vectors."""
    engine, far = open_fused(task, threads), 0.0
    for work, (vectors, steps, thetas) in rounds(task, COHORTS, a, with_b):
        found = engine.train(work)
        assert found.vectors.dtype == np.float32
        assert found.num_steps.tolist() == steps.tolist()
        far = max(far, distance(found.vectors, vectors))
        if isinstance(task.solver, MoreauSGD):
            far = max(far, distance(found.private, thetas))
        else:
            assert found.private is None
    engine.close()
    return far


@pytest.mark.parametrize("name", MODULES)
def test_sgd_equals_float64_on_ragged_clients_with_stragglers(name):
    make, shape, classes = MODULES[name]
    task = task_for(make(), federation(RAGGED, shape, classes), LocalSGD(0.05, 0.5, 3, 8), classes)
    assert worst(task) < 1e-4


@pytest.mark.parametrize("batch", [1, 7, 32, 33, 64, 100, None])
@pytest.mark.parametrize("name", ["linear 5-3 without bias", "stack 12-9-4"])
def test_batches_of_every_size_have_a_short_last_one_of_its_own_mean(name, batch):
    make, shape, classes = MODULES[name]
    solver = LocalSGD(0.02 if batch == 1 else 0.1, 0.9 if batch != 1 else 0.0, 3, batch)
    task = task_for(make(), federation(RAGGED, shape, classes), solver, classes)
    assert worst(task) < 1e-4


@pytest.mark.parametrize(("a", "with_b"), [(0.3, False), (0.0, True), (0.7, True)])
@pytest.mark.parametrize("name", ["linear 20-2", "stack 3x6-33-17-8-5"])
def test_the_correction_is_a_times_the_way_gone_plus_b(name, a, with_b):
    make, shape, classes = MODULES[name]
    task = task_for(make(), federation(RAGGED, shape, classes), LocalSGD(0.05, 0.5, 3, 10), classes)
    assert worst(task, a, with_b) < 1e-4


@pytest.mark.parametrize("batch", [8, 40, None])
@pytest.mark.parametrize(("a", "with_b"), [(0.0, False), (0.4, True)])
@pytest.mark.parametrize("name", ["linear 20-2", "stack 12-9-4"])
def test_moreau_equals_float64_with_an_inner_rate_of_its_own(name, a, with_b, batch):
    make, shape, classes = MODULES[name]
    solver = MoreauSGD(LocalSGD(0.05, 0.0, 3, batch), lam=2.0, inner_steps=4, inner_lr=0.11)
    task = task_for(make(), federation(RAGGED, shape, classes), solver, classes)
    assert worst(task, a, with_b) < 1e-4


@pytest.mark.parametrize("batch", [8, 31, 32, 40, None])
@pytest.mark.parametrize("name", ["linear 129-13", "stack 150-21-12-5", "stack 200-33-4 without bias"])
@pytest.mark.parametrize(("lam", "inner_lr", "inner_steps"), [(2.0, 0.11, 4), (15.0, 0.1, 5), (10.0, 0.1, 6)])
def test_moreau_on_wide_rows_equals_float64_by_its_gram_matrix(name, batch, lam, inner_lr, inner_steps):
    # inner_lr lam = 0.22, 1.5 and 1: theta is kept, turned round, and forgotten in every inner step.
    make, shape, classes = WIDE[name]
    solver = MoreauSGD(LocalSGD(0.02, 0.0, 3, batch), lam, inner_steps, inner_lr)
    data = federation(RAGGED, shape, classes)
    data.x[:] /= np.sqrt(shape[0])
    task = task_for(make(), data, solver, classes)
    stack = stack_of(task.module, task.layout)
    workspace = workspace_for(stack, loss_of(task, stack.layers[-1].outputs))
    assert gram_pays.py_func(workspace.table, inner_steps)
    assert worst(task) < 1e-4


@pytest.mark.parametrize("solver", [LocalSGD(0.1, 0.5, 3, 8), MoreauSGD(LocalSGD(0.1, 0.0, 3, 8), 1.5, 3, 0.05)])
@pytest.mark.parametrize("name", ["linear 20-2", "stack 12-9-4"])
def test_the_number_of_threads_does_not_change_a_bit(name, solver, monkeypatch):
    monkeypatch.setattr("upcycled.engines.fused.engine._SMALL", 0)
    make, shape, classes = MODULES[name]
    sizes = (23, 7, 70, 41, 1, 5, 64, 90, 12, 33)
    data, tests = federation(sizes, shape, classes), federation((300, 500, 1, 900), shape, classes, seed=1)
    task = task_for(make(), data, solver, classes, tests)
    work = next(rounds(task, [(list(range(10)), [3, 1, 2, 3, 3, 1, 2, 3, 3, 2])], 0.2, True))[0]
    results = []
    for threads in (1, 2, 3):
        engine = open_fused(task, threads)
        found = [engine.train(work) for _ in range(5)]
        scores = [engine.score(found[0].vectors[0])]
        if found[0].private is not None:
            scores.append(engine.score_personal(work.model, np.array([1, 3]), found[0].private[:2]))
        engine.close()
        results.append((found, scores))
    alone, scores = results[0]
    for found, others in results:
        assert others == scores
        for each in found:
            np.testing.assert_array_equal(each.vectors, alone[0].vectors)
            if each.private is not None:
                np.testing.assert_array_equal(each.private, alone[0].private)


@pytest.mark.parametrize("name", ["linear 20-2", "stack 12-9-4"])
def test_a_client_does_not_notice_who_trained_before_it(name):
    make, shape, classes = MODULES[name]
    task = task_for(make(), federation(RAGGED, shape, classes), LocalSGD(0.1, 0.5, 3, 8), classes)
    work = next(rounds(task, COHORTS[:1], 0.2, True))[0]
    engine = open_fused(task)
    together = engine.train(work).vectors
    for lane in (4, 0, 3, 2, 1):
        alone = engine.train(work[np.array([lane])]).vectors
        np.testing.assert_array_equal(alone[0], together[lane])


def test_memory_mapped_read_only_data_give_the_same_bits_and_are_not_copied(tmp_path):
    data = federation(RAGGED, (20,), 2)
    mapped = []
    for name, array in (("x", data.x), ("y", data.y), ("offsets", data.offsets)):
        np.save(tmp_path / f"{name}.npy", array)
        mapped.append(np.load(tmp_path / f"{name}.npy", mmap_mode="r"))
    solver = LocalSGD(0.1, 0.5, 3, 8)
    plain_task = task_for(nn.Linear(20, 2), data, solver, 2, data)
    task = task_for(nn.Linear(20, 2), type(data)(*mapped), solver, 2, type(data)(*mapped))
    work = next(rounds(task, COHORTS[:1], 0.1, True))[0]
    for array in (work.model, work.problem.b, work.cohort.clients, work.cohort.epochs):
        array.flags.writeable = False
    engine, other = open_fused(task), open_fused(plain_task)
    np.testing.assert_array_equal(engine.train(work).vectors, other.train(work).vectors)
    assert engine.score(work.model) == other.score(work.model)
    assert np.shares_memory(engine._train.x, mapped[0])


def test_a_client_that_diverges_shows_it_and_spoils_no_other():
    data = federation(RAGGED, (5,), 3)
    start, end = data.offsets[2], data.offsets[3]
    data.x[start:end] *= 1e30
    task = task_for(nn.Linear(5, 3), data, LocalSGD(0.5, 0.5, 3, 8), 3, data)
    healthy = task_for(nn.Linear(5, 3), federation(RAGGED, (5,), 3), LocalSGD(0.5, 0.5, 3, 8), 3, data)
    work = next(rounds(healthy, COHORTS[:1]))[0]
    engine = open_fused(task)
    # The client of most samples goes first, so that all others come after it in the same work array.
    found, expected = engine.train(work).vectors, open_fused(healthy).train(work).vectors
    assert not np.isfinite(found[2]).all()
    np.testing.assert_array_equal(np.delete(found, 2, 0), np.delete(expected, 2, 0))
    assert np.isnan(engine.score(found[2]).loss)
    assert np.isfinite(open_fused(healthy).score(found[0]).loss)


@pytest.mark.parametrize("name", ["linear 5-3 without bias", "stack 12-9-4"])
def test_too_large_a_rate_ends_in_numbers_that_are_not_finite(name):
    make, shape, classes = MODULES[name]
    task = task_for(make(), federation(RAGGED, shape, classes), LocalSGD(1e38, 0.9, 3, 8), classes)
    work = next(rounds(task_for(make(), task.train, LocalSGD(0.1, 0, 3, 8), classes), COHORTS[:1]))[0]
    assert not np.isfinite(open_fused(task).train(work).vectors).all()


def test_a_client_without_samples_stays_where_it_was():
    data = federation((4, 0, 6), (5,), 3)
    for batch in (2, None):
        task = task_for(nn.Linear(5, 3), data, LocalSGD(0.1, 0.5, 2, batch), 3)
        empty = task_for(nn.Linear(5, 3), federation((4, 6), (5,), 3), LocalSGD(0.1, 0.5, 2, batch), 3)
        model = next(rounds(empty, [([0, 1], [2, 2])]))[0].model
        work = next(rounds(empty, [([0, 1], [2, 2])]))[0]
        cohort = type(work.cohort)(np.array([0, 1, 2]), np.array([2, 2, 2]))
        found = open_fused(task).train(type(work)(1, 1, 0, cohort, model, work.problem))
        np.testing.assert_array_equal(found.vectors[1], model)
        assert found.num_steps.tolist() == ([4, 0, 6] if batch else [2, 0, 2])


def test_a_label_that_is_no_class_is_an_error_and_not_a_write_beyond_the_array():
    data = federation(RAGGED, (5,), 3)
    data.y[data.offsets[3] + 2] = 3
    task = task_for(nn.Linear(5, 3), data, LocalSGD(), 3, data)
    engine = open_fused(task)
    good = task_for(nn.Linear(5, 3), federation(RAGGED, (5,), 3), LocalSGD(), 3)
    work = next(rounds(good, COHORTS[:1]))[0]
    with pytest.raises(ValueError, match=r"client 3.*label.*model's 3 classes"):
        engine.train(work)
    with pytest.raises(ValueError, match=r"test\.y"):
        engine.score(work.model)


def test_full_batches_come_in_the_rows_own_order_whatever_the_seed():
    data = federation(RAGGED, (20,), 2)
    found = []
    for seed in (3, 4):
        task = task_for(nn.Linear(20, 2), data, LocalSGD(0.1, 0.5, 3, None), 2, seed=seed)
        work = next(rounds(task, COHORTS[:1]))[0]
        found.append(open_fused(task).train(work).vectors)
    np.testing.assert_array_equal(found[0], found[1])
