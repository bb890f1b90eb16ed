"""What float64 arithmetic adds to a certified solver: bounded by public numbers, so it is part of the promise.

Every bound is the textbook first-order one (each operation errs by a part u = 2^-53, a sum of m terms by m u of its
absolute terms), doubled for what is of second order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from upcycled.core.errors import DivergedError
from upcycled.core.generalised_linear import GeneralisedLinear
from upcycled.core.mechanism import Setting
from upcycled.core.vectors import Ints, Real, Vector

ROUNDING = 1e-5
"""The part by which sensitivities of solvers are enlarged to cover rounding."""

UNIT = 2.0**-53
"""u, by a part of which each operation in float64 errs."""


@dataclass(frozen=True)
class LossConstants:
    """A linear model's loss on features of norm <= R: L, S and R~, and the sizes that rounding errors grow with."""

    loss: GeneralisedLinear
    lipschitz: float
    smoothness: float
    radius: float
    """R~, with R~^2 = R^2 + 1 for a bias."""
    inputs: int

    def step_error(self, terms: Ints, model_norm: float, linear_norm: Real, a: float, lr: float, reach: Real) -> Real:
        """Bound the norm of all rounding in one step of x <- x - lr (mean gradient + a (x - w) + b), over lr.

        ``terms`` are the samples in a sum; x stays within ``reach`` of w. Outputs err by (d + 4) u ||x|| R~, and so
        derivatives by them by ``curvature`` times that: softmax probabilities by twice that and K + 10 more,
        relatively; a sigmoid by 10u at most; Huber's, which is a difference cut off, by 3u of the most that it can be.
        The mean errs by (terms + 2) u L; the corrections and the update by a few u of what they add up.
        """
        size = model_norm + reach
        # 1 for softmax: at least its curvature doubled, and the norm of a derivative that is as far off as can be.
        scale = max(2 * self.loss.curvature, float(np.sqrt(self.loss.slope_squared / 2)))
        gradient = 4 * self.radius * scale * ((self.inputs + 4) * size * self.radius + self.loss.outputs + 10)
        gradient = gradient + (terms + 2) * self.lipschitz
        others = 4 * a * reach + 4 * (self.lipschitz + linear_norm) + size / lr
        error: Real = 2 * UNIT * (gradient + others)
        return error


def constants_of(setting: Setting, loss: GeneralisedLinear, norm_bound: float) -> LossConstants:
    """Return the constants of the run's loss on features projected to ``norm_bound``."""
    squared = float(norm_bound) ** 2 + (1.0 if setting.has_bias else 0.0)
    lipschitz, smoothness = loss.lipschitz(squared), loss.smoothness(squared)
    return LossConstants(loss, lipschitz, smoothness, float(np.sqrt(squared)), setting.num_parameters // loss.outputs)


def check_covered(error: Real, allowed: Real, model_norm: float) -> None:
    """Stop the run where the public vectors have grown so large that rounding is no longer covered."""
    if not (error <= allowed).all():
        raise DivergedError(
            f"the global model or a linear term has grown so far (the model's norm is {model_norm:.3g}) that rounding "
            "in the certified solver is no longer covered by its promise: take less noise, a larger prox_mu or gamma"
        )


def norms(vectors: Vector | None, rows: int) -> Real:
    """Return the norms of the rows of b, zero where there is none."""
    if vectors is None:
        return np.zeros(rows)
    found: Real = np.sqrt(np.einsum("cd,cd->c", vectors, vectors, dtype=np.float64))
    return found
