"""What a step of a client has to compute, counted from one pass of the model over two samples.

The counts follow from the model and the shapes of its data alone, never from a clock: what is decided by them is the
same on every machine. They are taken where Python calls torch, which loads nothing; torch's own counter loads a
compiler first, for two seconds.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from upcycled.core.engine import Task

_SAMPLES = 2
"""Some layers refuse a single one in training."""
_CALLS_PER_CELL = 2
"""What one time step of a recurrent layer costs, in operations that Python calls."""
_CALLS_PER_ATTENTION = 20


@dataclass(frozen=True)
class Effort:
    """What one pass of a model over some samples does, forward alone."""

    samples: int
    calls: float
    """Operations of torch: each costs something before it computes anything."""
    products: float
    """Multiplications and additions in matrix products."""
    convolutions: float
    """The same in convolutions."""
    elements: float
    """Numbers in all results: they are written and read again, whatever computes them."""

    @property
    def flops(self) -> float:
        return self.products + self.convolutions


def batch_of(task: Task) -> float:
    """Return how many samples a step of a client of mean size reads."""
    mean = task.train.num_rows / task.train.num_clients
    size = task.solver.local.batch_size
    return mean if size is None else min(size, mean)


def effort_of_pass(task: Task) -> Effort:
    """Count what the model does with two samples, in training mode and without gradients.

    The samples are zeros: what is decided by it must not follow from anybody's records.
    """
    module, features = copy.deepcopy(task.module).cpu().train(), task.train.x
    x = torch.from_numpy(np.zeros((_SAMPLES, *features.shape[1:]), dtype=features.dtype))
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            return count(module, x)
    except Exception:  # a model that fails says why when it is trained
        return _unseen(module, x)


def count(module: nn.Module, x: torch.Tensor) -> Effort:
    """Count the operations of a module on samples.

    >>> count(nn.Sequential(nn.Linear(3, 5), nn.ReLU()), torch.zeros(2, 3))
    Effort(samples=2, calls=2.0, products=60.0, convolutions=0.0, elements=20.0)
    """
    with _Counter(len(x)) as counter:
        module(x)
    if counter.calls == 0:  # compiled code
        return _unseen(module, x)
    return Effort(len(x), counter.calls, counter.products, counter.convolutions, counter.elements)


def _unseen(module: nn.Module, x: torch.Tensor) -> Effort:
    """Return the effort of a module that nobody sees into: as if every sample used every parameter once."""
    return Effort(len(x), 0.0, 2.0 * len(x) * sum(p.numel() for p in module.parameters()), 0.0, 0.0)


Arguments: TypeAlias = tuple[Any, ...]


def _of_linear(args: Arguments, out: Any) -> float:
    return float(2 * out.numel() * args[0].shape[-1])


def _of_added_product(args: Arguments, out: Any) -> float:
    return float(2 * out.numel() * args[1].shape[-1])


def _of_convolution(args: Arguments, out: Any) -> float:
    return float(2 * out.numel() * args[1][0].numel())


def _of_transposed_convolution(args: Arguments, out: Any) -> float:
    return float(2 * args[0].numel() * args[1][0].numel())


def _of_attention(args: Arguments, out: Any) -> float:
    query, key, value = args[:3]
    return float(2 * query.numel() * key.shape[-2] + 2 * out.numel() * value.shape[-2])


def _of_attention_layer(args: Arguments, out: Any) -> float:
    """The four projections of (length, samples, width), and the attention between them."""
    query, key, value = args[:3]
    width, length = query.shape[-1], key.shape[0]
    inputs = query.numel() + key.shape[-1] * key[..., 0].numel() + value.shape[-1] * value[..., 0].numel()
    return float(2 * width * (inputs + query.numel()) + 4 * query.numel() * length)


def _of_recurrence(args: Arguments, out: Any) -> float:
    tokens = args[0][..., 0].numel()
    return float(2 * tokens * sum(weight.numel() for weight in _matrices(args)))


def _of_einsum(args: Arguments, out: Any) -> float:
    """Each combination of the letters is one multiplication; an ellipsis counts as what it adds to the result."""
    if not isinstance(args[0], str):
        return 0.0
    tensors = args[1] if isinstance(args[1], list | tuple) else args[1:]
    if len(tensors) < 2:
        return 0.0
    sizes: dict[str, int] = {}
    for letters, tensor in zip(args[0].split("->")[0].replace(" ", "").split(","), tensors, strict=False):
        if "." in letters:
            return 2.0 * float(max(out.numel(), *(each.numel() for each in tensors)))
        sizes |= dict(zip(letters, tensor.shape, strict=False))
    return 2.0 * float(np.prod(list(sizes.values()), dtype=np.float64))


def _matrices(args: Arguments) -> list[torch.Tensor]:
    weights = next((each for each in args if isinstance(each, list)), [])
    return [weight for weight in weights if weight.dim() == 2]


_PRODUCTS: Mapping[str, Callable[[Arguments, Any], float]] = {
    "linear": _of_linear,
    "matmul": _of_linear,
    "mm": _of_linear,
    "bmm": _of_linear,
    "mv": _of_linear,
    "addmm": _of_added_product,
    "baddbmm": _of_added_product,
    "einsum": _of_einsum,
    "scaled_dot_product_attention": _of_attention,
    "multi_head_attention_forward": _of_attention_layer,
    "lstm": _of_recurrence,
    "gru": _of_recurrence,
    "rnn_tanh": _of_recurrence,
    "rnn_relu": _of_recurrence,
}
_CONVOLUTIONS: Mapping[str, Callable[[Arguments, Any], float]] = {
    **{f"conv{n}d": _of_convolution for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": _of_transposed_convolution for n in (1, 2, 3)},
}
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_QUESTIONS = ("__get__", "size", "dim", "numel", "stride", "is_contiguous", "is_floating_point", "_set_grad_enabled")
"""What only asks about a tensor."""


class _Counter(TorchFunctionMode):  # torch calls back no other way
    """Sees every function of torch that Python calls while it is entered."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self._samples = samples
        self.calls = self.products = self.convolutions = self.elements = 0.0

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Arguments = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out, name = function(*args, **(kwargs or {})), getattr(function, "__name__", "")
        if name in _QUESTIONS:
            return out
        self.calls += 1
        self.elements += out.numel() if isinstance(out, torch.Tensor) else 0
        if name in _CONVOLUTIONS and len(args) > 1:
            self.convolutions += _CONVOLUTIONS[name](args, out)
        elif name in _PRODUCTS and len(args) > 1:
            self.products += _PRODUCTS[name](args, out)
        if name in _RECURRENT:
            cells = len(_matrices(args)) / 2 * args[0][..., 0].numel() / self._samples
            self.calls += _CALLS_PER_CELL * cells
        elif name == "multi_head_attention_forward":
            self.calls += _CALLS_PER_ATTENTION
        return out
