"""Records as arrays, a column per field, and back: a long history is then a few large writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from upcycled.runtime.history import Record

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
