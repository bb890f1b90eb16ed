"""``train``: one run, from data to result."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Unpack

import torch
from torch import nn

from upcycled._utils.formats import fixed, significant
from upcycled._utils.lock import locked
from upcycled.core.errors import BudgetSpentError, DivergedError, InputError, UpcycledError
from upcycled.core.layout import assign, write_statistics
from upcycled.core.vectors import Vector
from upcycled.data import FederatedData
from upcycled.data.arrays import Names
from upcycled.engines.determinism import one_thread
from upcycled.engines.processes import drop_abandoned
from upcycled.metrics import baseline
from upcycled.models.linear import with_projection
from upcycled.serving.model_files import card_of
from upcycled.training.callbacks import STOP, Hooks, as_callback, measures
from upcycled.training.charging import check_account
from upcycled.training.checkpoint.checkpointer import Checkpointer
from upcycled.training.checkpoint.files import tell_user
from upcycled.training.history import History, Record
from upcycled.training.loop import iterate
from upcycled.training.plan import Plan, make_plan
from upcycled.training.progress import LiveProgress
from upcycled.training.publication import publication_of
from upcycled.training.result import BestModel, HoldersOwn, PersonalModels, Result
from upcycled.training.round import DataRound, data_round
from upcycled.training.spec import RunArguments, RunSpec, spec_of
from upcycled.training.state import Run, earlier_run, start_run

ENDED_EARLY = (BudgetSpentError, DivergedError)
"""What ends a run whose result so far is worth having."""
_MUCH_WORSE = 10.0
"""A loss of so many times that of no features is no mere overconfidence."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a run, with the result so far: a batch ends by it as a program does, a run alone gives the result."""

    def __init__(self, result: Result) -> None:
        super().__init__("stopped by Ctrl-C")
        self.result = result


def train(data: FederatedData, spec: RunSpec | None = None, **arguments: Unpack[RunArguments]) -> Result:
    """Train a federation; what users call adds a results folder to it (``experiments.train``)."""
    return train_plan(make_plan(data, spec_from(spec, arguments)))


def train_plan(plan: Plan) -> Result:
    """Train what is planned, show it, and say what ended it early."""
    spec = plan.spec
    watching = [*spec.callbacks, *([LiveProgress()] if spec.progress else [])]
    try:
        result = run_plan(plan, watching, threads=None)
    except Interrupted as stop:
        result = stop.result
    if result.error is not None:
        reason = "stopped by Ctrl-C" if isinstance(result.error, KeyboardInterrupt) else str(result.error)
        tell_user(f"{reason}: the result up to iteration {len(result.history)} is returned")
    for words in result.notes if spec.progress else ():
        tell_user(f"warning: {words}")
    return result


def spec_from(spec: object, arguments: RunArguments) -> RunSpec:
    """Return the spec, changed by the arguments, or the one that they make."""
    if spec is None:
        return spec_of(arguments)
    if not isinstance(spec, RunSpec):
        raise InputError(f"is {type(spec).__name__}, but it must be an up.RunSpec(...)", field="spec")
    return spec.replace(**arguments) if arguments else spec


def run_plan(
    plan: Plan, callbacks: Sequence[object], threads: int | None, data_round: DataRound = data_round
) -> Result:
    """Carry out a plan, or what is left of it, and tell the callbacks; ``data_round`` is how clients are asked."""
    hooks = [as_callback(one) for one in callbacks]
    if plan.checkpoint is None:
        return _carry_out(plan, hooks, threads, None, data_round)
    if not plan.spec.is_reproducible:
        nameless = f"{plan.spec.unnamed[0]} has no name that a later process could find it by"
        way_out = ": it must be a function or class of a module, or the run be one without a checkpoint"
        raise InputError(field="checkpoint", value=str(plan.checkpoint), but=nameless, hint=way_out)
    with locked(plan.checkpoint, is_private=publication_of(plan).is_restricted):
        drop_abandoned()  # of a killed process whose run goes on
        return _carry_out(plan, hooks, threads, Checkpointer(plan, plan.checkpoint), data_round)


def _carry_out(
    plan: Plan,
    hooks: Sequence[Hooks],
    threads: int | None,
    checkpointer: Checkpointer | None,
    data_round: DataRound,
) -> Result:
    module = _as_trained(plan)
    found = None if checkpointer is None else checkpointer.restore()
    # Before a ledger is begun: what cannot be paid for leaves nothing.
    if found is None:
        check_account(plan, run=earlier_run(plan))
    else:
        ledger, state = found.run.ledger, found.run.state
        check_account(plan, state.data_rounds, state.iteration, None if ledger is None else ledger.run)
    last, records, way, notes = (start_run(plan), list[Record](), "", ()) if found is None else found
    is_finished = last.state.iteration == plan.iterations
    engine = None if is_finished else plan.engine.open(plan.task, threads)
    probes = [one for one in hooks if measures(one.value)]
    error: BaseException | None = None
    shown = publication_of(plan)
    try:
        for hook in hooks:
            hook.start(shown.plan(plan), tuple(map(shown.record, records)))
        if engine is not None:
            way = engine.way
            for run, record in iterate(plan, engine, last, probes, data_round):
                records.append(record)
                last = run
                if checkpointer is not None:
                    checkpointer.maybe_save(last, records, way)
                # All are told before any of them ends the run.
                seen, seen_run = shown.record(record), shown.run(run)
                if STOP in [hook.record(seen, seen_run) for hook in hooks]:
                    break
        if last.ledger is not None and last.state.iteration == plan.iterations:
            last.ledger.end()
    except BaseException as raised:
        if checkpointer is not None:
            checkpointer.save_on_exit(last, records, way)
        if isinstance(raised, BudgetSpentError) and last.ledger is not None:
            last.ledger.end()
        if isinstance(raised, UpcycledError):
            raised.result = _result(plan, last, records, module, way, raised, notes)
        if not isinstance(raised, (*ENDED_EARLY, KeyboardInterrupt)) or not records:
            raise
        error = raised
    finally:
        if engine is not None:
            engine.close()
        for hook in hooks:
            hook.finish()
    if checkpointer is not None:
        checkpointer.save_on_exit(last, records, way)
    result: Result = (
        error.result if isinstance(error, UpcycledError) else _result(plan, last, records, module, way, error, notes)
    )
    if isinstance(error, KeyboardInterrupt):
        raise Interrupted(result) from error
    return result


def _as_trained(plan: Plan) -> nn.Module:
    """Return a copy of the model with the map that its training data went through."""
    module, norm_bound = copy.deepcopy(plan.task.module), plan.mechanism.norm_bound
    return module if norm_bound is None else with_projection(module, norm_bound)


def _given_back(module: nn.Module, params: Vector, statistics: Vector | None) -> tuple[torch.Tensor, nn.Module]:
    """Return parameters as a tensor, and in a module of their own, with the running statistics that go with them."""
    final = copy.deepcopy(module)
    assign(final, params)
    if statistics is not None:
        write_statistics(final, statistics)
    return torch.from_numpy(params.copy()), final.eval()


def _result(
    plan: Plan,
    run: Run,
    records: list[Record],
    module: nn.Module,
    way: str,
    error: BaseException | None,
    notes: tuple[str, ...],
) -> Result:
    """Return the result of the last whole iteration; before the first, the model that the run began with."""
    run.memory.back_to(run.state.iteration)
    run.private.back_to(run.state.iteration)
    params, shown, exact = run.state.server.model, publication_of(plan), History(tuple(records))
    personal = None
    if run.private.names:
        clients = run.private.clients
        personal = PersonalModels(module, clients, run.private.gather(clients)["model"], plan.names or Names())
    best = None
    if run.best is not None:
        chosen = run.best
        given = _given_back(module, chosen.model, chosen.statistics)
        best = BestModel(*given, iteration=chosen.iteration, score=chosen.score)
    flat, final = _given_back(module, params, run.state.statistics)
    noticed = (*plan.warned, *_about_learning(plan, exact))
    return Result(
        params=flat,
        model=final,
        history=History(tuple(map(shown.record, records))),
        personal_models=None if shown.is_restricted else personal,
        settings={**plan.settings, "way": way},
        card=card_of(plan.spec.model, final, plan.facts, plan.objective, plan.mechanism.norm_bound),
        privacy=run.ledger,
        error=error,
        spec=plan.spec,
        best=best,
        private=HoldersOwn(exact, personal, (*plan.notes, *notes, *noticed)) if shown.is_restricted else None,
        notes=() if shown.is_restricted else noticed,
    )


def _about_learning(plan: Plan, history: History) -> tuple[str, ...]:
    """Say so where a run has ended no better than an answer that looks at no features."""
    last, test = history.last_scored(), plan.task.test
    if last is None or last.loss is None or test is None or len(history) < plan.iterations:
        return ()
    # The usual reason; certified solvers have their own rate.
    mend = "; try another local.lr, or train longer" if plan.setting is None else "; try more epsilon or clients"
    with one_thread():
        known = baseline((), plan.objective, plan.task.train.y, test.y, plan.objective.num_outputs(plan.facts.classes))
    if last.accuracy is not None and "accuracy" in known:
        if last.accuracy > known["accuracy"]:
            return _about_confidence(last.loss, known.get("loss", math.inf), plan)
        reached, plainly = (f"{fixed(value, 2, 100)} %" for value in (last.accuracy, known["accuracy"]))
        return (f"the model is no better than the majority class: accuracy {reached}, against {plainly}{mend}",)
    if "loss" not in known or last.loss < known["loss"]:
        return ()
    what = "the mean" if plan.objective.targets == "numbers" else "the labels' shares"
    reached, plainly = significant(last.loss), significant(known["loss"])
    return (f"the model is no better than {what} of the training targets: loss {reached}, against {plainly}{mend}",)


def _about_confidence(loss: float, plainly: float, plan: Plan) -> tuple[str, ...]:
    """Say so where right answers are many, and the wrong ones given with such confidence that steps were too long."""
    if loss <= _MUCH_WORSE * plainly:
        return ()
    mend = "; try a smaller local.lr" if plan.setting is None else "; try more epsilon or clients"
    against = f"loss {significant(loss)}, against {significant(plainly)} of the classes' shares"
    return (f"the model is very sure of wrong answers: {against}{mend}",)
