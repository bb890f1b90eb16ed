"""Small tasks of every kind the engine takes, on ragged clients."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn

from upcycled.core.engine import Task
from upcycled.core.layout import flatten, layout_of
from upcycled.core.mechanism import Ask
from upcycled.core.sampling import Cohort
from upcycled.core.solvers import LocalSGD, MoreauSGD, Problem
from upcycled.core.vectors import Shards
from upcycled.losses import CrossEntropy
from upcycled.models import lstm

CLASSES = 4
SIZES = (23, 8, 41, 3, 16, 30, 17, 1)


class Tied(nn.Module):
    """One matrix used twice, and more outputs than there are classes."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6, bias=False)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.two(torch.tanh(self.one(x)))


def frozen_mlp():
    module = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, CLASSES))
    module[2].weight.requires_grad_(False)
    return module


MODULES = {
    "linear": lambda: nn.Linear(6, CLASSES),
    "mlp": lambda: nn.Sequential(nn.Linear(6, 9), nn.LayerNorm(9), nn.Tanh(), nn.Linear(9, CLASSES)),
    "frozen": frozen_mlp,
    "tied": Tied,
    "conv": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, CLASSES)
    ),
    "lstm": lambda: lstm(CLASSES, vocabulary=20, embedding=5, hidden=6),
    "lstm_fixed": lambda: lstm(CLASSES, vectors=np.random.default_rng(0).normal(size=(20, 5)), hidden=6),
}

SGD = LocalSGD(lr=0.1, momentum=0.5, epochs=3, batch_size=8)
SOLVERS = {
    "momentum": SGD,
    "plain": LocalSGD(lr=0.1, epochs=3, batch_size=8),
    "wide batch": LocalSGD(lr=0.1, momentum=0.5, epochs=3, batch_size=20),
    "full batch": LocalSGD(lr=0.1, momentum=0.9, epochs=3, batch_size=None),
    "moreau": MoreauSGD(LocalSGD(lr=0.05, epochs=2, batch_size=8), lam=2.0, inner_steps=3, inner_lr=0.1),
}


def features(kind, rows, seed=0):
    rng = np.random.default_rng(seed)
    if kind.startswith("lstm"):
        return rng.integers(0, 20, (rows, 7))
    shape = (1, 7, 7) if kind == "conv" else (6,)
    return rng.normal(size=(rows, *shape)).astype(np.float32)


def shards(kind, sizes=SIZES, seed=0):
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    labels = np.random.default_rng(seed + 1).integers(0, CLASSES, offsets[-1])
    return Shards(features(kind, offsets[-1], seed), labels, offsets)


def task_of(kind="mlp", solver=SGD, module=None, **changes):
    if module is None:
        with torch.random.fork_rng():
            torch.manual_seed(3)
            module = MODULES[kind]()
    base = {
        "module": copy.deepcopy(module),
        "layout": layout_of(module),
        "num_classes": CLASSES,
        "train": shards(kind),
        "test": shards(kind, sizes=(5, 0, 9, 2, 1, 7, 30, 4), seed=9),
        "solver": solver,
        "seed": 11,
        "objective": CrossEntropy(),
        "cohort_size": 6,
    }
    return Task(**(base | changes))


def work_of(task, clients=(0, 2, 3, 4, 5, 7), corrected=True, round=2):
    """A round with two stragglers, where a and b are not zero."""
    epochs = np.full(len(clients), task.solver.local.epochs)
    epochs[1:3] = 1
    size = task.layout.size
    b = 0.05 * np.random.default_rng(5).normal(size=(len(clients), size)).astype(np.float32)
    problem = Problem(0.3, b) if corrected else Problem()
    return Ask(round, round, 0, Cohort(np.array(clients), epochs), flatten(task.module), problem)


def difference(trained, reference, start):
    """How far two results are apart, relative to how far training went; the worst client counts."""
    far = np.linalg.norm(reference - start, axis=1)
    return float((np.linalg.norm(trained - reference, axis=1) / far).max())
