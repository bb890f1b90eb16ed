"""A torch module on flat vectors, as engines train and score it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from upcycled.core.engine import Task
from upcycled.core.objective import Objective, mean_loss


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
