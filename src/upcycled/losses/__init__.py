"""Losses: ``up.losses``. A user's own is a function (outputs, targets) -> the loss of each sample."""

from upcycled.losses.classification import BinaryCrossEntropy, CrossEntropy, DoubleSoftmax, Multilabel
from upcycled.losses.regression import AbsoluteError, Huber, Poisson, Quantile, SquaredError

__all__ = [
    "AbsoluteError",
    "BinaryCrossEntropy",
    "CrossEntropy",
    "DoubleSoftmax",
    "Huber",
    "Multilabel",
    "Poisson",
    "Quantile",
    "SquaredError",
]
