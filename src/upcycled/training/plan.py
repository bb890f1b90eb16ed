"""From a spec to a checked plan: whatever does not fit together is said here, before any work.

A plan needs public facts only, so that a server and a client can make theirs without each other's data. Where there are
data, the plan has the task that an engine is opened on, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from upcycled.aggregators import Samples, as_aggregator
from upcycled.coefficients import as_rule
from upcycled.core.aggregator import Aggregator
from upcycled.core.algorithm import Algorithm, noise_gain, noise_kept
from upcycled.core.engine import EngineKind, Task
from upcycled.core.errors import InputError
from upcycled.core.facts import Facts
from upcycled.core.layout import EffectiveDirections, Layout, flatten, layout_of, read_statistics, statistics_layout
from upcycled.core.machine import settle
from upcycled.core.mechanism import Fitted, Setting, average
from upcycled.core.objective import Objective
from upcycled.core.sampling import Participation
from upcycled.core.solvers import CertifiedGD, CertifiedMinimiser, NoisySGD, ShiftedMinimiser, Solver
from upcycled.core.upcycling import LocalGeometry, Strategy
from upcycled.core.user_code import looked_up, names_code
from upcycled.core.vectors import Shards, Vector
from upcycled.data import FederatedData
from upcycled.data.arrays import Names
from upcycled.engines import choose_engine
from upcycled.engines.determinism import one_thread
from upcycled.engines.dpsgd.per_sample import mixes_samples
from upcycled.losses import CrossEntropy, as_objective, is_balanced, with_counts
from upcycled.metrics import Metric, as_metrics, check_metrics
from upcycled.models.builtin import made_by
from upcycled.models.linear import linear_layer
from upcycled.models.prepare import as_input, has_batch_norm, num_parameters, prepare_model
from upcycled.models.side_effects import check_private_model
from upcycled.privacy.charged_scores import FittedScores
from upcycled.privacy.mechanisms.requirements import about_projection
from upcycled.training.checkpoint.files import how_often
from upcycled.training.checkpoint.fingerprint import hash_of_shards
from upcycled.training.plan_checks import (
    check_given,
    check_known_noise,
    check_mu,
    check_short_batches,
    check_statistics,
    check_stragglers,
)
from upcycled.training.protection import fit_protection
from upcycled.training.spec import RunSpec, local_of


@dataclass(frozen=True)
class Plan:
    """A run, fully decided."""

    spec: RunSpec
    facts: Facts
    module: nn.Module
    objective: Objective
    layout: Layout
    initial: Vector
    strategy: Strategy
    mechanism: Fitted
    participation: Participation
    solver: Solver
    setting: Setting | None
    """The public facts a private run's mechanism was fitted to."""
    directions: EffectiveDirections
    """What of a flat vector the model's predictions can tell apart."""
    aggregator: Aggregator | None = None
    """What averages releases; None for the mechanism's own mean, which is the usual one."""
    statistics: Layout | None = None
    """The running statistics of batch norm that clients send beside the model; None where it has none."""
    initial_statistics: Vector | None = None
    """Where they start."""
    scores: FittedScores | None = None
    """What it publishes of the model's scores, and pays for."""
    metrics: tuple[Metric, ...] = ()
    """What else is measured on test data."""
    on_data: tuple[Task, EngineKind] | None = None
    """The local work, and who does it; None where there are no data."""
    validation: Shards | None = None
    """What the best iterate is chosen on, where one is to be kept."""
    is_public: bool = False
    """Whether the data are declared public, so that nothing about them needs protection."""
    notes: tuple[str, ...] = ()
    """What was noticed when the data were read."""
    names: Names | None = None
    """What the source of the data calls its clients; None where there are no data."""
    records_hash: str | None = None
    """Of all training samples, for the holder's account, which keeps it under a key; None without an account."""
    warned: tuple[str, ...] = ()
    """What whoever asked for the run should know about its data; nothing in a restricted run."""

    @property
    def iterations(self) -> int:
        """Global iterations, upcycled ones included."""
        return self.spec.iterations

    @property
    def data_rounds(self) -> int:
        """How many of the iterations touch data."""
        return self.strategy.data_rounds(self.spec.iterations)

    @cached_property
    def num_samples(self) -> int:
        """n, of the clients that are known here."""
        return int(self.facts.sizes.sum())

    @property
    def task(self) -> Task:
        assert self.on_data is not None  # not of public facts alone
        return self.on_data[0]

    @property
    def engine(self) -> EngineKind:
        assert self.on_data is not None
        return self.on_data[1]

    @property
    def checkpoint(self) -> Path | None:
        """The folder the run is kept in, and goes on from."""
        return None if self.spec.checkpoint is None else Path(self.spec.checkpoint)

    @property
    def checkpoint_every(self) -> int | float:
        """An int counts data rounds, a float seconds."""
        return how_often(self.spec.checkpoint_every)

    @property
    def settings(self) -> dict[str, Any]:
        """What determines the bits, for records and reports: as asked for, and the engine that does it."""
        return self.spec.settings() | {"engine": self.engine.name}

    def kept(self, **changes: Any) -> Plan:
        """Return the plan kept or shown in another way, which changes nothing that it computes."""
        return replace(self, spec=self.spec.replace(**changes))


def make_plan(data: FederatedData, spec: RunSpec) -> Plan:
    """Decide a run on data completely: check everything that spec and data must agree on."""
    if not isinstance(data, FederatedData):
        raise InputError(f"is {type(data).__name__}, but it must be a FederatedData (see up.data)", field="data")
    is_restricted = spec.has_real_noise and not data.public
    if is_restricted:
        check_given(data, spec.model)
    facts = data.facts(counts_tokens=spec.model == "lstm" and data.train.x.dtype.kind in "iu")
    if data.targets == "classes" and not is_restricted and is_balanced(as_objective(spec.loss, "classes")):
        counts = np.bincount(data.train.y, minlength=data.num_classes)
        facts = replace(facts, class_counts=tuple(counts.tolist()))
    # What a model makes of private samples is no reason to refuse it.
    return with_data(plan_of(facts, spec, None if is_restricted else data.train.x[:2]), data)


def plan_for_client(data: FederatedData, spec: RunSpec, client: int, of: int, shared: Mapping[str, float]) -> Plan:
    """Decide the part of a run that the holder of one client's data does: it knows nobody else's.

    Args:
        data: of this client alone.
        spec: what it was asked to do.
        client: its number in the federation.
        of: N, all clients.
        shared: what it was told of the mechanism (see ``Fitted.shared``).

    Raises:
        InputError: in one sentence, if something does not fit together.
    """
    if spec.has_real_noise and not data.public:
        check_given(data, spec.model)
    facts = replace(data.facts(), num_clients=of, ids=np.array([client], dtype=np.int64), shared=shared)
    return with_data(plan_of(facts, spec), data)


def parameters_of(spec: RunSpec, facts: Facts) -> int | None:
    """Return how many parameters a built-in model will have, before it is made; None for a module or a factory."""
    objective = as_objective(spec.loss, facts.targets)
    return num_parameters(spec.model, _with_targets(objective, facts), objective, spec.model_options)


def plan_of(facts: Facts, spec: RunSpec, samples: Any = None) -> Plan:
    """Decide a run from public facts: all that a server needs, or a client that knows its own size only.

    ``samples`` are two to try the model on, where there are some.
    """
    settle()
    rule = None if spec.upcycle is None else as_rule(spec.upcycle)
    check_mu(spec.algorithm, rule)
    strategy = Strategy(spec.algorithm, rule)
    asked = as_objective(spec.loss, facts.targets)
    objective = with_counts(asked, facts.class_counts)
    facts = _with_targets(objective, facts)
    metrics = as_metrics(spec.metrics)
    check_metrics(metrics, objective.targets, facts.classes)
    with one_thread():  # two samples are not worth waking another, which many plans at once would wait for
        module = prepare_model(_made(spec), facts, objective, spec.seed, spec.model_options, samples)
    layout, initial = layout_of(module), flatten(module)
    solver = spec.algorithm.solver(local_of(spec))
    statistics = statistics_layout(module)
    if statistics is not None:
        check_statistics(spec, statistics)
    if has_batch_norm(module):
        check_short_batches(module, facts, solver)
    protection = fit_protection(spec, facts, module, asked, objective, strategy)
    mechanism = protection.mechanism
    solver = mechanism.solver(solver)
    if spec.privacy is not None:
        with one_thread():
            check_private_model(module, facts, objective, is_per_sample=isinstance(solver, NoisySGD))
    check_stragglers(spec.stragglers, solver)
    aggregator = _aggregator(spec, mechanism)
    directions = EffectiveDirections(layout, linear_layer(module) is not None and isinstance(objective, CrossEntropy))
    if strategy.uses_noise_energy:
        check_known_noise(spec, mechanism, aggregator)
        geometry = LocalGeometry(_ratio(spec, solver), directions, _kept_noise(spec.algorithm))
        strategy = replace(strategy, geometry=geometry)
    return Plan(
        spec=spec,
        facts=facts,
        module=module,
        objective=objective,
        layout=layout,
        initial=initial,
        strategy=strategy,
        mechanism=mechanism,
        participation=spec.who,
        solver=solver,
        setting=protection.setting,
        directions=directions,
        aggregator=aggregator,
        statistics=statistics,
        initial_statistics=None if statistics is None else read_statistics(module),
        scores=protection.scores,
        metrics=metrics,
    )


def with_data(plan: Plan, data: FederatedData) -> Plan:
    """Return the plan with the task of local work, and the engine that will do it."""
    test = data.test
    for name, is_asked in (("charged_scores", plan.scores is not None), ("metrics", bool(plan.metrics))):
        if is_asked and test is None:
            raise InputError(
                "need held-out samples, but the data have no test part: split some off (test_fraction in a file)",
                field=name,
            )
    task = task_of(
        plan,
        plan.mechanism.prepare(_as_taken(plan, data.train)),
        None if test is None else plan.mechanism.prepare(_as_taken(plan, test)),
    )
    if plan.scores is not None and mixes_samples(task):
        raise InputError(
            "need a model that looks at each sample alone, but this one's logits change with the samples beside it",
            field="charged_scores",
        )
    on_data = (task, choose_engine(plan.spec.engine, task))
    bound = plan.mechanism.norm_bound
    return replace(
        plan,
        on_data=on_data,
        validation=None if plan.spec.keep_best is None else _to_choose_on(plan, data),
        is_public=data.public,
        notes=data.notes,
        names=data.names,
        records_hash=None if plan.spec.account_path is None else hash_of_shards(data.train),
        warned=(*_about_labels(data), *(() if bound is None else about_projection(data.train, bound))),
    )


def task_of(plan: Plan, train: Shards, test: Shards | None) -> Task:
    """Return the task of a plan's local work on samples that are prepared for it."""
    return Task(
        module=plan.module,
        layout=plan.layout,
        num_classes=plan.facts.classes,
        train=train,
        test=test,
        solver=plan.solver,
        seed=plan.spec.seed,
        objective=plan.objective,
        rounds=plan.data_rounds,
        cohort_size=plan.participation.expected(plan.facts.num_clients) if plan.facts.ids is None else 1,
        device=plan.spec.device,
        statistics=plan.statistics,
    )


def _about_labels(data: FederatedData) -> tuple[str, ...]:
    """Say so where labels seem to be counted from 1: a model learns that nothing is of class 0, and is scored alike."""
    if data.targets != "classes" or "classes" not in data.inferred or not data.train.num_rows or data.train.y.min() < 1:
        return ()
    least = int(data.train.y.min())
    return (f"no sample is of class 0, the least is {least}: take {least} off the labels, or give num_classes",)


def _to_choose_on(plan: Plan, data: FederatedData) -> Shards:
    """Return the validation samples that the best iterate is chosen on."""
    by, held_out = plan.spec.keep_best, data.validation
    if plan.spec.has_real_noise and not data.public:
        but = "a run with noise='system' may not choose by scores on private samples, which no epsilon covers"
        raise InputError(field="keep_best", value=by, but=f"{but}: leave it out, or declare the data public")
    if held_out is None:
        but = "the data have no validation samples to choose on: see data.with_validation(...)"
        raise InputError(field="keep_best", value=by, but=f"{but}; in a file data.validation_fraction")
    if by == "accuracy" and plan.objective.targets != "classes":
        but = f"right answers have no meaning for the loss '{plan.objective.name}': it must be 'loss'"
        raise InputError(field="keep_best", value=by, but=but)
    return plan.mechanism.prepare(_as_taken(plan, held_out))


def _made(spec: RunSpec) -> str | nn.Module:
    """Return the model as a module or a known name; a factory is called with torch's generator set to the seed."""
    factory = looked_up(spec.model, "model") if isinstance(spec.model, str) and names_code(spec.model) else spec.model
    if isinstance(factory, str | nn.Module) or not callable(factory):
        return factory
    return made_by(factory, spec.model, spec.seed)


def _aggregator(spec: RunSpec, mechanism: Fitted) -> Aggregator | None:
    """Return the aggregator, None for the usual mean; refuse what the mechanism has no releases or no numbers for."""
    aggregator = as_aggregator(spec.aggregation)
    if isinstance(aggregator, Samples):
        return None
    if mechanism.is_central or mechanism.draws_secretly or mechanism.aggregate is not average:
        but = f"'{mechanism.name}' publishes an aggregate of its own: it must be 'samples', which leaves it that"
        raise InputError(field="aggregation", value=spec.aggregation, but=but)
    if aggregator.needs_noise_std and mechanism.release_noise_std is None:
        but = f"nobody knows how much noise a release of '{mechanism.name}' holds, which it needs"
        raise InputError(field="aggregation", value=spec.aggregation, but=but)
    return aggregator


def _kept_noise(algorithm: Algorithm) -> float:
    """Return which part of a round's noise energy is in the models of later rounds."""
    gain = noise_gain(algorithm)
    assert gain is not None  # as checked
    return (noise_kept(algorithm) / gain) ** 2


def _ratio(spec: RunSpec, solver: Solver) -> float:
    """Return a/S of a certified solver."""
    if isinstance(solver, CertifiedGD | CertifiedMinimiser | ShiftedMinimiser):
        return solver.a / solver.smoothness
    but = "it needs a and S of a certified solver, which ErmOutput and ObjectivePerturbation bring"
    raise InputError(field="upcycle", value=spec.upcycle, but=but)


def _as_taken(plan: Plan, shards: Shards) -> Shards:
    """Return samples as the model takes their features, and targets as the loss takes them."""
    targets = shards.y if plan.objective.targets == "classes" else shards.y.astype(np.float32, copy=False)
    return replace(shards, x=as_input(plan.module, shards.x), y=targets)


def _with_targets(objective: Objective, facts: Facts) -> Facts:
    """Return the facts with targets as the loss takes them; whole numbers may be meant as numbers."""
    wanted, there = objective.targets, facts.targets
    if wanted == "numbers" and there == "classes":
        return replace(facts, targets="numbers", classes=1)
    if wanted != there:
        raise InputError(
            f"loss '{objective.name}' is for {_TARGETS[wanted]}, but the data have {_TARGETS[there]} "
            f"(say targets='{wanted}' when they are made, or take another loss)"
        )
    return facts


_TARGETS = {"classes": "class labels", "labels": "several labels of 0 or 1 a sample", "numbers": "numbers as targets"}
