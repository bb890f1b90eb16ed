"""What an upcycled iteration may look at, what it gives back, and the contract of everything that makes one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from upcycled.core.algorithm import Server
from upcycled.core.effective import EffectiveDirections
from upcycled.core.vectors import Vector

RuleState: TypeAlias = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class LocalGeometry:
    """What is known of the local problems where a certified solver works on them."""

    ratio: float
    """a/S: the weight of the quadratic term over the smoothness of F_i."""
    directions: EffectiveDirections
    """What of a vector the model's predictions can tell apart."""
    kept: float = 1.0
    """The part of a round's noise energy that is in the models of later rounds."""


@dataclass(frozen=True)
class Observed:
    """All that an upcycled iteration may look at: iterates already released, and public numbers."""

    iterates: tuple[Server, ...]
    """Oldest first; the last two are w(2m-2) and w(2m-1)."""
    data_round: int
    """m, counted from 1."""
    horizon: int | None
    """M, the data rounds planned; None when open-ended."""
    noise_std: float
    """Known std per coordinate of the privacy noise in the last aggregate; zero without."""
    mean: Vector | None = None
    """The last aggregate sum p_i r_i, before the algorithm's server step; None where nobody kept it."""
    spread: float | None = None
    """sum p_i ||r_i - sent||^2 of the last data round less the known noise in it, where the rule uses it."""
    noise_energy: float | None = None
    """The expected squared norm of the noise that the last data round brought into the iterate, or a bound on it, in
    the directions that predictions can tell apart; where the rule is :class:`NoiseAware`."""
    geometry: LocalGeometry | None = None
    """Likewise."""


@dataclass(frozen=True)
class Move:
    """The next iterate and, where the rule is a scalar one, the coefficient that gave it."""

    server: Server
    rho: float | None


@runtime_checkable
class Rule(Protocol):
    """A pure function (own state, what was seen) -> (next iterate, own state).

    One's own is passed as ``upcycle=``; this one goes half as far each time:

    >>> import upcycled as up
    >>> @dataclass(frozen=True)
    ... class Halving:
    ...     depth = 2
    ...     uses_spread = False
    ...     def start(self):
    ...         return {"rho": np.array(1.0)}
    ...     def move(self, own, seen, moves):
    ...         rho = float(own["rho"]) / 2
    ...         return up.Move(up.coefficients.extrapolate(seen, rho, moves), rho), {"rho": np.array(rho)}
    >>> data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    >>> run = up.train(data, algorithm=up.FedAvg(), upcycle=Halving(), iterations=4, progress=False)
    >>> [record.coefficient for record in run.history]
    [None, 0.5, None, 0.25]
    """

    @property
    def depth(self) -> int:
        """How many iterates it needs to see, at least 2."""

    @property
    def uses_spread(self) -> bool:
        """Whether ``Observed.spread`` is to be computed."""

    def start(self) -> RuleState:
        """Return the rule's own state before the first round."""

    def move(self, own: RuleState, seen: Observed, moves: tuple[str, ...]) -> tuple[Move, RuleState]:
        """Return the next iterate; ``moves`` names the server vectors that go along with the model."""


@runtime_checkable
class NoiseAware(Protocol):
    """A rule that cannot do without the noise of each round, and a and S of a certified solver."""

    @property
    def uses_noise_energy(self) -> bool:
        """Whether it is one."""


def extrapolate(seen: Observed, rho: float, moves: tuple[str, ...]) -> Server:
    """Return w(2m) = w(2m-1) + rho (w(2m-1) - w(2m-2)), for the model and the vectors that move with it.

    rho = 0 gives back the very same iterate, so that it reproduces a vanilla run bit for bit.

    Args:
        seen: what the iteration may look at; its last two iterates are used.
        rho: how far to go.
        moves: the server vectors that go along.

    Returns:
        The next iterate.

    >>> from upcycled.core.algorithm import Server
    >>> iterates = tuple(Server(np.array([w], dtype=np.float32)) for w in (1.0, 3.0))
    >>> seen = Observed(iterates, data_round=1, horizon=None, noise_std=0.0)
    >>> extrapolate(seen, 0.5, ()).model
    array([4.], dtype=float32)
    """
    before, now = seen.iterates[-2], seen.iterates[-1]
    if rho == 0:
        return now
    ratio = np.float32(rho)
    moved = {name: now.vectors[name] + ratio * (now.vectors[name] - before.vectors[name]) for name in moves}
    return Server(now.model + ratio * (now.model - before.model), {**now.vectors, **moved})
