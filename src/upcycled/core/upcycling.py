"""The contract of upcycle rules, and the strategies that decide what an iteration is.

What an upcycled iteration may look at, what it gives back, and the contract of everything that makes one.

What an iteration is: data every time (vanilla), or data and then reuse (upcycled).

A strategy holds no data and no engine, so an upcycled iteration has no way to reach either. The parity lives in
the state: resuming is right by itself, and a data round that failed is simply tried again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from upcycled.core.aggregator import AggregatorState
from upcycled.core.algorithm import Algorithm, Server
from upcycled.core.errors import InputError
from upcycled.core.layout import EffectiveDirections
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
    the directions that predictions can tell apart; where the rule says ``uses_noise_energy``."""
    geometry: LocalGeometry | None = None
    """Likewise."""


@dataclass(frozen=True)
class Move:
    """The next iterate and, where the rule is a scalar one, the coefficient that gave it."""

    server: Server
    coefficient: float | None


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

    A rule that cannot do without the noise of each round, and a and S of a certified solver, has a member
    ``uses_noise_energy = True`` besides.
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


def extrapolate(seen: Observed, coefficient: float, moves: tuple[str, ...]) -> Server:
    """Return w(2m) = w(2m-1) + rho (w(2m-1) - w(2m-2)), for the model and the vectors that move with it.

    rho = 0 gives back the very same iterate, so that it reproduces a vanilla run bit for bit.

    Args:
        seen: what the iteration may look at; its last two iterates are used.
        coefficient: rho, how far to go.
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
    if coefficient == 0:
        return now
    ratio = np.float32(coefficient)
    moved = {name: now.vectors[name] + ratio * (now.vectors[name] - before.vectors[name]) for name in moves}
    return Server(now.model + ratio * (now.model - before.model), {**now.vectors, **moved})


Kind: TypeAlias = Literal["data", "upcycled"]


@dataclass(frozen=True)
class State:
    """Everything the server knows between two iterations."""

    server: Server
    iteration: int = 0
    """Iterations done, of either kind."""
    data_rounds: int = 0
    """Data rounds done: the m of the next one is data_rounds + 1."""
    attempt: int = 0
    """Failed attempts at the coming data round."""
    phase: int = 0
    """Upcycled iterations since the last data round."""
    seen: tuple[Server, ...] = ()
    """The last released iterates, oldest first, as many as the rule asks for."""
    noise_std: float = 0.0
    """Known std per coordinate of the noise in the last aggregate."""
    mean: Vector | None = None
    """The last aggregate, before the algorithm's server step."""
    spread: float | None = None
    """Mean squared norm of the last released updates, less the known noise, where the rule uses it."""
    noise_energy: float | None = None
    """What the last data round brought into the iterate of known noise, where the rule uses it."""
    coefficient: float | None = None
    """The coefficient of the last upcycled iteration."""
    rule: RuleState = field(default_factory=dict)
    aggregator: AggregatorState = field(default_factory=dict)
    """What the run's aggregator carries from round to round."""
    clip_scale: float = 1.0
    """The coming data round's clipping bound over the first one's, where the mechanism's is adaptive."""
    statistics: Vector | None = None
    """The model's running statistics of batch norm, of the last data round; no rule moves them."""


@dataclass(frozen=True)
class Strategy:
    """What an iteration is: without a rule always a data round, with one every other iteration is upcycled.

    Serves every algorithm.
    """

    algorithm: Algorithm
    """The algorithm of the data rounds."""
    rule: Rule | None = None
    geometry: LocalGeometry | None = None
    """What is known of the local problems, for a rule that uses it."""

    def start(self, server: Server) -> State:
        """Return the state before the first iteration."""
        if self.rule is None:
            return State(server)
        return State(server, seen=_newest(self.rule.depth, (), server), rule=self.rule.start())

    def kind(self, state: State) -> Kind:
        """Return what the next iteration is: data first, and then each of the two in turn."""
        return "data" if self.rule is None or state.data_rounds == 0 or state.phase else "upcycled"

    @property
    def uses_spread(self) -> bool:
        """Whether ``after_data`` is to be told the spread of the released updates."""
        return self.rule is not None and self.rule.uses_spread

    @cached_property  # asked in every data round
    def uses_noise_energy(self) -> bool:
        """Whether the rule needs the noise of each round (see :class:`Rule`)."""
        return bool(getattr(self.rule, "uses_noise_energy", False))

    def after_data(
        self, state: State, server: Server, noise_std: float, mean: Vector | None = None, spread: float | None = None
    ) -> State:
        """Return the state after a data round that ended in ``server``; what no rule would use is not kept."""
        rule = self.rule
        # By the constructor: dataclasses.replace takes twice its time, and small rounds last 0.1 ms.
        return State(
            server=server,
            iteration=state.iteration + 1,
            data_rounds=state.data_rounds + 1,
            seen=() if rule is None else _newest(rule.depth, state.seen, server),
            noise_std=noise_std,
            mean=None if rule is None else mean,
            spread=None if rule is None else spread,
            noise_energy=state.noise_energy,
            rule=state.rule,
            aggregator=state.aggregator,
            clip_scale=state.clip_scale,
            statistics=state.statistics,
        )

    def upcycle(self, state: State, horizon: int | None) -> State:
        """Return the state after an upcycled iteration: a pure function of server-side state.

        The rule moves the model, and the server vectors that the algorithm names.
        """
        rule = self.rule
        assert rule is not None  # ``kind`` asks for no such iteration without one
        seen = Observed(
            state.seen,
            state.data_rounds,
            horizon,
            state.noise_std,
            mean=state.mean,
            spread=state.spread,
            noise_energy=state.noise_energy,
            geometry=self.geometry,
        )
        moved = rule.move(state.rule, seen, self.algorithm.moves)
        if not isinstance(moved, tuple) or len(moved) != 2 or not isinstance(moved[0], Move):
            raise InputError(
                field="upcycle.move(...)", value=moved, must="a pair: up.Move(...), and the rule's own state"
            )
        move, own = moved
        if np.shape(move.server.model) != state.server.model.shape:
            raise InputError(
                f"gives a model of shape {np.shape(move.server.model)}, but it must be {state.server.model.shape}",
                field="upcycle.move(...)",
            )
        return replace(
            state,
            server=move.server,
            iteration=state.iteration + 1,
            phase=state.phase + 1,
            seen=_newest(rule.depth, state.seen, move.server),
            coefficient=move.coefficient,
            rule=own,
        )

    def data_rounds(self, iterations: int) -> int:
        """Return how many of so many iterations are data rounds: all without a rule, and with one half, rounded up."""
        return iterations if self.rule is None else -(-iterations // 2)


def _newest(depth: int, seen: tuple[Server, ...], server: Server) -> tuple[Server, ...]:
    """Return the last ``depth`` iterates; a rule of depth 0 sees none."""
    return (*seen, server)[-depth:] if depth else ()
