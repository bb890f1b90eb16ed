"""A run between two iterations as bytes, and back: one safetensors file, all but arrays as JSON in its header.

Nothing here can run code when it is read. Arrays that a state holds twice (the last iterate seen is the server's) are
stored once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from upcycled.core.algorithm import Server, Vectors
from upcycled.core.errors import InputError
from upcycled.core.strategy import State
from upcycled.core.vectors import Ints
from upcycled.runtime.checkpointing.history_codec import Columns

FORMAT = 2
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
