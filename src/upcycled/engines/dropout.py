"""Dropout whose masks belong to a sample: a function of its key and the layer, never of its place in a batch.

A mask that is dealt out by place lets one record's secret coin shift the masks of the others, which is far more than
what clipping bounds. Keyed masks may be public.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from torch import nn

from upcycled.core.streams import Words, keys_within, words

Shape: TypeAlias = tuple[int, ...]

_WHOLE_FEATURES = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)
_ALPHA = (nn.AlphaDropout, nn.FeatureAlphaDropout)
_UNBATCHED = {nn.Dropout1d: 2, nn.Dropout3d: 4}
"""Dimensions at which torch takes the first one for the features, not for a batch."""
_SELU = 1.7580993408473766
"""SELU's scale times its alpha: minus where its negative side ends."""


def kept(keys: Words, call: int, shape: Shape, rate: float) -> torch.Tensor:
    """Return ones where a number is kept and zeros where it is dropped, (keys, *shape).

    ``call`` counts the calls of dropout layers in a sample's way through the model.

    >>> kept(np.array([1, 2], dtype=np.uint64), 0, (3,), 0.5).shape
    torch.Size([2, 3])
    """
    drawn = words(keys_within(keys, call), math.prod(shape))
    ones = (drawn >> np.uint64(11)) >= np.uint64(rate * 2**53)
    return torch.from_numpy(ones.astype(np.float32).reshape(len(keys), *shape))


@dataclass
class Masks:
    """Where a module's dropout layers find the masks of the sample that is under way."""

    key: int = 0
    given: Sequence[torch.Tensor] | None = None
    asked: list[tuple[Shape, float]] = field(default_factory=list)
    """Shape and rate of every mask since the sample began."""

    def begin(self, key: int = 0, given: Sequence[torch.Tensor] | None = None) -> None:
        """Begin a sample: with its key, or, where torch.func does many at a time, with masks made before."""
        self.key, self.given, self.asked = key, given, []

    def next(self, shape: Shape, rate: float) -> torch.Tensor:
        call = len(self.asked)
        self.asked.append((shape, rate))
        if self.given is not None:
            return self.given[call]
        return kept(np.array([self.key], np.uint64), call, shape, rate)[0]


class KeyedDropout(nn.Module):
    """Stands in for a dropout layer of torch's: the same arithmetic, with masks from elsewhere."""

    def __init__(self, layer: nn.Module, masks: Masks) -> None:
        super().__init__()
        self.kind, self.rate, self.inplace = type(layer), float(layer.p), bool(layer.inplace)  # type: ignore[arg-type]
        self.masks, self.training = masks, layer.training

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        ones = self.masks.next(self._shape(tuple(x.shape)), self.rate)
        keep = 1 - self.rate
        if keep == 0:
            out = x * 0
        elif self.kind in _ALPHA:
            # Dropped numbers become SELU's lower end; a and b put mean and variance back.
            a = 1 / math.sqrt((_SELU**2 * self.rate + 1) * keep)
            out = x * (a * ones) + (ones - 1) * (_SELU * a) + _SELU * a * self.rate
        else:
            out = x * (ones / keep)
        return x.copy_(out) if self.inplace else out

    def _shape(self, shape: Shape) -> Shape:
        if self.kind not in _WHOLE_FEATURES:
            return shape
        lead = 1 if _UNBATCHED.get(self.kind) == len(shape) else 2
        return shape[:lead] + (1,) * (len(shape) - lead)


def key_dropout(module: nn.Module, masks: Masks) -> None:
    """Put stand-ins in the place of torch's dropout layers, in the module itself.

    Layers of other classes that draw are not seen here.
    """
    kinds = {nn.Dropout, *_WHOLE_FEATURES, *_ALPHA}
    for name, layer in list(module.named_modules(remove_duplicate=False)):
        if name and type(layer) in kinds and layer.p > 0:
            module.set_submodule(name, KeyedDropout(layer, masks))
