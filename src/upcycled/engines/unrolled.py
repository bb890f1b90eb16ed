"""An LSTM in plain operations, step by step: what comes before its gates can be looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from torch import nn
from torch.nn.functional import linear

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
