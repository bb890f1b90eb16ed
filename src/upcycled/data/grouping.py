"""GroupedRows with a client column, in any order, become clients: the common end of every file format."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled.core.errors import InputError
from upcycled.core.vectors import Ints
from upcycled.data.arrays import Names, RawPart
from upcycled.data.federated import FederatedData, checked
from upcycled.data.options import DataOptions

_WHOLE_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})")


@dataclass(frozen=True)
class GroupedRows:
    """Features, labels and the client of every row, as a file has them."""

    title: str
    x: NDArray[Any]
    y: NDArray[Any]
    client: NDArray[Any]
    is_typed: bool = True
    """Whether the features had a type before they had values."""


def group(
    parts: list[GroupedRows], options: DataOptions, feature_names: tuple[str, ...] | None = None
) -> FederatedData:
    """Sort the rows stably by client, the training part (first) saying who the clients are.

    With ``options.client_names`` the client column must number them; otherwise clients come in the order of their
    numbers or, when they are strings, of the alphabet.
    """
    known = np.unique(parts[0].client)
    names = _names(known, options.client_names, feature_names)
    flat = []
    for part in parts:
        _check_lengths(part)
        flat.append(_sorted(part, known))
    return checked(flat, names, options)


def client_column(field: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return a client column as int64 or as strings; whole numbers in a float or text column are numbers."""
    if values.ndim != 1:
        raise InputError(f"has shape {values.shape}, but it must have one client per sample", field=field)
    if values.dtype.kind == "f":
        fine = np.isfinite(values) & (values == np.floor(values)) & (np.abs(values) < 2.0**53)
        if not fine.all():
            wrong = int(np.flatnonzero(~fine)[0])
            raise InputError(
                f"is {values[wrong]} at row {wrong} (counted from 0), but it must be a whole number or a string",
                field=field,
            )
    elif values.dtype.kind == "U":
        # "007" and "7" are different clients, so only numbers in their plain form count as numbers.
        found, inverse = np.unique(values, return_inverse=True)
        if not all(_WHOLE_NUMBER.fullmatch(str(name)) for name in found):
            return values
        return found.astype(np.int64)[inverse]
    elif values.dtype.kind not in "iub":
        raise InputError(f"holds values of type {values.dtype}, but it must hold whole numbers or strings", field=field)
    return values.astype(np.int64, copy=False)


def _names(known: NDArray[Any], client_names: tuple[str, ...] | None, features: tuple[str, ...] | None) -> Names:
    numbered = known.dtype.kind == "i" and np.array_equal(known, np.arange(len(known)))
    if client_names is not None:
        if not numbered or len(known) != len(client_names):
            if len(known) != len(client_names):
                found = f"{len(known)} clients are found"
            else:
                found = f"one is called {next(name for i, name in enumerate(known.tolist()) if name != i)!r}"
            raise InputError(
                f"has {len(client_names)} names, so the clients of the training part must be numbered 0 to "
                f"{len(client_names) - 1}, but {found}",
                field="client_names",
            )
        return Names(clients=client_names, features=features)
    if known.dtype.kind == "U":
        return Names(clients=tuple(str(name) for name in known), features=features)
    return Names(ids=None if numbered else known, features=features)


def _check_lengths(part: GroupedRows) -> None:
    for name, column in (("labels", part.y), ("clients", part.client)):
        if column.shape[:1] != part.x.shape[:1]:
            raise InputError(
                f"{part.title} x has shape {part.x.shape} and its {name} {column.shape}, but they must be as many"
            )


def _sorted(part: GroupedRows, known: NDArray[Any]) -> RawPart:
    if part.client.dtype.kind != known.dtype.kind and len(part.client):
        raise InputError(
            f"{part.title} names its clients by {part.client.dtype}, but it must be {known.dtype} as in train"
        )
    codes: Ints = np.searchsorted(known, part.client).astype(np.int64)
    codes = np.minimum(codes, max(0, len(known) - 1))
    strange = np.flatnonzero(known[codes] != part.client) if len(known) else np.arange(len(codes))
    if strange.size:
        who = part.client[strange[0]]
        who = repr(str(who)) if part.client.dtype.kind == "U" else str(who)
        raise InputError(f"client {who} has {part.title} samples but no training samples, and it needs at least one")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=len(known)))]).astype(np.int64)
    if bool(np.all(codes[1:] >= codes[:-1])):
        return RawPart(part.title, part.x, part.y, offsets, part.is_typed)  # in order already: no copy
    order = np.argsort(codes, kind="stable")
    return RawPart(part.title, part.x[order], part.y[order], offsets, part.is_typed)
