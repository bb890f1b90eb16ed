"""DP-SGD's clipped sums for layers whose gradients are products, without a gradient of every sample.

One pass over a chunk leaves each layer's inputs and deltas. A sample's gradient by a layer is the sum over its
positions of delta times input (Goodfellow 2015, arXiv:1510.01799); :mod:`upcycled.engines.dpsgd.factors` has lengths
and weighted sums of such. All deltas come from one backward pass, so a model is done so only if it was tried on random
numbers: these are the gradients that one sample at a time gives, and every row keeps its bits at any place.

**What a record can change.** Its factors are its own, bit for bit; one that is not finite counts as zero, in inputs and
deltas. Clipped gradients are then added up in float64, by products whose order is not known: p rows of a chunk with T
positions each, and m/p chunks, round by (p T + m/p + 4) 2^-53 of the sum of the parts' lengths at most. Parts may be
longer than what they cancel to, so that they are clipped too, to SPREAD times the clip norm; and everything is scaled
to a norm that is shorter by twice the rounding, with n for m. A record then moves the sum by the clip norm at most, and
rounding the sum to the grid moves it by g sqrt(D) more, which the mechanism charges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.func import functional_call

from upcycled.core.engine import Task
from upcycled.core.randomness import Words
from upcycled.core.vectors import Real
from upcycled.engines.determinism import one_thread
from upcycled.engines.dpsgd.factors import (
    Factors,
    Places,
    UnrolledLSTM,
    factors_of,
    factors_of_gates,
    refuses_layer,
    refuses_unrolling,
    unrolled,
)
from upcycled.engines.dpsgd.per_sample import (
    AlignedLinear,
    Masks,
    PerSample,
    asked_masks,
    in_registers,
    keeps_rows_apart,
    kept,
    one_by_one,
    padded,
    per_sample_gradients,
    random_chunk,
    rows_of_chunk,
    same_bits,
    stacked,
    with_keyed_masks,
)

SPREAD = 2.0**10
"""How many times the clip norm a sample's parts may be long before it is scaled down for their sake."""
_MOST_ROUNDING = 2.0**-10
"""Clients with so many samples that a sum may round by more, in clip norms, have a gradient of every sample."""
_LAYERS = (
    nn.Linear,
    AlignedLinear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.Embedding,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.LSTM,
)


ChunkFactors: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Words], list[Factors]]
"""(parameters (D,), features, labels, the key of each sample's masks) -> factors of a chunk's gradients, by layer."""


@dataclass(frozen=True)
class Ghost:
    """A way to add up clipped gradients from the factors of each layer, and the number of rows of its chunks."""

    rows: int
    size: int
    of_chunk: ChunkFactors
    way: str

    def clipped_sum(
        self, flat: torch.Tensor, x: torch.Tensor, y: torch.Tensor, keys: Words, clip_norm: float, samples: int
    ) -> Real:
        """Return the sum (D,) of the samples' gradients, each scaled down to the clip norm; ``samples`` is n."""
        total = torch.zeros(self.size, dtype=torch.float64)
        for first in range(0, len(y), self.rows):
            x_chunk, y_chunk, keys_chunk = padded(self.rows, first, x, y, keys)
            present = torch.arange(self.rows) < len(y) - first
            layers = self.of_chunk(flat, x_chunk, y_chunk, keys_chunk)
            scales = scales_of(layers, self.size, clip_norm, samples) * present
            for layer in layers:
                layer.add(total, scales)
        return total.numpy()


def scales_of(layers: Sequence[Factors], size: int, clip_norm: float, samples: int) -> torch.Tensor:
    """Return what each row's gradient is multiplied with: 1 / max(1, norm / clip norm), 0 where it is not finite.

    The clip norm is the shorter one that leaves room for what is rounded.
    """
    squares, spreads = (sum(parts) for parts in zip(*(layer.squares() for layer in layers), strict=True))
    positions = max(layer.positions for layer in layers)
    rows = len(squares)
    # A product of two float32 numbers is exact in float64; a sum of k of them is off by k 2^-53 of their sizes.
    slack = (size + positions**2 + 8) * 2.0**-52
    norms = (squares.clamp(min=0) + slack * spreads).sqrt()
    shorter = clip_norm * (1 - 2 * rounding(rows, positions, samples) - slack)
    scales = 1 / torch.maximum(norms / shorter, spreads.sqrt() / (SPREAD * clip_norm)).clamp(min=1)
    return torch.where(norms.isfinite() & spreads.isfinite(), scales, 0.0)


def rounding(rows: int, positions: int, samples: int) -> float:
    """Return by how many clip norms the sum of n clipped gradients may be off.

    >>> rounding(40, 1, 640) < 1e-11
    True
    """
    return (rows * positions + samples / rows + 4) * 2.0**-53 * samples * (SPREAD if positions > 1 else 1.0)


@one_thread()
def noisy_gradients(task: Task, threads: int) -> list[PerSample] | list[Ghost]:
    """Return the fastest way that is found to be right for this model, on random numbers: one for each thread.

    Gradients of every sample come from one thread: layers that draw in ways of their own read torch's one generator.
    """
    for is_aligned in (False, True) if _may_have_factors(task) else ():
        for rows in in_registers(rows_of_chunk(task.solver.local, 1)):
            made = chunk_factors(task, is_aligned)
            if _is_right(made, task, rows):
                lanes = [made, *(chunk_factors(task, is_aligned) for _ in range(threads - 1))]
                way = "factors, aligned" if is_aligned else "factors"
                return [Ghost(rows, task.layout.size, lane, way) for lane in lanes]
    return [per_sample_gradients(task)]


def _may_have_factors(task: Task) -> bool:
    trained = _trained_layers(task.module)
    # Linear layers alone are the fused engine's, which is held against plain gradients of every sample.
    if trained is None or all(isinstance(layer, nn.Linear) for layer in trained.values()):
        return False
    # What torch.func cannot do may look at numbers to decide on its way: a chunk would then go one way together.
    return stacked(task, False, lambda module: unrolled(module, None)) is not None


def _refuses(layer: nn.Module) -> bool:
    return refuses_unrolling(layer) if isinstance(layer, nn.LSTM) else refuses_layer(layer)


def _trained_layers(module: nn.Module) -> dict[str, nn.Module] | None:
    """Return the layers that have trained parameters of their own, by name, or None if one of them has no factors."""
    found: dict[str, nn.Module] = {}
    seen: set[int] = set()
    for name, layer in module.named_modules():
        own = [p for p in layer.parameters(recurse=False) if p.requires_grad]
        if own and (type(layer) not in _LAYERS or _refuses(layer)):
            return None
        if type(layer) is nn.LSTM and len(own) != len(list(layer.parameters())):  # some of them fixed
            return None
        if any(id(p) in seen for p in own):  # two layers share it
            return None
        seen |= {id(p) for p in own}
        if own:
            found[name] = layer
    return found


class _UnknownShape(Exception):
    """A layer was not called once, or not with a row for each sample."""


_Key: TypeAlias = tuple[nn.Module, str]
"""A layer, and which of the LSTMs in it."""


def _places(module: nn.Module, task: Task) -> dict[_Key, Places]:
    """Return where the trained parameters of each layer lie in the flat vector."""
    layout, found = task.layout, dict[_Key, dict[str, slice]]()
    layers = dict(module.named_modules())
    for name, first, last in zip(layout.names, layout.offsets, layout.offsets[1:], strict=False):
        path, _, kind = name.rpartition(".")
        layer, suffix = layers[path], ""
        if isinstance(layer, UnrolledLSTM):
            kind, _, rest = kind.partition("_l")
            suffix = f"_l{rest}"
        found.setdefault((layer, suffix), {})[kind] = slice(first, last)
    return dict(found)


def chunk_factors(task: Task, is_aligned: bool) -> ChunkFactors:
    """Return the factors of a chunk by one pass forward and one backward."""
    masks, layout = Masks(), task.layout
    calls: list[tuple[_Key, torch.Tensor, torch.Tensor]] = []

    def note(layer: nn.Module, suffix: str, given: torch.Tensor, out: torch.Tensor) -> None:
        calls.append(((layer, suffix), given, out))

    def hook(layer: nn.Module, given: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
        note(layer, "", given[0].detach(), out if out.requires_grad else out.requires_grad_())

    module = unrolled(with_keyed_masks(task, masks, is_aligned), note).requires_grad_(False)
    own = _places(module, task)
    for layer, suffix in own:
        if not suffix:
            layer.register_forward_hook(hook)
    for layer in module.modules():
        if getattr(layer, "inplace", False):
            layer.inplace = False  # type: ignore[assignment]  # outputs are still to be looked at
    asked = asked_masks(task, module, masks)
    kernels = [f"{name}.weight".removeprefix(".") for name, m in module.named_modules() if type(m) is nn.Conv2d]
    kernels = [name for name in kernels if name in layout.names]

    def of_chunk(flat: torch.Tensor, x: torch.Tensor, y: torch.Tensor, keys: Words) -> list[Factors]:
        named = layout.split(flat)
        for name in kernels:  # Convolutions give channels side by side if kernels have them so: pooling is faster.
            named[name] = named[name].to(memory_format=torch.channels_last)
        given = [kept(keys, call, shape, rate)[:, 0] for call, (shape, rate) in enumerate(asked)]
        masks.begin(given=given)
        calls.clear()
        with torch.enable_grad():
            losses = task.objective.per_sample(functional_call(module, named, (x,)), y)
            outputs = [out for _, _, out in calls]
            deltas = torch.autograd.grad(losses.sum(), outputs, materialize_grads=True)
        rows = {len(y), *(len(kept_in) for _, kept_in, _ in calls), *(len(out) for out in outputs)}
        if {key for key, _, _ in calls} != own.keys() or len(calls) != len(own) or rows != {len(y)}:
            raise _UnknownShape
        return [
            factors_of_gates(a, d, own[key]) if key[1] else factors_of(key[0], a, d, own[key])
            for (key, a, _), d in zip(calls, deltas, strict=True)
        ]

    return of_chunk


def _is_right(made: ChunkFactors, task: Task, rows: int) -> bool:
    """Try whether these are the gradients, whether rows stay apart, and whether sums round by next to nothing."""

    def bits(flat: torch.Tensor, x: torch.Tensor, y: torch.Tensor, keys: Words) -> torch.Tensor:
        layers = made(flat, x, y, keys)
        parts = [part for layer in layers for part in layer.bits()]
        parts += [part[:, None].view(torch.float32) for layer in layers for part in layer.squares()]
        return torch.cat([part.reshape(len(y), -1) for part in parts], dim=1)

    try:
        layers = made(*random_chunk(task, rows, 0))
    except (_UnknownShape, RuntimeError, IndexError, TypeError):
        return False
    positions = max(layer.positions for layer in layers)
    if rounding(rows, positions, int(task.train.sizes.max())) > _MOST_ROUNDING:
        return False
    return _are_gradients(made, task, rows) and keeps_rows_apart(bits, task, rows) and _bad_rows_stay(bits, task, rows)


def _are_gradients(made: ChunkFactors, task: Task, rows: int) -> bool:
    """Compare the gradients of some rows with those of one sample at a time."""
    flat, x, y, keys = random_chunk(task, rows, 1)
    layers, some = made(flat, x, y, keys), list(range(0, rows, -(-rows // 4)))
    expected = one_by_one(task)(flat, x[some], y[some], keys[some]).double()
    for i, row in enumerate(some):
        found = torch.zeros(task.layout.size, dtype=torch.float64)
        for layer in layers:
            layer.add(found, (torch.arange(rows) == row).double())
        # Most are off by 1e-6 of the largest number: anything else is another gradient.
        if not bool((found - expected[i]).abs().max() <= 1e-4 * expected[i].abs().max() + 1e-30):
            return False
    return True


def _bad_rows_stay(bits: Any, task: Task, rows: int) -> bool:
    """Try whether rows beside such as are not finite, or huge, keep their bits."""
    flat, x, y, keys = random_chunk(task, rows, 2)
    if not x.is_floating_point():
        return True
    bad = torch.arange(rows) % 3 == 1
    others = x.clone()
    others[bad] *= torch.tensor([torch.nan, torch.inf, 1e30])[torch.arange(int(bad.sum())) % 3].view(
        -1, *[1] * (x.ndim - 1)
    )
    return same_bits(bits(flat, others, y, keys)[~bad], bits(flat, x, y, keys)[~bad])
