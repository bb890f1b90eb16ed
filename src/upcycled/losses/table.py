"""The losses by name, and a user's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from upcycled.core.errors import InputError, unknown
from upcycled.core.lookup import looked_up, names_code
from upcycled.core.objective import Objective, TargetKind
from upcycled.losses.classification import (
    BALANCED,
    BinaryCrossEntropy,
    CrossEntropy,
    DoubleSoftmax,
    Multilabel,
    balanced,
)
from upcycled.losses.regression import AbsoluteError, Huber, Poisson, Quantile, SquaredError

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
