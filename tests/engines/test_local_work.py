"""Every loss and every optimiser, in every engine, held against torch's own loss functions and optimisers."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import upcycled as up
from upcycled.core.engine import Task
from upcycled.core.layout import flatten, layout_of
from upcycled.core.mechanism import Ask
from upcycled.core.randomness import Purpose, client_keys, permutations
from upcycled.core.sampling import Cohort
from upcycled.core.solvers import Problem
from upcycled.core.vectors import Shards
from upcycled.engines import ENGINES
from upcycled.losses import as_objective

SIZES = (23, 7, 41, 12)
FEATURES = 5
OUTPUTS = {"cross_entropy": 3, "binary_cross_entropy": 1, "multilabel": 3}
OURS = {
    "cross_entropy": "cross_entropy",
    "double_softmax": "double_softmax",
    "weighted": up.losses.CrossEntropy(class_weight=[1.0, 0.5, 3.0], label_smoothing=0.1),
    "binary_cross_entropy": "binary_cross_entropy",
    "weighted_binary": up.losses.BinaryCrossEntropy(class_weight=[0.5, 2.0]),
    "multilabel": "multilabel",
    "mse": "mse",
    "two_numbers": "mse",
    "mae": "mae",
    "huber": up.losses.Huber(threshold=0.7),
    "poisson": "poisson",
    "quantile": up.losses.Quantile(q=0.8),
}
TORCH = {
    "cross_entropy": functional.cross_entropy,
    "double_softmax": lambda z, y: functional.cross_entropy(functional.softmax(z, 1), y),
    "weighted": lambda z, y: (
        functional.cross_entropy(z, y, reduction="none", label_smoothing=0.1) * torch.tensor([1.0, 0.5, 3.0])[y]
    ).mean(),
    "binary_cross_entropy": lambda z, y: functional.binary_cross_entropy_with_logits(z[:, 0], y.float()),
    "weighted_binary": lambda z, y: functional.binary_cross_entropy_with_logits(
        z[:, 0], y.float(), weight=torch.tensor([0.5, 2.0])[y]
    ),
    "multilabel": functional.binary_cross_entropy_with_logits,
    "mse": lambda z, y: functional.mse_loss(z[:, 0], y),
    "two_numbers": functional.mse_loss,
    "mae": lambda z, y: functional.l1_loss(z[:, 0], y),
    "huber": lambda z, y: functional.huber_loss(z[:, 0], y, delta=0.7),
    "poisson": lambda z, y: functional.poisson_nll_loss(z[:, 0], y),
    "quantile": lambda z, y: torch.where(y > z[:, 0], 0.8 * (y - z[:, 0]), 0.2 * (z[:, 0] - y)).mean(),
}
WIDTH = {"cross_entropy": 3, "double_softmax": 3, "weighted": 3, "multilabel": 3, "two_numbers": 2}


def targets_for(name: str, rows: int, rng) -> np.ndarray:
    if name in ("cross_entropy", "double_softmax", "weighted"):
        return rng.integers(0, 3, rows)
    if name in ("binary_cross_entropy", "weighted_binary"):
        return rng.integers(0, 2, rows)
    if name == "multilabel":
        return rng.integers(0, 2, (rows, 3)).astype(np.float32)
    if name == "two_numbers":
        return rng.normal(size=(rows, 2)).astype(np.float32)
    return rng.poisson(2.0, rows).astype(np.float32) if name == "poisson" else rng.normal(size=rows).astype(np.float32)


def task_for(name: str, solver, hidden: bool, rounds: int = 3) -> Task:
    rng = np.random.default_rng(7)
    offsets = np.concatenate([[0], np.cumsum(SIZES)]).astype(np.int64)
    x = rng.normal(size=(offsets[-1], FEATURES)).astype(np.float32)
    shards = Shards(x, targets_for(name, len(x), rng), offsets)
    torch.manual_seed(3)
    width = WIDTH.get(name, 1)
    module = nn.Linear(FEATURES, width)
    if hidden:
        module = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, width))
    classes = {"cross_entropy": 3, "weighted": 3, "binary_cross_entropy": 2, "weighted_binary": 2}.get(name, width)
    targets = "classes" if shards.y.dtype.kind == "i" else "labels" if name == "multilabel" else "numbers"
    return Task(
        module=module,
        layout=layout_of(module),
        num_classes=classes,
        train=shards,
        test=shards,
        solver=solver,
        seed=5,
        objective=as_objective(OURS[name], targets),
        rounds=rounds,
        cohort_size=len(SIZES),
    )


def plainly(
    task: Task, start, name: str, make, client: int, round: int, a: float, b, max_norm: float | None
) -> np.ndarray:
    """One client's round as a user of torch would write it."""
    module, start = copy.deepcopy(task.module), torch.from_numpy(start)
    nn.utils.vector_to_parameters(start.clone(), module.parameters())
    optimiser = make(module.parameters())
    x, y = (torch.from_numpy(np.array(part)) for part in task.train.client(client))
    local = task.solver.local
    key = int(client_keys(task.seed, Purpose.BATCHES, round, np.array([client]))[0])
    for order in permutations(key, len(y), local.epochs):
        for first in range(0, len(y), local.batch_size):
            rows = order[first : first + local.batch_size]
            optimiser.zero_grad()
            flat = nn.utils.parameters_to_vector(module.parameters())
            extra = a / 2 * (flat - start).square().sum() + (0.0 if b is None else (torch.from_numpy(b) * flat).sum())
            (TORCH[name](module(x[rows]), y[rows]) + extra).backward()
            if max_norm is not None:
                nn.utils.clip_grad_norm_(module.parameters(), max_norm)
            optimiser.step()
    return nn.utils.parameters_to_vector(module.parameters()).detach().numpy()


EPOCHS = {"epochs": 3, "batch_size": 8}
SOLVERS = {
    "sgd": (up.LocalSGD(lr=0.1, momentum=0.9, **EPOCHS), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "decay": (
        up.LocalSGD(lr=0.1, momentum=0.5, weight_decay=0.05, **EPOCHS),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5, weight_decay=0.05),
    ),
    "nesterov": (
        up.LocalSGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, **EPOCHS),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    ),
    "clipped": (up.LocalSGD(lr=0.1, max_grad_norm=0.3, **EPOCHS), lambda p: torch.optim.SGD(p, lr=0.1)),
    "scheduled": (
        up.LocalSGD(lr=up.schedules.StepDecay(0.4, every=1, factor=0.5), **EPOCHS),
        lambda p: torch.optim.SGD(p, lr=0.2),
    ),
    "adam": (
        up.LocalAdam(lr=0.02, betas=(0.8, 0.95), weight_decay=0.1, max_grad_norm=0.5, **EPOCHS),
        lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.8, 0.95), weight_decay=0.1),
    ),
    "adamw": (
        up.LocalAdamW(lr=lambda m, rounds: 0.01 * m, weight_decay=0.2, **EPOCHS),
        lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.2),
    ),
}


def everyone(epochs: int) -> Cohort:
    return Cohort(np.arange(len(SIZES)), np.full(len(SIZES), epochs))


FUSED = ("cross_entropy", "double_softmax", "binary_cross_entropy", "mse", "two_numbers", "huber")
"""The losses that the fused engine has kernels for."""
ON = [(engine, name) for name in OURS for engine in ENGINES if engine != "fused" or name in FUSED]


def open_engine(engine: str, task: Task):
    assert ENGINES[engine].refuses(task) is None
    return ENGINES[engine].open(task, 1)


def corrections(task: Task) -> np.ndarray:
    return 0.1 * np.random.default_rng(1).normal(size=(len(SIZES), task.layout.size)).astype(np.float32)


def check(engine: str, name: str, solver: str, hidden: bool) -> None:
    asked, make = SOLVERS[solver]
    task = task_for(name, asked, hidden)
    start = flatten(task.module)
    opened = open_engine(engine, task)
    cohort, b = everyone(asked.local.epochs), corrections(task)
    trained = opened.train(Ask(2, 2, 0, cohort, start, Problem(0.3, b)))
    opened.close()
    most = getattr(asked, "max_grad_norm", None)
    for client in range(len(SIZES)):
        expected = plainly(task, start, name, make, client, 2, 0.3, b[client], most)
        np.testing.assert_allclose(trained.vectors[client], expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", [name for name in OURS if name not in FUSED])
def test_a_loss_that_has_no_kernel_is_refused_by_name(name):
    task = task_for(name, up.LocalSGD(), hidden=True)
    assert ENGINES["fused"].refuses(task).endswith(f"Huber loss without weights, not {task.objective.name}")


@pytest.mark.parametrize("hidden", [False, True], ids=["linear", "mlp"])
@pytest.mark.parametrize(("engine", "name"), ON)
def test_a_loss_is_torchs(engine, name, hidden):
    check(engine, name, "sgd", hidden)


@pytest.mark.parametrize("size", [0.1, 1.0, 30.0])
def test_the_gradient_through_two_softmaxes_is_autograds_to_1e_6(size):
    """One full-batch step of length 1, also where the inner softmax is all but saturated."""
    task = task_for("double_softmax", up.LocalSGD(lr=1.0, epochs=1, batch_size=None), hidden=False)
    start = size * flatten(task.module)
    opened = open_engine("fused", task)
    trained = opened.train(Ask(1, 1, 0, everyone(1), start, Problem()))
    opened.close()
    for client in range(len(SIZES)):
        x, y = (torch.from_numpy(np.array(part)) for part in task.train.client(client))
        flat = torch.from_numpy(start).double().requires_grad_()
        z = x.double() @ flat[: 3 * FEATURES].reshape(3, FEATURES).T + flat[3 * FEATURES :]
        (slope,) = torch.autograd.grad(TORCH["double_softmax"](z, y), flat)
        step = start.astype(np.float64) - trained.vectors[client]
        np.testing.assert_allclose(step, slope.numpy(), atol=1e-6 * max(1.0, size))


@pytest.mark.parametrize("engine", ["sequential", "vectorised", "fused"])
@pytest.mark.parametrize("hidden", [False, True], ids=["linear", "mlp"])
@pytest.mark.parametrize("solver", list(SOLVERS))
def test_an_optimiser_is_torchs(engine, solver, hidden):
    check(engine, "cross_entropy", solver, hidden)


@pytest.mark.parametrize("engine", ["sequential", "vectorised", "fused"])
def test_adamw_is_torchs_to_1e_5_over_fifty_steps(engine):
    solver = up.LocalAdamW(lr=0.01, weight_decay=0.1, epochs=10, batch_size=9)
    task = task_for("cross_entropy", solver, hidden=True)
    start = flatten(task.module)
    opened = open_engine(engine, task)
    trained = opened.train(Ask(1, 1, 0, everyone(10), start, Problem()))
    opened.close()
    assert trained.num_steps[2] == 50  # 41 samples are 5 batches of 9
    expected = plainly(
        task, start, "cross_entropy", lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1), 2, 1, 0.0, None, None
    )
    assert np.abs(trained.vectors[2] - expected).max() < 1e-5


def test_any_torch_optimiser_trains_in_the_sequential_engine():
    solver = up.LocalOptimizer(lambda p: torch.optim.Adagrad(p, lr=0.1), max_grad_norm=0.5, **EPOCHS)
    task = task_for("cross_entropy", solver, hidden=True)
    start = flatten(task.module)
    opened = open_engine("sequential", task)
    trained = opened.train(Ask(2, 2, 0, everyone(3), start, Problem(0.3, corrections(task))))
    for client in range(len(SIZES)):
        b = corrections(task)[client]
        expected = plainly(
            task, start, "cross_entropy", lambda p: torch.optim.Adagrad(p, lr=0.1), client, 2, 0.3, b, 0.5
        )
        np.testing.assert_allclose(trained.vectors[client], expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(("engine", "name"), ON)
def test_scores_are_torchs(engine, name):
    task = task_for(name, up.LocalSGD(), hidden=True)
    opened = open_engine(engine, task)
    model = flatten(task.module)
    scores = opened.score(model)
    personal = opened.score_personal(model, np.array([1, 2]), np.stack([model, model]))
    opened.close()
    with torch.no_grad():
        z, y = task.module(torch.from_numpy(task.test.x)).double(), torch.from_numpy(task.test.y)
        weighing = {"weighted": [1.0, 0.5, 3.0], "weighted_binary": [0.5, 2.0]}.get(name)
        if weighing is None:
            loss = TORCH[name](z, y if y.dtype == torch.int64 else y.double())
        elif name == "weighted":
            each = functional.cross_entropy(z, y, reduction="none", label_smoothing=0.1)
            loss = (each * torch.tensor(weighing)[y]).mean()
        else:
            each = functional.binary_cross_entropy_with_logits(z[:, 0], y.double(), reduction="none")
            loss = (each * torch.tensor(weighing)[y]).mean()
    for found in (scores, personal):
        assert found.loss == pytest.approx(float(loss), rel=1e-5)
        if name in ("cross_entropy", "double_softmax", "weighted"):
            assert found.accuracy == pytest.approx(float((z.argmax(1) == y).double().mean()))
        elif "binary" in name:
            assert found.accuracy == pytest.approx(float(((z[:, 0] > 0).long() == y).double().mean()))
        else:
            assert found.accuracy is None
