"""Which way, and what is refused with which sentence."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.engines.vectorised.cases import CLASSES, SGD, task_of
from upcycled.core.solvers import LocalSGD
from upcycled.engines.vectorised import VECTORISED, is_stackable, open_vectorised, way_of

MANY = 200


def way(module, kind="mlp", cohort_size=MANY, **changes):
    return way_of(task_of(kind, module=module, cohort_size=cohort_size, **changes))


def small(*layers):
    return nn.Sequential(nn.Linear(6, 8), *layers, nn.Linear(8, CLASSES))


def test_small_models_in_company_are_stacked_and_large_ones_are_not():
    assert way(small(nn.Tanh())) == "stacked"
    large = nn.Sequential(nn.Linear(6, 500), nn.ReLU(), nn.Linear(500, 500), nn.ReLU(), nn.Linear(500, CLASSES))
    assert way(large) == "workers"


def test_a_cohort_of_one_is_not_stacked():
    assert way(small(nn.Tanh()), cohort_size=1) == "workers"


def test_work_per_step_counts_and_not_only_parameters():
    """A convolution uses its few parameters many times."""
    images = task_of("conv").train
    big = replace(images, x=np.zeros((images.num_rows, 1, 40, 40), dtype=np.float32))
    module = nn.Sequential(nn.Conv2d(1, 16, 5), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))
    assert sum(p.numel() for p in module.parameters()) < 500
    assert way(module, "conv", train=big) == "workers"


@pytest.mark.parametrize("threads", [1, 2, None])
def test_the_way_does_not_depend_on_the_number_of_threads(threads):
    for task, expected in ((task_of(cohort_size=MANY), "stacked"), (task_of("lstm"), "workers")):
        with closing(open_vectorised(task, threads)) as engine:
            assert (engine.name, engine.way) == ("vectorised", expected)


class SamplesSeeEachOther(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.linear(x) - self.linear(x).mean(0)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.linear(x) if x.sum() > 0 else self.linear(-x)


@pytest.mark.parametrize(
    "module",
    [SamplesSeeEachOther(), small(nn.BatchNorm1d(8, track_running_stats=False)), Branches()],
    ids=["samples see each other", "batch norm", "branches on data"],
)
def test_what_cannot_be_stacked_goes_to_workers(module):
    assert not is_stackable(task_of(module=module))
    assert way(module) == "workers"
    assert VECTORISED.refuses(task_of(module=module)) is None


def test_an_output_that_starts_at_zero_does_not_hide_batch_norm():
    module = small(nn.BatchNorm1d(8, track_running_stats=False))
    nn.init.zeros_(module[-1].weight)
    assert way(module) == "workers"


class FunctionalDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.linear(nn.functional.dropout(x, 0.5, self.training))


@pytest.mark.parametrize("layer", [nn.Dropout(0.1), nn.RReLU(), nn.AlphaDropout(0.2), nn.FeatureAlphaDropout(0.2)])
def test_layers_that_draw_are_refused_in_one_sentence(layer):
    reason = VECTORISED.refuses(task_of(module=small(layer)))
    assert "draws random numbers in training (dropout does)" in reason
    assert "engine='sequential'" in reason


def test_dropout_inside_a_forward_method_is_refused_too():
    assert "random numbers" in VECTORISED.refuses(task_of(module=FunctionalDropout()))


def test_dropout_that_never_drops_is_taken():
    assert VECTORISED.refuses(task_of(module=small(nn.Dropout(0.0)))) is None


def test_an_unknown_solver_is_refused_by_name():
    @dataclass(frozen=True)
    class Newton:
        local: LocalSGD = SGD

    assert VECTORISED.refuses(task_of(solver=Newton())) == "the vectorised engine has no Newton"


def test_a_model_that_cannot_reach_other_processes_is_refused():
    class Locked(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.hidden = nn.Linear(6, 2000), nn.Linear(2000, CLASSES)

        def __deepcopy__(self, memo):
            return self

        def forward(self, x):
            return self.hidden(self.linear(x))

    module = Locked()
    module.lock = threading.Lock()
    reason = VECTORISED.refuses(task_of(module=module))
    assert reason.startswith("the model cannot be sent to worker processes (")
    assert "pickle" in reason


def test_asking_leaves_generator_module_and_modes_alone():
    task = task_of(module=small(nn.Dropout(0.3)).eval())
    before = torch.get_rng_state()
    weights = [p.clone() for p in task.module.parameters()]
    VECTORISED.refuses(task)
    way_of(task)
    assert torch.equal(before, torch.get_rng_state())
    assert not any(layer.training for layer in task.module.modules())
    assert all(torch.equal(a, b) for a, b in zip(weights, task.module.parameters(), strict=True))
