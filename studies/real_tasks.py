"""Nine tasks, federated and central: does a federation learn what plain torch learns in as many epochs?

    python -m studies.real_tasks [--seeds 3]

{linear, MLP, CNN with group norm} x {binary, ten classes, a number} on the sets that come with scikit-learn, dealt to
ten clients, against the same model trained on the pooled rows by a plain torch loop.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import datasets, metrics
from torch import nn

import upcycled as up

CLIENTS = 10
Array = NDArray[np.generic]


@dataclass(frozen=True)
class Rows:
    """A set, split once: every fourth row of a shuffled set is a test row."""

    x: Array
    y: Array
    test_x: Array
    test_y: Array


@dataclass(frozen=True)
class Cell:
    """A model, a set, and how both are trained, each at a rate that suits it, for the same number of epochs.

    A federation takes a tenth of the steps in an epoch, as its clients step beside each other: its steps are longer.
    """

    model: str
    task: str
    rows: Callable[[], Rows]
    make: Callable[[], nn.Module]
    local: up.LocalSGD | up.LocalAdam
    central: up.LocalSGD | up.LocalAdam
    rounds: int = 40

    @property
    def loss(self) -> str:
        return {"binary": "binary_cross_entropy", "classes": "cross_entropy", "number": "mse"}[self.task]


@dataclass(frozen=True)
class Outcome:
    """The scores of both ways of training, seed by seed: AUROC and macro F1, larger is better, or RMSE, smaller is."""

    cell: Cell
    federated: tuple[float, ...]
    central: tuple[float, ...]

    @property
    def shortfall(self) -> float:
        """How much worse the federation is on average: a difference of AUROC or F1, a share of RMSE."""
        ours, theirs = float(np.mean(self.federated)), float(np.mean(self.central))
        return ours / theirs - 1 if self.cell.task == "number" else theirs - ours

    @property
    def allowed(self) -> float:
        return 0.02 if self.cell.task == "number" else 0.01


def tabular(load: Callable[[], object], task: str) -> Rows:
    """Columns scaled by the training rows' mean and spread; a number likewise, so that RMSE is in spreads."""
    found = load()
    x, y = np.asarray(found.data, dtype=np.float64), np.asarray(found.target)  # type: ignore[attr-defined]
    return _split(x, y.astype(np.float64 if task == "number" else np.int64), task, scale=True)


def digits(of: Callable[[Array], Array], task: str, image: bool = False) -> Rows:
    """The 8 x 8 digits, with what is to be told about them."""
    found = datasets.load_digits()
    rows = _split(found.data / 16.0, of(found.target), task, scale=False)
    if not image:
        return rows
    return Rows(rows.x.reshape(-1, 1, 8, 8), rows.y, rows.test_x.reshape(-1, 1, 8, 8), rows.test_y)


def _split(x: Array, y: Array, task: str, scale: bool) -> Rows:
    order = np.random.default_rng(0).permutation(len(x))
    test, train = order[::4], np.delete(order, np.s_[::4])
    if scale:
        x = (x - x[train].mean(0)) / x[train].std(0)
    x = x.astype(np.float32)
    if task == "number":
        y = ((y - y[train].mean()) / y[train].std()).astype(np.float32)
    return Rows(x[train], y[train], x[test], y[test])


def _mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))


def _cnn(outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 16, outputs),
    )


def _odd(y: Array) -> Array:
    return (y % 2).astype(np.int64)


def _itself(y: Array) -> Array:
    return y.astype(np.int64)


def _sgd(lr: float, batch: int = 16, momentum: float = 0.0) -> up.LocalSGD:
    return up.LocalSGD(lr=lr, momentum=momentum, epochs=1, batch_size=batch)


# How clients are trained, and how one model is, each at rates that suit it.
LIVELY = _sgd(0.2, 8, 0.9), _sgd(0.05, 16, 0.9)
GENTLE = _sgd(0.005, 8, 0.9), _sgd(0.005)
DEEP = _sgd(0.05, 16, 0.9), _sgd(0.05, 16, 0.9)
ADAM = up.LocalAdam(lr=0.005, epochs=2, batch_size=4), up.LocalAdam(lr=0.003, epochs=1, batch_size=16)


def cells() -> list[Cell]:
    """Return the nine cells."""
    cancer, diabetes = datasets.load_breast_cancer, datasets.load_diabetes
    sgd = _sgd
    return [
        Cell("linear", "binary", partial(tabular, cancer, "binary"), partial(nn.Linear, 30, 1), sgd(0.05), sgd(0.05)),
        Cell("linear", "classes", partial(digits, _itself, "classes"), partial(nn.Linear, 64, 10), *LIVELY),
        Cell("linear", "number", partial(tabular, diabetes, "number"), partial(nn.Linear, 10, 1), *GENTLE, rounds=60),
        Cell("mlp", "binary", partial(tabular, cancer, "binary"), partial(_mlp, 30, 1), sgd(0.05), sgd(0.05)),
        Cell("mlp", "classes", partial(digits, _itself, "classes"), partial(_mlp, 64, 10), *LIVELY),
        Cell("mlp", "number", partial(tabular, diabetes, "number"), partial(_mlp, 10, 1), sgd(0.02, 8), sgd(0.005)),
        Cell("cnn", "binary", partial(digits, _odd, "binary", True), partial(_cnn, 1), *DEEP),
        Cell("cnn", "classes", partial(digits, _itself, "classes", True), partial(_cnn, 10), *DEEP),
        Cell("cnn", "number", partial(digits, _itself, "number", True), partial(_cnn, 1), *ADAM, rounds=60),
    ]


def federated(cell: Cell, seed: int) -> float:
    """Train ten clients with FedAvg and score the global model."""
    rows = cell.rows()
    deal = up.data.partition.iid(np.zeros(len(rows.x)), CLIENTS, seed=seed)
    deal_test = up.data.partition.iid(np.zeros(len(rows.test_x)), CLIENTS, seed=seed)
    data = up.FederatedData.from_arrays(
        [rows.x[part] for part in deal],
        [rows.y[part] for part in deal],
        test=([rows.test_x[part] for part in deal_test], [rows.test_y[part] for part in deal_test]),
        targets="numbers" if cell.task == "number" else "classes",
    )
    result = up.train(
        data,
        algorithm=up.FedAvg(),
        model=cell.make,
        loss=cell.loss,
        local=cell.local,
        iterations=cell.rounds,
        eval_every=cell.rounds,
        seed=seed,
        progress=False,
    )
    return _score(cell, result.model, rows)


def central(cell: Cell, seed: int) -> float:
    """Train the same model on all rows, by nothing but torch."""
    rows = cell.rows()
    torch.manual_seed(seed)
    model, local = cell.make(), cell.central
    optimiser = _torch_optimiser(local, model)
    x, y = torch.from_numpy(rows.x), torch.from_numpy(rows.y)
    for _ in range(cell.rounds * cell.local.epochs):
        for batch in torch.split(torch.randperm(len(x)), local.batch_size or len(x)):
            optimiser.zero_grad()
            _torch_loss(cell.task, model(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return _score(cell, model.eval(), rows)


def _torch_optimiser(local: up.LocalSGD | up.LocalAdam, model: nn.Module) -> torch.optim.Optimizer:
    lr = local.lr
    assert isinstance(lr, float)
    if isinstance(local, up.LocalAdam):
        return torch.optim.Adam(model.parameters(), lr=lr)
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=local.momentum)


def _torch_loss(task: str, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    if task == "classes":
        return nn.functional.cross_entropy(outputs, targets)
    if task == "binary":
        return nn.functional.binary_cross_entropy_with_logits(outputs.squeeze(1), targets.float())
    return nn.functional.mse_loss(outputs.squeeze(1), targets)


def _score(cell: Cell, model: nn.Module, rows: Rows) -> float:
    with torch.no_grad():
        outputs = model(torch.from_numpy(rows.test_x)).numpy()
    if cell.task == "binary":
        return float(metrics.roc_auc_score(rows.test_y, outputs[:, 0]))
    if cell.task == "classes":
        return float(metrics.f1_score(rows.test_y, outputs.argmax(1), average="macro"))
    return float(metrics.root_mean_squared_error(rows.test_y, outputs[:, 0]))


def outcome(cell: Cell, seeds: Iterable[int]) -> Outcome:
    """Train both ways."""
    seeds = list(seeds)
    return Outcome(cell, tuple(federated(cell, s) for s in seeds), tuple(central(cell, s) for s in seeds))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    print("| model | task | score | federated | central | worse by | allowed |\n|---|---|---|---|---|---|---|")
    named = {"binary": "AUROC", "classes": "macro F1", "number": "RMSE"}
    for cell in cells():
        found = outcome(cell, seeds)
        ours, theirs = (f"{np.mean(scores):.4f} ± {np.std(scores):.4f}" for scores in (found.federated, found.central))
        worse = f"{found.shortfall:+.4f} | {found.allowed}"
        print(f"| {cell.model} | {cell.task} | {named[cell.task]} | {ours} | {theirs} | {worse} |", flush=True)


if __name__ == "__main__":
    main()
