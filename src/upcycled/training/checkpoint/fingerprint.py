"""What makes two runs the same run: their settings in plain values, data and weights by their hashes."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from upcycled.core.algorithm import OMIT_DEFAULT
from upcycled.core.user_code import name_of
from upcycled.core.vectors import Shards
from upcycled.data import FederatedData

_CHUNK = 2**24
_PACKAGE = __name__.partition(".")[0]
COUNTED = ("upcycled-fl", "numpy", "torch", "numba")
"""The packages whose versions decide about bits."""


def plain_form(value: Any, opaque: Callable[[str], None] = lambda name: None) -> Any:
    """Return a setting as JSON knows it; ``opaque`` is told of what has no name to be found again by.

    Objects of dataclasses are their class and fields, arrays and weights their hashes, functions ``module:name``.

    >>> import upcycled as up
    >>> plain_form(up.FedProx(mu=0.5))
    {'class': 'FedProx', 'mu': 0.5}
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if np.isfinite(value) else repr(value)
    if isinstance(value, np.generic):
        return plain_form(value.item(), opaque)
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.ndarray | torch.Tensor):
        array = value if isinstance(value, np.ndarray) else value.numpy(force=True)
        return {"array": list(array.shape), "hash": digest([("", array)])}
    if isinstance(value, nn.Module):
        weights = [(name, array.numpy(force=True)) for name, array in value.state_dict().items()]
        return {"module": repr(value), "weights": digest(weights)}
    if isinstance(value, Mapping):
        return {str(key): plain_form(inner, opaque) for key, inner in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        parts = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        return [plain_form(inner, opaque) for inner in parts]
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return _function(value, opaque)
    return _object(value, opaque)


def _function(value: Any, opaque: Callable[[str], None]) -> Any:
    name = name_of(value)
    if name is None:
        name = getattr(value, "__qualname__", repr(type(value)))
        opaque(name)
    return {"function": name}


def _object(value: Any, opaque: Callable[[str], None]) -> Any:
    kind = type(value)
    name = name_of(kind)
    if name is None:
        opaque(kind.__qualname__)
    # Modules of this package may be moved; their classes keep their names.
    called = kind.__name__ if kind.__module__.partition(".")[0] == _PACKAGE or name is None else name
    held = {f.name: getattr(value, f.name) for f in fields(value)} if is_dataclass(value) else vars(value)
    omitted = omitted_defaults(kind).items()
    own = {
        key: plain_form(inner, opaque)
        for key, inner in held.items()
        if not key.startswith("_") and (key, inner) not in omitted
    }
    return {"class": called, **own}


def omitted_defaults(kind: type | None) -> dict[str, Any]:
    """Return the defaults that fingerprints omit: those of options that older versions did not have.

    >>> import upcycled as up
    >>> omitted_defaults(up.FedProx)
    {'server_lr': 1.0}
    """
    return {f.name: f.default for f in fields(kind) if OMIT_DEFAULT in f.metadata} if is_dataclass(kind) else {}


def as_words(form: Any) -> str:
    """Return a plain form as a sentence shows it.

    >>> as_words({"class": "FedProx", "mu": 0.5})
    'FedProx(mu=0.5)'
    """
    if isinstance(form, dict) and "class" in form:
        inner = ", ".join(f"{key}={as_words(value)}" for key, value in form.items() if key != "class")
        return f"{form['class']}({inner})"
    if isinstance(form, dict) and set(form) == {"function"}:
        return str(form["function"])
    if isinstance(form, dict) and set(form) == {"module", "weights"}:
        return str(form["module"])
    return repr(form)


def hash_of(form: Any) -> str:
    """Return the hash of a plain form, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(form, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()).hexdigest()


def versions() -> dict[str, str]:
    """Return the versions that bits depend on."""
    return {name: metadata.version(name) for name in COUNTED}


def hash_of_shards(shards: Shards | None) -> str | None:
    """Return the hash of every sample, or None where there are none."""
    if shards is None:
        return None
    return digest([("x", shards.x), ("y", shards.y), ("offsets", shards.offsets)])


def hash_of_data(data: FederatedData) -> str:
    """Return the hash of every sample of a federation, and of its word vectors."""
    parts = {"train": data.train, "test": data.test, "validation": data.validation}
    there = {title: shards for title, shards in parts.items() if shards is not None}
    arrays = [(title, array) for title, one in there.items() for array in (one.x, one.y, one.offsets)]
    return digest(arrays if data.vectors is None else [*arrays, ("vectors", data.vectors)])


def keyed(key: bytes, words: str) -> str:
    """Return the HMAC of a hash: without the key nobody can hold a guess of the records against it."""
    return hmac.new(key, words.encode(), hashlib.sha256).hexdigest()


def digest(arrays: Iterable[tuple[str, NDArray[Any]]]) -> str:
    """Return the hash of named arrays, read in parts: memory-mapped data need not fit into memory."""
    found = hashlib.sha256()
    for name, array in arrays:
        found.update(f"{name} {array.dtype} {array.shape}".encode())
        rows = max(1, _CHUNK // max(1, array[:1].nbytes)) if array.ndim else 1
        for start in range(0, len(array), rows) if array.ndim else ():
            found.update(np.ascontiguousarray(array[start : start + rows]).reshape(-1).view(np.uint8).data)
        if not array.ndim:
            found.update(array.tobytes())
    return found.hexdigest()
