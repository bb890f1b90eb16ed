"""Losses: ``up.losses``. A user's own is a function (outputs, targets) -> the loss of each sample.

From a model's outputs to answers: what the outputs are, as the loss that they were trained with has it.

The losses that certified mechanisms and solvers take: what is proven of each, and its derivative in float64.

Losses against classes and labels.

Losses against numbers: one a sample, or several, over which they are averaged.

The losses by name, and a user's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from upcycled.core.errors import FRACTION, POSITIVE, InputError, Limits, check_fields, check_number, unknown
from upcycled.core.objective import (
    GeneralisedLinear,
    Objective,
    TargetKind,
    huber_loss,
    like_targets,
    one_logit_loss,
    softmax_loss,
)
from upcycled.core.user_code import looked_up, names_code
from upcycled.core.vectors import Ints, Real

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


def _differences(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    outputs = like_targets(outputs, targets)
    return outputs - targets.to(outputs.dtype)


def _mean(losses: torch.Tensor) -> torch.Tensor:
    """Average over the numbers of a sample."""
    return losses if losses.ndim == 1 else losses.flatten(1).mean(1)


def _no_answer(outputs: torch.Tensor, targets: torch.Tensor) -> None:
    return None


def _as_many(targets: int) -> int:
    return targets


@dataclass(frozen=True)
class SquaredError:
    """(z - y)^2, whose best constant answer is the mean.

    >>> SquaredError().per_sample(torch.tensor([[1.0]]), torch.tensor([3.0])).tolist()
    [4.0]
    """

    name: ClassVar[str] = "mse"
    targets: ClassVar[TargetKind] = "numbers"
    num_outputs = staticmethod(_as_many)
    is_right = staticmethod(_no_answer)

    def per_sample(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return _mean(_differences(outputs, targets).square())


@dataclass(frozen=True)
class AbsoluteError:
    """|z - y|, whose best constant answer is the median.

    >>> AbsoluteError().per_sample(torch.tensor([[1.0]]), torch.tensor([3.0])).tolist()
    [2.0]
    """

    name: ClassVar[str] = "mae"
    targets: ClassVar[TargetKind] = "numbers"
    num_outputs = staticmethod(_as_many)
    is_right = staticmethod(_no_answer)

    def per_sample(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return _mean(_differences(outputs, targets).abs())


@dataclass(frozen=True)
class Huber:
    """(z - y)^2 / 2 up to ``threshold`` away, and linear with slope ``threshold`` beyond.

    >>> Huber(threshold=1.0).per_sample(torch.tensor([[0.5], [3.0]]), torch.tensor([0.0, 0.0])).tolist()
    [0.125, 2.5]
    """

    threshold: Annotated[float, POSITIVE] = 1.0
    """How far away an answer may be before its loss grows linearly."""

    name: ClassVar[str] = "huber"
    targets: ClassVar[TargetKind] = "numbers"
    num_outputs = staticmethod(_as_many)
    is_right = staticmethod(_no_answer)

    def __post_init__(self) -> None:
        check_fields(self)

    def per_sample(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        away = _differences(outputs, targets).abs()
        near = away.clamp(max=self.threshold)
        return _mean(near * (away - 0.5 * near))


@dataclass(frozen=True)
class Poisson:
    """exp(z) - y z: counts y >= 0 whose mean is exp(z).

    >>> Poisson().per_sample(torch.tensor([[0.0]]), torch.tensor([2.0])).tolist()
    [1.0]
    """

    name: ClassVar[str] = "poisson"
    targets: ClassVar[TargetKind] = "numbers"
    num_outputs = staticmethod(_as_many)
    is_right = staticmethod(_no_answer)

    def per_sample(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        outputs = like_targets(outputs, targets)
        return _mean(outputs.exp() - targets.to(outputs.dtype) * outputs)


@dataclass(frozen=True)
class Quantile:
    """The pinball loss, whose best constant answer is the ``q``-quantile.

    >>> Quantile(q=0.9).per_sample(torch.tensor([[0.0], [0.0]]), torch.tensor([1.0, -1.0])).tolist()
    [0.8999999761581421, 0.10000000149011612]
    """

    q: Annotated[float, Limits(above=0, below=1)] = 0.5
    """Which quantile; 0.5 is the median."""

    name: ClassVar[str] = "quantile"
    targets: ClassVar[TargetKind] = "numbers"
    num_outputs = staticmethod(_as_many)
    is_right = staticmethod(_no_answer)

    def __post_init__(self) -> None:
        check_fields(self)

    def per_sample(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        over = _differences(outputs, targets)
        return _mean(torch.maximum((1 - self.q) * over, -self.q * over))


OBJECTIVES: dict[str, type[Any]] = {
    kind.name: kind
    for kind in (
        *(CrossEntropy, DoubleSoftmax, BinaryCrossEntropy, Multilabel),
        *(SquaredError, AbsoluteError, Huber, Poisson, Quantile),
    )
}


@dataclass(frozen=True)
class Own:
    """A function of the user's: (outputs, targets) -> a loss for each sample.

    ``outputs`` are the model's, (samples, 1) squeezed to (samples,) where targets are such.
    """

    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    name: str
    targets: TargetKind

    def num_outputs(self, targets: int) -> int:
        return targets

    def per_sample(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if self.targets == "numbers" and outputs.ndim == targets.ndim + 1 and outputs.shape[-1] == 1:
            outputs = outputs.squeeze(-1)
        losses: Any = self.function(outputs, targets)
        if not isinstance(losses, torch.Tensor) or losses.shape != outputs.shape[:1]:
            got = tuple(losses.shape) if isinstance(losses, torch.Tensor) else type(losses).__name__
            raise InputError(
                f"returned {got} for {outputs.shape[0]} samples, but it must return a loss for each sample "
                "(with reduction='none', and a mean over what else a sample has)",
                field="loss",
            )
        return losses

    def is_right(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor | None:
        if self.targets != "classes" or outputs.ndim != 2 or outputs.shape[1] < 2:
            return None
        return outputs.argmax(1) == targets


def is_balanced(objective: Objective) -> bool:
    """Say whether the weights of its classes follow from the training data."""
    return getattr(objective, "class_weight", None) == BALANCED


def with_counts(objective: Objective, counts: Sequence[int] | None) -> Objective:
    """Return the loss with the numbers that its balanced weights are; any other loss as it is.

    ``counts`` has the training samples of each class; None where nobody may know them.

    >>> with_counts(CrossEntropy("balanced"), [30, 10]).class_weight
    (0.6666666666666666, 2.0)
    """
    if not is_balanced(objective):
        return objective
    if counts is None:
        raise InputError(
            field="loss.class_weight",
            value=BALANCED,
            but="the counts of labels that it follows from are known in a simulation and of public data only: a run "
            "with noise='system' would publish them, so it must be numbers",
        )
    if not isinstance(objective, CrossEntropy | BinaryCrossEntropy):
        raise InputError(field="loss.class_weight", value=BALANCED, must="numbers: only the package's own losses count")
    return replace(objective, class_weight=balanced(counts))


def as_objective(loss: object, targets: TargetKind) -> Objective:
    """Return the loss that a user asks for: a name, one of ``up.losses``, a function, or None for the usual one.

    ``targets`` is what the data have, for a function, which does not say what it takes.

    >>> as_objective("huber", "numbers"), as_objective(None, "classes").name
    (Huber(threshold=1.0), 'cross_entropy')
    """
    if loss is None:
        usual: dict[TargetKind, Objective] = {
            "classes": CrossEntropy(),
            "labels": Multilabel(),
            "numbers": SquaredError(),
        }
        return usual[targets]
    if isinstance(loss, str) and not names_code(loss):
        if loss not in OBJECTIVES:
            raise unknown("loss", loss, list(OBJECTIVES))
        known: Objective = OBJECTIVES[loss]()
        return known
    found = looked_up(loss, "loss") if isinstance(loss, str) else loss
    made: object = found() if isinstance(found, type) else found
    if isinstance(made, Objective):
        return made
    if callable(made):
        return Own(made, getattr(made, "__name__", type(made).__name__), targets)
    must = f"one of {', '.join(OBJECTIVES)}, one of up.losses, or a function (outputs, targets) -> loss of each sample"
    raise InputError(field="loss", value=loss, must=must)


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
