"""A linear model in closed form, and the projection that a mechanism puts before it.

The map that a mechanism puts before a model, as a part of the model: whoever calls it gets what was trained.

A linear model in closed form: plain NumPy in float64 on a flat vector, with any loss whose derivative is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from upcycled.core.layout import Layout
from upcycled.core.vectors import Real
from upcycled.losses import Slopes


def with_projection(module: nn.Module, norm_bound: float) -> nn.Module:
    """Have a module scale each sample's features down to norm ``norm_bound`` at most before it looks at them.

    A hook, not another module around it: parameters keep their names.

    >>> linear = with_projection(nn.Linear(2, 1, bias=False), 1.0)
    >>> _ = linear.weight.data.copy_(torch.tensor([[1.0, 1.0]]))
    >>> [round(value, 3) for value in linear(torch.tensor([[300.0, 400.0], [0.1, 0.0]])).flatten().tolist()]
    [1.4, 0.1]
    """
    module.register_forward_pre_hook(partial(_project, norm_bound=norm_bound))
    return module


def _project(module: nn.Module, inputs: tuple[Any, ...], norm_bound: float) -> tuple[Any, ...]:
    x = inputs[0]
    exact = x.flatten(1).double()
    exact = torch.where(exact.isfinite().all(1, keepdim=True), exact, 0.0)
    largest = exact.abs().amax(1, keepdim=True)
    norms = largest * (exact / largest.clamp(min=1e-300)).square().sum(1, keepdim=True).sqrt()
    # As in training: a hair below the bound, so that it holds after rounding to float32.
    shrink = torch.where(norms > norm_bound, norm_bound * (1 - 2.0**-22) / norms.clamp(min=norm_bound), 1.0)
    return ((exact * shrink).to(x.dtype).reshape(x.shape), *inputs[1:])


@dataclass(frozen=True)
class LinearModel:
    """A linear model's weight and bias as slices of a flat vector; one of them may be frozen."""

    weight: Real | slice
    bias: Real | slice | None
    num_outputs: int

    def outputs(self, flat: Real, x: Real) -> Real:
        """Return the outputs of each row at ``flat``."""
        weight = flat[self.weight] if isinstance(self.weight, slice) else self.weight
        found: Real = x @ weight.reshape(self.num_outputs, -1).T
        if self.bias is not None:
            found += flat[self.bias] if isinstance(self.bias, slice) else self.bias
        return found

    def gradient_sum(self, flat: Real, x: Real, y: NDArray[Any], slopes: Slopes) -> Real:
        """Return the sum of the samples' gradients at ``flat`` of the loss with these slopes."""
        pulls = slopes(self.outputs(flat, x), y)
        found = np.empty_like(flat)
        if isinstance(self.weight, slice):
            found[self.weight] = (pulls.T @ x).ravel()
        if isinstance(self.bias, slice):
            found[self.bias] = pulls.sum(axis=0)
        return found

    def design(self, x: Real) -> Real:
        """Return the columns that trainable parameters multiply: the features, and ones for the bias."""
        parts = [x] if isinstance(self.weight, slice) else []
        if isinstance(self.bias, slice):
            parts.append(np.ones((len(x), 1)))
        return np.hstack(parts)


def linear_layer(module: nn.Module) -> nn.Linear | None:
    """Return the one linear layer that the module is, perhaps behind a flatten; None if it is something else.

    >>> linear_layer(nn.Linear(3, 2)), linear_layer(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))
    (Linear(in_features=3, out_features=2, bias=True), None)
    """
    parts = list(module) if type(module) is nn.Sequential else [module]
    linears = [part for part in parts if type(part) not in (nn.Flatten, nn.Identity)]
    if len(linears) != 1 or type(linears[0]) is not nn.Linear or any(map(runs_other_code, module.modules())):
        return None
    return linears[0]


def runs_other_code(module: nn.Module) -> bool:
    """Say whether a module runs more than its class's forward: hooks, or a forward that was set on the module itself.

    >>> layer = nn.utils.spectral_norm(nn.Linear(3, 2))
    >>> runs_other_code(layer), runs_other_code(nn.Linear(3, 2))
    (True, False)
    """
    # torch has no public word for it: a test registers a hook of each kind, and sees each of them found.
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return "forward" in vars(module) or any(getattr(module, name, None) for name in names)


def linear_model_of(module: nn.Module, layout: Layout) -> LinearModel | None:
    """Describe a module as a linear model, or return None if it is something else.

    >>> from upcycled.core.layout import layout_of
    >>> linear = nn.Linear(3, 2)
    >>> linear_model_of(linear, layout_of(linear)).bias
    slice(6, 8, None)
    """
    linear = linear_layer(module)
    if linear is None:
        return None
    places = {
        name.rpartition(".")[2]: slice(layout.offsets[i], layout.offsets[i + 1]) for i, name in enumerate(layout.names)
    }
    frozen = {name: p.detach().double().cpu().numpy() for name, p in linear.named_parameters()}
    bias = None if linear.bias is None else places.get("bias", frozen["bias"])
    return LinearModel(places.get("weight", frozen["weight"]), bias, linear.out_features)
