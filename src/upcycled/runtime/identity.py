"""What makes a run this very run: a checkpoint goes on in no other."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled.core.errors import InputError
from upcycled.core.shards import Shards
from upcycled.runtime.plan import Plan

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_CHUNK = 2**24
_HASHED = ("model", "initial weights", "training data", "test data")


def described(value: object) -> str:
    """Return ``repr`` without addresses in memory, which differ from process to process.

    >>> described((1, len, described))
    '(1, <built-in function len>, <function described>)'
    """
    return _ADDRESS.sub("", repr(value))


def identity_of(plan: Plan) -> dict[str, str]:
    """Return all that a run's bits depend on: settings in words, data and weights by their hashes.

    Take it before an engine is opened: engines write into the task's module. A function that is part of a setting is
    known by its name only.
    """
    task = plan.task
    kept = {name: value.numpy(force=True) for name, value in task.module.state_dict().items()}
    frozen = [(name, array) for name, array in kept.items() if name not in task.layout.names]
    return {
        **{name: described(value) for name, value in plan.settings.items()},
        "eval_every": described(plan.eval_every),
        "theory": described(plan.theory),
        "device": task.device,
        "strategy": described(plan.strategy),
        "model": _digest(frozen, described(task.module)),
        "initial weights": _digest([("initial", plan.initial)]),
        "training data": _of_shards(task.train),
        "test data": "none" if task.test is None else _of_shards(task.test),
    }


def check_same(now: Mapping[str, str], before: Mapping[str, str], folder: Path) -> None:
    """Refuse a folder whose checkpoints belong to another run, and say what differs."""
    way_out = "choose another folder, or remove that one to start again"
    for name in dict.fromkeys([*now, *before]):
        wanted, held = now.get(name, "not given"), before.get(name, "not given")
        if wanted == held:
            continue
        if name in _HASHED:
            raise InputError(f"checkpoint folder '{folder}' holds a run with other {name} than this one's: {way_out}")
        raise InputError(f"{name} is {wanted}, but checkpoint folder '{folder}' holds a run with {held}: {way_out}")


def _of_shards(shards: Shards) -> str:
    return _digest([("x", shards.x), ("y", shards.y), ("offsets", shards.offsets)])


def _digest(arrays: Iterable[tuple[str, NDArray[Any]]], words: str = "") -> str:
    found = hashlib.sha256(words.encode())
    for name, array in arrays:
        found.update(f"{name} {array.dtype} {array.shape}".encode())
        # In parts: memory-mapped data need not fit into memory.
        rows = max(1, _CHUNK // max(1, array[:1].nbytes)) if array.ndim else 1
        for start in range(0, len(array), rows) if array.ndim else ():
            found.update(np.ascontiguousarray(array[start : start + rows]).reshape(-1).view(np.uint8).data)
        if not array.ndim:
            found.update(array.tobytes())
    return found.hexdigest()
