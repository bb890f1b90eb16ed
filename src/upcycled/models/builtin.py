"""The package's own models: softmax regression, a multilayer perceptron, a bidirectional LSTM.

Initial weights from the package's own streams: no global generator is read or set.

Modules that a function of the user's makes.

All give logits: the loss applies the softmax, once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from upcycled.core.errors import COUNT, FRACTION, InputError, reason_of
from upcycled.core.machine import check_fits
from upcycled.core.randomness import Purpose, client_keys, normals, uniforms


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


def made_by(factory: Callable[[], object], value: object, seed: int) -> nn.Module:
    """Call a factory with torch's generator set to a seed; the caller's generator is as before.

    Args:
        factory: a function without arguments.
        value: what the user wrote for it, for sentences.
        seed: of the weights that it draws.

    Raises:
        InputError: if it fails, or returns something else than a module.

    >>> made_by(lambda: nn.Linear(3, 2), "linear", seed=0)
    Linear(in_features=3, out_features=2, bias=True)
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**63)
        try:
            module = factory()
        except Exception as error:
            raise _wrong(value, f"calling it failed with {type(error).__name__}: {reason_of(error)}") from error
    if not isinstance(module, nn.Module):
        raise _wrong(value, f"it returned {type(module).__name__}")
    return module


def _wrong(value: object, reason: str) -> InputError:
    must = f"a function without arguments that returns a torch module ({reason})"
    return InputError(field="model", value=value, must=must)


MOST_LAYERS = 500
"""No signal passes that many without shortcuts, and preparing them takes seconds."""


def logistic(features: Sequence[int], classes: int, *, bias: bool = True, seed: int = 0) -> nn.Module:
    """Return softmax regression on samples of this shape; images are flattened.

    Args:
        features: the shape of a sample.
        classes: how many logits it gives.
        bias: whether each class has one.
        seed: which weights it starts with.

    Returns:
        The module: a linear layer, behind a flatten for images.

    Raises:
        InputError: if it does not fit into memory.

    >>> logistic((20,), 2)
    Linear(in_features=20, out_features=2, bias=True)
    """
    _check_fits(layers_size((math.prod(features), classes)))
    linear = _linear(math.prod(features), classes, bias)
    module = linear if len(features) == 1 else nn.Sequential(nn.Flatten(), linear)
    draw_weights(module, seed)
    return module


def mlp(features: Sequence[int], classes: int, *, hidden: Sequence[int] = (196,), seed: int = 0) -> nn.Module:
    """Return Linear and ReLU layers; ``hidden`` are the widths between input and output.

    Args:
        features: the shape of a sample.
        classes: how many logits it gives.
        hidden: the widths between input and output.
        seed: which weights it starts with.

    Returns:
        The module.

    Raises:
        InputError: for a width that is no integer >= 1, or none at all.

    >>> [tuple(p.shape) for p in mlp((28, 28), 10).parameters()]
    [(196, 784), (196,), (10, 196), (10,)]
    """
    if not hidden:
        raise InputError("is empty, but an mlp needs at least one width >= 1", field="hidden", of="model")
    if len(hidden) > MOST_LAYERS:
        must = f"at most {MOST_LAYERS} widths, a layer each"
        raise InputError(field="hidden", of="model", value=list(hidden), must=must)
    widths = [math.prod(features), *(COUNT.check("hidden", width, "model") for width in hidden), classes]
    _check_fits(layers_size(widths), "hidden", list(hidden))
    layers: list[nn.Module] = [] if len(features) == 1 else [nn.Flatten()]
    for i, (before, after) in enumerate(itertools.pairwise(widths)):
        layers += ([nn.ReLU()] if i else []) + [_linear(before, after)]
    module = nn.Sequential(*layers)
    draw_weights(module, seed)
    return module


def layers_size(widths: Sequence[int]) -> int:
    """Return how many parameters linear layers of these widths have, biases included."""
    return sum((before + 1) * after for before, after in itertools.pairwise(widths))


def lstm_size(embedding: int, hidden: int, classes: int) -> int:
    """Return how many parameters an LSTM in both directions and its output layer have, all but the embedding's."""
    return 8 * hidden * (embedding + hidden + 2) + (2 * hidden + 1) * classes


BYTES_EACH = 12
"""A parameter in the module, in the flat vector and in a gradient: less no run needs."""


def _check_fits(num_parameters: int, field: str = "", value: object = None) -> None:
    what, size = f"a model of {num_parameters} parameters", BYTES_EACH * num_parameters
    if field:
        check_fits(what, size, field=f"model {field}", value=value)
    else:
        check_fits(what, size)


def _linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """Return a layer whose weights are still to be drawn; the caller's generator is as before.

    Layers on torch's "meta" device would skip the first draw, but they import sympy: a second of every start.
    """
    with torch.random.fork_rng(devices=[]):
        return nn.Linear(inputs, outputs, bias=bias)


class Lstm(nn.Module):
    """Embedding, bidirectional LSTM, and a linear layer on the last hidden states of both directions."""

    def __init__(self, vocabulary: int, classes: int, embedding: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, device="meta").to_empty(device="cpu")
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True, bidirectional=True, device="meta").to_empty(
            device="cpu"
        )
        self.dropout = nn.Dropout(dropout)
        self.output = _linear(2 * hidden, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map token ids (batch, length) to logits (batch, classes)."""
        _, (last, _) = self.lstm(self.embedding(tokens))
        logits: torch.Tensor = self.output(self.dropout(torch.cat([last[0], last[1]], dim=1)))
        return logits


def lstm(
    classes: int,
    *,
    vocabulary: int | None = None,
    vectors: NDArray[np.floating] | None = None,
    embedding: int = 50,
    hidden: int = 128,
    dropout: float = 0.0,
    seed: int = 0,
) -> Lstm:
    """Return a bidirectional LSTM over token ids, ``hidden`` wide in each direction.

    With ``vectors`` (vocabulary, embedding) the embedding is fixed to them: neither trained, sent nor noised.

    Args:
        classes: how many logits it gives.
        vocabulary: how many token ids there are; needed without ``vectors``.
        vectors: a fixed vector for each token id.
        embedding: how long the vectors are, where they are learnt.
        hidden: the width in each direction.
        dropout: the share of the last hidden states that training leaves out.
        seed: which weights it starts with.

    Returns:
        The module.

    Raises:
        InputError: for a number out of its range, or neither vocabulary nor vectors.

    >>> sum(p.numel() for p in lstm(2, vocabulary=10, embedding=4, hidden=3).parameters())
    270
    """
    hidden = COUNT.check("hidden", hidden, "model")
    embedding = COUNT.check("embedding", embedding, "model")
    dropout = FRACTION.check("dropout", dropout, "model")
    if vectors is not None:
        if np.ndim(vectors) != 2 or 0 in np.shape(vectors):
            raise InputError(f"model vectors has shape {np.shape(vectors)}, but it must be (token ids, embedding)")
        vocabulary, embedding = np.shape(vectors)
    if vocabulary is None:
        raise InputError(field="vocabulary", of="model", but="an lstm needs the number of token ids, or vectors=")
    vocabulary = COUNT.check("vocabulary", vocabulary, "model")
    _check_fits(vocabulary * embedding, "vocabulary", vocabulary)
    _check_fits(lstm_size(embedding, hidden, classes), "hidden", hidden)
    module = Lstm(vocabulary, classes, embedding, hidden, dropout)
    draw_weights(module, seed)
    if vectors is not None:
        with torch.no_grad():
            module.embedding.weight.copy_(torch.from_numpy(np.asarray(vectors, dtype=np.float32)))
        module.embedding.weight.requires_grad_(False)
    return module
