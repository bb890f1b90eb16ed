"""Where each trainable parameter of a module lies in the flat vector."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from upcycled.core.errors import InputError
from upcycled.core.vectors import Vector


@dataclass(frozen=True)
class Layout:
    """Names, shapes and offsets of the trainable parameters, in ``named_parameters`` order, row-major."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]

    @property
    def size(self) -> int:
        """D, the length of the flat vector."""
        return self.offsets[-1]

    def split(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return views of ``flat`` (..., D) under their names and shapes."""
        lead = flat.shape[:-1]
        return {
            name: flat[..., self.offsets[i] : self.offsets[i + 1]].view(*lead, *self.shapes[i])
            for i, name in enumerate(self.names)
        }


def layout_of(module: nn.Module) -> Layout:
    """Describe the trainable parameters of ``module``.

    >>> layout_of(nn.Linear(3, 2)).size
    8
    """
    trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not trainable:
        raise InputError("model has no trainable parameter, but at least one must have requires_grad=True")
    for name, p in trainable:
        if p.dtype != torch.float32:
            raise InputError(f"model parameter '{name}' is {p.dtype}, but it must be torch.float32")
    sizes = [p.numel() for _, p in trainable]
    return Layout(
        names=tuple(name for name, _ in trainable),
        shapes=tuple(tuple(p.shape) for _, p in trainable),
        offsets=(0, *np.cumsum(sizes).tolist()),
    )


def flatten(module: nn.Module) -> Vector:
    """Return a copy of the module's trainable parameters as one flat float32 vector."""
    parts = [p.detach().reshape(-1) for p in module.parameters() if p.requires_grad]
    flat: Vector = torch.cat(parts).to("cpu", torch.float32).numpy().copy()
    return flat


def assign(module: nn.Module, flat: Vector) -> None:
    """Write a flat vector into the module's trainable parameters."""
    views = layout_of(module).split(torch.from_numpy(np.ascontiguousarray(flat)))
    with torch.no_grad():
        for name, p in module.named_parameters():
            if name in views:
                p.copy_(views[name])
