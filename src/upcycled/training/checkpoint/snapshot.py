"""A run between two iterations as bytes, and back, and checks of what is read.

Records as arrays, a column per field, and back: a long history is then a few large writes.

A run between two iterations as bytes, and back: one safetensors file, all but arrays as JSON in its header.

Nothing here can run code when it is read. Arrays that a state holds twice (the last iterate seen is the server's) are
stored once.

Checks that a checkpoint has the form of the run that goes on from it.

A checkpoint's hash is in its name, so damage is found before. A forged file has the right hash: its values are checked
here, so that they end in one error and not somewhere in the run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from upcycled.core.algorithm import Server, Vectors
from upcycled.core.errors import InputError
from upcycled.core.upcycling import State, Strategy
from upcycled.core.vectors import Ints
from upcycled.training.history import Record
from upcycled.training.plan import Plan
from upcycled.training.state import Best, start_state

Columns: TypeAlias = Mapping[str, NDArray[Any]]

_KINDS = ("upcycled", "data")
_INTS = ("iteration", "data_round", "bytes_up", "bytes_down", "messages", "gradient_steps")
_FLOATS = ("seconds", "eval_seconds")
_OPTIONAL = ("accuracy", "loss", "global_accuracy", "global_loss", "coefficient")
_RAGGED = ("clients", "client_steps")


def to_columns(records: Sequence[Record]) -> Columns:
    """Return the records as arrays. Ragged fields are one long array and the sizes of its parts."""

    def column(name: str) -> list[Any]:
        return [getattr(record, name) for record in records]

    found: dict[str, NDArray[Any]] = {"kind": np.array([_KINDS.index(r.kind) for r in records], dtype=np.uint8)}
    found |= {name: np.array(column(name), dtype=np.int64) for name in _INTS}
    found |= {name: np.array(column(name), dtype=np.float64) for name in _FLOATS}
    for name in _OPTIONAL:
        values = column(name)
        found[f"{name}.known"] = np.array([value is not None for value in values], dtype=np.bool_)
        found[name] = np.array([0.0 if value is None else value for value in values], dtype=np.float64)
    for name in _RAGGED:
        found |= _ragged(name, column(name), np.dtype(np.int64))
    # Their names are the measurers' own, and most runs have none: text.
    texts = [np.frombuffer(_metrics_text(record.metrics), dtype=np.uint8) for record in records]
    return found | _ragged("metrics", texts, np.dtype(np.uint8))


def joined(before: Columns, after: Columns) -> Columns:
    """Return the columns of all records of both."""
    return {name: np.concatenate([before[name], array]) for name, array in after.items()}


def to_records(columns: Columns) -> list[Record]:
    """Return the records, as they were."""
    values: dict[str, list[Any]] = {"kind": [_KINDS[k] for k in columns["kind"].tolist()]}
    values |= {name: columns[name].tolist() for name in (*_INTS, *_FLOATS)}
    for name in _OPTIONAL:
        pairs = zip(columns[name].tolist(), columns[f"{name}.known"].tolist(), strict=True)
        values[name] = [value if is_known else None for value, is_known in pairs]
    values |= {name: [part.copy() for part in _parts(columns, name)] for name in _RAGGED}
    values["metrics"] = [json.loads(part.tobytes()) if part.size else {} for part in _parts(columns, "metrics")]
    return [Record(**dict(zip(values, row, strict=True))) for row in zip(*values.values(), strict=True)]


def _metrics_text(metrics: Mapping[str, float]) -> bytes:
    return json.dumps({name: float(value) for name, value in metrics.items()}).encode() if metrics else b""


def _ragged(name: str, parts: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> dict[str, NDArray[Any]]:
    return {
        name: np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype, copy=False),
        f"{name}.sizes": np.array([part.size for part in parts], dtype=np.int64),
    }


def _parts(columns: Columns, name: str) -> list[NDArray[Any]]:
    return np.split(columns[name], np.cumsum(columns[f"{name}.sizes"])[:-1]) if columns["kind"].size else []


FORMAT = 3
_HEADER = "upcycled"


@dataclass(frozen=True)
class MemoryRows:
    """A client memory's content: clients in the order of their rows."""

    clients: Ints
    vectors: Vectors


@dataclass(frozen=True)
class Snapshot:
    """The value of the fold over iterations, and what tells it from others."""

    state: State
    memory: MemoryRows
    private: MemoryRows
    columns: Columns
    """All records so far."""
    facts: Mapping[str, Any]
    """Plain values: whose run this is, its ledger, its engine's way."""
    best: Mapping[str, Any] | None = None
    """The best iterate so far, where one is kept."""


def to_bytes(snapshot: Snapshot) -> bytes:
    """Return the snapshot as the content of a safetensors file."""
    packer = _Packer()
    header = {
        "format": FORMAT,
        "facts": snapshot.facts,
        "state": {f.name: packer.packed(f"state.{f.name}", getattr(snapshot.state, f.name)) for f in fields(State)},
        "memory": packer.packed_rows("memory", snapshot.memory),
        "private": packer.packed_rows("private", snapshot.private),
    } | ({} if snapshot.best is None else {"best": packer.packed("best", snapshot.best)})
    tensors = packer.tensors | {f"history.{name}": array for name, array in snapshot.columns.items()}
    # safetensors takes the memory as it lies: anything but C order would come back in another order.
    contiguous = {name: np.require(array, requirements="C") for name, array in tensors.items()}
    return save(contiguous, {_HEADER: json.dumps(header)})


def from_bytes(content: bytes, name: str = "the checkpoint") -> Snapshot:
    """Return the snapshot that :func:`to_bytes` was given; ``name`` is for the refusal of another format."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][_HEADER])
    if header["format"] != FORMAT:
        raise InputError(
            f"{name} has format {header['format']!r}, but this version of upcycled reads format {FORMAT}: choose "
            "another folder, or go on with the version that wrote it"
        )
    # Copies: arrays of our own, aligned and writable like those of a run that was never stopped.
    tensors = {name: array.copy() for name, array in load(content).items()}
    history = {name.removeprefix("history."): array for name, array in tensors.items() if name.startswith("history.")}
    return Snapshot(
        state=State(**{name: _unpacked(value, tensors) for name, value in header["state"].items()}),
        memory=MemoryRows(**_unpacked(header["memory"], tensors)),
        private=MemoryRows(**_unpacked(header["private"], tensors)),
        columns=history,
        facts=header["facts"],
        best=_unpacked(header.get("best"), tensors),
    )


class _Packer:
    """Collects arrays under names and leaves their names in their places."""

    def __init__(self) -> None:
        self.tensors: dict[str, NDArray[Any]] = {}
        self._names: dict[int, str] = {}

    def packed(self, name: str, value: Any) -> Any:
        """Return a value as JSON knows it; containers become ``{kind: content}``."""
        if isinstance(value, np.generic):
            return {"scalar": self._named(name, np.asarray(value))}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, np.ndarray):
            return {"array": self._named(name, value)}
        if isinstance(value, tuple):
            return {"tuple": [self.packed(f"{name}.{i}", inner) for i, inner in enumerate(value)]}
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return {"map": {key: self.packed(f"{name}.{key}", inner) for key, inner in value.items()}}
        if isinstance(value, Server):
            return {"server": [self.packed(f"{name}.{part}", getattr(value, part)) for part in ("model", "vectors")]}
        raise InputError(
            f"{name} is {type(value).__name__}, but a checkpoint keeps arrays, numbers, text, and tuples and mappings "
            "of them only: a coefficient rule's own state must be made of those"
        )

    def packed_rows(self, name: str, rows: MemoryRows) -> Any:
        """Return a memory's content likewise."""
        return self.packed(name, {"clients": rows.clients, "vectors": rows.vectors})

    def _named(self, name: str, array: NDArray[Any]) -> str:
        # By identity: what is in ``tensors`` stays alive, so no other array gets its id.
        if id(array) not in self._names:
            while name in self.tensors:  # {"a.b": x} beside {"a": {"b": y}}
                name += "'"
            self._names[id(array)] = name
            self.tensors[name] = array
        return self._names[id(array)]


def _unpacked(value: Any, tensors: Mapping[str, NDArray[Any]]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "scalar":
        return tensors[inner][()]
    if kind == "array":
        return tensors[inner]
    if kind == "map":
        return {key: _unpacked(each, tensors) for key, each in inner.items()}
    parts = tuple(_unpacked(each, tensors) for each in inner)
    return Server(*parts) if kind == "server" else parts


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
    numbers = (state.noise_std, state.clip_scale, state.spread, state.noise_energy, state.coefficient)
    _need(all(map(_is_count, counts)) and state.iteration <= plan.iterations, "iteration")
    _need(state.data_rounds == strategy.data_rounds(state.iteration), "data_rounds")
    _need(all(one is None or _is_number(one) for one in numbers), "numbers")
    _need(_is_number(state.noise_std) and state.clip_scale > 0, "noise or clip norm")
    rule = strategy.rule
    depth = 0 if rule is None else rule.depth
    _need(isinstance(state.seen, tuple) and len(state.seen) == min(state.iteration + 1, depth), "number of iterates")
    for server in (state.server, *state.seen):
        _need_like(server, start.server, "server")
    _need_like(state.mean, None if state.mean is None else start.server.model, "mean")
    _need_like(state.statistics, start.statistics, "statistics")
    _need(isinstance(state.rule, Mapping) and isinstance(state.aggregator, Mapping), "state of a rule")
    if _is_ours(plan.aggregator):
        _need_like(state.aggregator, start.aggregator, "state of the aggregation")
    # What the run does next may be tried with any rule, and what it does later only with the package's.
    if rule is not None and (_is_ours(rule) or strategy.kind(state) == "upcycled"):
        _try_rule(strategy, state, plan)


def _try_rule(strategy: Strategy, state: State, plan: Plan) -> None:
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
