"""The layout of a model in flat vectors: parameters, batch-norm statistics, directions that predictions can tell apart.

Where each trainable parameter of a module lies in the flat vector.

Running statistics of batch norm: buffers that training changes, and that clients send beside their model.

They are averaged with the weights of the model's own mean, stay out of every server step, and are never extrapolated:
an upcycled iteration keeps those of the last data round. They are one flat float32 vector in the order of
``named_buffers``; ``num_batches_tracked`` is averaged like the rest and rounded where a module takes it, which matters
only to layers with ``momentum=None``.

Which directions of a flat vector a model's predictions can tell apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from upcycled.core.errors import InputError
from upcycled.core.vectors import Real, Vector


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


@dataclass(frozen=True)
class EffectiveDirections:
    """All of them; or, of softmax regression, those without class means.

    Adding one number to the logits of all classes changes no probability: no data pull in that direction, and privacy
    noise in it does no harm.
    """

    layout: Layout
    is_softmax: bool = False
    """Whether the model is softmax regression, whose parameters all have the classes as their first axis."""

    @cached_property
    def dimension(self) -> float:
        """D, or (K-1)/K of it for softmax over K classes."""
        return self.layout.size * ((self._classes - 1) / self._classes if self.is_softmax else 1.0)

    def of(self, vectors: Vector) -> Real:
        """Return vectors (..., D) in float64 without what nobody can see.

        >>> layout = Layout(("weight", "bias"), ((2, 2), (2,)), (0, 4, 6))
        >>> EffectiveDirections(layout, is_softmax=True).of(np.array([1.0, 2.0, 3.0, 6.0, 0.0, 1.0])).tolist()
        [-1.0, -2.0, 1.0, 2.0, -0.5, 0.5]
        """
        exact = vectors.astype(np.float64)
        if self.is_softmax:
            for first, last in pairwise(self.layout.offsets):
                block = exact[..., first:last].reshape(*exact.shape[:-1], self._classes, -1)  # only an axis is split
                # What block.mean does, in a fifth of its time: small rounds last a millisecond.
                block -= np.add.reduce(block, axis=-2, keepdims=True) / self._classes
        return exact

    def squares(self, vectors: Real) -> Real:
        """Return ||of(v)||^2 of vectors (..., D) without making of(v): less the class means' part. They are lost.

        Sums and products only: of a small round it is not the numbers that take time but each new function of NumPy.

        >>> layout = Layout(("weight", "bias"), ((2, 2), (2,)), (0, 4, 6))
        >>> EffectiveDirections(layout, is_softmax=True).squares(np.array([[1.0, 2.0, 3.0, 6.0, 0.0, 1.0]])).tolist()
        [10.5]
        """
        unseen: Real | float = 0.0
        if self.is_softmax:
            classes = self._classes
            for first, last in pairwise(self.layout.offsets):
                block = vectors[..., first:last]
                if last - first == classes:  # a bias: one number for each class
                    sums = np.add.reduce(block, axis=-1)
                    unseen += sums * sums
                else:
                    sums = np.add.reduce(block.reshape(*vectors.shape[:-1], classes, -1), axis=-2)
                    sums *= sums
                    unseen += np.add.reduce(sums, axis=-1)
            unseen /= classes
        vectors *= vectors
        found: Real = np.add.reduce(vectors, axis=-1) - unseen
        return found

    @cached_property
    def _classes(self) -> int:
        return self.layout.shapes[0][0]
