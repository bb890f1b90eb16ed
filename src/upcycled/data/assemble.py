"""Put what a user brings for many clients together into flat parts, before anything is converted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from upcycled.core.errors import InputError
from upcycled.core.vectors import Ints
from upcycled.data.checks import Names, RawPart, check_offsets, labels_of, numbers
from upcycled.data.declared import Declared


def flat_part(title: str, x: ArrayLike, y: ArrayLike, offsets: ArrayLike, declared: Declared) -> RawPart:
    """Return a part of flat arrays whose offsets are sound."""
    prefix = "" if title == "train" else f"{title} "
    rows = numbers(f"{prefix}x", x, declared.repair)
    labels = labels_of(f"{prefix}y", y, declared)
    return RawPart(title, rows, labels, check_offsets(offsets, len(rows), f"{prefix}offsets"), is_typed(x))


def is_typed(values: object) -> bool:
    """Say whether values have a type of their own: an array has, a list takes it from what is in it."""
    return hasattr(values, "dtype")


def lists_part(
    title: str,
    xs: Sequence[ArrayLike],
    ys: Sequence[ArrayLike],
    names: Names,
    shape: tuple[int, ...] | None,
    declared: Declared,
) -> RawPart:
    """Join one array per client; ``shape`` is what a sample must look like, None to take the first client's."""
    prefix = "" if title == "train" else f"{title} "
    if len(xs) != len(ys):
        raise InputError(f"{prefix}ys has {len(ys)} clients, but {prefix}xs has {len(xs)} and they must be as many")
    if names.clients is not None and len(xs) != len(names.clients):
        raise InputError(f"has {len(names.clients)} names, but {prefix}xs has {len(xs)} clients", field="client_names")
    features: list[NDArray[Any]] = []
    labels: list[NDArray[Any]] = []
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        x_field, y_field = f"{prefix}x of client {names.client(i)}", f"{prefix}y of client {names.client(i)}"
        rows, own = numbers(x_field, x, declared.repair), labels_of(y_field, y, declared)
        if own.ndim == 0:
            raise InputError(
                f"{prefix}ys holds single values, but it must be a list with one array per client (from_flat takes one "
                "array for all clients, with offsets)"
            )
        if own.ndim != 1 and (declared.targets == "classes" or own.ndim != 2):
            raise InputError(f"has shape {own.shape}, but it must have one label per sample: (samples,)", field=y_field)
        if rows.shape[:1] != own.shape[:1]:
            raise InputError(f"has {len(own)} labels, but its x has shape {rows.shape}", field=y_field)
        features.append(rows)
        labels.append(own)
        # An empty list says nothing about widths or types, so it must not take part in finding them.
        shape = rows.shape[1:] if shape is None and len(rows) else shape
        if len(rows) and rows.shape[1:] != shape:
            raise InputError(f"has samples of shape {rows.shape[1:]}, but the ones before have {shape}", field=x_field)
    full = [rows for rows in features if len(rows)]
    offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in features])]).astype(np.int64)
    x_all = np.concatenate(full) if full else np.zeros((0, *(shape or (1,))), dtype=np.float32)
    y_all = np.concatenate([y for y in labels if len(y)]) if full else np.zeros(0, dtype=np.int64)
    return RawPart(title, x_all, y_all, offsets, all(is_typed(x) for x in xs))


def row_numbers(parts: Sequence[ArrayLike], rows: int) -> list[Ints]:
    """Return one array of row numbers per client, all within ``rows`` and none in two places."""
    if len(parts) == 0:
        raise InputError("is empty, but there must be at least one client", field="parts")
    result: list[Ints] = []
    for i, part in enumerate(parts):
        array = numbers(f"parts[{i}]", part)
        if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
            raise InputError(
                f"parts[{i}] is {array.dtype} of shape {array.shape}, but it must be one or more row numbers"
            )
        result.append(array.astype(np.int64, copy=False))
    every = np.concatenate(result)
    wrong = every[(every < 0) | (every >= rows)]
    if wrong.size:
        raise InputError(f"holds row {wrong[0]}, but row numbers must be from 0 to {rows - 1}", field="parts")
    uses = np.bincount(every, minlength=rows)
    if uses.max() > 1:
        raise InputError(
            f"holds row {int(uses.argmax())} twice, but a sample can belong to one client only", field="parts"
        )
    return result
