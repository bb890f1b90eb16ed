"""Torch for any module, in one of two ways: fixed functions of the task choose which.

Which way the vectorised engine goes, and what it refuses: fixed functions of the task.

Torch for any module, in one of two ways.

Small models are stacked: one call of torch makes a step of all clients. Large ones go one client after another, in
one single-threaded process per core. Which way is a fixed function of the task (:func:`way_of`), so a run has the
same bits alone, in a batch of runs, and with any number of threads.
"""

from __future__ import annotations

import copy
import math
import warnings
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import nn

from upcycled.core.engine import Engine, EngineKind, Task
from upcycled.core.errors import reason_of
from upcycled.core.machine import may_have_workers
from upcycled.core.solvers import LocalAdam, LocalSGD, MoreauSGD
from upcycled.engines.processes import packed
from upcycled.engines.vectorised.stacked import open_stacked, stacked_gradient
from upcycled.engines.vectorised.workers import open_workers

Way: TypeAlias = Literal["stacked", "workers"]

FEWEST_CLIENTS = 10
"""A step of a smaller stack costs more calls of torch than plain steps that two workers share."""
MOST_PRODUCTS = 500_000
"""In larger steps the products take the time, not the calls of torch, and two workers are faster."""


def way_of(task: Task) -> Way:
    """Return how the engine works on a task: the same whatever the number of threads."""
    is_small = task.cohort_size >= FEWEST_CLIENTS and products_of(task) <= MOST_PRODUCTS
    # The cheaper question first: torch takes two seconds to load what the other needs.
    return "stacked" if (is_small or task.device != "cpu") and is_stackable(task) else "workers"


def products_of(task: Task) -> float:
    """Return roughly how many products of weights and inputs a client's step computes forward.

    A weight counts once per sample; in a convolution, once per pixel; in a model of sequences, once per token.
    """
    features, sizes, batch = task.train.x, task.train.sizes, task.solver.local.batch_size
    shape = features.shape[1:]
    tokens = shape[0] if len(shape) == 2 or features.dtype.kind in "iu" else 1
    uses = sum(p.numel() * (math.prod(shape[1:]) if p.dim() > 2 else 1) for p in task.module.parameters())
    return tokens * uses * float(sizes.mean() if batch is None else min(batch, sizes.mean()))


def is_stackable(task: Task) -> bool:
    """Say whether torch.func can differentiate the module for a stack, and padding leaves the gradient alone.

    Both are tried: padding does matter where samples see each other, as in batch normalisation. Operations that torch
    would do lane by lane (it warns of them) are better done in workers.
    """
    module, x = _trial(task).to(task.device), _samples(task, 3)
    generator = torch.Generator().manual_seed(0)
    # Random values: weights that start at zero would hide everything behind them.
    models = 0.1 * torch.randn(2, task.layout.size, generator=generator)
    if x.is_floating_point():
        x = x + 0.1 * torch.randn(x.shape, generator=generator)
    samples, models = x.expand(2, *x.shape).to(task.device), models.to(task.device)
    rows = np.minimum(np.arange(3), task.train.num_rows - 1)
    targets = torch.from_numpy(task.train.y[rows]).to(task.device)
    targets = targets.expand(2, *targets.shape)
    weights = torch.tensor([0.5, 0.5, 0.0], device=task.device).expand(2, 3)
    gradient = stacked_gradient(module, task.layout, task.objective)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            padded = gradient(models, (samples, targets, weights))
            plain = gradient(models, (samples[:, :2], targets[:, :2], weights[:, :2]))
    except Exception:
        return False
    return torch.allclose(padded, plain, rtol=1e-3, atol=1e-5 * float(plain.abs().max()))


def refuses(task: Task) -> str | None:
    """Say in one sentence why the vectorised engine cannot take a task, or return None."""
    reason = refuses_both_ways(task)
    return _unsendable(task.module) if reason is None and way_of(task) == "workers" else reason


def refuses_both_ways(task: Task) -> str | None:
    """Say why neither way can take a task, or return None."""
    if not isinstance(task.solver, LocalSGD | LocalAdam | MoreauSGD):
        return f"the vectorised engine has no {type(task.solver).__name__}"
    if task.statistics is not None:
        return "the model keeps running statistics (batch norm does), which engine='sequential' trains"
    if _draws(task):
        return (
            "the model draws random numbers in training (dropout does), and the vectorised engine has none for each "
            "client: engine='sequential' has"
        )
    return None


def _draws(task: Task) -> bool:
    """Say whether a step in training mode moves torch's generator, which is put back afterwards."""
    module, x = _trial(task), _samples(task, 2)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        module(x)
        return not torch.equal(before, torch.get_rng_state())


def _unsendable(module: nn.Module) -> str | None:
    try:
        packed(module)
    except Exception as error:
        return f"the model cannot be sent to worker processes ({reason_of(error)}): engine='sequential' needs none"
    return None


def _trial(task: Task) -> nn.Module:
    """Return a copy of the module to try things on, in training mode."""
    return copy.deepcopy(task.module).cpu().train()


def _samples(task: Task, count: int) -> torch.Tensor:
    """Return the first ``count`` training samples; the last one is repeated where there are fewer."""
    rows = np.minimum(np.arange(count), task.train.num_rows - 1)
    return torch.from_numpy(task.train.x[rows])


def open_vectorised(task: Task, threads: int | None, way: Way | None = None) -> Engine:
    """Open the engine on a task; ``way`` overrides its own choice."""
    if (way_of(task) if way is None else way) == "stacked":
        return open_stacked(task)
    return open_workers(task, _processes(task, threads))


def _processes(task: Task, threads: int | None) -> int:
    # Processes would fight for a device that they share, and one client keeps one process busy; a forked process
    # or a daemon can have no workers.
    if task.device != "cpu" or task.cohort_size == 1 or not may_have_workers():
        return 1
    if threads is not None:
        return threads
    from loky import cpu_count

    return int(cpu_count())


VECTORISED = EngineKind("vectorised", refuses, open_vectorised)

__all__ = ["VECTORISED", "open_vectorised", "products_of", "way_of"]
