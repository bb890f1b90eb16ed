"""Scores against float64: accuracy, mean cross-entropy, personal models."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from tests.engines.fused.exact import federation, log_softmax, logits_of, open_fused, stack, task_for
from upcycled.core.layout import flatten
from upcycled.core.solvers import LocalSGD
from upcycled.core.vectors import Shards

SIZES = (300, 5, 0, 41, 700, 1)


def tally(module, flat, x, y):
    z = logits_of(module, flat, x)[1]
    return (z.argmax(1) == y).sum(), -log_softmax(z)[np.arange(len(y)), y].sum()


def task_with(module, shape, classes, test):
    return task_for(module, federation((4, 4), shape, classes), LocalSGD(), classes, test)


@pytest.mark.parametrize(
    ("make", "shape", "classes"),
    [
        (lambda: nn.Linear(20, 2), (20,), 2),
        (lambda: nn.Linear(7, 11, bias=False), (7,), 11),
        (lambda: stack(20, 30, 5, flattens=True), (4, 5), 5),
    ],
)
def test_the_global_model_and_the_personal_ones_are_scored_as_float64_says(make, shape, classes):
    test, module = federation(SIZES, shape, classes, seed=2), make()
    task = task_with(module, shape, classes, test)
    model, rng, engine = flatten(module), np.random.default_rng(0), open_fused(task)
    hits, loss = tally(module, model, test.x, test.y)
    found = engine.score(model)
    assert found.num_samples == 1047
    assert found.accuracy == hits / 1047
    assert found.loss == pytest.approx(loss / 1047, rel=1e-5)

    clients = np.array([4, 0, 2])
    personal = rng.normal(0, 0.5, (3, model.size)).astype(np.float32)
    own = dict(zip(clients.tolist(), personal, strict=True))
    parts = [tally(module, own.get(i, model), *test.client(i)) for i in range(len(SIZES))]
    found = engine.score_personal(model, clients, personal)
    assert found.num_samples == 1047
    assert found.accuracy == sum(h for h, _ in parts) / 1047
    assert found.loss == pytest.approx(sum(lost for _, lost in parts) / 1047, rel=1e-5)
    none = engine.score_personal(model, clients[:0], personal[:0])
    assert none.accuracy == hits / 1047


def test_the_first_of_equal_logits_wins():
    test = Shards(np.ones((3, 4), dtype=np.float32), np.array([0, 1, 2]), np.array([0, 3]))
    task = task_with(nn.Linear(4, 3), (4,), 3, test)
    assert open_fused(task).score(np.zeros(15, dtype=np.float32)).accuracy == pytest.approx(1 / 3)
    last_two = np.zeros(15, dtype=np.float32)
    last_two[13:] = 1.0
    test.y[:] = 1
    assert open_fused(task).score(last_two).accuracy == 1.0
    test.y[:] = 2
    assert open_fused(task).score(last_two).accuracy == 0.0


def test_a_loss_is_exact_far_from_the_right_answer():
    # Logits 1000 and 0: the wrong class costs 1000 and the right one nothing, without overflow.
    test = Shards(np.ones((2, 1), dtype=np.float32), np.array([0, 1]), np.array([0, 2]))
    task = task_with(nn.Linear(1, 2, bias=False), (1,), 2, test)
    assert open_fused(task).score(np.array([1000, 0], dtype=np.float32)).loss == 500.0


def test_without_test_samples_the_scores_are_no_numbers():
    task = task_with(nn.Linear(3, 2), (3,), 2, None)
    model = flatten(task.module)
    for test in (None, federation((0, 0), (3,), 2)):
        engine = open_fused(task_with(nn.Linear(3, 2), (3,), 2, test))
        for scores in (engine.score(model), engine.score_personal(model, np.zeros(0, np.int64), model[None][:0])):
            assert np.isnan(scores.accuracy)
            assert np.isnan(scores.loss)
            assert scores.num_samples == 0
