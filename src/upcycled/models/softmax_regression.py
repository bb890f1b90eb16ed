"""Softmax regression in closed form: a linear model and its cross-entropy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import nn

from upcycled.core.layout import Layout
from upcycled.core.vectors import Ints, Real
from upcycled.losses.proven import softmax_slopes
from upcycled.models.linear_model import LinearModel, linear_model_of


@dataclass(frozen=True)
class Softmax:
    """A linear model whose outputs are logits."""

    linear: LinearModel

    def gradient_sum(self, flat: Real, x: Real, y: Ints) -> Real:
        """Return the sum of the samples' gradients of the cross-entropy at ``flat``."""
        return self.linear.gradient_sum(flat, x, y, softmax_slopes)

    def loss_sum(self, flat: Real, x: Real, y: Ints) -> float:
        """Return the sum of the samples' cross-entropies at ``flat``."""
        logits = self.linear.outputs(flat, x)
        logits -= logits.max(axis=1, keepdims=True)
        return float((np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]).sum())

    def design(self, x: Real) -> Real:
        """Return the columns that trainable parameters multiply: the features, and ones for the bias."""
        return self.linear.design(x)


def softmax_of(module: nn.Module, layout: Layout) -> Softmax | None:
    """Describe a module as softmax regression, or return None if it is something else.

    >>> from upcycled.core.layout import layout_of
    >>> linear = nn.Linear(3, 2)
    >>> softmax_of(linear, layout_of(linear)).linear.bias
    slice(6, 8, None)
    """
    linear = linear_model_of(module, layout)
    return None if linear is None else Softmax(linear)
