"""What auto takes, and what it is decided by: counts of operations, and seconds made of them by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import upcycled as up
from tests.engines.vectorised.cases import task_of
from upcycled.core.solvers import LocalSGD
from upcycled.engines import ENGINES, choose_engine
from upcycled.engines.choice import expected_seconds as expectations
from upcycled.engines.choice.effort import Effort, count, effort_of_pass
from upcycled.engines.choice.expected_seconds import PACES, expected_seconds


def tanh(features=6, hidden=3, classes=4):
    return nn.Sequential(nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, classes))


class Products(nn.Module):
    """The same product of (n, 3) by (3, 5) in many words."""

    def __init__(self, function):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 5))
        self.function = function

    def forward(self, x):
        return self.function(x, self.weight)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: x @ w,
        torch.mm,
        lambda x, w: torch.addmm(torch.zeros(5), x, w),
        lambda x, w: torch.einsum("ij,jk->ik", x, w),
        lambda x, w: torch.bmm(x[None], w[None]),
        lambda x, w: nn.functional.linear(x, w.T),
    ],
)
def test_a_product_counts_the_same_however_it_is_written(function):
    assert count(Products(function), torch.zeros(7, 3)).products == 2 * 7 * 3 * 5


LAYERS = {
    # 2 x outputs x (inputs of one output)
    "convolution": (nn.Conv2d(2, 6, 3, stride=2, groups=2), (2, 9, 9), 2 * 6 * 4 * 4 * (1 * 3 * 3)),
    # every input meets every weight of its channel
    "transposed": (nn.ConvTranspose2d(2, 6, 3), (2, 4, 4), 2 * 2 * 4 * 4 * (6 * 3 * 3)),
    # 4 gates of 5 units that look at 3 inputs and 5 states, at each of 4 places
    "lstm": (nn.LSTM(3, 5, batch_first=True), (4, 3), 2 * 4 * 4 * 5 * (3 + 5)),
    "two directions": (nn.GRU(3, 5, batch_first=True, bidirectional=True), (4, 3), 2 * 2 * 4 * 3 * 5 * (3 + 5)),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_count_what_is_multiplied_in_them(layer):
    module, shape, flops = LAYERS[layer]
    found = count(module, torch.zeros(3, *shape))
    assert found.flops == 3 * flops
    assert (found.convolutions > 0) == (layer in ("convolution", "transposed"))


def test_attention_counts_its_projections_and_both_products():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    # 4 projections of 5 places, 5 x 5 scores and as many sums over 8 numbers, and two layers of 16.
    assert count(layer, torch.zeros(3, 5, 8)).products == 3 * 2 * 5 * (4 * 8 * 8 + 2 * 5 * 8 + 2 * 8 * 16)


def test_a_model_that_cannot_be_tried_counts_its_parameters():
    class Broken(nn.Linear):
        def forward(self, x):
            raise ValueError("not today")

    assert effort_of_pass(task_of("linear", module=Broken(3, 5))) == Effort(2, 0.0, 2 * 2 * 20.0, 0.0, 0.0)


def test_the_count_looks_at_no_record_and_moves_no_generator():
    class Peeking(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 4)

        def forward(self, x):
            assert not x.any(), "saw a sample"
            return nn.functional.dropout(self.linear(x), 0.5, training=True)

    task = task_of("linear", module=Peeking())
    before = torch.get_rng_state()
    assert effort_of_pass(task).products == 2 * 2 * 6 * 4  # a model that failed would count its biases, too
    assert torch.equal(before, torch.get_rng_state())


def test_seconds_are_the_sum_of_their_parts(monkeypatch):
    module = nn.Linear(6, 4)
    task = replace(
        task_of("linear", module=module), solver=LocalSGD(lr=0.1, epochs=3, batch_size=8), rounds=10, cohort_size=4
    )
    pace = expectations.Pace(start=1e6, step=2.0, call=3.0, flop=5.0, element=7.0, parameter=11.0)
    ways = {"one": pace, "two": replace(pace, at_once=2), "stack": replace(pace, is_stack=True)}
    monkeypatch.setattr(expectations, "PACES", ways)
    sizes = task.train.sizes
    mean = math.ceil(sizes.mean())
    batch = min(8, sizes.mean())
    steps, longest = 3 * math.ceil(mean / 8), 3 * math.ceil(sizes.max() / 8)
    own = 5 * 3 * batch * 2 * 6 * 4 + 7 * batch * 4 + 11 * 28
    each = 10 * 4 * steps * (2 + 3 + own)
    assert expected_seconds("one", task) == pytest.approx(1e6 + each)
    assert expected_seconds("two", task) == pytest.approx(1e6 + each / 2)
    assert expected_seconds("stack", task) == pytest.approx(1e6 + 10 * longest * (2 + 3) + 10 * 4 * steps * own)


def test_start_up_counts_so_that_few_rounds_stay_here_and_many_go_to_the_stack():
    few = task_of("linear", module=tanh(), cohort_size=40)
    assert choose_engine("auto", few).name == "sequential"
    many = replace(few, rounds=1000)
    assert choose_engine("auto", many).name == "vectorised"
    # Batch norm and dropout are refused by the other one, whatever it expects.
    drops = replace(many, module=nn.Sequential(tanh(), nn.Dropout(0.5)))
    assert ENGINES["vectorised"].expects(drops) == math.inf
    assert choose_engine("auto", drops).name == "sequential"


def test_large_steps_go_to_workers_when_they_save_more_than_their_start():
    task = task_of("linear", module=tanh(hidden=3000), cohort_size=4)
    times = {rounds: replace(task, rounds=rounds) for rounds in (1, 100_000)}
    assert expected_seconds("workers", times[1]) > PACES["workers"].start
    assert choose_engine("auto", times[1]).name == "sequential"
    assert choose_engine("auto", times[100_000]).name == "vectorised"


def test_auto_takes_the_fused_engine_wherever_it_can_however_short_the_run():
    relu = nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 4))
    assert choose_engine("auto", task_of("linear", module=relu)).name == "fused"


def test_a_longer_run_goes_on_with_the_engine_that_it_began_with(tmp_path, monkeypatch):
    data = up.data.synthetic(0.5, 0.5, clients=40, dim=6, classes=4, sizes=20, seed=0)
    asked = {"algorithm": up.FedAvg(), "local": up.LocalSGD(lr=0.1, epochs=1, batch_size=8), "progress": False}

    def run(iterations, **changes):
        torch.manual_seed(0)
        return up.train(data, model=tanh(), iterations=iterations, **asked, **changes)

    short = run(2, checkpoint=tmp_path)
    assert short.settings["engine"] == "sequential"
    monkeypatch.setattr(
        expectations,
        "PACES",
        {name: replace(pace, start=0.0 if name == "stacked" else 100.0) for name, pace in PACES.items()},
    )
    assert run(4).settings["engine"] == "vectorised"
    longer = run(4, checkpoint=tmp_path)
    assert longer.settings["engine"] == "sequential"
    assert torch.equal(longer.params, run(4, engine="sequential").params)
    # And finished, it is that run.
    assert run(4, checkpoint=tmp_path).settings["engine"] == "sequential"
