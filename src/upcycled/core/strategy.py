"""What an iteration is: data every time (vanilla), or data and then reuse (upcycled).

A strategy holds no data and no engine, so an upcycled iteration has no way to reach either. The parity lives in
the state: resuming is right by itself, and a data round that failed is simply tried again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal, Protocol, TypeAlias

import numpy as np

from upcycled.core.aggregator import AggregatorState
from upcycled.core.algorithm import Algorithm, Server
from upcycled.core.errors import InputError
from upcycled.core.rule import LocalGeometry, Move, NoiseAware, Observed, Rule, RuleState
from upcycled.core.vectors import Vector

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
    rho: float | None = None
    """The coefficient of the last upcycled iteration."""
    rule: RuleState = field(default_factory=dict)
    aggregator: AggregatorState = field(default_factory=dict)
    """What the run's aggregator carries from round to round."""
    clip_scale: float = 1.0
    """The coming data round's clipping bound over the first one's, where the mechanism's is adaptive."""
    statistics: Vector | None = None
    """The model's running statistics of batch norm, of the last data round; no rule moves them."""


class Strategy(Protocol):
    """Decides what comes next and makes the iterations that need no data."""

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm of the data rounds."""

    def start(self, server: Server) -> State:
        """Return the state before the first iteration."""

    def kind(self, state: State) -> Kind:
        """Say what the next iteration is."""

    @property
    def uses_spread(self) -> bool:
        """Whether ``after_data`` is to be told the spread of the released updates."""

    @property
    def uses_noise_energy(self) -> bool:
        """Whether the state is to hold the energy of a round's noise."""

    def after_data(
        self, state: State, server: Server, noise_std: float, mean: Vector | None = None, spread: float | None = None
    ) -> State:
        """Return the state after a data round that ended in ``server``."""

    def upcycle(self, state: State, horizon: int | None) -> State:
        """Return the state after an upcycled iteration: a pure function of server-side state."""

    def data_rounds(self, iterations: int) -> int:
        """Return how many of so many iterations are data rounds."""


def _after_data(
    state: State,
    server: Server,
    noise_std: float,
    depth: int,
    mean: Vector | None = None,
    spread: float | None = None,
) -> State:
    # By the constructor: dataclasses.replace takes twice its time, and small rounds last 0.1 ms.
    return State(
        server=server,
        iteration=state.iteration + 1,
        data_rounds=state.data_rounds + 1,
        seen=(*state.seen, server)[-depth:] if depth else (),
        noise_std=noise_std,
        mean=mean,
        spread=spread,
        noise_energy=state.noise_energy,
        rule=state.rule,
        aggregator=state.aggregator,
        clip_scale=state.clip_scale,
        statistics=state.statistics,
    )


@dataclass(frozen=True)
class Vanilla:
    """Every iteration is a data round."""

    algorithm: Algorithm

    uses_spread: ClassVar[bool] = False
    uses_noise_energy: ClassVar[bool] = False

    def start(self, server: Server) -> State:
        return State(server)

    def kind(self, state: State) -> Kind:
        return "data"

    def after_data(
        self, state: State, server: Server, noise_std: float, mean: Vector | None = None, spread: float | None = None
    ) -> State:
        return _after_data(state, server, noise_std, depth=0)

    def upcycle(self, state: State, horizon: int | None) -> State:
        """Return the state as it is: a vanilla run has no such iteration."""
        return state

    def data_rounds(self, iterations: int) -> int:
        return iterations


@dataclass(frozen=True)
class Upcycled:
    """After each data round an iteration that the server makes alone; serves every algorithm."""

    algorithm: Algorithm
    rule: Rule
    geometry: LocalGeometry | None = None
    """What is known of the local problems, for a rule that uses it."""

    def start(self, server: Server) -> State:
        return State(server, seen=(server,), rule=self.rule.start())

    def kind(self, state: State) -> Kind:
        """Return data first, and then each of the two in turn."""
        return "data" if state.data_rounds == 0 or state.phase else "upcycled"

    @property
    def uses_spread(self) -> bool:
        return self.rule.uses_spread

    @cached_property  # asked in every data round
    def uses_noise_energy(self) -> bool:
        return isinstance(self.rule, NoiseAware) and self.rule.uses_noise_energy

    def after_data(
        self, state: State, server: Server, noise_std: float, mean: Vector | None = None, spread: float | None = None
    ) -> State:
        """Count the round and remember the iterate, and the aggregate it was made of."""
        return _after_data(state, server, noise_std, self.rule.depth, mean, spread)

    def upcycle(self, state: State, horizon: int | None) -> State:
        """Move the model, and the server vectors the algorithm names, along the rule's direction."""
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
        moved = self.rule.move(state.rule, seen, self.algorithm.moves)
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
            seen=(*state.seen, move.server)[-self.rule.depth :],
            rho=move.rho,
            rule=own,
        )

    def data_rounds(self, iterations: int) -> int:
        """Return ceil(T / 2)."""
        return -(-iterations // 2)
