"""From what a user passes as ``model=`` to a private module that is known to fit the data."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from upcycled.core.errors import InputError, reason_of, suggest
from upcycled.core.facts import Facts
from upcycled.core.layout import NAMES, is_statistic
from upcycled.core.objective import Objective
from upcycled.losses import CrossEntropy, DoubleSoftmax
from upcycled.models.builtin import layers_size, logistic, lstm, lstm_size, mlp

KINDS = ("logistic", "mlp", "lstm")


def prepare_model(
    model: str | nn.Module,
    facts: Facts,
    objective: Objective,
    seed: int,
    options: Mapping[str, Any] | None = None,
    samples: NDArray[Any] | None = None,
) -> nn.Module:
    """Return a module of our own: built by name with weights from ``seed``, or a copy of the user's with its weights.

    A named lstm takes the vectors of the data's token ids as its fixed embedding, unless the options ask for another
    one. ``samples`` are two to try it on, where there are some.

    Raises InputError if it does not fit features or labels, or has buffers that change in training and are no running
    statistics.
    """
    outputs = objective.num_outputs(facts.classes)
    if isinstance(model, nn.Module):
        module = _copied(model)
    elif model in KINDS:
        module = _build(model, facts, outputs, seed, _with_vectors(model, dict(options or {}), facts.vectors))
    else:
        named = suggest(model, KINDS) if isinstance(model, str) else f" (known: {', '.join(KINDS)})"
        raise InputError(field="model", value=model, must=f"a torch.nn.Module or a known name{named}")
    trial = trial_samples(facts) if samples is None else samples
    _probe(module, as_input(module, trial), facts, objective)
    return module


def num_parameters(model: object, facts: Facts, objective: Objective, options: Mapping[str, Any] | None) -> int | None:
    """Return how many parameters a named model will have, before it is made; None for any other model."""
    if not isinstance(model, str) or model not in KINDS:
        return None
    given, outputs = _options(model) | dict(options or {}), objective.num_outputs(facts.classes)
    if model == "logistic":
        return layers_size((math.prod(facts.shape), outputs))
    if model == "mlp":
        return layers_size((math.prod(facts.shape), *given["hidden"], outputs))
    vocabulary = given["vocabulary"] or facts.vocabulary or 0
    return vocabulary * int(given["embedding"]) + lstm_size(given["embedding"], given["hidden"], outputs)


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise InputError(
            f"the module cannot be copied: {reason_of(error)}; expected one that copy.deepcopy takes. Layers with the "
            "old torch.nn.utils.weight_norm do not: use torch.nn.utils.parametrizations.weight_norm",
            where=("model",),
        ) from error


def trial_samples(facts: Facts) -> NDArray[Any]:
    """Return two samples made up: ones, which no layer takes for padding, and the largest token where that is known."""
    trial = np.ones((2, *facts.shape), dtype=facts.dtype)
    if facts.vocabulary is not None:
        trial[1] = facts.vocabulary - 1
        trial[0] = min(1, facts.vocabulary - 1)
    return trial


def _with_vectors(kind: str, options: dict[str, Any], vectors: NDArray[np.floating] | None) -> dict[str, Any]:
    is_asked = any(name in options for name in ("vectors", "vocabulary", "embedding"))
    return options if kind != "lstm" or vectors is None or is_asked else {**options, "vectors": vectors}


def _build(kind: str, facts: Facts, outputs: int, seed: int, options: dict[str, Any]) -> nn.Module:
    _check_options(kind, options)
    if kind == "logistic":
        return logistic(facts.shape, outputs, seed=seed, **options)
    if kind == "mlp":
        return mlp(facts.shape, outputs, seed=seed, **options)
    if not np.issubdtype(facts.dtype, np.integer):
        raise InputError(
            f"model 'lstm' needs integer token ids, but the features are {facts.dtype}: "
            "pass integers, or choose another model"
        )
    needed = facts.vocabulary
    module = lstm(outputs, seed=seed, **({"vocabulary": needed} if needed is not None else {}) | options)
    if needed is not None and module.embedding.num_embeddings < needed:
        raise InputError(
            f"model 'lstm' has {module.embedding.num_embeddings} token ids in its vocabulary, "
            f"but the data goes up to id {needed - 1}: it must have at least {needed}"
        )
    return module


def _check_options(kind: str, options: Mapping[str, Any]) -> None:
    known = _options(kind)
    for name in options:
        if name not in known:
            raise InputError(
                f"model_options has '{name}', but the model '{kind}' has no such option{suggest(name, known)}"
            )


def _options(kind: str) -> dict[str, Any]:
    """Return the options that a named model has, with their defaults."""
    made: dict[str, Callable[..., nn.Module]] = {"logistic": logistic, "mlp": mlp, "lstm": lstm}
    parameters = inspect.signature(made[kind]).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "seed"}


def takes_tokens(module: nn.Module) -> bool:
    """Say whether integer features are token ids for this module (it has an embedding) or just numbers."""
    return any(isinstance(layer, nn.Embedding | nn.EmbeddingBag) for layer in module.modules())


def as_input(module: nn.Module, x: NDArray[Any]) -> NDArray[Any]:
    """Return features in the type the module takes: int64 token ids, or float32; no copy where none is needed."""
    is_integer = np.issubdtype(x.dtype, np.integer)
    if not takes_tokens(module):
        return x if x.dtype == np.float32 else x.astype(np.float32)
    if not is_integer:
        raise InputError(f"model has an embedding, which needs integer token ids, but the features are {x.dtype}")
    return x if x.dtype == np.int64 else x.astype(np.int64)


def random_inputs(module: nn.Module, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Return random samples of a shape (samples, ...): token ids that every embedding knows, or normal numbers."""
    if not takes_tokens(module):
        return torch.randn(shape, generator=generator)
    tables = [layer.num_embeddings for layer in module.modules() if isinstance(layer, nn.Embedding | nn.EmbeddingBag)]
    return torch.randint(0, min(tables), shape, generator=generator)


def random_targets(
    objective: Objective, classes: int, shape: tuple[int, ...], generator: torch.Generator
) -> torch.Tensor:
    """Return random targets of a shape (samples, ...): class numbers, or zeros and ones as numbers."""
    drawn = torch.randint(0, max(2, classes), shape, generator=generator)
    return drawn if objective.targets == "classes" else (drawn % 2).float()


_BATCH_NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.LazyBatchNorm1d, nn.LazyBatchNorm2d, nn.LazyBatchNorm3d),
)


def has_batch_norm(module: nn.Module) -> bool:
    """Say whether a layer of the module mixes the samples of a batch.

    >>> has_batch_norm(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))), has_batch_norm(nn.GroupNorm(1, 2))
    (True, False)
    """
    return any(isinstance(layer, _BATCH_NORMS) for layer in module.modules())


def _try_loss(output: torch.Tensor, facts: Facts, objective: Objective) -> None:
    """Compute the loss of two outputs against targets of the data's shape."""
    classes, got = facts.classes, tuple(output.shape[1:])
    if isinstance(objective, CrossEntropy | DoubleSoftmax) and (output.ndim != 2 or output.shape[1] < classes):
        raise InputError(
            f"model output has shape {got} per sample, but the labels need one logit for each of {classes} classes"
        )
    targets = torch.zeros(2, dtype=torch.int64)
    if objective.targets != "classes":
        targets = torch.zeros((2, classes) if facts.has_vectors else 2)
    try:
        losses = objective.per_sample(output, targets)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"loss '{objective.name}' failed on outputs of shape {got}: {reason_of(error)}") from error
    if losses.shape != (2,):
        raise InputError(f"loss '{objective.name}' gives {tuple(losses.shape)} for two samples, but it must be (2,)")


def _probe(module: nn.Module, x: NDArray[Any], facts: Facts, objective: Objective) -> None:
    """Run two samples through a copy in training mode, with the caller's generator put back afterwards."""
    trial = copy.deepcopy(module).cpu().train()
    before = {name: buffer.clone() for name, buffer in trial.named_buffers()}
    rows = x if len(x) > 1 else np.repeat(x, 2, axis=0)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            output = trial(torch.from_numpy(np.array(rows)))
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            shape = tuple(x.shape[1:])
            raise InputError(
                f"model does not take samples of shape {shape} and type {x.dtype}: {reason_of(error)}"
            ) from error
    if not isinstance(output, torch.Tensor) or output.ndim == 0 or output.shape[0] != 2:
        got = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise InputError(f"model output is {got} for two samples, but it must be a tensor with a row for each")
    _try_loss(output, facts, objective)
    changed = [name for name, buffer in trial.named_buffers() if not torch.equal(buffer, before[name])]
    strange = [name for name in changed if not is_statistic(name)]
    if strange:
        raise InputError(
            f"model buffer '{strange[0]}' changes in training and is none of batch norm's ({', '.join(NAMES)}), so "
            "nobody knows how to average it: the model must do without"
        )


def takes_one_sample(module: nn.Module, facts: Facts) -> bool:
    """Say whether a module can be trained on a batch of one sample, which batch norm over features cannot."""
    trial = copy.deepcopy(module).cpu().train()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            trial(torch.from_numpy(as_input(module, trial_samples(facts)[:1])))
        except ValueError:
            return False
    return True
