"""Which way the vectorised engine goes, and what it refuses: fixed functions of the task."""

from __future__ import annotations

import copy
import warnings
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import nn

from upcycled.core.engine import Task
from upcycled.core.errors import reason_of
from upcycled.core.solvers import LocalAdam, LocalSGD, MoreauSGD
from upcycled.engines.choice.effort import batch_of, effort_of_pass
from upcycled.engines.transport import packed
from upcycled.engines.vectorised.stacked import stacked_gradient

Way: TypeAlias = Literal["stacked", "workers"]
WAYS: tuple[Way, ...] = ("stacked", "workers")

# Measured by benchmarks/crossover.py.
FLOPS_PER_PARAMETER = 100
"""What it costs to move a parameter, in operations of a matrix product."""
FEWEST_CLIENTS = 8
"""A stacked step costs as much as this many plain ones, shared between two workers, before it computes anything."""
MOST_EFFORT = 10_000_000
"""Beyond it matrix products take the time, which two workers do faster."""


def way_of(task: Task) -> Way:
    """Return how the engine works on a task: the same whatever the number of threads."""
    # The cheaper question first: torch takes two seconds to load what the other needs.
    return "stacked" if would_stack(task) and is_stackable(task) else "workers"


def would_stack(task: Task) -> bool:
    """Say whether a task is small enough for a stack, whatever torch makes of its module."""
    return task.device != "cpu" or is_small(effort_of(task), task.cohort_size)


def is_small(effort: float, cohort_size: int) -> bool:
    """Say whether a stack of clients beats one after another on two cores."""
    return effort <= MOST_EFFORT * (1 - FEWEST_CLIENTS / cohort_size)


def effort_of(task: Task) -> float:
    """Return what one client's step has to compute and move, in floating-point operations."""
    return flops_per_step(task) + FLOPS_PER_PARAMETER * task.layout.size


def flops_per_step(task: Task) -> float:
    """Return the multiplications and additions of one client's step: forward, and twice that backward."""
    effort = effort_of_pass(task)
    return 3 * batch_of(task) / effort.samples * effort.flops


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
