"""Both ways do what the sequential engine does: to rounding when stacked, to the last bit in workers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engines.vectorised.cases import MODULES, SOLVERS, difference, task_of, work_of
from upcycled.engines.sequential import SEQUENTIAL
from upcycled.engines.vectorised import open_vectorised


def both(kind, solver, way, corrected=True):
    reference = SEQUENTIAL.open(task_of(kind, solver), None)
    engine = open_vectorised(task_of(kind, solver), 1, way)
    work = work_of(engine.task, corrected=corrected)
    return engine.train(work), reference.train(work), work


@pytest.mark.usefixtures("without_onednn")
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("kind", MODULES)
def test_stacked_equals_sequential_when_clients_are_ragged(kind, solver):
    stacked, reference, work = both(kind, SOLVERS[solver], "stacked")
    assert difference(stacked.vectors, reference.vectors, work.model) < 1e-4
    assert np.array_equal(stacked.num_steps, reference.num_steps)
    if solver == "moreau":
        assert difference(stacked.private, reference.private, work.model) < 1e-4
    else:
        assert stacked.private is reference.private is None


@pytest.mark.parametrize("solver", SOLVERS)
def test_stacked_equals_sequential_without_corrections(solver):
    stacked, reference, work = both("mlp", SOLVERS[solver], "stacked", corrected=False)
    assert difference(stacked.vectors, reference.vectors, work.model) < 1e-4


@pytest.mark.parametrize("solver", ["momentum", "full batch", "moreau"])
@pytest.mark.parametrize("kind", MODULES)
def test_workers_equal_sequential_bit_for_bit(kind, solver):
    workers, reference, _ = both(kind, SOLVERS[solver], "workers")
    assert workers.vectors.tobytes() == reference.vectors.tobytes()
    assert (workers.private is None) == (solver != "moreau")
    if solver == "moreau":
        assert workers.private.tobytes() == reference.private.tobytes()


@pytest.mark.parametrize("way", ["stacked", "workers"])
def test_a_client_alone_and_very_unequal_clients_are_no_special_cases(way):
    reference = SEQUENTIAL.open(task_of(), None)
    engine = open_vectorised(task_of(), 1, way)
    for clients in [(3,), (2, 7)]:
        work = work_of(engine.task, clients)
        assert difference(engine.train(work).vectors, reference.train(work).vectors, work.model) < 1e-4


@pytest.mark.parametrize("way", ["stacked", "workers"])
@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_scores_equal_those_of_the_sequential_engine(kind, way):
    task = task_of(kind)
    reference, engine = SEQUENTIAL.open(task_of(kind), None), open_vectorised(task, 1, way)
    work = work_of(task)
    models = reference.train(work).vectors
    assert_same_scores(engine.score(models[0]), reference.score(models[0]))
    listed = np.array([1, 2, 3, 6])  # client 1 has no test samples
    mine = engine.score_personal(work.model, listed, models[:4])
    assert_same_scores(mine, reference.score_personal(work.model, listed, models[:4]))
    assert mine.num_samples == task.test.num_rows
    nobody = engine.score_personal(work.model, listed[:0], models[:0])
    assert_same_scores(nobody, engine.score(work.model))


@pytest.mark.parametrize("way", ["stacked", "workers"])
def test_personal_scores_are_those_of_each_client_counted_by_hand(way):
    """Clients that always say class 0 or class 1, by their biases alone."""
    engine = open_vectorised(task_of("linear"), 1, way)
    models = np.zeros((2, engine.task.layout.size), dtype=np.float32)
    models[0, -4], models[1, -3] = 50.0, 50.0
    others = np.zeros_like(models[0])
    others[-2] = 50.0
    test = engine.task.test
    says = np.full(test.num_rows, 2)
    for client, answer in ((2, 0), (6, 1)):
        says[test.offsets[client] : test.offsets[client + 1]] = answer
    right = int((says == test.y).sum())
    scores = engine.score_personal(others, np.array([2, 6]), models)
    assert scores.accuracy == pytest.approx(right / test.num_rows)
    assert scores.loss == pytest.approx(50.0 * (test.num_rows - right) / test.num_rows)


@pytest.mark.parametrize("way", ["stacked", "workers"])
def test_without_test_data_there_is_nothing_to_score(way):
    engine = open_vectorised(task_of(test=None), 1, way)
    model = work_of(engine.task).model
    for scores in (engine.score(model), engine.score_personal(model, np.array([0]), model[None])):
        assert scores.num_samples == 0
        assert np.isnan(scores.accuracy)


def assert_same_scores(one, two):
    assert one.accuracy == two.accuracy
    assert one.loss == pytest.approx(two.loss, rel=1e-5)
    assert one.num_samples == two.num_samples
