"""What ``engine="auto"`` takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import upcycled as up
from tests.engines.vectorised.cases import CLASSES, task_of
from upcycled import engines
from upcycled.engines import choose_engine
from upcycled.engines.vectorised import products_of


def tanh(features=6, hidden=3, classes=CLASSES):
    return nn.Sequential(nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, classes))


@pytest.mark.parametrize(
    ("module", "x", "products"),
    [
        (nn.Linear(6, 4, bias=False), np.zeros((139, 6), dtype=np.float32), 8 * 24),
        (nn.Conv2d(1, 3, 2, bias=False), np.zeros((139, 1, 7, 7), dtype=np.float32), 8 * 12 * 49),
        (nn.Embedding(20, 5), np.zeros((139, 7), dtype=np.int64), 8 * 100 * 7),
        (nn.Linear(6, 4, bias=False), np.zeros((139, 7, 6), dtype=np.float32), 8 * 24 * 7),
    ],
    ids=["vectors", "images", "tokens", "sequences"],
)
def test_products_count_pixels_of_convolutions_and_tokens_of_sequences(module, x, products):
    task = task_of(module=module)
    assert products_of(replace(task, train=replace(task.train, x=x))) == products


def test_few_steps_stay_in_the_sequential_engine_and_many_go_to_the_vectorised_one():
    few = task_of("linear", module=tanh(), cohort_size=40)
    assert choose_engine("auto", few).name == "sequential"
    many = replace(few, rounds=1000)
    assert choose_engine("auto", many).name == "vectorised"
    # The vectorised engine refuses dropout.
    drops = replace(many, module=nn.Sequential(tanh(), nn.Dropout(0.5)))
    assert choose_engine("auto", drops).name == "sequential"


def test_large_steps_count_as_several():
    task = task_of(module=tanh(hidden=100_000), cohort_size=4, rounds=300)
    assert choose_engine("auto", task).name == "vectorised"
    assert choose_engine("auto", replace(task, module=tanh())).name == "sequential"


def test_auto_takes_the_fused_engine_wherever_it_can_however_short_the_run():
    relu = nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 4))
    assert choose_engine("auto", task_of("linear", module=relu)).name == "fused"


def test_a_run_goes_on_only_with_the_engine_that_it_began_with(tmp_path, monkeypatch):
    data = up.data.synthetic(0.5, 0.5, clients=40, dim=6, num_classes=4, sizes=20, seed=0)
    asked = {"algorithm": up.FedAvg(), "local": up.LocalSGD(lr=0.1, epochs=1, batch_size=8), "progress": False}

    def run(**changes):
        torch.manual_seed(0)
        return up.train(data, model=tanh(), iterations=4, **asked, **changes)

    stopped = run(checkpoint=tmp_path, callbacks=[lambda record: up.STOP if record.iteration == 2 else None])
    assert (len(stopped.history), stopped.settings["engine"]) == (2, "sequential")
    monkeypatch.setattr(engines, "LONG_RUN", 3 * 40 * 3)
    with pytest.raises(up.InputError, match=r"engine.*'vectorised'.*holds.*'sequential'"):
        run(checkpoint=tmp_path)
    resumed = run(checkpoint=tmp_path, engine="sequential")
    assert (len(resumed.history), resumed.settings["engine"]) == (4, "sequential")
