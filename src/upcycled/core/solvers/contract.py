"""What the round loop needs to know of local work, and the part of a local objective that is not data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from upcycled.core.vectors import Ints, Real, Vector

if TYPE_CHECKING:
    from upcycled.core.solvers.local import LocalSGD


@dataclass(frozen=True)
class Problem:
    """The part of a cohort's local objectives that is not data: the number a and the vectors b.

    ``b`` is (cohort, D), or None for zero.
    """

    a: float = 0.0
    b: Vector | None = None


class Solver(Protocol):
    """What the round loop needs to know of a local solver; engines know the concrete classes."""

    @property
    def local(self) -> LocalSGD:
        """Epochs and batches of the local work."""

    @property
    def gradients_per_step(self) -> int:
        """Minibatch gradients that one local step takes."""

    def step_sum(self, num_steps: Ints) -> Real:
        """D_i with (w - x_K) / D_i = an average of the corrected gradients: Scaffold's divisor."""

    def at(self, round: int, rounds: int) -> Solver:
        """Return it as it is in data round ``round`` of ``rounds``: with a learning rate that is a number."""
