"""The paper's kind of rule: a coefficient that is scheduled beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from upcycled.core.errors import FINITE
from upcycled.core.rule import Move, Observed, RuleState, extrapolate


@runtime_checkable
class Coefficient(Protocol):
    """A scalar schedule rho_m.

    One's own is passed as ``upcycle=``:

    >>> import upcycled as up
    >>> class Late:
    ...     def rho(self, data_round, horizon):
    ...         return 0.0 if data_round < 2 else 0.5
    >>> data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    >>> run = up.train(data, algorithm=up.FedAvg(), upcycle=Late(), iterations=4, progress=False)
    >>> [record.coefficient for record in run.history]
    [None, 0.0, None, 0.5]
    """

    def rho(self, data_round: int, horizon: int | None) -> float:
        """Return rho_m for m = data_round."""


@dataclass(frozen=True)
class ScalarRule:
    """The paper's rule: extrapolate by a scheduled coefficient, no state of its own."""

    coefficient: Coefficient

    depth: ClassVar[int] = 2
    uses_spread: ClassVar[bool] = False

    def start(self) -> RuleState:
        return {}

    def move(self, own: RuleState, seen: Observed, moves: tuple[str, ...]) -> tuple[Move, RuleState]:
        asked = f"rho({seen.data_round}, {seen.horizon})"
        rho = FINITE.check(asked, self.coefficient.rho(seen.data_round, seen.horizon), "upcycle")
        return Move(extrapolate(seen, rho, moves), rho), own
