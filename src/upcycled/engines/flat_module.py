"""A torch module on flat vectors, and optimiser steps on them: torch's own formulas.

Optimiser steps on flat vectors, one client's or a stack of clients': torch's own formulas.

A torch module on flat vectors, as engines train and score it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import nn

from upcycled.core.engine import Task
from upcycled.core.errors import UpcycledError
from upcycled.core.objective import Objective, mean_loss
from upcycled.core.solvers import LocalAdam, LocalSGD, Solver, rate_at

OptimiserStep: TypeAlias = Callable[[torch.Tensor, torch.Tensor], None]
"""(x, g) -> None: moves x, (D,) or (lanes, D), by its gradient g; lanes that are done have left at the end."""


def add_correction(g: torch.Tensor, x: torch.Tensor, start: torch.Tensor, a: float, b: torch.Tensor | None) -> None:
    """Add a (x - w) + b, the gradient of the part of the objective that is not data."""
    if a != 0:
        g.add_(x - start, alpha=a)
    if b is not None:
        g.add_(b)


def scale_down(g: torch.Tensor, solver: Solver) -> None:
    """Scale gradients down to the solver's largest norm, as torch's ``clip_grad_norm_`` does."""
    most: float | None = getattr(solver, "max_grad_norm", None)
    if most is not None:
        norms = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
        g.mul_((most / (norms + 1e-6)).clamp(max=1.0))


def optimiser_step(solver: Solver, x: torch.Tensor) -> OptimiserStep:
    """Return a solver's step with state of its own, which starts at zero."""
    if isinstance(solver, LocalSGD):
        return _sgd_step(solver, x)
    if isinstance(solver, LocalAdam):
        return _adam_step(solver, x)
    raise UpcycledError(f"there is no step for {type(solver).__name__}")


def _sgd_step(local: LocalSGD, at: torch.Tensor) -> OptimiserStep:
    velocity = torch.zeros_like(at)

    def step(x: torch.Tensor, g: torch.Tensor) -> None:
        if local.weight_decay:
            g.add_(x, alpha=local.weight_decay)
        v = velocity[: len(x)]
        v.mul_(local.momentum).add_(g)
        x.sub_(g.add_(v, alpha=local.momentum) if local.nesterov else v, alpha=local.rate)

    return step


def _adam_step(local: LocalAdam, at: torch.Tensor) -> OptimiserStep:
    mean, square = torch.zeros_like(at), torch.zeros_like(at)
    first, second = local.betas
    rate, taken = rate_at(local.lr, 1, 1), 0

    def step(x: torch.Tensor, g: torch.Tensor) -> None:
        nonlocal taken
        taken += 1
        if local.weight_decay and local.decoupled:
            x.mul_(1 - rate * local.weight_decay)
        elif local.weight_decay:
            g.add_(x, alpha=local.weight_decay)
        m, v = mean[: len(x)], square[: len(x)]
        m.lerp_(g, 1 - first)
        v.mul_(second).addcmul_(g, g, value=1 - second)
        down = (v.sqrt() / (1 - second**taken) ** 0.5).add_(local.eps)
        x.addcdiv_(m, down, value=-rate / (1 - first**taken))

    return step


@dataclass(frozen=True)
class FlatModule:
    """A module whose trainable parameters and gradients are views of two flat tensors."""

    module: nn.Module
    objective: Objective
    values: torch.Tensor
    gradient: torch.Tensor

    def add_gradient(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Add the gradient of the mean loss on a batch, at the current values, to ``gradient``."""
        with torch.enable_grad():
            loss = mean_loss(self.objective, self.module(x), y)
        loss.backward()  # type: ignore[no-untyped-call]


def flat_module(task: Task) -> FlatModule:
    """Move a task's module to its device and re-seat its trainable parameters in one flat tensor."""
    layout, device = task.layout, task.device
    module = task.module.to(device)
    values = torch.zeros(layout.size, device=device)
    gradient = torch.zeros(layout.size, device=device)
    named_values, named_gradients = layout.split(values), layout.split(gradient)
    for name, parameter in module.named_parameters():
        if name in named_values:
            named_values[name].copy_(parameter.data)
            parameter.data = named_values[name]
            parameter.grad = named_gradients[name]
    return FlatModule(module, task.objective, values, gradient)
