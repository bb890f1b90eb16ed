"""Gradients of each sample's loss, in chunks of one fixed shape, for any module that does not mix samples.

Dropout whose masks belong to a sample: a function of its key and the layer, never of its place in a batch.

A mask that is dealt out by place lets one record's secret coin shift the masks of the others, which is far more than
what clipping bounds. Keyed masks may be public.

In DP-SGD a record may change its own gradient and no other: which rows stand beside it, and so its place, hang on
secret coins. The bits of a row of a float32 product do depend on its place: on where it begins in memory, and on
whether it is among the last ones, which vector instructions leave over. So chunks have one shape, short ones are
padded, and each way of computing them is first tried on random numbers: it is taken if every row has the same bits
wherever it stands and whatever stands beside it. One sample at a time always does.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import linear, pad

from upcycled.core.engine import Task
from upcycled.core.objective import Objective
from upcycled.core.randomness import Words, keys_within, words
from upcycled.core.solvers import LocalSGD
from upcycled.engines.determinism import one_thread
from upcycled.models.prepare import random_inputs, random_targets

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


Named: TypeAlias = dict[str, torch.Tensor]

_NUMBERS = 1 << 23
"""Numbers of per-sample gradients held at a time."""
_MOST_ROWS = 80
"""Beyond it a call's own cost is nothing beside its work, and padding is."""
_LINE = 16
"""Float32 numbers in a line of the processor's cache."""


ChunkGradients: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Words], torch.Tensor]
"""(parameters (D,), features, labels, the key of each sample's masks) -> the gradients of a chunk, (rows, D)."""


@dataclass(frozen=True)
class PerSample:
    """A way to compute gradients sample by sample, and the number of rows that its chunks have."""

    rows: int
    of_chunk: ChunkGradients
    way: str

    def chunks(self, flat: torch.Tensor, x: torch.Tensor, y: torch.Tensor, keys: Words) -> Iterator[torch.Tensor]:
        """Yield the gradients of all samples; each chunk is computed in the one shape, padded with zeros."""
        for first in range(0, len(y), self.rows):
            yield self.of_chunk(flat, *padded(self.rows, first, x, y, keys))[: len(y) - first]


def padded(
    rows: int, first: int, x: torch.Tensor, y: torch.Tensor, keys: Words
) -> tuple[torch.Tensor, torch.Tensor, Words]:
    """Return ``rows`` rows from the ``first`` on; those that there are not are zeros."""
    some = slice(first, first + rows)
    missing = rows - len(y[some])
    return (
        torch.cat([x[some], x.new_zeros(missing, *x.shape[1:])]),
        torch.cat([y[some], y.new_zeros(missing, *y.shape[1:])]),
        np.concatenate([keys[some], np.zeros(missing, np.uint64)]),
    )


@one_thread()
def per_sample_gradients(task: Task) -> PerSample:
    """Return the first way that keeps rows apart on this machine: many at a time, or one by one."""
    rows = rows_of_chunk(task.solver.local, task.layout.size)
    if rows > 1:
        for is_aligned in (False, True):
            for count in in_registers(rows):
                made = stacked(task, is_aligned)
                if made is not None and keeps_rows_apart(made, task, count):
                    return PerSample(count, made, "stacked, aligned" if is_aligned else "stacked")
    return PerSample(1, one_by_one(task), "one by one")


def in_registers(rows: int) -> tuple[int, int]:
    """Return the rows of a chunk, and the next number that leaves nothing over in whole vector registers."""
    return rows, -(-rows // 32) * 32


def rows_of_chunk(local: LocalSGD, size: int) -> int:
    """Return how many rows a chunk has: a public number, and the same for every client.

    Most Poisson batches fit into one chunk; more rows would be padding, fewer a second chunk in every other step.

    >>> rows_of_chunk(LocalSGD(batch_size=32), 42), rows_of_chunk(LocalSGD(batch_size=32), 10**6)
    (40, 8)
    """
    batch = _MOST_ROWS if local.batch_size is None else local.batch_size
    wanted = min(_MOST_ROWS, -(-math.ceil(batch + 1.25 * math.sqrt(batch)) // 8) * 8)
    return max(1, min(wanted, _NUMBERS // size))


def refuses_per_sample(task: Task) -> str | None:
    """Say in one sentence why gradients sample by sample would not be those of this model, or return None.

    Tried on random numbers: a sample's logits must not change with the sample beside it, and its gradient must be the
    same when it is computed again.
    """
    with one_thread():
        if mixes_samples(task):
            return "DP-SGD needs gradients sample by sample, but a sample's logits change with the samples beside it"
        gradients, (flat, x, y, keys) = one_by_one(task), random_chunk(task, 2, 0)
        if not same_bits(gradients(flat, x, y, keys), gradients(flat, x, y, keys)):
            return (
                "DP-SGD needs random numbers that belong to a sample, but the model draws some that are not torch's: "
                "the same sample gives another gradient each time"
            )
    return None


def mixes_samples(task: Task) -> bool:
    """Say whether a sample's logits change with the sample beside it, in a batch of two."""
    module = copy.deepcopy(task.module).cpu()
    _, x, _, _ = random_chunk(task, 4, 0)
    pairs = [x[[0, 1]], x[[0, 2]], x[[3, 1]]]
    for mode in (False, True):
        module.train(mode)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            again, first, second, third = (_seeded(module, pair) for pair in [pairs[0], *pairs])
            # Masks that are dealt out by place are the same in all: they hang on the shape.
            scale = 1e-4 * float(torch.nan_to_num(first).abs().max()) + 1e-30
            close = [_close(first[0], second[0], scale), _close(first[1], third[1], scale)]
            if same_bits(again, first) and not all(close):
                return True
    return False


def _seeded(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    torch.default_generator.manual_seed(0)
    logits: torch.Tensor = module(x)
    return logits


def _close(a: torch.Tensor, b: torch.Tensor, scale: float) -> bool:
    return torch.allclose(a, b, rtol=0, atol=scale, equal_nan=True)


def keeps_rows_apart(of_chunk: ChunkGradients, task: Task, rows: int) -> bool:
    """Try whether each row's gradient has the same bits at any place of a chunk and beside any others.

    A way that does not shows it in a tenth of the rows or more, at one of these sizes of weights; some hundred are
    looked at.
    """
    order = torch.Generator().manual_seed(0)
    for draw, size in enumerate((0.1, 0.5, 2.0)):
        _, x, y, keys = random_chunk(task, rows, draw)
        flat = size * torch.randn(task.layout.size, generator=order)
        expected = of_chunk(flat, x, y, keys)
        for again in range(6):
            _, others, labels, other_keys = random_chunk(task, rows, 10 + 6 * draw + again)
            there = torch.randperm(rows, generator=order)
            stays = torch.rand(rows, generator=order) < 0.5
            others[stays], labels[stays] = x[there][stays], y[there][stays]
            mixed = np.where(stays.numpy(), keys[there.numpy()], other_keys)
            if not same_bits(of_chunk(flat, others, labels, mixed)[stays], expected[there][stays]):
                return False
    return True


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


def random_chunk(task: Task, rows: int, draw: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Words]:
    """Return parameters, features, labels and keys that have nothing to do with the data but their shape."""
    generator = torch.Generator().manual_seed(draw)
    # Weights that start at zero would hide everything behind them.
    flat = 0.1 * torch.randn(task.layout.size, generator=generator)
    x = random_inputs(task.module, (rows, *task.train.x.shape[1:]), generator)
    y = random_targets(task.objective, task.num_classes, (rows, *task.train.y.shape[1:]), generator)
    return flat, x, y, keys_within(np.uint64(draw), np.arange(rows))


def with_keyed_masks(task: Task, masks: Masks, is_aligned: bool = False) -> nn.Module:
    module = copy.deepcopy(task.module).train()
    key_dropout(module, masks)
    if is_aligned:
        for name, layer in list(module.named_modules(remove_duplicate=False)):
            if type(layer) is nn.Linear:
                if not name:
                    return AlignedLinear(layer)
                module.set_submodule(name, AlignedLinear(layer))
    return module


def one_by_one(task: Task) -> ChunkGradients:
    masks = Masks()
    module = with_keyed_masks(task, masks)

    def gradient(named: Named, x: torch.Tensor, y: torch.Tensor, key: int) -> torch.Tensor:
        masks.begin(key)
        torch.default_generator.manual_seed(key >> 1)  # for layers that draw in ways of their own
        loss = _loss(task.objective, module, named, x.clone(), y.clone())  # copies begin alike in memory
        parts = torch.autograd.grad(loss, list(named.values()), materialize_grads=True)
        return torch.cat([part.reshape(-1) for part in parts])

    def of_chunk(flat: torch.Tensor, x: torch.Tensor, y: torch.Tensor, keys: Words) -> torch.Tensor:
        named = {name: part.detach().requires_grad_() for name, part in task.layout.split(flat).items()}
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            return torch.stack([gradient(named, a, b, key) for a, b, key in zip(x, y, keys.tolist(), strict=True)])

    return of_chunk


def stacked(
    task: Task, is_aligned: bool, prepare: Callable[[nn.Module], nn.Module] = lambda module: module
) -> ChunkGradients | None:
    """Return gradients by torch.func; None for a module that it does sample by sample, or that draws otherwise.

    ``prepare`` may put other layers in the place of some that torch.func does not know.
    """
    masks = Masks()
    module = prepare(with_keyed_masks(task, masks, is_aligned))

    def loss(named: Named, x: torch.Tensor, y: torch.Tensor, given: tuple[torch.Tensor, ...]) -> torch.Tensor:
        masks.begin(given=given)
        return _loss(task.objective, module, named, x, y)

    # By names: the gradient by a flat vector would be a sum of one vector per name, zero elsewhere.
    gradients = vmap(grad(loss), in_dims=(None, 0, 0, 0), randomness="error")
    asked = asked_masks(task, module, masks)

    def of_chunk(flat: torch.Tensor, x: torch.Tensor, y: torch.Tensor, keys: Words) -> torch.Tensor:
        given = tuple(kept(keys, call, shape, rate) for call, (shape, rate) in enumerate(asked))
        named = gradients(task.layout.split(flat), x, y, given)
        return torch.cat([named[name].reshape(len(y), -1) for name in task.layout.names], dim=1)

    try:
        with warnings.catch_warnings():
            # torch warns where it would go sample by sample itself, which is slower still.
            warnings.simplefilter("error")
            of_chunk(*random_chunk(task, 2, 0))
    except (RuntimeError, UserWarning):
        return None
    return of_chunk


def _loss(objective: Objective, module: nn.Module, named: Named, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the loss of one sample, which the module sees as a batch of one."""
    return objective.per_sample(functional_call(module, named, (x[None],)), y[None])[0]


def asked_masks(task: Task, module: nn.Module, masks: Masks) -> list[tuple[Shape, float]]:
    """Return shape and rate of each mask that a sample asks for; torch.func lets no sample ask for others."""
    flat, x, _, _ = random_chunk(task, 1, 0)
    masks.begin()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        functional_call(module, task.layout.split(flat), (x,))
    return list(masks.asked)


class AlignedLinear(nn.Module):
    """A linear layer with zeros beside inputs and outputs, so that rows begin at lines of the cache, all alike."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs, inputs = self.weight.shape
        more_outputs, more_inputs = -outputs % _LINE, -inputs % _LINE
        weight = pad(self.weight, (0, more_inputs, 0, more_outputs))
        bias = None if self.bias is None else pad(self.bias, (0, more_outputs))
        return linear(pad(x, (0, more_inputs)), weight, bias)[..., :outputs]
