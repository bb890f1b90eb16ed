"""Data rounds replayed through the real round loop, with fresh noise: what an attacker at the server would see.

Local work that gives the same every time is done once; releases, aggregation and the server's step are made anew. An
audit is charged to nobody: no world has a ledger on the disk, an account or a budget.

Engines, data and noise in the place of the plan's own: clients that bring what a probe wants, records alike.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np

from upcycled.core.algorithm import Algorithm, RoundResult, Server, Vectors
from upcycled.core.engine import Engine
from upcycled.core.mechanism import Ask, NoiseSource, Trained
from upcycled.core.memory import ClientMemory
from upcycled.core.randomness import Purpose
from upcycled.core.sampling import Participation
from upcycled.core.solvers import NoisySGD, Solver
from upcycled.core.upcycling import State, Strategy
from upcycled.core.vectors import Ints, Real, Shards, Vector
from upcycled.models.prepare import as_input
from upcycled.privacy import Ledger
from upcycled.privacy.noise.sources import SeededNoise, SystemNoise
from upcycled.training.loop import iterate
from upcycled.training.plan import Plan
from upcycled.training.state import Run, start_run


@dataclass(frozen=True)
class Silence:
    """No noise at all: what a release would be without. Every coin of a Poisson draw says yes.

    Where cohorts are drawn secretly, just ``cohort`` takes part, if it is given.
    """

    name: str = "none"
    cohort: frozenset[int] | None = None

    def round_key(self, purpose: Purpose) -> int | None:
        """None: silence is no stream."""
        return None

    def uniforms(self, clients: Ints, count: int, purpose: Purpose = Purpose.NOISE, start: int = 0) -> Real:
        """Return coins that say yes."""
        if purpose is Purpose.COHORT and self.cohort is not None:
            return np.array([[0.0 if client in self.cohort else 1.0] * count for client in clients.tolist()])
        return np.zeros((clients.size, count))

    def gaussian_steps(
        self, clients: Ints, count: int, scale: Real, purpose: Purpose = Purpose.NOISE, start: int = 0
    ) -> Real:
        """Zero."""
        return np.zeros((clients.size, count))

    laplace_steps = gaussian_steps

    def exponentials(self, clients: Ints, count: int, purpose: Purpose, start: int = 0) -> Real:
        """Return zeros, the sum of which is a norm of zero."""
        return np.zeros((clients.size, count))

    def normals(self, clients: Ints, count: int, purpose: Purpose, start: int = 0) -> Real:
        """Return ones: a direction, which must have a length, beside a norm of zero."""
        return np.ones((clients.size, count))


@dataclass(frozen=True)
class These:
    """A sampler that draws the same clients in every round."""

    clients: tuple[int, ...]
    fraction: float
    name: ClassVar[str] = "these"

    def draw(self, seed: int, round: int, num_clients: int, attempt: int) -> Ints:
        return np.array(self.clients, dtype=np.int64)


class _Listening:
    """An algorithm that keeps what its server step is handed: the releases, exactly as they arrive."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self.arrived: RoundResult | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._algorithm, name)

    def server_step(self, server: Server, memory: Vectors, arrived: RoundResult) -> tuple[Server, Vectors]:
        """Keep what arrived, and go on."""
        self.arrived = arrived
        return self._algorithm.server_step(server, memory, arrived)


class _Remembering:
    """An engine that does the same work once. Solvers that draw noise work anew every time."""

    def __init__(self, engine: Engine, is_noisy: bool) -> None:
        self._engine, self._is_noisy = engine, is_noisy
        self._last: tuple[object, Trained] | None = None
        self.trainings = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def forget(self) -> None:
        """Train the next time, whatever the work."""
        self._last = None

    def train(self, asked: Ask, noise: NoiseSource | None = None) -> Trained:
        """Train, unless the very same work was the last."""
        self.trainings += 1
        if self._is_noisy:
            return self._engine.train(asked, noise)
        key = (asked.round, asked.attempt, *map(_bytes, (asked.cohort.clients, asked.cohort.epochs, asked.model)))
        key = (*key, asked.problem.a, _bytes(asked.problem.b))
        if self._last is None or self._last[0] != key:
            self._last = (key, self._engine.train(asked, noise))
        return self._last[1]


def _bytes(array: Any) -> bytes:
    return b"" if array is None else np.ascontiguousarray(array).tobytes()


class World:
    """A plan on one data set: its first data round can be replayed with any noise, or all of them gone through.

    ``clients`` take part in every round; None leaves that to the plan's own draws. ``seed`` makes it another run of the
    same plan, and ``made_of`` puts another engine in the place of the plan's own.
    """

    def __init__(
        self,
        plan: Plan,
        train: Shards,
        clients: Iterable[int] | None,
        seed: int | None = None,
        made_of: Callable[[Engine], Engine] = lambda engine: engine,
    ) -> None:
        # Every round costs the same at every scale of an adaptive bound: what is claimed is attacked at the first.
        plan = replace(plan, mechanism=replace(plan.mechanism, adaptive=None))
        fit, who = plan.mechanism, plan.participation
        whom = None if clients is None else tuple(int(client) for client in clients)
        task = replace(
            plan.task,
            module=copy.deepcopy(plan.task.module),  # an engine writes into its own
            train=fit.prepare(replace(train, x=as_input(plan.task.module, train.x))),
            test=None,
            cohort_size=plan.task.cohort_size if whom is None else len(whom),
            seed=plan.task.seed if seed is None else seed,
        )
        these = who
        if whom is not None:
            these = Participation(These(whom, who.sampler.fraction), stragglers=who.stragglers)
        spec = plan.spec.replace(
            ledger=None, ledger_key=None, checkpoint=None, account=None, keep_best=None, seed=task.seed
        )
        self.full = replace(
            plan, on_data=(task, plan.engine), participation=these, spec=spec, validation=None, scores=None, metrics=()
        )
        self._listener = _Listening(plan.strategy.algorithm)
        heard = cast(Algorithm, self._listener)
        self.plan = replace(self.full, strategy=Strategy(heard))
        # Whoever is in every round would overdraw a budget.
        strategy = replace(plan.strategy, algorithm=heard)
        self.heard = replace(self.full, strategy=strategy, spec=spec.replace(budget=None))
        self.engine = _Remembering(made_of(plan.engine.open(task, 1)), isinstance(task.solver, NoisySGD))
        self._start = start_run(_of_one_round(self.plan))

    @property
    def arrived(self) -> RoundResult:
        """What the server's last step was handed."""
        assert self._listener.arrived is not None  # a data round ends in a server step
        return self._listener.arrived

    def begin(self) -> Run:
        """Return the run before its first iteration, exactly as training would begin it, but for where it is kept."""
        return start_run(self.heard)

    def iterate(self, run: Run) -> Run:
        """Return the run after its next iteration, of whichever kind."""
        return next(iterate(self.heard, cast(Engine, self.engine), run))[0]

    @property
    def is_repeated(self) -> bool:
        """Whether every replay of the local work gives the same, so that it is done once."""
        draws_inside = isinstance(self.plan.task.solver, NoisySGD) or self.plan.mechanism.draws_secretly
        return not draws_inside and self.plan.mechanism.alpha is None

    def replay(self, noise: NoiseSource) -> Vector:
        """Return what the server is handed in the first data round: the clients' releases, or the noisy aggregate."""
        run = replace(self._start, memory=self._fresh_memory(), ledger=None, noise=noise)
        next(iterate(self.plan, cast(Engine, self.engine), run))
        return released_by(self)

    def ledger(self) -> Ledger:
        """Return the ledger that the loop itself writes for that round."""
        run, _ = next(iterate(self.plan, cast(Engine, self.engine), replace(self._start, memory=self._fresh_memory())))
        assert run.ledger is not None  # callers have a private plan
        return run.ledger

    def upcycled(self, common: tuple[State, ClientMemory] | None) -> tuple[Run, State, int]:
        """Do a data round and then, from a state common to both worlds, an upcycled iteration.

        Returns the run after the data round, the state after the upcycled iteration, and how often that one trained.
        """
        engine = cast(Engine, self.engine)
        self.engine.forget()  # whoever wants to keep something of the clients shall see this world's last
        run, _ = next(iterate(self.full, engine, start_run(self.full)))
        state, memory = (run.state, run.memory) if common is None else common
        before = self.engine.trainings
        after, _ = next(iterate(self.full, engine, replace(run, state=state, memory=memory)))
        return run, after.state, self.engine.trainings - before

    def _fresh_memory(self) -> ClientMemory:
        kept = self._start.memory
        return ClientMemory(kept.names, self.plan.task.train.num_clients, self.plan.task.layout.size)

    def close(self) -> None:
        self.engine.close()


def _of_one_round(plan: Plan) -> Plan:
    """Return the plan with a ledger that states the epsilon of one data round."""
    if plan.setting is None:
        return plan
    return replace(plan, setting=replace(plan.setting, rounds=np.ones_like(plan.setting.rounds), data_rounds=1))


def released_by(world: World) -> Vector:
    """Return what a world's last data round handed to the server: releases (cohort, D), or the aggregate (1, D)."""
    arrived = world.arrived
    return arrived.mean[None, :] if world.plan.mechanism.is_central else arrived.release.vectors


def copied(memory: ClientMemory, num_clients: int, size: int) -> ClientMemory:
    """Return a memory of the same rows: a round writes into the one that it is given."""
    made = ClientMemory(memory.names, num_clients, size)
    if memory.names:
        clients, rows = memory.content()
        made.put(clients, {name: row.copy() for name, row in rows.items()})
    return made


def fresh_noise(plan: Plan, replay: int, world: int) -> NoiseSource:
    """Return noise that no other replay has, from the source that the plan uses."""
    if plan.spec.noise == "system":
        return SystemNoise()
    return SeededNoise(plan.task.seed, 1, attempt=2 * replay + world + 1)


class Bringing:
    """An engine whose clients train nothing: each brings the model it received, moved by its own vector."""

    def __init__(self, engine: Engine, plan: Plan, moves: Mapping[int, Vector]) -> None:
        self._engine, self._solver, self._train = engine, plan.solver, plan.task.train
        self._is_personal, self._moves = plan.strategy.algorithm.is_personal, moves

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def train(self, asked: Ask, noise: NoiseSource | None = None) -> Trained:
        """Bring what was wanted; steps are counted as if they had been taken."""
        model = asked.model.astype(np.float32)
        vectors = np.stack([model + self._moves.get(client, np.float32(0)) for client in asked.cohort.clients.tolist()])
        steps = steps_of(self._solver, self._train, asked.cohort.rows, asked.cohort.epochs)
        return Trained(vectors.astype(np.float32), steps, vectors.copy() if self._is_personal else None)


def steps_of(solver: Solver, train: Shards, rows: Ints, epochs: Ints) -> Ints:
    """Return how many local steps a cohort takes."""
    return solver.local.num_steps(train.sizes_of(rows), epochs)


def without_content(train: Shards) -> Shards:
    """Return as many records that say nothing: no feature is a number, so that each counts as zero."""
    return replace(train, x=np.full(train.x.shape, np.nan, dtype=train.x.dtype))


def alike(train: Shards) -> Shards:
    """Return the data with every record of a client replaced by its first one."""
    first = np.repeat(train.offsets[:-1], train.sizes)
    return replace(train, x=train.x[first], y=train.y[first])


@dataclass(frozen=True, kw_only=True, eq=False)
class FirstStep(Silence):
    """Silence, with coins that take records into the first step of a round only."""

    sizes: Ints
    """How many records of each client are taken at most."""

    def uniforms(self, clients: Ints, count: int, purpose: Purpose = Purpose.NOISE, start: int = 0) -> Real:
        """Return coins that say no after the first step."""
        is_first = start + np.arange(count) < self.sizes[clients][:, None]
        return np.where(is_first, 0.0, 1.0)
