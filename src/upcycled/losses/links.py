"""From a model's outputs to answers: what the outputs are, as the loss that they were trained with has it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from upcycled.core.objective import Objective
from upcycled.losses.classification import BinaryCrossEntropy, Multilabel
from upcycled.losses.regression import Poisson

Link: TypeAlias = Literal["softmax", "sigmoid", "exp", "identity"]
"""Logits of classes; a logit of the second class, or of each label; the logarithm of a mean; the answer itself."""


def link_of(objective: Objective) -> Link:
    """Return what turns a model's outputs into probabilities or values; models give logits, a user's own loss or not.

    >>> from upcycled.losses import Huber
    >>> link_of(Poisson()), link_of(Huber()), link_of(BinaryCrossEntropy())
    ('exp', 'identity', 'sigmoid')
    """
    if isinstance(objective, Poisson):
        return "exp"
    if objective.targets == "numbers":
        return "identity"
    return (
        "sigmoid"
        if isinstance(objective, BinaryCrossEntropy | Multilabel) or objective.targets == "labels"
        else "softmax"
    )
