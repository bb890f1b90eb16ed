"""``train``: one run, from data to result."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from upcycled.core.algorithm import Algorithm
from upcycled.core.layout import assign
from upcycled.core.release import Mechanism
from upcycled.core.solvers import LocalSGD
from upcycled.data import FederatedData
from upcycled.privacy.budget import Budget
from upcycled.runtime.history import History, Record
from upcycled.runtime.keeper import Keeper
from upcycled.runtime.lock import locked
from upcycled.runtime.loop import Run, iterate, start_run
from upcycled.runtime.measure import report_of
from upcycled.runtime.observe import Observer
from upcycled.runtime.plan import Plan, make_plan
from upcycled.runtime.progress import LiveProgress
from upcycled.runtime.result import PersonalModels, Result


def train(
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
    progress: bool = True,
    theory: bool = False,
    checkpoint: str | Path | None = None,
    checkpoint_every: int | str = "1s",
    device: str = "cpu",
    observers: Sequence[Observer] = (),
) -> Result:
    """Train a federation and return the model, its history and how it was made.

    Args:
        data: the clients' training data and, optionally, their test data.
        algorithm: such as ``up.FedAvg()`` or ``up.FedProx(mu=0.5)``.
        model: ``"logistic"``, ``"mlp"``, ``"lstm"`` or a torch module, which starts from its own weights.
        model_options: options of a model named by a string, such as ``{"hidden": [196]}``.
        upcycle: None for a vanilla run; a number, a member of ``up.coefficients``, or ``"auto"`` (a small constant)
            makes every even iteration a server-only extrapolation.
        iterations: global iterations, upcycled ones included.
        local: the clients' SGD.
        participation: the fraction of clients in a data round.
        sampling: ``"fixed"`` (always the same number of clients) or ``"poisson"`` (each by its own coin).
        stragglers: the probability that a selected client stops after 1 to epochs-1 epochs.
        privacy: a mechanism of ``up.privacy``.
        noise: ``"seeded"`` is a simulation and protects nobody; ``"system"`` is real and cannot be repeated.
        budget: the most each client may spend; one that cannot pay is left out of a round before it trains.
        ledger: a file (JSON lines) that each charge is written to, durably, before its releases leave.
        engine: ``"auto"`` or the name of an engine.
        seed: fixes clients, stragglers, minibatches, initial weights and simulated noise.
        eval_every: score the test data every so many iterations, and after the last.
        progress: show a live table on standard error when the run takes longer than a second.
        theory: measure the terms of the convergence bound on all training data after each iteration, and set the bound
            beside them (``result.theory``); a simulation's tool, refused with ``noise="system"``.
        checkpoint: a folder that the run is kept in. Started again with the same arguments, the run goes on from there
            and ends in the same bits as one that was never stopped; a finished one is returned at once. A private run
            then keeps its ledger there too, unless ``ledger`` names another file; with ``noise="system"`` a repeated
            round gets new noise and is charged again.
        checkpoint_every: how often it is saved: after so many data rounds, or ``"2s"`` for seconds (less often where
            saving takes over a tenth of that). The last iteration is saved in any case, also of a run broken off.
        device: the torch device of engines that use one.
        observers: told after each iteration.

    >>> import upcycled as up
    >>> data = up.data.synthetic(0.5, 0.5, clients=5, seed=0)
    >>> result = up.train(data, algorithm=up.FedAvg(), upcycle=0.5, iterations=4, engine="sequential", progress=False)
    >>> [record.kind for record in result.history]
    ['data', 'upcycled', 'data', 'upcycled']
    """
    plan = make_plan(
        data,
        algorithm=algorithm,
        model=model,
        model_options=model_options,
        upcycle=upcycle,
        iterations=iterations,
        local=local,
        participation=participation,
        sampling=sampling,
        stragglers=stragglers,
        privacy=privacy,
        noise=noise,
        budget=budget,
        ledger=ledger,
        engine=engine,
        seed=seed,
        eval_every=eval_every,
        theory=theory,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        device=device,
    )
    watching = [*observers, *([LiveProgress()] if progress else [])]
    return run_plan(plan, watching, threads=None)


def run_plan(plan: Plan, observers: Sequence[Observer], threads: int | None) -> Result:
    """Carry out a plan, or what is left of it, and tell the observers."""
    if plan.checkpoint is None:
        return _carry_out(plan, observers, threads, None)
    with locked(plan.checkpoint):
        return _carry_out(plan, observers, threads, Keeper(plan, plan.checkpoint))


def _carry_out(plan: Plan, observers: Sequence[Observer], threads: int | None, keeper: Keeper | None) -> Result:
    module = copy.deepcopy(plan.task.module)
    found = None if keeper is None else keeper.find()
    last, records, way = (start_run(plan), list[Record](), "") if found is None else found
    is_finished = last.state.iteration == plan.iterations
    engine = None if is_finished else plan.engine.open(plan.task, threads)
    try:
        for observer in observers:
            observer.start(plan, tuple(records))
        if engine is not None:
            way = engine.way
            for run, record in iterate(plan, engine, last):
                records.append(record)
                last = run
                if keeper is not None:
                    keeper.after(last, records, way)
                for observer in observers:
                    observer.record(record, run)
    except BaseException:
        if keeper is not None:
            keeper.leave(last, records, way)
        raise
    finally:
        if engine is not None:
            engine.close()
        for observer in observers:
            observer.finish()
    return _result(plan, last, records, module, way)


def _result(plan: Plan, run: Run, records: list[Record], module: nn.Module, way: str) -> Result:
    params = run.state.server.model
    personal = None
    if run.private.names:
        clients = run.private.clients
        personal = PersonalModels(module, clients, run.private.gather(clients)["model"])
    final = copy.deepcopy(module)
    assign(final, params)
    return Result(
        params=torch.from_numpy(params.copy()),
        model=final.eval(),
        history=History(tuple(records)),
        personal_models=personal,
        settings={**plan.settings, "way": way},
        privacy=run.ledger,
        theory=report_of(plan, records) if plan.theory else None,
    )
