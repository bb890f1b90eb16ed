"""A run between two iterations."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace

from upcycled.core.algorithm import started
from upcycled.core.mechanism import NoiseSource, Setting
from upcycled.core.memory import ClientMemory
from upcycled.core.upcycling import State
from upcycled.core.vectors import Vector
from upcycled.privacy.ledger.chain import key_at
from upcycled.privacy.ledger.ledger import Ledger
from upcycled.privacy.ledger.ledger_file import run_of
from upcycled.privacy.noise.sources import SeededNoise, SystemNoise
from upcycled.training.charging import begin_in_account
from upcycled.training.checkpoint.fingerprint import hash_of
from upcycled.training.plan import Plan


@dataclass(frozen=True)
class Best:
    """The iterate that did best on validation data so far."""

    iteration: int
    score: float
    """Loss or accuracy there, whichever it was chosen by."""
    model: Vector
    statistics: Vector | None = None
    """The running statistics that go with it, where the model has some."""


@dataclass(frozen=True)
class Run:
    """The server's state, and what the clients keep."""

    state: State
    memory: ClientMemory
    """What the algorithm remembers of each client, computed from releases."""
    private: ClientMemory
    """What clients keep to themselves (personal models); never read by server code."""
    ledger: Ledger | None
    """What a private run's clients have spent."""
    noise: NoiseSource | None
    """The run's own stream of real noise; None where noise is simulated."""
    best: Best | None = None
    """Where the best iterate is to be kept; None before the first score."""

    def noise_for(self, plan: Plan, round: int, attempt: int) -> NoiseSource:
        """Return the noise of one attempt at a data round."""
        return self.noise or SeededNoise(plan.spec.seed, round, attempt)


def start_run(plan: Plan, ledger_run: str | None = None) -> Run:
    """Return the run before its first iteration; ``ledger_run`` names the run whose ledger goes on."""
    algorithm, size, clients = plan.strategy.algorithm, plan.layout.size, plan.facts.num_clients
    return Run(
        state=start_state(plan),
        memory=ClientMemory(algorithm.remembers, clients, size),
        private=ClientMemory(("model",) if algorithm.is_personal else (), clients, size),
        ledger=None if plan.setting is None else _ledger(plan, plan.setting, ledger_run),
        noise=SystemNoise() if plan.spec.noise == "system" else None,
    )


def start_state(plan: Plan) -> State:
    """Return the server's state before the first iteration."""
    state = plan.strategy.start(started(plan.strategy.algorithm, plan.initial))
    if plan.aggregator is not None:
        state = replace(state, aggregator=plan.aggregator.start())
    return replace(state, statistics=plan.initial_statistics)


def earlier_run(plan: Plan) -> str | None:
    """Return what names a private run that was stopped before its first checkpoint and goes on; None for a new run."""
    spec, path = plan.spec, plan.spec.ledger_path
    return run_of(path) if spec.noise == "system" and spec.checkpoint is not None and path is not None else None


def _ledger(plan: Plan, setting: Setting, run: str | None) -> Ledger:
    """Open the run's ledger. A simulation is known by what it was asked to do; a private run cannot be repeated.

    A private run with checkpoints goes on in its own file, also when it was stopped before the first of them.
    """
    spec, path = plan.spec, plan.spec.ledger_path
    if run is None and spec.noise == "system":
        run = earlier_run(plan) or secrets.token_hex(8)
    elif run is None:
        run = hash_of([spec.plain(), setting.facts.sizes.tolist(), setting.num_parameters])[:16]
    key_path = spec.ledger_key_path
    key = None if key_path is None else key_at(key_path)
    payer = begin_in_account(plan, setting, run)
    return Ledger(plan.mechanism, spec.noise, setting, spec.budget, path, run, key, payer)
