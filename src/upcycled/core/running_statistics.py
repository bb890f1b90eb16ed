"""Running statistics of batch norm: buffers that training changes, and that clients send beside their model.

They are averaged with the weights of the model's own mean, stay out of every server step, and are never extrapolated:
an upcycled iteration keeps those of the last data round. They are one flat float32 vector in the order of
``named_buffers``; ``num_batches_tracked`` is averaged like the rest and rounded where a module takes it, which matters
only to layers with ``momentum=None``.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from upcycled.core.layout import Layout
from upcycled.core.vectors import Vector

NAMES = ("running_mean", "running_var", "num_batches_tracked")
"""What torch's layers call them."""


def is_statistic(name: str) -> bool:
    """Say whether a buffer of this name is one.

    >>> is_statistic("1.running_var"), is_statistic("mask")
    (True, False)
    """
    return name.rpartition(".")[2] in NAMES


def statistics_layout(module: nn.Module) -> Layout | None:
    """Return where each of a module's statistics lies in their flat vector; None where it has none.

    >>> statistics_layout(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))).names
    ('1.running_mean', '1.running_var', '1.num_batches_tracked')
    """
    kept = [(name, buffer) for name, buffer in module.named_buffers() if is_statistic(name)]
    if not kept:
        return None
    return Layout(
        names=tuple(name for name, _ in kept),
        shapes=tuple(tuple(buffer.shape) for _, buffer in kept),
        offsets=(0, *np.cumsum([buffer.numel() for _, buffer in kept]).tolist()),
    )


def read_statistics(module: nn.Module) -> Vector:
    """Return a copy of a module's statistics as one flat vector."""
    parts = [buffer.detach().reshape(-1).float() for name, buffer in module.named_buffers() if is_statistic(name)]
    flat: Vector = torch.cat(parts).cpu().numpy().copy()
    return flat


def write_statistics(module: nn.Module, flat: Vector) -> None:
    """Write a flat vector into a module's statistics; counts are rounded to whole numbers."""
    values, first = torch.from_numpy(np.ascontiguousarray(flat)), 0
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            if is_statistic(name):
                own = values[first : first + buffer.numel()].reshape(buffer.shape)
                buffer.copy_(own if buffer.is_floating_point() else own.round())
                first += buffer.numel()
