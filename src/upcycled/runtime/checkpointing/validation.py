"""Checks that a checkpoint has the form of the run that goes on from it.

A checkpoint's hash is in its name, so damage is found before. A forged file has the right hash: its values are checked
here, so that they end in one error and not somewhere in the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled.core.algorithm import Server
from upcycled.core.strategy import State, Upcycled
from upcycled.runtime.checkpointing.history_codec import Columns, to_columns, to_records
from upcycled.runtime.checkpointing.snapshot import MemoryRows, Snapshot
from upcycled.runtime.plan import Plan
from upcycled.runtime.state import Best, start_state

_PACKAGE = __name__.partition(".")[0]


def check_facts(facts: Mapping[str, Any]) -> None:
    """Check what names the run of a checkpoint; ValueError, LookupError or TypeError if it is of another form."""
    identity = facts["identity"]
    _need(all(isinstance(identity[part], dict) for part in ("spec", "versions", "code")), "identity")


def check_snapshot(kept: Snapshot, plan: Plan) -> None:
    """Check the content of a checkpoint of this run; ValueError, LookupError or TypeError likewise."""
    algorithm, start = plan.strategy.algorithm, start_state(plan)
    ledger, notes = kept.facts["ledger"], kept.facts.get("notes", [])
    _need(isinstance(kept.facts["way"], str), "way")
    _need(isinstance(notes, list) and all(isinstance(note, str) for note in notes), "notes")
    _need((ledger is None) == (plan.setting is None), "ledger")
    if ledger is not None:
        _need(isinstance(ledger["run"], str) and isinstance(ledger["head"], dict), "ledger")
        _need(_is_count(ledger["lines"]), "ledger")
    _check_state(kept.state, start, plan)
    _check_records(kept.columns, kept.state.iteration, plan.facts.num_clients)
    _check_rows(kept.memory, algorithm.remembers, plan)
    _check_rows(kept.private, ("model",) if algorithm.is_personal else (), plan)
    if kept.best is not None:
        best = Best(**kept.best)
        _need(_is_count(best.iteration) and _is_number(best.score), "best iterate")
        _need_like(best.model, start.server.model, "best model")
        _need_like(best.statistics, start.statistics, "best model's statistics")


def _check_state(state: State, start: State, plan: Plan) -> None:
    strategy = plan.strategy
    counts = (state.iteration, state.data_rounds, state.attempt, state.phase)
    numbers = (state.noise_std, state.clip_scale, state.spread, state.noise_energy, state.rho)
    _need(all(map(_is_count, counts)) and state.iteration <= plan.iterations, "iteration")
    _need(state.data_rounds == strategy.data_rounds(state.iteration), "data_rounds")
    _need(all(one is None or _is_number(one) for one in numbers), "numbers")
    _need(_is_number(state.noise_std) and state.clip_scale > 0, "noise or clip norm")
    depth = strategy.rule.depth if isinstance(strategy, Upcycled) else 0
    _need(isinstance(state.seen, tuple) and len(state.seen) == min(state.iteration + 1, depth), "number of iterates")
    for server in (state.server, *state.seen):
        _need_like(server, start.server, "server")
    _need_like(state.mean, None if state.mean is None else start.server.model, "mean")
    _need_like(state.statistics, start.statistics, "statistics")
    _need(isinstance(state.rule, Mapping) and isinstance(state.aggregator, Mapping), "state of a rule")
    if _is_ours(plan.aggregator):
        _need_like(state.aggregator, start.aggregator, "state of the aggregation")
    # What the run does next may be tried with any rule, and what it does later only with the package's.
    if isinstance(strategy, Upcycled) and (_is_ours(strategy.rule) or strategy.kind(state) == "upcycled"):
        _try_rule(strategy, state, plan)


def _try_rule(strategy: Upcycled, state: State, plan: Plan) -> None:
    """Make an upcycled iteration for nothing: it is a pure function, and a rule's own state has no form but its own."""
    if strategy.kind(state) == "data":
        state = strategy.after_data(state, state.server, state.noise_std, state.server.model, state.spread)
    with np.errstate(all="ignore"):
        strategy.upcycle(state, plan.data_rounds)


def _check_records(columns: Columns, iteration: int, num_clients: int) -> None:
    empty = to_columns([])
    _need(columns.keys() == empty.keys(), "records")
    for name, column in empty.items():
        _need(columns[name].ndim == 1 and columns[name].dtype == column.dtype, f"records ({name})")
    records = to_records(columns)
    _need([record.iteration for record in records] == list(range(1, iteration + 1)), "number of records")
    for record in records:
        clients, steps = record.clients, record.client_steps
        _need(clients is not None and steps is not None and clients.shape == steps.shape, "clients of a record")
        _need(clients is None or _are_clients(clients, num_clients), "clients of a record")
        _need(isinstance(record.metrics, dict) and all(map(_is_number, record.metrics.values())), "metrics")


def _check_rows(rows: MemoryRows, names: tuple[str, ...], plan: Plan) -> None:
    """Check a client memory; one without names has no rows."""
    _need_like(rows.clients, np.zeros(len(rows.clients), np.int64), "clients of a memory")
    _need(_are_clients(rows.clients, plan.facts.num_clients), "clients of a memory")
    _need(np.unique(rows.clients).size == rows.clients.size, "clients of a memory")
    vectors = np.zeros((rows.clients.size, plan.layout.size), np.float32)
    _need_like(rows.vectors, dict.fromkeys(names, vectors), "memory")


def _are_clients(clients: NDArray[Any], num_clients: int) -> bool:
    return bool(((clients >= 0) & (clients < num_clients)).all())


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _is_ours(value: object) -> bool:
    return type(value).__module__.partition(".")[0] == _PACKAGE


def _need_like(value: Any, like: Any, name: str) -> None:
    """Refuse a value of another form: a server, a mapping with other names, an array of another shape or kind."""
    if isinstance(like, Server):
        _need(isinstance(value, Server), name)
        _need_like(value.model, like.model, "model")
        _need_like(value.vectors, like.vectors, name)
    elif isinstance(like, Mapping):
        _need(isinstance(value, Mapping) and value.keys() == like.keys(), name)
        for key, inner in like.items():
            _need_like(value[key], inner, key)
    elif like is None:
        _need(value is None, name)
    else:
        _need(isinstance(value, np.ndarray | np.generic) and value.shape == like.shape, name)
        _need(value.dtype.kind == like.dtype.kind, name)


def _need(is_right: bool, name: str) -> None:
    if not is_right:
        raise ValueError(f"invalid {name}")
