"""Turn what a user brings into flat features and int64 labels, or say in one sentence what is wrong with it.

Everything is read in chunks of rows: a memory-mapped array that already has the right type is looked at once
and never copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled.core.errors import FRACTION, InputError, check_number
from upcycled.core.shards import Shards
from upcycled.core.vectors import Ints

_CHUNK_VALUES = 1 << 20
MOST_CLASSES_GUESSED = 1 << 16


@dataclass(frozen=True)
class Names:
    """What clients and feature columns are called in sentences; None means their numbers."""

    clients: tuple[str, ...] | None = None
    ids: Ints | None = None
    features: tuple[str, ...] | None = None

    def client(self, index: int) -> str:
        """Return ``'ann'`` in quotes, or a number.

        >>> Names(clients=("ann", "bob")).client(1), Names(ids=np.array([7, 9])).client(1), Names().client(1)
        ("'bob'", '9', '1')
        """
        if self.clients is not None:
            return repr(self.clients[index])
        return str(index if self.ids is None else int(self.ids[index]))

    def column(self, place: tuple[int, ...]) -> str:
        """Return where in a sample a value stands."""
        if len(place) != 1:
            return f"position {place}"
        return f"column {place[0] if self.features is None else repr(self.features[place[0]])}"


@dataclass(frozen=True)
class RawPart:
    """The training, test or validation rows as they were brought, before any conversion."""

    title: str
    x: NDArray[Any]
    y: NDArray[Any]
    offsets: Ints

    def field(self, name: str) -> str:
        """Return ``x`` for training rows and ``test x`` for others."""
        return name if self.title == "train" else f"{self.title} {name}"

    def where(self, row: int, names: Names) -> tuple[str, int]:
        """Return the client who owns a row, and which of that client's rows it is."""
        owner = int(np.searchsorted(self.offsets, row, side="right")) - 1
        return names.client(owner), row - int(self.offsets[owner])


def whole(field: str, value: object, at_least: int) -> int:
    """Return a checked integer."""
    return int(check_number(field, value, at_least=at_least, integer=True))


def fraction_of(field: str, value: float) -> float:
    """Return a checked fraction, 0 <= value < 1."""
    return float(FRACTION.check(field, value))


def numbers(field: str, value: object) -> NDArray[Any]:
    """Return an array of numbers, or refuse what is ragged, text or otherwise not a number."""
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError("is ragged or not an array, but it must be a full array of numbers", field=field) from error
    if array.dtype.kind not in "iufb":
        raise InputError(f"holds values of type {array.dtype}, but it must hold numbers", field=field)
    return array


def check_offsets(offsets: object, rows: int, field: str = "offsets") -> Ints:
    """Return int64 offsets that rise from 0 to ``rows``."""
    array = numbers(field, offsets)
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.size < 1:
        raise InputError(f"is {array.dtype} of shape {array.shape}, but it must be clients + 1 integers", field=field)
    result: Ints = array.astype(np.int64, copy=False)
    if result[0] != 0 or result[-1] != rows or bool(np.any(result[1:] < result[:-1])):
        raise InputError(
            f"goes from {result[0]} to {result[-1]}, but it must rise from 0 to the number of rows {rows}", field=field
        )
    return result


def check_parts(parts: list[RawPart], names: Names, num_classes: int | None) -> tuple[list[Shards], int]:
    """Return the converted parts, the training part first, and the number of classes."""
    train = parts[0]
    clients = len(train.offsets) - 1
    if clients < 1:
        raise InputError("the data has no clients, but there must be at least one")
    for part in parts:
        _check_shapes(part, train, names)
    empty = np.flatnonzero(train.offsets[1:] == train.offsets[:-1])
    if empty.size:
        raise InputError(
            f"client {names.client(int(empty[0]))} has no training samples, but every client needs at least one"
        )
    # A part without rows says nothing about types.
    integers = all(part.x.dtype.kind in "iu" for part in parts if len(part.x))
    dtype = np.dtype(np.int64 if integers else np.float32)
    labels = [_labels(part, names) for part in parts]
    num_classes = _num_classes(parts, labels, names, num_classes)
    return [Shards(_features(p, dtype, names), y, p.offsets) for p, y in zip(parts, labels, strict=True)], num_classes


def _check_shapes(part: RawPart, train: RawPart, names: Names) -> None:
    x, y = part.field("x"), part.field("y")
    if part.x.ndim < 2 or 0 in part.x.shape[1:]:
        raise InputError(f"has shape {part.x.shape}, but it must be (samples, features) or (samples, ...)", field=x)
    if part.y.ndim != 1:
        raise InputError(f"has shape {part.y.shape}, but it must have one label per sample: (samples,)", field=y)
    if len(part.x) != len(part.y):
        raise InputError(
            f"has {len(part.y)} labels, but {x} has {len(part.x)} samples and they must be as many", field=y
        )
    if part.x.shape[1:] != train.x.shape[1:]:
        raise InputError(
            f"has samples of shape {part.x.shape[1:]}, but they must be like the training samples, {train.x.shape[1:]}",
            field=x,
        )
    if len(part.offsets) != len(train.offsets):
        raise InputError(
            f"{part.title} has {len(part.offsets) - 1} clients, but it must have as many as the training part, "
            f"{len(train.offsets) - 1}"
        )
    if names.features is not None and (len(names.features),) != part.x.shape[1:]:
        raise InputError(
            f"has {len(names.features)} names, but a sample of {x} has shape {part.x.shape[1:]}", field="feature_names"
        )


def chunks(array: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield (first row, rows) so that a chunk's temporaries stay small."""
    step = max(1, _CHUNK_VALUES // max(1, int(np.prod(array.shape[1:], dtype=np.int64))))
    for start in range(0, len(array), step):
        yield start, array[start : start + step]


def _ready(array: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    return array.dtype == dtype and array.flags.c_contiguous


def _features(part: RawPart, dtype: np.dtype[Any], names: Names) -> NDArray[Any]:
    out = part.x if _ready(part.x, dtype) else np.empty(part.x.shape, dtype)
    for start, chunk in chunks(part.x):
        if chunk.dtype != dtype or out is not part.x:
            with np.errstate(over="ignore", invalid="ignore"):
                out[start : start + len(chunk)] = chunk
        bad = _bad_features(chunk, out[start : start + len(chunk)])
        if bad is not None:
            client, row = part.where(start + bad[0], names)
            place = f"row {row}, {names.column(bad[1:])} (counted from 0)"
            value = chunk[bad]
            right = "every feature must be a finite number"
            if np.isfinite(value):
                right += f" that {dtype} can hold"
            raise InputError(f"{part.field('x')} of client {client} is {value} at {place}, but {right}")
    return out


def _bad_features(before: NDArray[Any], after: NDArray[Any]) -> tuple[int, ...] | None:
    """Return the place of the first value that is not finite or did not survive the conversion."""
    if after.dtype.kind == "f":
        fine = np.isfinite(after)
    elif before.dtype.kind == "u":
        fine = after >= 0  # an unsigned value beyond int64 wraps to a negative one
    else:
        return None
    return None if fine.all() else tuple(int(i) for i in np.argwhere(~fine)[0])


def _labels(part: RawPart, names: Names) -> Ints:
    out: Ints = part.y if _ready(part.y, np.dtype(np.int64)) else np.empty(part.y.shape, np.int64)
    for start, chunk in chunks(part.y):
        if chunk.dtype.kind == "f":
            # Beyond 2^53 a float no longer tells whole numbers apart; nan fails every comparison.
            fine = (chunk >= 0) & (chunk < 2.0**53) & (chunk == np.floor(chunk))
        else:
            fine = (chunk >= 0) & (chunk <= np.iinfo(np.int64).max)
        if not fine.all():
            _refuse_label(part, start + int(np.flatnonzero(~fine)[0]), names, "labels must be whole numbers from 0 on")
        if out is not part.y:
            out[start : start + len(chunk)] = chunk
    return out


def _num_classes(parts: list[RawPart], labels: list[Ints], names: Names, num_classes: int | None) -> int:
    largest = [int(y.max()) if len(y) else 0 for y in labels]
    if num_classes is None:
        if max(largest) >= MOST_CLASSES_GUESSED:
            worst = largest.index(max(largest))
            row = int(labels[worst].argmax())
            _refuse_label(parts[worst], row, names, "labels must be class numbers from 0 on (or give num_classes)")
        if max(largest) == 0:
            raise InputError(
                "holds class 0 only, but there must be two classes or more (or give num_classes)", field="y"
            )
        return max(largest) + 1
    count = whole("num_classes", num_classes, at_least=2)
    for part, y, top in zip(parts, labels, largest, strict=True):
        if top >= count:
            right = f"labels must be whole numbers from 0 to {count - 1}, because num_classes is {count}"
            _refuse_label(part, int(np.flatnonzero(y >= count)[0]), names, right)
    return count


def _refuse_label(part: RawPart, row: int, names: Names, right: str) -> None:
    client, own = part.where(row, names)
    raise InputError(
        f"{part.field('y')} of client {client} is {part.y[row]} at row {own} (counted from 0), but {right}"
    )
