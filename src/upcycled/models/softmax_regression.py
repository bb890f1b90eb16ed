"""Softmax regression in closed form: plain NumPy in float64 on a flat vector."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import nn

from upcycled.core.layout import Layout
from upcycled.core.vectors import Ints, Real


@dataclass(frozen=True)
class Softmax:
    """Softmax regression's weight and bias as slices of a flat vector; one of them may be frozen."""

    weight: Real | slice
    bias: Real | slice | None
    classes: int

    def logits(self, flat: Real, x: Real) -> Real:
        """Return the logits of each row at ``flat``."""
        weight = flat[self.weight] if isinstance(self.weight, slice) else self.weight
        logits: Real = x @ weight.reshape(self.classes, -1).T
        if self.bias is not None:
            logits += flat[self.bias] if isinstance(self.bias, slice) else self.bias
        return logits

    def gradient_sum(self, flat: Real, x: Real, y: Ints) -> Real:
        """Return the sum of the samples' gradients of the cross-entropy at ``flat``."""
        logits = self.logits(flat, x)
        logits -= logits.max(axis=1, keepdims=True)
        np.exp(logits, out=logits)
        logits /= logits.sum(axis=1, keepdims=True)
        logits[np.arange(len(y)), y] -= 1.0
        found = np.empty_like(flat)
        if isinstance(self.weight, slice):
            found[self.weight] = (logits.T @ x).ravel()
        if isinstance(self.bias, slice):
            found[self.bias] = logits.sum(axis=0)
        return found

    def loss_sum(self, flat: Real, x: Real, y: Ints) -> float:
        """Return the sum of the samples' cross-entropies at ``flat``."""
        logits = self.logits(flat, x)
        logits -= logits.max(axis=1, keepdims=True)
        return float((np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]).sum())

    def design(self, x: Real) -> Real:
        """Return the columns that trainable parameters multiply: the features, and ones for the bias."""
        parts = [x] if isinstance(self.weight, slice) else []
        if isinstance(self.bias, slice):
            parts.append(np.ones((len(x), 1)))
        return np.hstack(parts)


def softmax_of(module: nn.Module, layout: Layout) -> Softmax | None:
    """Describe a module as softmax regression, or return None if it is something else.

    >>> from upcycled.core.layout import layout_of
    >>> linear = nn.Linear(3, 2)
    >>> softmax_of(linear, layout_of(linear)).bias
    slice(6, 8, None)
    """
    parts = list(module) if isinstance(module, nn.Sequential) else [module]
    linears = [part for part in parts if not isinstance(part, nn.Flatten | nn.Identity)]
    if len(linears) != 1 or type(linears[0]) is not nn.Linear:
        return None
    linear = linears[0]
    places = {
        name.rpartition(".")[2]: slice(layout.offsets[i], layout.offsets[i + 1]) for i, name in enumerate(layout.names)
    }
    frozen = {name: p.detach().double().cpu().numpy() for name, p in linear.named_parameters()}
    bias = None if linear.bias is None else places.get("bias", frozen["bias"])
    return Softmax(places.get("weight", frozen["weight"]), bias, linear.out_features)
