"""The extrapolated step of FedExP (Jhunjhunwala et al. 2023, arXiv:2301.09604).

Projections onto the clients' solution sets, averaged, are known to be too short a step; the classical remedy is

    1 + rho = max(1, sum p_i ||r_i - y||^2 / (2 ||sum p_i r_i - y||^2 + small)).

It reads disagreement of the clients as room for a longer step, which holds where one model could serve them all. The
known privacy noise is subtracted from both sums. Where only the aggregate leaves (central mechanisms) both are the same
sum and rho is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from upcycled.coefficients.energy import dot, noise_energy, pull, usual_energy, without_noise
from upcycled.core.errors import NOT_NEGATIVE, POSITIVE, Limits, check_fields
from upcycled.core.rule import Move, Observed, RuleState, extrapolate


@dataclass(frozen=True)
class FedExP:
    """Step further the more the clients' updates cancel in their mean.

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    >>> run = up.train(
    ...     data, algorithm=up.FedAvg(), upcycle=up.coefficients.FedExP(most=2.0), iterations=12, progress=False
    ... )
    >>> coefficients = [record.coefficient for record in run.history if record.kind == "upcycled"]
    >>> all(0 <= rho <= 2 for rho in coefficients)
    True
    """

    most: Annotated[float, NOT_NEGATIVE] = 2.0
    """The largest rho."""
    small: Annotated[float, POSITIVE] = 1e-3
    """Added below the line, as a part of the sum above it."""
    growth: Annotated[float, Limits(at_least=1)] = 2.0
    """A pull longer than this many times the usual one is answered by the plain step."""

    depth: ClassVar[int] = 2
    per_round: ClassVar[int] = 1
    uses_spread: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self)

    def start(self) -> RuleState:
        return {}

    def move(self, own: RuleState, seen: Observed, moves: tuple[str, ...]) -> tuple[Move, RuleState]:
        """Extrapolate; further iterations after the same data round repeat the iterate."""
        if seen.phase > 0:
            return Move(seen.iterates[-1], 0.0), own
        d = pull(seen)
        energy = without_noise(dot(d, d), noise_energy(seen))
        usual = float(own["usual"]) if own else energy
        spread = energy if seen.spread is None else max(0.0, seen.spread)
        below = 2 * energy + self.small * spread
        grows = energy > self.growth**2 * usual or not np.isfinite(energy)
        rho = 0.0 if grows or not below > 0 else float(np.clip(spread / below - 1, 0.0, self.most))
        return Move(extrapolate(seen, rho, moves), rho), {"usual": np.array(usual_energy(usual, energy))}
