"""The map that a mechanism puts before a model, as a part of the model: whoever calls it gets what was trained."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn


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
