"""Signal: a step as long as stability allows, as far as the way travelled is more than privacy noise.

    V_m   = D sum w_i^2 sigma_i^2 (4 times that in FedDyn): the noise that data round m brought into the model
    A_m   = sum_{j<m} (1 + rho_j)^2 V_j (a quarter of that in FedDyn): what of earlier rounds is in it, and upcycled
            iterations enlarged
    rho_m = rho_max clip(1 - (A_m + V_m) / ||w(2m-1) - w(0)||^2, 0, 1),   rho_max = 1.9 (1 + a/S) - 1

1 + rho < 2 (1 + a/S) is the limit of stability of averaged proximal maps of quadratics whose curvature is S at most. So
it has a meaning only where local problems are solved by certified solvers, with known a and S. D and the way count the
directions that predictions can tell apart. A gain from each round's pull alone would follow its noise: the rule looks
at the whole way.

FedDyn: noise xi in r_i makes h_i' hold -alpha xi, and the model sum w_i (r_i - h_i'/alpha) twice xi. Where the
objective is flat the next r_i is y + h_i'/alpha, that is y - xi: one of the two is taken off again, and xi is what
stays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from upcycled.core.errors import InputError, Limits, check_fields
from upcycled.core.upcycling import Move, Observed, RuleState, extrapolate


@dataclass(frozen=True)
class Signal:
    """Extrapolate by the part of the way travelled that is signal; for ``ErmOutput`` and ``ObjectivePerturbation``.

    For FedAvg, FedProx and FedDyn, whose server steps are means of the releases. All in it is released or public.

    >>> import upcycled as up
    >>> data = up.data.synthetic(0.5, 0.5, clients=10, seed=0)
    >>> privacy = up.privacy.ErmOutput(norm_bound=1.0, epsilon=8.0, delta=1e-4)
    >>> arguments = {"algorithm": up.FedProx(mu=0.5), "privacy": privacy, "aggregation": "precision"}
    >>> rule = up.coefficients.Signal()
    >>> run = up.train(data, upcycle=rule, iterations=20, progress=False, **arguments)
    >>> all(0 <= record.coefficient < 2 for record in run.history if record.kind == "upcycled")
    True
    """

    relaxation: Annotated[float, Limits(above=0, below=2)] = 1.9
    """(1 + rho_max) / (1 + a/S); stable below 2."""

    depth: ClassVar[int] = 2
    uses_spread: ClassVar[bool] = False
    uses_noise_energy: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self)

    def start(self) -> RuleState:
        return {}

    def move(self, own: RuleState, seen: Observed, moves: tuple[str, ...]) -> tuple[Move, RuleState]:
        if seen.noise_energy is None or seen.geometry is None:
            raise InputError("needs the noise of a round, and a and S of a certified solver", field="Signal")
        # The first round's are w(0) and w(1).
        start = own["start"] if own else seen.iterates[-2].model
        before = float(own["noise"]) if own else 0.0
        way = np.subtract(seen.iterates[-1].model, start, dtype=np.float64)
        energy = float(seen.geometry.directions.squares(way))
        rho = self.most(seen.geometry.ratio) * signal_part(energy, before + seen.noise_energy)
        after = before + (1 + rho) ** 2 * seen.geometry.kept * seen.noise_energy
        return Move(extrapolate(seen, rho, moves), rho), {"start": start, "noise": np.array(after)}

    def most(self, ratio: float) -> float:
        """Return rho_max for a/S.

        >>> round(Signal().most(0.5), 6)
        1.85
        """
        return max(0.0, self.relaxation * (1 + ratio) - 1)


def signal_part(energy: float, noise: float) -> float:
    """Return the part of an energy that is not noise, from 0 to 1.

    >>> signal_part(4.0, 1.0), signal_part(1.0, 4.0), signal_part(0.0, 0.0)
    (0.75, 0.0, 0.0)
    """
    return min(max(1 - noise / energy, 0.0), 1.0) if 0 < energy < math.inf else 0.0
