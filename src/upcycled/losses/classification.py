"""Losses against classes and labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal, TypeAlias

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from upcycled.core.errors import FRACTION, InputError, check_fields, check_number
from upcycled.core.objective import TargetKind, like_targets

BALANCED: Final = "balanced"
ClassWeight: TypeAlias = tuple[float, ...] | Literal["balanced"] | None


def _weights(given: object, field: str) -> ClassWeight:
    """Return weights of classes as plain numbers, each above zero."""
    if given is None or (isinstance(given, str) and given == BALANCED):
        return None if given is None else BALANCED
    if not isinstance(given, Sequence | np.ndarray) or isinstance(given, str) or len(given) == 0:
        raise InputError(field=field, value=given, must="a list with a number above 0 for each class, or 'balanced'")
    return tuple(float(check_number(field, value, above=0)) for value in given)


def balanced(counts: Sequence[int]) -> tuple[float, ...]:
    """Return n / (K n_k) for each of K classes with n_k of n samples: every class then weighs the same in all.

    >>> balanced([30, 10])
    (0.6666666666666666, 2.0)
    """
    if 0 in counts:
        raise InputError(
            field="class_weight", value=BALANCED, but=f"no training sample is of class {list(counts).index(0)}"
        )
    return tuple(sum(counts) / (len(counts) * count) for count in counts)


def _weighted(losses: torch.Tensor, targets: torch.Tensor, weight: ClassWeight) -> torch.Tensor:
    if weight is None:
        return losses
    if weight == BALANCED:
        raise InputError(
            field="class_weight", value=weight, but="only a run finds it in its training data: here it must be numbers"
        )
    return losses * torch.tensor(weight, dtype=losses.dtype, device=losses.device)[targets.long()]


@dataclass(frozen=True)
class CrossEntropy:
    """Softmax cross-entropy: one logit for each class, and the usual loss of classes.

    A sample's loss is multiplied by its class's weight; the mean still divides by the number of samples, so that one
    sample's share does not depend on the others.

    >>> loss = CrossEntropy(class_weight=[1.0, 4.0])
    >>> loss.per_sample(torch.zeros(2, 2), torch.tensor([0, 1])).tolist()
    [0.6931471824645996, 2.7725887298583984]
    """

    class_weight: ClassWeight = None
    """A weight for each class; None weighs all alike; ``"balanced"`` is n / (K n_k), found in the training data."""
    label_smoothing: Annotated[float, FRACTION] = 0.0
    """The part of a sample's weight that all classes share."""

    name: ClassVar[str] = "cross_entropy"
    targets: ClassVar[TargetKind] = "classes"

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "class_weight", _weights(self.class_weight, "class_weight"))

    @property
    def is_plain(self) -> bool:
        """Whether it is the usual one, without weights and smoothing."""
        return self.class_weight is None and self.label_smoothing == 0

    def num_outputs(self, targets: int) -> int:
        if isinstance(self.class_weight, tuple) and len(self.class_weight) != targets:
            must = f"a list of {targets} numbers, one for each class"
            raise InputError(field="class_weight", value=list(self.class_weight), must=must)
        return targets

    def per_sample(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        losses = cross_entropy(outputs, targets, reduction="none", label_smoothing=self.label_smoothing)
        return _weighted(losses, targets, self.class_weight)

    def is_right(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return outputs.argmax(1) == targets


@dataclass(frozen=True)
class DoubleSoftmax:
    """Cross-entropy of softmax(z) taken for logits, as models that end in a softmax are often trained by mistake.

    Upcycled-FL's official code does so; this is for repeating it. The loss of K classes stays between log(1 + (K-1)/e)
    and log(e + K-1), and its gradient by z vanishes wherever the model is sure, right or wrong.

    >>> DoubleSoftmax().per_sample(torch.tensor([[0.0, 0.0], [100.0, 0.0]]), torch.tensor([1, 1])).tolist()
    [0.6931471824645996, 1.31326162815094]
    """

    name: ClassVar[str] = "double_softmax"
    targets: ClassVar[TargetKind] = "classes"

    def num_outputs(self, targets: int) -> int:
        return targets

    def per_sample(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return cross_entropy(outputs.softmax(1), targets, reduction="none")

    def is_right(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return outputs.argmax(1) == targets


@dataclass(frozen=True)
class BinaryCrossEntropy:
    """Logistic loss on one logit, of two classes; ``class_weight`` as for :class:`CrossEntropy`.

    >>> BinaryCrossEntropy().per_sample(torch.zeros(2, 1), torch.tensor([0, 1])).tolist()
    [0.6931471824645996, 0.6931471824645996]
    """

    class_weight: ClassWeight = None
    """The weights of class 0 and class 1; None weighs them alike; ``"balanced"`` as for :class:`CrossEntropy`."""

    name: ClassVar[str] = "binary_cross_entropy"
    targets: ClassVar[TargetKind] = "classes"

    def __post_init__(self) -> None:
        weights = _weights(self.class_weight, "class_weight")
        if isinstance(weights, tuple) and len(weights) != 2:
            raise InputError(field="class_weight", value=list(weights), must="a list of 2 numbers")
        object.__setattr__(self, "class_weight", weights)

    def num_outputs(self, targets: int) -> int:
        if targets != 2:
            raise InputError(f"loss 'binary_cross_entropy' is for 2 classes, but there are {targets}")
        return 1

    def per_sample(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = like_targets(outputs, targets)
        losses = binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")
        return _weighted(losses, targets, self.class_weight)

    def is_right(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (like_targets(outputs, targets) > 0) == (targets > 0)


@dataclass(frozen=True)
class Multilabel:
    """Several labels of a sample, each 0 or 1 with a logit of its own: the mean of their logistic losses.

    >>> Multilabel().per_sample(torch.zeros(1, 3), torch.tensor([[0.0, 1.0, 1.0]])).tolist()
    [0.6931471824645996]
    """

    name: ClassVar[str] = "multilabel"
    targets: ClassVar[TargetKind] = "labels"

    def num_outputs(self, targets: int) -> int:
        return targets

    def per_sample(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = like_targets(outputs, targets)
        losses = binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")
        return losses.flatten(1).mean(1)

    def is_right(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        return None
