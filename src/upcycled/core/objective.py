"""The contract of a loss, and the constants that proofs need of a linear model's loss.

What a model's output costs against a sample's target: the contract of a loss.

What is proven of the losses of linear models: the constants by which proofs bound what one record can do.

A record costs l(z, y), where z = W x~ are the outputs of a linear model and x~ the record's features, with a 1 behind
them for a bias, ||x~|| <= R~ (R~^2 = R^2 + 1 with a bias). With s = dl/dz and C = d^2 l/dz^2 the gradient is s x~', of
norm ||s|| ||x~||, and the Hessian the Kronecker product of C and x~ x~', whose eigenvalues are those of C times
||x~||^2, and zeros. So a record's loss is L-Lipschitz and S-smooth in the parameters with

    L = R~ max ||s||,    S = R~^2 max lambda(C),

its Hessian has the rank of C, and its eigenvalues add up to R~^2 tr C. What is below is least: each is attained, or
approached, by some outputs and some target.

- **K logits, cross-entropy**: s = p - e_y, the difference of two probability vectors, ||s||^2 <= 2; with smoothed
  labels another vector stands in the place of e_y. v'Cv is the variance of v_k under p, at most (max v - min v)^2/4 <=
  ||v||^2/2. C has rank K - 1 (it maps equal numbers to zero) and trace 1 - sum p_k^2 <= 1 - 1/K.
- **One logit, two classes**: s = sigma(z) - y, |s| < 1; C = sigma (1 - sigma) <= 1/4, of rank 1.
- **Huber with threshold kappa**, the mean over m outputs: s_j is z_j - y_j within +- kappa, over m, so ||s|| <=
  kappa/sqrt(m); C is diagonal with 0 or 1/m, of rank m and trace 1 at most. At |z_j - y_j| = kappa there is no second
  derivative; s is Lipschitz all the same, with 1/m, which is what smoothness means. Targets need no bound. (Of the sum
  over outputs, which is not what this package trains, everything would be m times as large.)
- **Weights of classes**: a record's loss is multiplied by its class's weight, and the mean divides by n, not by the sum
  of weights, which would let one record change the share of all. Everything is multiplied by the largest weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

from upcycled.core.errors import InputError

if TYPE_CHECKING:  # messages hold no tensor, and a site's connected process loads no torch
    import torch

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

    >>> import torch
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


@dataclass(frozen=True)
class GeneralisedLinear:
    """The loss of a linear model, for records of norm 1: what mechanisms with a proof read, and nothing of the data.

    >>> loss = one_logit_loss()
    >>> loss.lipschitz(2.0), loss.smoothness(2.0)
    (1.4142135623730951, 0.5)
    """

    name: str
    """What the model with this loss is called."""
    outputs: int
    slope_squared: float
    """max ||s||^2."""
    curvature: float
    """The largest eigenvalue of C."""
    rank: int
    """Of C at most."""
    spread: float
    """rank / max tr C: no determinant of a record's Hessian exceeds that of ``rank`` eigenvalues of R~^2/spread."""

    def lipschitz(self, radius_squared: float) -> float:
        """Return L for records of norm R~, given R~^2."""
        return math.sqrt(self.slope_squared * radius_squared)

    def smoothness(self, radius_squared: float) -> float:
        """Return S for records of norm R~, given R~^2."""
        return self.curvature * radius_squared


def softmax_loss(classes: int, weight: float | None = None) -> GeneralisedLinear:
    """Return what is proven of cross-entropy on K logits; ``weight`` is the largest of the classes' weights.

    >>> softmax_loss(2).lipschitz(2.0), softmax_loss(2).smoothness(2.0)
    (2.0, 1.0)
    """
    most, name = 1.0 if weight is None else weight, "softmax regression" + _weighted(weight)
    return GeneralisedLinear(name, classes, 2 * most**2, most / 2, classes - 1, classes / most)


def one_logit_loss(weight: float | None = None) -> GeneralisedLinear:
    """Return what is proven of the logistic loss on one logit; ``weight`` is the larger of the classes' weights."""
    most, name = 1.0 if weight is None else weight, "logistic regression with one logit" + _weighted(weight)
    return GeneralisedLinear(name, 1, most**2, most / 4, 1, 4 / most)


PROVEN_LOSSES = "cross_entropy, binary_cross_entropy (one logit) or huber"
"""The losses that certified solvers and mechanisms take, as errors name them."""


def huber_loss(threshold: float, outputs: int = 1) -> GeneralisedLinear:
    """Return what is proven of Huber's loss, averaged over m outputs.

    >>> huber_loss(0.5, outputs=4).lipschitz(2.0) ** 2, huber_loss(0.5, outputs=4).smoothness(2.0)
    (0.125, 0.5)
    """
    name = f"Huber regression with threshold {threshold:g}"
    return GeneralisedLinear(name, outputs, threshold**2 / outputs, 1 / outputs, outputs, float(outputs))


def _weighted(weight: float | None) -> str:
    return "" if weight is None else f" with class weights up to {weight:g}"
