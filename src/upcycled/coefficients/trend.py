"""Go on while the clients still pull the way the model has come.

In data round m the server sent y and the aggregate came back, so the clients pull by d = sum p_i r_i - y. The model has
come to y from its moving mean x by t = y - x. With c the moving average of cos(d, t), started at zero:

    g = max(0, c - threshold) / (1 - threshold),   rho = min(most, g / (1 - g)),   w(2m) = w(2m-1) + rho (w(2m-1) - y).

Pulls that shrink by the factor g from round to round would add up to 1 / (1 - g) of the first: rho goes there at once.
A pull against the way travelled, or across it, means that the way was noise, a swing of the algorithm's own server
dynamics (momentum, stale control variates, FedDyn's h), or too long a step already: then rho = 0, and the
iteration repeats the iterate. The way travelled over many rounds tells these apart where the last step alone does not.

The model alone moves. A control variate such as Scaffold's c is the mean of what the clients keep, and an extrapolated
one would no longer be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from upcycled.coefficients.energy import cosine, dot, noise_energy, pull, smoothed, usual_energy, without_noise
from upcycled.core.errors import FRACTION, POSITIVE, Limits, check_fields
from upcycled.core.rule import Move, Observed, RuleState, extrapolate


@dataclass(frozen=True)
class Trend:
    """Extrapolate by what the agreement of the clients' pull with the way travelled allows; needs no tuning.

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=6, seed=0)
    >>> rule = up.coefficients.Trend()
    >>> run = up.train(data, algorithm=up.FedAvg(), upcycle=rule, iterations=40, progress=False)
    >>> run.history[-1].coefficient > 0.5
    True
    """

    most: Annotated[float, POSITIVE] = 4.0
    """The largest rho."""
    threshold: Annotated[float, FRACTION] = 0.2
    """Agreement that counts as none."""
    memory: Annotated[float, FRACTION] = 0.9
    """How much of the average agreement is kept from round to round."""
    reach: Annotated[float, FRACTION] = 0.9
    """How much of the moving mean x is kept from round to round."""
    growth: Annotated[float, Limits(at_least=1)] = 2.0
    """A pull longer than this many times the usual one ends the trend."""

    depth: ClassVar[int] = 2
    per_round: ClassVar[int] = 1
    uses_spread: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fields(self)

    def start(self) -> RuleState:
        return {}

    def move(self, own: RuleState, seen: Observed, moves: tuple[str, ...]) -> tuple[Move, RuleState]:
        """Extrapolate the model; further iterations after the same data round repeat the iterate."""
        if seen.phase > 0:
            return Move(seen.iterates[-1], 0.0), own
        sent, d, noise = seen.iterates[-2].model, pull(seen), noise_energy(seen)
        energy = without_noise(dot(d, d), noise)
        if "mean" not in own:
            return Move(seen.iterates[-1], 0.0), _state(sent, 0.0, energy, 0.0, noise)
        agreement, usual, carried, made = (float(own[name]) for name in ("agreement", "usual", "carried", "made"))
        t = sent - own["mean"].astype(np.float32)
        # t = s + reach t_before, with s the last displacement: so does the noise in it.
        carried = made + self.reach**2 * carried
        way = without_noise(dot(t, t), carried)
        if energy > self.growth**2 * usual or not np.isfinite(energy):
            agreement, rho = 0.0, 0.0
        else:
            agreement = smoothed(agreement, cosine(dot(d, t), energy, way), self.memory)
            rho = self._rho(agreement)
        mean = np.float32(self.reach) * own["mean"] + np.float32(1 - self.reach) * sent
        usual = usual_energy(usual, energy)
        after = _state(mean, agreement, usual, carried, (1 + rho) ** 2 * noise)
        return Move(extrapolate(seen, rho, ()), rho), after

    def _rho(self, agreement: float) -> float:
        g = max(0.0, agreement - self.threshold) / (1 - self.threshold)
        return float(min(self.most, g / (1 - g))) if g < 1 else float(self.most)


def _state(mean: object, agreement: float, usual: float, carried: float, made: float) -> RuleState:
    return {
        "mean": np.asarray(mean, dtype=np.float32),
        "agreement": np.array(agreement),
        "usual": np.array(usual),
        "carried": np.array(carried),
        "made": np.array(made),
    }
