"""The losses that certified mechanisms and solvers take: what is proven of each, and its derivative in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from upcycled.core.generalised_linear import GeneralisedLinear, huber_loss, one_logit_loss, softmax_loss
from upcycled.core.objective import Objective
from upcycled.core.vectors import Ints, Real
from upcycled.losses.classification import BinaryCrossEntropy, CrossEntropy
from upcycled.losses.regression import Huber

Slopes: TypeAlias = Callable[[Real, NDArray[Any]], Real]
"""(outputs, targets) -> dl/dz of each sample, shape (samples, outputs); what stood in the outputs is lost."""


@dataclass(frozen=True)
class ProvenLoss:
    """A loss with a proof for linear models."""

    about: GeneralisedLinear
    slopes: Slopes


def proven_loss(objective: Objective, outputs: int) -> ProvenLoss | None:
    """Return what is proven of a loss on this many outputs; None where nothing is.

    Kinds are compared exactly: whoever derives a class from these may have changed what it computes.

    >>> proven_loss(BinaryCrossEntropy(), 1).about.name, proven_loss(BinaryCrossEntropy(), 2)
    ('logistic regression with one logit', None)
    """
    if isinstance(objective, CrossEntropy | BinaryCrossEntropy):
        weight = objective.class_weight
        if isinstance(weight, str):
            return None  # weights that nobody has found yet
        if type(objective) is CrossEntropy and outputs > 1:
            smoothed = partial(softmax_slopes, weights=_array(weight), smoothing=float(objective.label_smoothing))
            return ProvenLoss(softmax_loss(outputs, _largest(weight)), smoothed)
        if type(objective) is BinaryCrossEntropy and outputs == 1:
            return ProvenLoss(one_logit_loss(_largest(weight)), partial(one_logit_slopes, weights=_array(weight)))
    if type(objective) is Huber:
        threshold = float(objective.threshold)
        return ProvenLoss(huber_loss(threshold, outputs), partial(huber_slopes, threshold=threshold))
    return None


def softmax_slopes(outputs: Real, targets: Ints, weights: Real | None = None, smoothing: float = 0.0) -> Real:
    """Return p - e_y of each sample, times its class's weight; ``smoothing`` of e_y is shared by all classes.

    >>> softmax_slopes(np.zeros((1, 2)), np.array([1])).tolist()
    [[0.5, -0.5]]
    """
    outputs -= outputs.max(axis=1, keepdims=True)
    np.exp(outputs, out=outputs)
    outputs /= outputs.sum(axis=1, keepdims=True)
    outputs[np.arange(len(targets)), targets] -= 1.0 - smoothing
    if smoothing > 0:
        outputs -= smoothing / outputs.shape[1]
    if weights is not None:
        outputs *= weights[targets][:, None]
    return outputs


def one_logit_slopes(outputs: Real, targets: Ints, weights: Real | None = None) -> Real:
    """Return sigma(z) - y of each sample, times its class's weight.

    >>> one_logit_slopes(np.array([[0.0], [-1e4]]), np.array([1, 0])).tolist()
    [[-0.5], [0.0]]
    """
    small = np.exp(-np.abs(outputs))  # never overflows
    found: Real = np.where(outputs >= 0, 1.0, small) / (1.0 + small) - targets[:, None]
    if weights is not None:
        found *= weights[targets][:, None]
    return found


def huber_slopes(outputs: Real, targets: NDArray[Any], threshold: float) -> Real:
    """Return z - y within +- ``threshold``, over the number of outputs.

    >>> huber_slopes(np.array([[0.5, 9.0]]), np.zeros((1, 2)), threshold=1.0).tolist()
    [[0.25, 0.5]]
    """
    outputs -= targets.reshape(outputs.shape)
    np.clip(outputs, -threshold, threshold, out=outputs)
    outputs /= outputs.shape[1]
    return outputs


def _array(weights: tuple[float, ...] | None) -> Real | None:
    return None if weights is None else np.array(weights)


def _largest(weights: tuple[float, ...] | None) -> float | None:
    return None if weights is None else max(weights)
