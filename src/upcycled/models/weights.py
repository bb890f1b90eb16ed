"""Initial weights from the package's own streams: no global generator is read or set."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from upcycled.core.streams import Purpose, client_keys, normals, uniforms


def draw_weights(module: nn.Module, seed: int) -> None:
    """Fill every parameter with PyTorch's default distribution for its layer, keyed (seed, place of the parameter).

    Linear and recurrent layers: uniform within 1/sqrt(fan-in) and 1/sqrt(hidden); embeddings: standard normal.
    """
    for place, (layer, name, parameter) in enumerate(_parameters(module)):
        key = client_keys(seed, Purpose.WEIGHTS, 0, [place])
        count = parameter.numel()
        if isinstance(layer, nn.Embedding):
            values = normals(key, count)[0]
        else:
            values = (2 * uniforms(key, count)[0] - 1) * _bound(layer, name)
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(values.astype(np.float32)).view_as(parameter))


def _parameters(module: nn.Module) -> list[tuple[nn.Module, str, nn.Parameter]]:
    return [(layer, name, p) for layer in module.modules() for name, p in layer.named_parameters(recurse=False)]


def _bound(layer: nn.Module, name: str) -> float:
    if isinstance(layer, nn.Linear):
        return 1 / math.sqrt(layer.in_features)
    if isinstance(layer, nn.LSTM):
        return 1 / math.sqrt(layer.hidden_size)
    raise TypeError(f"no initial distribution for parameter {name} of {type(layer).__name__}")
