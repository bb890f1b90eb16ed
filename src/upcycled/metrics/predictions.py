"""What a model predicts: its outputs as probabilities or values; and what one predicts that has learnt nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled.core.objective import Objective
from upcycled.core.vectors import Real
from upcycled.losses import Poisson

RAREST = 1e-7
"""The least probability that a constant answer gives, so that its loss is finite."""


def predictions_of(objective: Objective, outputs: NDArray[Any], targets: NDArray[Any]) -> Real:
    """Return probabilities for classes and labels, and values for numbers, in float64.

    One output a sample stands as (samples,), as targets do; of classes it is the second one's probability.

    >>> from upcycled.losses import CrossEntropy, Poisson
    >>> predictions_of(CrossEntropy(), np.array([[0.0, np.log(3.0)]]), np.array([1])).tolist()
    [[0.25, 0.75]]
    >>> predictions_of(Poisson(), np.array([[0.0]]), np.array([2.0])).tolist()
    [1.0]
    """
    from scipy.special import expit, softmax

    exact: Real = outputs.astype(np.float64)
    if exact.ndim == targets.ndim + 1 and exact.shape[-1] == 1:
        exact = exact[..., 0]
    with np.errstate(all="ignore"):
        if objective.targets == "numbers":
            return np.exp(exact) if isinstance(objective, Poisson) else exact
        is_one_of_several = objective.targets == "classes" and exact.ndim == 2
        found: Real = softmax(exact, axis=1) if is_one_of_several else expit(exact)
    return found


def constant_outputs(objective: Objective, targets: NDArray[Any], outputs: int) -> Real:
    """Return the outputs (outputs,) of a model that has seen targets and no features.

    It predicts the classes' or the labels' shares, and so answers with the class that most samples have; of numbers it
    predicts the mean.

    >>> from upcycled.losses import CrossEntropy, SquaredError
    >>> np.exp(constant_outputs(CrossEntropy(), np.array([0, 0, 0, 1]), 2)).round(3).tolist()
    [0.75, 0.25]
    >>> constant_outputs(SquaredError(), np.array([1.0, 2.0]), 1).tolist()
    [1.5]
    """
    if objective.targets == "numbers":
        mean = np.atleast_1d(np.mean(targets, axis=0, dtype=np.float64))
        found: Real = np.log(np.maximum(mean, RAREST)) if isinstance(objective, Poisson) else mean
        return found
    if objective.targets == "labels":
        shares = np.atleast_1d(np.mean(targets, axis=0, dtype=np.float64))
    else:
        counts = np.bincount(targets, minlength=max(outputs, 2)) / max(len(targets), 1)
        if outputs > 1:
            return np.log(np.maximum(counts, RAREST))
        shares = counts[1:2]
    shares = np.clip(shares, RAREST, 1 - RAREST)
    logits: Real = np.log(shares / (1 - shares))
    return logits
