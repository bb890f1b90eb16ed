"""From the arguments of a run to a checked plan: whatever is wrong is said here, before any work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from upcycled.core.algorithm import Algorithm
from upcycled.core.coefficients import as_rule
from upcycled.core.cohort import Participation
from upcycled.core.errors import COUNT, SEED, InputError, plain_number, suggest
from upcycled.core.layout import flatten, layout_of
from upcycled.core.release import Fitted, Mechanism, NoPrivacy, Setting
from upcycled.core.shards import Shards
from upcycled.core.solvers import LocalSGD, Solver
from upcycled.core.strategy import Strategy, Upcycled, Vanilla
from upcycled.core.vectors import Vector
from upcycled.core.work import EngineKind, Task
from upcycled.data import FederatedData
from upcycled.engines import choose_engine
from upcycled.models import as_input, is_linear_softmax, prepare_model
from upcycled.privacy.budget import Budget, check_budget
from upcycled.runtime.checkpoint import how_often

NOISES = ("seeded", "system")


@dataclass(frozen=True)
class Plan:
    """A run, fully decided."""

    task: Task
    strategy: Strategy
    mechanism: Fitted
    participation: Participation
    engine: EngineKind
    initial: Vector
    iterations: int
    eval_every: int
    settings: Mapping[str, Any]
    """What was asked for, in plain values, for records and reports."""
    privacy: Setting | None = None
    """The public facts a private run's mechanism was fitted to."""
    noise: str = "seeded"
    budget: Budget | None = None
    ledger: Path | None = None
    """The file that charges are written to before their releases leave."""
    checkpoint: Path | None = None
    """The folder the run is kept in, and goes on from."""
    checkpoint_every: int | float = 1.0
    """An int counts data rounds, a float seconds."""
    theory: bool = False
    """Whether the terms of the convergence bound are measured."""

    @property
    def data_rounds(self) -> int:
        """How many of the iterations touch data."""
        return self.strategy.data_rounds(self.iterations)


def make_plan(
    data: FederatedData,
    *,
    algorithm: Algorithm,
    model: str | nn.Module = "logistic",
    model_options: Mapping[str, Any] | None = None,
    upcycle: object = None,
    iterations: int = 100,
    local: LocalSGD | None = None,
    participation: float = 1.0,
    sampling: str = "fixed",
    stragglers: float = 0.0,
    privacy: Mechanism | None = None,
    noise: str = "seeded",
    budget: Budget | None = None,
    ledger: str | Path | None = None,
    engine: str = "auto",
    seed: int = 0,
    eval_every: int = 1,
    theory: bool = False,
    checkpoint: str | Path | None = None,
    checkpoint_every: int | str = "1s",
    device: str = "cpu",
) -> Plan:
    """Check every argument and everything they must agree on."""
    _check_theory(theory, noise)
    is_local_given = local is not None
    local = LocalSGD() if local is None else local
    _check_types(data, algorithm, local, privacy, noise)
    if budget is not None and privacy is None:
        raise InputError("budget is given without privacy, but only a private run has something to spend")
    if ledger is not None and privacy is None:
        raise InputError("ledger is given without privacy, but only a private run has something to write down")
    iterations = COUNT.check("iterations", iterations)
    eval_every = COUNT.check("eval_every", eval_every)
    seed = SEED.check("seed", seed)
    kept = _folder(checkpoint)
    who = Participation(participation, sampling, stragglers)
    participation, stragglers, upcycle = who.fraction, who.stragglers, plain_number(upcycle)
    strategy = _strategy(algorithm, upcycle)
    mechanism: Fitted = NoPrivacy()
    module = prepare_model(model, data.train, data.test, data.num_classes, seed, model_options, data.vectors)
    layout, initial = layout_of(module), flatten(module)
    solver = algorithm.solver(local)
    setting = None
    if privacy is not None:
        setting = Setting(
            algorithm=algorithm.name,
            penalty=_penalty(algorithm, initial),
            is_personal=algorithm.is_personal,
            remembers=algorithm.remembers,
            local=local,
            is_local_given=is_local_given,
            gradients_per_step=solver.gradients_per_step,
            num_parameters=initial.size,
            is_linear_softmax=is_linear_softmax(module),
            has_bias=any(name.endswith("bias") for name in layout.names),
            has_batch_norm=any(isinstance(layer, _BatchNorm) for layer in module.modules()),
            num_classes=_num_logits(module, data.num_classes),
            sizes=data.train.sizes,
            rounds=who.rounds_of_clients(seed, data.num_clients, strategy.data_rounds(iterations)),
            data_rounds=strategy.data_rounds(iterations),
            stragglers=stragglers,
            sampling=sampling,
            participation=participation,
        )
        mechanism = privacy.fit(setting)
        solver = mechanism.solver(solver)
        check_budget(budget, mechanism, setting)
    _check_stragglers(stragglers, solver)
    task = Task(
        module=module,
        layout=layout,
        num_classes=data.num_classes,
        train=mechanism.prepare(_with_input(module, data.train)),
        test=None if data.test is None or data.test.num_rows == 0 else _with_input(module, data.test),
        solver=solver,
        seed=seed,
        cohort_size=who.expected(data.num_clients),
        device=device,
    )
    settings = {
        "algorithm": algorithm,
        "upcycle": upcycle,
        "iterations": iterations,
        "local": local,
        "participation": participation,
        "sampling": sampling,
        "stragglers": stragglers,
        "privacy": privacy,
        "noise": noise,
        "budget": budget,
        "seed": seed,
    }
    kind = choose_engine(engine, task)
    return Plan(
        task=task,
        strategy=strategy,
        mechanism=mechanism,
        participation=who,
        engine=kind,
        initial=initial,
        iterations=iterations,
        eval_every=eval_every,
        settings=settings | {"engine": kind.name},
        privacy=setting,
        noise=noise,
        budget=budget,
        ledger=_ledger_path(ledger, kept, privacy is not None),
        checkpoint=kept,
        checkpoint_every=how_often(checkpoint_every),
        theory=theory,
    )


def _strategy(algorithm: Algorithm, upcycle: object) -> Strategy:
    if upcycle is None:
        return Vanilla(algorithm)
    rule = as_rule(upcycle)
    return Upcycled(algorithm, rule, int(getattr(rule, "per_round", 1)))


def _folder(checkpoint: object) -> Path | None:
    if checkpoint is None:
        return None
    if not isinstance(checkpoint, str | Path) or not str(checkpoint):
        raise InputError(f"checkpoint is {checkpoint!r}, but it must be None or the path of a folder")
    return Path(checkpoint)


def _ledger_path(ledger: str | Path | None, kept: Path | None, is_private: bool) -> Path | None:
    """A private run that is kept needs its charges on the disk too."""
    if ledger is not None:
        return Path(ledger)
    return kept / "ledger.jsonl" if kept is not None and is_private else None


def _check_theory(theory: object, noise: str) -> None:
    if not isinstance(theory, bool):
        raise InputError(f"theory is {theory!r}, but it must be True or False")
    if theory and noise == "system":
        raise InputError(
            "theory is True, but it must be False with noise='system': gradient norms of the clients' training data "
            "would leave a private run uncharged (a simulation, noise='seeded', may measure them)"
        )


def _check_stragglers(stragglers: float, solver: Solver) -> None:
    if stragglers > 0 and solver.local.epochs < 2:
        raise InputError(
            field="stragglers",
            value=stragglers,
            but=f"a straggler stops after 1 to epochs-1 epochs: local.epochs is {solver.local.epochs} and must be at "
            "least 2",
        )


def _num_logits(module: nn.Module, classes: int) -> int:
    """Return the outputs of the model's last linear layer: with more logits than classes all of them are learnt."""
    outputs = [layer.out_features for layer in module.modules() if isinstance(layer, nn.Linear)]
    return max(classes, outputs[-1]) if outputs else classes


def _penalty(algorithm: Algorithm, initial: Vector) -> float:
    """Return the algorithm's a, which is the same for all clients and rounds."""
    nobody = dict.fromkeys(algorithm.remembers, initial[None, :] * 0)
    return algorithm.problem(algorithm.start(initial), nobody).a


def _with_input(module: nn.Module, shards: Shards) -> Shards:
    return replace(shards, x=as_input(module, shards.x))


def _check_types(data: object, algorithm: object, local: object, privacy: object, noise: str) -> None:
    if not isinstance(data, FederatedData):
        raise InputError(f"data is {type(data).__name__}, but it must be a FederatedData (see up.data)")
    if isinstance(algorithm, type) or not hasattr(algorithm, "server_step"):
        raise InputError(f"algorithm is {algorithm!r}, but it must be an algorithm such as up.FedAvg()")
    if not isinstance(local, LocalSGD):
        raise InputError(f"local is {local!r}, but it must be up.LocalSGD(...)")
    if privacy is not None and (isinstance(privacy, type) or not hasattr(privacy, "fit")):
        raise InputError(f"privacy is {privacy!r}, but it must be None or a mechanism of up.privacy")
    if noise not in NOISES:
        raise InputError(field="noise", value=noise, must=f"known{suggest(str(noise), NOISES)}")
