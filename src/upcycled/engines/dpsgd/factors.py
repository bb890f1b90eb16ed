"""Gradients of a layer, sample by sample, as factors: lengths and weighted sums in float64 from float32 numbers.

An LSTM in plain operations, step by step: what comes before its gates can be looked at.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import nn
from torch.nn.functional import group_norm, layer_norm, linear, pad

Tap: TypeAlias = Callable[[nn.Module, str, torch.Tensor, torch.Tensor], None]
"""Told of a layer, the end of its parameters' names, its inputs (rows, T, in) and what its gates see (rows, T, out)."""


def refuses_unrolling(layer: nn.LSTM) -> bool:
    """Say whether an LSTM does more than is done here: it draws, or it projects what it has found."""
    return layer.dropout > 0 or layer.proj_size > 0


def suffixes(layer: nn.LSTM) -> Iterator[tuple[int, bool, str]]:
    """Yield number, whether it goes backwards, and the end of the names of each of the LSTMs that there are in one."""
    for number in range(layer.num_layers):
        for is_reverse in (False, True)[: 1 + layer.bidirectional]:
            yield number, is_reverse, f"_l{number}" + "_reverse" * is_reverse


class UnrolledLSTM(nn.Module):
    """Stands in for an LSTM: the same parameters under the same names."""

    def __init__(self, layer: nn.LSTM, tap: Tap | None) -> None:
        super().__init__()
        for name, parameter in layer.named_parameters():
            self.register_parameter(name, parameter)
        self.batch_first, self.parts, self.tap = layer.batch_first, tuple(suffixes(layer)), tap

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Return all hidden states and the last ones, from a batch of sequences and states of zero."""
        if x.ndim != 3:
            raise TypeError("an unrolled LSTM takes batches only")
        x = x if self.batch_first else x.transpose(0, 1)
        ends: list[tuple[torch.Tensor, torch.Tensor]] = []
        outputs: list[torch.Tensor] = []
        for number, is_reverse, suffix in self.parts:
            if number and not is_reverse:
                x, outputs = torch.cat(outputs, dim=2), []
            hidden, cell = self._run(x.flip(1) if is_reverse else x, suffix)
            ends.append((hidden[:, -1], cell))
            outputs.append(hidden.flip(1) if is_reverse else hidden)
        out = torch.cat(outputs, dim=2)
        last, cells = (torch.stack(states) for states in zip(*ends, strict=True))
        return out if self.batch_first else out.transpose(0, 1), (last, cells)

    def _run(self, x: torch.Tensor, suffix: str) -> tuple[torch.Tensor, torch.Tensor]:
        recurrent: torch.Tensor = getattr(self, "weight_hh" + suffix)
        bias, more = (getattr(self, kind + suffix, None) for kind in ("bias_ih", "bias_hh"))
        gates = linear(x, getattr(self, "weight_ih" + suffix), bias)
        if more is not None:
            gates = gates + more
        if self.tap is not None and not gates.requires_grad:
            gates.requires_grad_()
        cell = hidden = x.new_zeros(len(x), recurrent.shape[1])
        found = []
        for at in gates.unbind(1):
            enter, forget, new, leave = (at + linear(hidden, recurrent)).chunk(4, dim=1)
            cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
            hidden = leave.sigmoid() * cell.tanh()
            found.append(hidden)
        all_hidden = torch.stack(found, dim=1)
        if self.tap is not None:
            before = torch.cat([torch.zeros_like(all_hidden[:, :1]), all_hidden[:, :-1]], dim=1)
            self.tap(self, suffix, torch.cat([x, before], dim=2).detach(), gates)
        return all_hidden, cell


def unrolled(module: nn.Module, tap: Tap | None) -> nn.Module:
    """Put stand-ins in the place of LSTMs, in the module itself, or return one for the module."""
    for name, layer in list(module.named_modules()):
        if type(layer) is nn.LSTM:
            if not name:
                return UnrolledLSTM(layer, tap)
            module.set_submodule(name, UnrolledLSTM(layer, tap))
    return module


Places: TypeAlias = Mapping[str, slice]
"""Where a layer's parameters lie in the flat vector."""


_WINDOWS = 1 << 19
"""Numbers of a convolution's windows that are copied at a time: they stay in the processor's cache."""


_BLOCK = 1 << 16
"""Float64 numbers that are worked on at a time, likewise."""


class Factors(Protocol):
    """What one layer's gradients, of the rows of a chunk, are made of."""

    @property
    def positions(self) -> int:
        """How many terms a number of one sample's gradient is the sum of, when it is added to a total."""

    def bits(self) -> list[torch.Tensor]:
        """Return the float32 numbers that everything else is computed from, each (rows, ...)."""

    def squares(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ||g||^2 of each row, and (sum of the terms' lengths)^2, which is the same where there is one term."""

    def add(self, total: torch.Tensor, scales: torch.Tensor) -> None:
        """Add each row's gradient times its scale to the flat float64 ``total``; rows of scale 0 are left out."""


@dataclass(frozen=True)
class Stored:
    """Gradients as they are, (rows, numbers), at their places."""

    parts: tuple[tuple[slice, torch.Tensor], ...]
    channels: int = 1
    """See :func:`_channels_first`."""
    positions: int = 1

    def bits(self) -> list[torch.Tensor]:
        return [part for _, part in self.parts]

    def squares(self) -> tuple[torch.Tensor, torch.Tensor]:
        found = torch.stack([_squares(part) for _, part in self.parts]).sum(dim=0)
        return found, found

    def add(self, total: torch.Tensor, scales: torch.Tensor) -> None:
        for place, part in self.parts:
            found = torch.zeros(part.shape[1:], dtype=torch.float64)
            for some in _blocks(part):
                found.view(-1).add_(scales[some] @ _present(part[some], scales[some]).flatten(1))
            total[place] += _channels_first(found, self.channels if found.ndim > 1 else 1)


@dataclass(frozen=True)
class Products:
    """Sums over positions of deltas (rows, T, out) times inputs (rows, T, in); each part is some columns of them."""

    deltas: torch.Tensor
    inputs: torch.Tensor
    columns: tuple[tuple[slice, int], ...]
    """Places of the parts and how many columns each has, side by side; a bias has one, whose input is 1."""
    channels: int = 1
    """See :func:`_channels_first`."""

    @property
    def positions(self) -> int:
        return self.deltas.shape[1]

    def bits(self) -> list[torch.Tensor]:
        return [self.deltas, self.inputs]

    def squares(self) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = (_squares(self.deltas, 2) * _squares(self.inputs, 2)).sqrt().sum(dim=1).square()
        if self.positions == 1:
            return lengths, lengths
        d, a = self.deltas.double(), self.inputs.double()
        return (torch.bmm(d, d.mT) * torch.bmm(a, a.mT)).sum(dim=(1, 2)), lengths

    def add(self, total: torch.Tensor, scales: torch.Tensor) -> None:
        deltas = _present(self.deltas, scales) * scales[:, None, None]
        inputs = _present(self.inputs, scales)
        found = deltas.flatten(0, 1).T @ inputs.flatten(0, 1)
        ends = itertools.accumulate(width for _, width in self.columns)
        for (place, width), end in zip(self.columns, ends, strict=True):
            total[place] += _channels_first(found[:, end - width : end], self.channels if width > 1 else 1)


@dataclass(frozen=True)
class Rows:
    """Gradients of a table that are zero but in some rows: (rows, T, width) at ``indices`` (rows, T), none twice."""

    deltas: torch.Tensor
    indices: torch.Tensor
    place: slice
    positions: int = 1

    def bits(self) -> list[torch.Tensor]:
        return [self.deltas]

    def squares(self) -> tuple[torch.Tensor, torch.Tensor]:
        found = _squares(self.deltas)
        return found, found

    def add(self, total: torch.Tensor, scales: torch.Tensor) -> None:
        scaled = _present(self.deltas, scales) * scales[:, None, None]
        table = total[self.place].view(-1, self.deltas.shape[2])
        table.index_add_(0, self.indices.reshape(-1), scaled.flatten(0, 1))


def _channels_first(numbers: torch.Tensor, channels: int) -> torch.Tensor:
    """Return numbers in the order of the flat vector, where a kernel's channels stand side by side, the last to change.

    Where they are the last in memory, windows are faster to copy so.
    """
    if channels > 1:
        numbers = numbers.reshape(-1, numbers.shape[-1] // channels, channels).mT
    return numbers.reshape(-1)


def _squares(each: torch.Tensor, keep: int = 1) -> torch.Tensor:
    """Return sums of squares over all but the first ``keep`` dimensions."""
    flat = each.reshape(*each.shape[:keep], -1)
    return torch.cat([torch.linalg.vecdot(wide, wide) for wide in (flat[some].double() for some in _blocks(flat))])


def _blocks(each: torch.Tensor) -> list[slice]:
    """Return some rows at a time: float64 copies of them stay in the processor's cache."""
    at_once = max(1, _BLOCK // each[0].numel())
    return [slice(first, first + at_once) for first in range(0, len(each), at_once)]


def _present(each: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return the numbers in float64, zeros for rows of scale 0: zero times infinity would be no number."""
    return each.double().index_fill_(0, torch.nonzero(scales == 0)[:, 0], 0.0)


def is_less_stored(positions: int, out: int, width: int) -> bool:
    """Say whether gradients themselves are less work than products of all pairs of positions: by shapes alone.

    >>> is_less_stored(196, 32, 400), is_less_stored(25, 512, 428), is_less_stored(1, 64, 1568)
    (True, False, False)
    """
    return positions > 1 and out * width <= 2 * positions * (out + width)


def products(deltas: torch.Tensor, inputs: torch.Tensor, places: Places, channels: int = 1) -> Factors:
    """Return the gradients of a weight, and a bias if it has a place, whichever way is less work."""
    rows, positions, out = deltas.shape
    width = inputs.shape[2]
    if is_less_stored(positions, out, width):
        return stored(torch.bmm(deltas.mT, inputs), deltas.sum(dim=1), places, channels)
    columns = [(places["weight"], width)]
    if "bias" in places:
        inputs = torch.cat([inputs, inputs.new_ones(rows, positions, 1)], dim=2)
        columns.append((places["bias"], 1))
    return Products(deltas, inputs, tuple(columns), channels)


def stored(weight: torch.Tensor, bias: torch.Tensor, places: Places, channels: int = 1) -> Stored:
    """Return gradients of those of the two that have a place."""
    parts = {"weight": weight, "bias": bias}
    return Stored(tuple((place, parts[name]) for name, place in places.items()), channels)


def refuses_layer(layer: nn.Module) -> bool:
    """Say whether a layer's gradients have no factors here."""
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return layer.padding_mode != "zeros" or isinstance(layer.padding, str)
    if isinstance(layer, nn.Embedding):
        return layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse
    return False


def factors_of(layer: nn.Module, given: torch.Tensor, deltas: torch.Tensor, places: Places) -> Factors:
    """Return the factors of a layer's gradients from its inputs (rows, ...) and the deltas of its outputs."""
    if isinstance(layer, nn.Embedding):
        return _of_table(layer, given.flatten(1), deltas.reshape(len(given), -1, layer.embedding_dim), places)
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return _of_convolution(layer, given, deltas, places)
    if isinstance(layer, nn.GroupNorm):
        scaled = group_norm(given, layer.num_groups, eps=layer.eps) * deltas
        return stored(scaled.flatten(2).sum(dim=2), deltas.flatten(2).sum(dim=2), places)
    if isinstance(layer, nn.LayerNorm):
        shape = (len(given), -1, *layer.normalized_shape)
        scaled = layer_norm(given, layer.normalized_shape, eps=layer.eps) * deltas
        return stored(scaled.reshape(shape).sum(dim=1), deltas.reshape(shape).sum(dim=1), places)
    rows = len(given)
    return products(deltas.reshape(rows, -1, deltas.shape[-1]), given.reshape(rows, -1, given.shape[-1]), places)


def factors_of_gates(given: torch.Tensor, deltas: torch.Tensor, places: Places) -> Factors:
    """Return those of an LSTM from its inputs and hidden states, side by side, and the deltas of what its gates see."""
    hidden = deltas.shape[2] // 4
    widths = {"weight_ih": given.shape[2] - hidden, "weight_hh": hidden, "bias_ih": 1, "bias_hh": 1}
    ones = given.new_ones(*given.shape[:2], sum(kind.startswith("bias") for kind in places))
    columns = tuple((places[kind], width) for kind, width in widths.items() if kind in places)
    return Products(deltas, torch.cat([given, ones], dim=2), columns)


def _of_convolution(
    layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, given: torch.Tensor, deltas: torch.Tensor, places: Places
) -> Factors:
    rows, dims, groups = len(given), len(layer.kernel_size), layer.groups
    # The first axis of space: channels stay where they lie in memory.
    is_last = groups == 1 and not given.is_contiguous()
    space = 1 if is_last else 2
    assert not isinstance(layer.padding, str)  # refused
    sides = [side for one in reversed(layer.padding) for side in (one, one)]
    windows = pad(given.movedim(1, -1), [0, 0, *sides]) if is_last else pad(given, sides)
    for i, (size, stride, dilation) in enumerate(zip(layer.kernel_size, layer.stride, layer.dilation, strict=True)):
        windows = windows.unfold(space + i, (size - 1) * dilation + 1, stride)[..., ::dilation]
    positions, kernel = tuple(range(space, space + dims)), tuple(range(2 + dims, 2 + 2 * dims))
    windows = windows.permute((0, *positions, *kernel, 1 + dims) if is_last else (0, 1, *kernel, *positions))
    each = deltas.movedim(1, -1).flatten(1, -2)
    count, width = each.shape[1], layer.weight[0].numel()

    def inputs(some: slice) -> torch.Tensor:
        if is_last:
            return windows[some].reshape(-1, count, width)
        return windows[some].reshape(-1, width, count).mT

    channels = layer.in_channels if is_last else 1
    if groups == 1 and not is_less_stored(count, layer.out_channels, width):
        return products(each, inputs(slice(None)), places, channels)
    split = each.view(rows, count, groups, -1).movedim(2, 1)
    at_once = max(1, _WINDOWS // (groups * count * width))
    some = [slice(first, first + at_once) for first in range(0, rows, at_once)]
    weight = torch.cat([torch.bmm(split[part].flatten(0, 1).mT, inputs(part)) for part in some])
    return stored(weight.reshape(rows, layer.out_channels, width), each.sum(dim=1), places, channels)


def _of_table(layer: nn.Embedding, tokens: torch.Tensor, deltas: torch.Tensor, places: Places) -> Factors:
    """Add up the deltas of a token's occurrences at the first of them: each sample then has each row once at most."""
    same = tokens[:, :, None] == tokens[:, None, :]
    is_first = ~same.tril(-1).any(dim=2)
    if layer.padding_idx is not None:
        is_first &= tokens != layer.padding_idx
    summed = torch.bmm(same.float(), deltas)
    return Rows(torch.where(is_first[:, :, None], summed, 0.0), tokens, places["weight"])
