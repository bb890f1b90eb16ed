"""A user's own modules, where a name can find them."""

from __future__ import annotations

import torch
from torch import nn


class Counted(nn.Module):
    """A linear layer with a buffer that is no parameter, and counts for its outputs."""

    def __init__(self, features: int = 3, outputs: int = 2) -> None:
        super().__init__()
        self.linear = nn.Linear(features, outputs)
        self.register_buffer("shift", torch.zeros(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.shift


def make() -> nn.Module:
    """Return a module whose buffer is not what the constructor gives."""
    module = Counted()
    module.shift += torch.randn(2)
    return module


def fails() -> nn.Module:
    raise RuntimeError("no weights today")
