"""What a plan refuses before any work, and what an algorithm's own code must give back.

What a plan refuses, each in one sentence, before any work.

What an algorithm's own code gives back, held to what the rest of a round relies on.

An algorithm may be anybody's. Engines index b by client, and kernels do so unchecked; upcycled iterations compare
iterates that must not have been changed in place; an epsilon was proven for one a. Each check is a comparison or two:
small rounds last a tenth of a millisecond.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from upcycled.coefficients import Proximal
from upcycled.core.aggregator import Aggregator
from upcycled.core.algorithm import Algorithm, Server, Vectors, noise_gain
from upcycled.core.errors import InputError
from upcycled.core.facts import Facts
from upcycled.core.layout import Layout
from upcycled.core.mechanism import Fitted, Setting
from upcycled.core.solvers import Problem, Solver
from upcycled.core.upcycling import Rule
from upcycled.data import FederatedData
from upcycled.models.prepare import takes_one_sample, takes_tokens
from upcycled.training.spec import RunSpec

_GIVEN_BY = {
    "classes": "the number of classes (give num_classes or label_names; a file has both in [data])",
    "vocabulary": "the number of token ids (give vocabulary; in a file data.vocabulary or model.vocabulary)",
    "dtype": "whether features are whole numbers (give repair=True, and vocabulary for token ids; a file has both)",
    "schema": "what their schema marks as from_data (put public knowledge in its place, and take the marks away)",
    "columns": "what their columns mean (give schema; in a file data.schema; 'upcycled data schema' drafts one)",
    "sizes": "how many samples are held out (give repair=True, or has_copies=False before the split; a file has both)",
}
"""How each fact is given that was read off data."""


def check_given(data: FederatedData, model: Any) -> None:
    """Refuse public facts that were read off private data: one record may decide them, and no noise covers that."""
    may_take_tokens = takes_tokens(model) if isinstance(model, nn.Module) else model not in ("logistic", "mlp")
    inferred = data.inferred if may_take_tokens else data.inferred - {"vocabulary"}
    if data.feature_names is not None and data.schema is None and data.vocabulary is None:
        inferred |= {"columns"}  # of a table nobody knows where bounds and categories come from
    if inferred:
        facts = " and ".join(_GIVEN_BY.get(fact, fact) for fact in sorted(inferred))
        raise InputError(
            f"were looked at to find {facts}, but a run with noise='system' must be told what is public, or that the "
            "data are (public=True; in a file data.public = true)",
            field="data",
        )


def check_known_noise(spec: RunSpec, mechanism: Fitted, aggregator: Aggregator | None) -> None:
    """Refuse a rule that lives on the noise in the model where nobody knows it."""
    rule = spec.upcycle
    if mechanism.is_central or mechanism.draws_secretly or mechanism.release_noise_std is None:
        but = f"nobody knows how much noise a release of '{mechanism.name}' holds, which it needs"
        raise InputError(field="upcycle", value=rule, but=but)
    if aggregator is not None and not aggregator.is_weighted:
        raise InputError(field="upcycle", value=rule, but="it needs an aggregation with weights, such as 'precision'")
    if noise_gain(spec.algorithm) is None:
        but = (
            f"the server step of {spec.algorithm.name}, as set, is no mean of the releases: use FedAvg, FedProx or "
            "FedDyn with server_lr = 1"
        )
        raise InputError(field="upcycle", value=rule, but=but)


def check_mu(algorithm: Algorithm, rule: Rule | None) -> None:
    """Refuse a coefficient of the paper's theory that is made for another mu than the algorithm's."""
    coefficient, mu = getattr(rule, "coefficient", None), getattr(algorithm, "mu", None)
    if isinstance(coefficient, Proximal) and mu is not None and coefficient.mu != mu:
        raise InputError(field="upcycle.mu", value=coefficient.mu, must=f"{mu!r}, the mu of {algorithm.name}")


def check_statistics(spec: RunSpec, statistics: Layout) -> None:
    """Refuse running statistics where they would leave unaccounted for, or belong to nobody."""
    instead = "use a layer without running statistics, such as GroupNorm or LayerNorm"
    kept = f"model keeps '{statistics.names[0]}' (batch norm does)"
    if spec.privacy is not None:
        raise InputError(f"{kept}, which would leave the clients unaccounted for: with privacy {instead}")
    if spec.algorithm.is_personal:
        raise InputError(
            f"{kept}, but nobody says whose a personal model's would be: with {spec.algorithm.name} {instead}"
        )


def check_short_batches(module: nn.Module, facts: Facts, solver: Solver) -> None:
    """Refuse batches of one sample where batch norm has nothing to take a variance over."""
    batch = solver.local.batch_size
    last = facts.sizes if batch is None else facts.sizes % batch
    alone = np.flatnonzero(last == 1)
    if alone.size and not takes_one_sample(module, facts):
        row = int(alone[0])
        raise InputError(
            field="local.batch_size",
            value=batch,
            but=f"the {facts.sizes[row]} samples of client {row if facts.ids is None else int(facts.ids[row])} would "
            "leave a batch of one, of which batch norm can take no variance: it must be another number",
        )


def check_stragglers(stragglers: float, solver: Solver) -> None:
    if stragglers > 0 and solver.local.epochs < 2:
        raise InputError(
            field="stragglers",
            value=stragglers,
            but=f"a straggler stops after 1 to epochs-1 epochs: local.epochs is {solver.local.epochs} and must be at "
            "least 2",
        )


def check_problem(name: str, problem: Problem, clients: int, size: int) -> None:
    """Refuse an algorithm's part of the local objectives without a row of b for each client.

    Raises:
        InputError: in one sentence.
    """
    if problem.b is not None and problem.b.shape != (clients, size):
        raise InputError(
            f"{name}.problem must give b a row of {size} numbers for each of the round's {clients} clients, shape "
            f"({clients}, {size}), but it has shape {problem.b.shape}"
        )


def check_proven_for(setting: Setting | None, problem: Problem, round: int) -> None:
    """Refuse a quadratic term that is not the one a mechanism was fitted to: its noise is made for that one.

    Raises:
        InputError: in one sentence, before anything is charged or released.
    """
    if setting is not None and problem.a != setting.penalty:
        raise InputError(
            f"{setting.algorithm}.problem gives a = {problem.a!r} in data round {round}, but epsilon was proven for "
            f"a = {setting.penalty!r}: with privacy a must be the same in every round"
        )


def own_copy(server: Server) -> Server:
    """Return the server's vectors for a server step to do with as it likes: iterates of before stay what they were."""
    return Server(server.model.copy(), {name: vector.copy() for name, vector in server.vectors.items()})


def check_stepped(name: str, server: Server, before: Server) -> None:
    """Refuse a server after a step that is not like the one before.

    Raises:
        InputError: in one sentence.
    """
    if server.model.shape != before.model.shape:
        raise InputError(
            f"{name}.server_step must return a model of shape {before.model.shape}, but it has shape "
            f"{server.model.shape}"
        )
    if server.vectors.keys() != before.vectors.keys():
        raise InputError(
            f"{name}.server_step returned the server's vectors {_names(server.vectors)}, but it has been given "
            f"{_names(before.vectors)}: start names all that there are"
        )


def _names(vectors: Vectors) -> str:
    return ", ".join(repr(name) for name in vectors) or "(none)"
