"""The paper's kind of rule: a coefficient that is scheduled beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from upcycled.core.rule import Move, Observed, RuleState, extrapolate


class Coefficient(Protocol):
    """A scalar schedule rho_m."""

    def rho(self, data_round: int, horizon: int | None) -> float:
        """Return rho_m for m = data_round."""


@dataclass(frozen=True)
class ScalarRule:
    """The paper's rule: extrapolate by a scheduled coefficient, no state of its own."""

    coefficient: Coefficient

    @property
    def depth(self) -> int:
        """The last two iterates."""
        return 2

    def start(self) -> RuleState:
        """Nothing."""
        return {}

    def move(self, own: RuleState, seen: Observed, moves: tuple[str, ...]) -> tuple[Move, RuleState]:
        """Extrapolate."""
        rho = self.coefficient.rho(seen.data_round, seen.horizon)
        return Move(extrapolate(seen, rho, moves), rho), own
