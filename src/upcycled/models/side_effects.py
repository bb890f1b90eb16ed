"""Checks that a forward and backward pass leaves a model as it was, tried on made-up samples.

Noise covers gradients or model updates. A layer that writes into parameters or buffers while it computes (an embedding
with ``max_norm``, the power iteration of spectral norm) changes the model by what it sees in the samples, outside of
the noise. A model that remembers samples elsewhere carries one client's data into the next client's update.
"""

from __future__ import annotations

import copy
from contextlib import suppress

import numpy as np
import torch
from torch import nn

from upcycled.core.errors import InputError, reason_of
from upcycled.core.facts import Facts
from upcycled.core.objective import Objective
from upcycled.models.prepare import as_input, random_inputs, random_targets, trial_samples

_LARGE = 1e3
"""Standard deviation of large weights, which layers that bound their weights change."""
_ERRORS = (RuntimeError, IndexError, ValueError, TypeError)


def check_private_model(module: nn.Module, facts: Facts, objective: Objective, *, is_per_sample: bool) -> None:
    """Reject a model that changes outside of its gradients, which no noise covers.

    The model runs forward and backward on made-up samples of the public shape, with its own weights, with random ones
    and with large ones. Every parameter and buffer must keep its bits, and the outputs for the same samples must stay
    the same after a pass over other samples.

    Args:
        module: the model; a copy of it is tried.
        facts: public facts about the data.
        objective: the loss.
        is_per_sample: whether the mechanism clips the gradient of each sample (DP-SGD).

    Raises:
        InputError: if a layer is known to break this, or if something changed.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            _check_embedding(name, layer, is_per_sample)
    trial = copy.deepcopy(module).cpu()
    generator = torch.Generator().manual_seed(0)
    given = torch.from_numpy(as_input(trial, trial_samples(facts)))
    drawn = random_inputs(trial, (4, *facts.shape), generator)
    if drawn.is_floating_point():
        drawn[2:] *= 100
    shape = (facts.classes,) if facts.has_vectors else ()
    targets = random_targets(objective, facts.classes, (4, *shape), generator)
    with torch.random.fork_rng(devices=[]):
        for size in (None, _LARGE, 0.1):
            if size is not None:
                _draw_weights(trial, size, generator)
            before = _tensors(trial)
            try:
                first = _pass(trial, given, targets[:2], objective)
            except _ERRORS as error:
                raise InputError(
                    f"the model does not take made-up samples of shape {facts.shape}: {reason_of(error)}; expected a "
                    "model that runs on samples of ones, on which a private run checks it",
                    where=("model",),
                ) from error
            with suppress(*_ERRORS):  # Some models reject values that no data have.
                _pass(trial, drawn, targets, objective)
            _check_unchanged(before, _tensors(trial))
        again = _pass(trial, given, targets[:2], objective)
    if not all(map(_are_close, first, again)):
        raise InputError(
            "outputs for the same samples changed after a pass over other samples; with privacy expected a model "
            "without state outside its parameters and buffers, and without random numbers that are not torch's. Remove "
            "that state",
            where=("model",),
        )


def _check_embedding(name: str, layer: nn.Embedding | nn.EmbeddingBag, is_per_sample: bool) -> None:
    if layer.max_norm is not None:
        wrong, fix = (
            f"max_norm={layer.max_norm:g}, which rescales rows in place in the forward pass, outside of the noise",
            "max_norm=None with privacy. Remove it, or scale the outputs of the layer instead",
        )
    elif is_per_sample and layer.scale_grad_by_freq:
        wrong, fix = (
            "scale_grad_by_freq=True, by which a sample's gradient depends on the other samples of its batch",
            "scale_grad_by_freq=False with DPSGD",
        )
    elif is_per_sample and layer.sparse:
        wrong, fix = "sparse=True, whose gradients DPSGD cannot clip", "sparse=False with DPSGD"
    else:
        return
    raise InputError(f"layer {name!r} ({type(layer).__name__}) has {wrong}; expected {fix}", where=("model",))


def _draw_weights(module: nn.Module, size: float, generator: torch.Generator) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.copy_(size * torch.randn(parameter.shape, generator=generator))


def _pass(module: nn.Module, x: torch.Tensor, targets: torch.Tensor, objective: Objective) -> list[torch.Tensor]:
    """Run forward and backward in training mode and forward in evaluation mode; return the outputs of both."""
    torch.default_generator.manual_seed(0)
    trained: torch.Tensor = module.train()(x.clone())
    objective.per_sample(trained, targets).sum().backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        scored: torch.Tensor = module.eval()(x.clone())
    return [trained.detach(), scored]


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in (*module.named_parameters(), *module.named_buffers())}


def _check_unchanged(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> None:
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after or not _has_same_bits(before[name], after[name]):
            raise InputError(
                f"{name!r} changed in a forward and backward pass over made-up samples; with privacy expected a model "
                "whose parameters and buffers change by noisy updates alone. Remove or replace the layer that writes "
                "into it",
                where=("model",),
            )


def _has_same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(*(t.reshape(-1).contiguous().view(torch.uint8) for t in (a, b)))


def _are_close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Say whether outputs are equal up to rounding, which may depend on where a tensor lies in memory."""
    scale = 1e-5 * float(np.nan_to_num(a.abs().max().item(), posinf=0.0)) + 1e-30
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-5, atol=scale, equal_nan=True)
