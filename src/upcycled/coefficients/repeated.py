"""Several upcycled iterations after each data round.

The rule makes the first. Each further one goes on along the last move by the same rho, at most once as far: with
rho < 1 the moves are rho, rho^2, ... of the update, whose sum is rho / (1 - rho). How many are made is the rule's own
choice, the schedule is not: where rho is below ``least`` the iterate is repeated, so the data rounds of a run are known
beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from upcycled.coefficients.scalar import Coefficient, ScalarRule
from upcycled.core.errors import COUNT, POSITIVE, InputError, check_fields
from upcycled.core.rule import Move, NoiseAware, Observed, Rule, RuleState, extrapolate

_OWN = "repeated_rho"


@dataclass(frozen=True)
class Repeated:
    """Make up to ``times`` upcycled iterations after each data round, as many as the rule's rho asks for.

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=6, seed=0)
    >>> rule = up.coefficients.Repeated(up.coefficients.Trend(), times=2)
    >>> run = up.train(data, algorithm=up.FedAvg(), upcycle=rule, iterations=6, progress=False)
    >>> [record.kind for record in run.history]
    ['data', 'upcycled', 'upcycled', 'data', 'upcycled', 'upcycled']
    """

    rule: Rule | Coefficient
    """Makes the first of them."""
    times: Annotated[int, COUNT] = 2
    """The most after a data round."""
    least: Annotated[float, POSITIVE] = 0.5
    """A further move is made where rho is at least this."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not isinstance(self.rule, Rule | Coefficient) or isinstance(self.rule, Repeated):
            raise InputError(
                field="rule", of="Repeated", value=self.rule, must="a rule such as up.coefficients.Trend()"
            )

    @property
    def per_round(self) -> int:
        return self.times

    @property
    def depth(self) -> int:
        """As many iterates as the rule needs, and those made since."""
        return self._first.depth

    @property
    def uses_spread(self) -> bool:
        return self._first.uses_spread

    @property
    def uses_noise_energy(self) -> bool:
        return isinstance(self._first, NoiseAware) and self._first.uses_noise_energy

    @property
    def _first(self) -> Rule:
        return self.rule if isinstance(self.rule, Rule) else ScalarRule(self.rule)

    def start(self) -> RuleState:
        """The rule's own state, and no move."""
        return {**self._first.start(), _OWN: np.array(0.0)}

    def move(self, own: RuleState, seen: Observed, moves: tuple[str, ...]) -> tuple[Move, RuleState]:
        """Let the rule move, then go on by the same rho where it is large enough."""
        inner = {name: value for name, value in own.items() if name != _OWN}
        if seen.phase == 0:
            move, after = self._first.move(inner, seen, moves)
            return move, {**after, _OWN: np.array(move.rho or 0.0)}
        rho = float(own[_OWN])
        if rho < self.least:
            return Move(seen.iterates[-1], 0.0), own
        ratio = min(rho, 1.0)
        return Move(extrapolate(seen, ratio, moves), ratio), own
