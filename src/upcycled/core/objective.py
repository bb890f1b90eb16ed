"""What a model's output costs against a sample's target: the contract of a loss."""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias, runtime_checkable

import torch

from upcycled.core.errors import InputError

TargetKind: TypeAlias = Literal["classes", "labels", "numbers"]
"""What a sample's target is: one of K classes; several labels, each 0 or 1; or one or more numbers."""


@runtime_checkable
class Objective(Protocol):
    """A loss: what one sample costs. The mean over samples is what a client minimises.

    Means divide by the number of samples, whatever their weights: a sample's share then never depends on the others.
    """

    @property
    def name(self) -> str:
        """What records and files call it."""

    @property
    def targets(self) -> TargetKind:
        """What it is computed against."""

    def num_outputs(self, targets: int) -> int:
        """Return how many outputs a model needs for this many classes, labels or numbers."""

    def per_sample(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of each sample, shape (samples,)."""

    def is_right(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor | None:
        """Return whether each sample is answered rightly, or None where that has no meaning."""


def mean_loss(objective: Objective, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean of the samples' losses."""
    return objective.per_sample(outputs, targets).mean()


def like_targets(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return one output a sample as (samples,) where targets are such; refuse shapes that differ, never broadcast.

    >>> like_targets(torch.zeros(3, 1), torch.zeros(3)).shape
    torch.Size([3])
    """
    if outputs.ndim == targets.ndim + 1 and outputs.shape[-1] == 1:
        outputs = outputs.squeeze(-1)
    if outputs.shape != targets.shape:
        raise InputError(
            f"the model gives outputs of shape {tuple(outputs.shape[1:])} a sample, but its target has shape "
            f"{tuple(targets.shape[1:])}: they must be the same"
        )
    return outputs
