"""Hypergradient descent on the server's step (Baydin et al. 2018, arXiv:1703.04782), from consecutive released updates.

The step 1 + rho that led to y was too short if the clients' next pull d still points along the displacement s it made,
too long if it points back: with c the moving average of cos(d, s), the moving average started at zero,

    log(1 + rho) <- log(1 + rho) + rate c,   within least and most.

rho may become negative: a shorter step than the plain one, which averages over the cohorts that come and go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from upcycled.coefficients.energy import cosine, dot, noise_energy, pull, smoothed, usual_energy, without_noise
from upcycled.core.errors import FRACTION, NOT_NEGATIVE, POSITIVE, Limits, check_fields
from upcycled.core.rule import Move, Observed, RuleState, extrapolate


@dataclass(frozen=True)
class Hypergradient:
    """Let the step grow while consecutive updates agree and shrink while they disagree.

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    >>> run = up.train(
    ...     data, algorithm=up.FedAvg(), upcycle=up.coefficients.Hypergradient(), iterations=12, progress=False
    ... )
    >>> coefficients = [record.coefficient for record in run.history if record.kind == "upcycled"]
    >>> coefficients[0], coefficients[-1] > 0.3
    (0.0, True)
    """

    rate: Annotated[float, POSITIVE] = 0.2
    """How fast the logarithm of the step follows the cosine."""
    most: Annotated[float, NOT_NEGATIVE] = 2.0
    """The largest rho."""
    least: Annotated[float, Limits(above=-1, at_most=0)] = -0.5
    """The smallest rho."""
    memory: Annotated[float, FRACTION] = 0.5
    """How much of the average cosine is kept from round to round."""
    growth: Annotated[float, Limits(at_least=1)] = 2.0
    """A pull longer than this many times the usual one is answered by the plain step."""

    depth: ClassVar[int] = 2
    per_round: ClassVar[int] = 1
    uses_spread: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fields(self)

    def start(self) -> RuleState:
        return {}

    def move(self, own: RuleState, seen: Observed, moves: tuple[str, ...]) -> tuple[Move, RuleState]:
        """Extrapolate, or step back; further iterations after the same data round repeat the iterate."""
        now = seen.iterates[-1]
        if seen.phase > 0:
            return Move(now, 0.0), own
        sent, d, noise = seen.iterates[-2].model, pull(seen), noise_energy(seen)
        energy = without_noise(dot(d, d), noise)
        step, average, usual = 0.0, 0.0, energy
        if own:
            step, average, usual = (float(own[name]) for name in ("log_step", "cosine", "usual"))
            s = own["displacement"]
            found = cosine(dot(d, s), energy, without_noise(dot(s, s), float(own["made"])))
            average = smoothed(average, found, self.memory)
            step = float(np.clip(step + self.rate * average, np.log1p(self.least), np.log1p(self.most)))
        if energy > self.growth**2 * usual or not np.isfinite(energy):
            step = 0.0
        rho = float(np.expm1(step))
        moved = extrapolate(seen, rho, moves)
        return Move(moved, rho), {
            "log_step": np.array(step),
            "cosine": np.array(average),
            "usual": np.array(usual_energy(usual, energy)),
            "displacement": moved.model - sent,
            "made": np.array((1 + rho) ** 2 * noise),
        }
