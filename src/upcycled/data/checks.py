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

from upcycled.core.errors import InputError, check_number
from upcycled.core.shards import Shards
from upcycled.core.vectors import Ints
from upcycled.data.declared import Declared
from upcycled.data.readers.texts import as_numbers, class_numbers

_CHUNK_VALUES = 1 << 20
_NAMES_SHOWN = 12
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
        return self.called(index) if self.clients is None else repr(self.clients[index])

    def called(self, index: int) -> str:
        """Return what the source called a client, made only when asked for."""
        if self.clients is not None:
            return self.clients[index]
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
    is_typed: bool = True
    """Whether the features had a type before they had values: an array has, a list or a column of text has not."""

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


def numbers(field: str, value: object, repair: bool = False) -> NDArray[Any]:
    """Return an array of numbers, or refuse what is ragged, text or otherwise not a number; repaired, that is nan."""
    array = _array(field, value)
    if array.dtype.kind in "iufb":
        return array
    if repair:
        return as_numbers(array)
    raise InputError(f"holds values of type {array.dtype}, but it must hold numbers", field=field)


def labels_of(field: str, value: object, declared: Declared) -> NDArray[Any]:
    """Return labels as numbers; names become the numbers of their classes where those were declared."""
    array = _array(field, value)
    if declared.label_names is None or array.dtype.kind in "iufb":
        if array.dtype.kind in "USO" and declared.targets == "classes" and not declared.repair:
            raise InputError(
                f"holds values of type {array.dtype}, but it must hold class numbers, or names that label_names lists "
                "(in a file data.labels)",
                field=field,
            )
        return numbers(field, array, declared.repair)
    found = class_numbers(array, declared.label_names)
    strange = np.flatnonzero(np.isnan(found))
    if strange.size and not declared.repair:
        name = array.reshape(-1)[strange[0]]
        raise InputError(
            f"is {str(name)!r} at row {strange[0]} (counted from 0), but it must be {_one_of(declared.label_names)}",
            field=field,
        )
    return found


def _array(field: str, value: object) -> NDArray[Any]:
    try:
        # A tensor that learns, or lies on a device, says so when it is asked for an array.
        return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError("is ragged or not an array, but it must be a full array of numbers", field=field) from error


def _one_of(names: tuple[str, ...]) -> str:
    listed = ", ".join(map(repr, names[:_NAMES_SHOWN]))
    return f"one of {listed}" + (f" and {len(names) - _NAMES_SHOWN} more" * (len(names) > _NAMES_SHOWN))


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


@dataclass(frozen=True)
class Checked:
    """Parts that were converted, the training part first, and how."""

    shards: list[Shards]
    num_classes: int
    inferred: frozenset[str]
    """The public facts that were read off the samples."""
    notes: tuple[str, ...]
    """What was repaired."""


def check_parts(parts: list[RawPart], names: Names, declared: Declared) -> Checked:
    """Convert the parts, the training part first, or say what is wrong; repaired, only shapes can be wrong."""
    train = parts[0]
    clients = len(train.offsets) - 1
    if clients < 1:
        raise InputError("the data has no clients, but there must be at least one")
    for part in parts:
        _check_shapes(part, train, names, declared)
    empty = np.flatnonzero(train.offsets[1:] == train.offsets[:-1])
    if empty.size:
        raise InputError(
            f"client {names.client(int(empty[0]))} has no training samples, but every client needs at least one"
        )
    dtype, inferred = _dtype(parts, declared), set[str]()
    if declared.targets == "classes" and declared.classes is None:
        inferred.add("classes")
    if dtype.kind == "i" and declared.vocabulary is None:
        inferred.add("vocabulary")
    if declared.vocabulary is None and not declared.repair and not all(part.is_typed for part in parts):
        inferred.add("dtype")
    notes: list[str] = []
    labels: list[NDArray[Any]]
    if declared.targets == "classes":
        labels = [_labels(part, names, declared, notes) for part in parts]
        num_classes = _num_classes(parts, labels, names, declared)
    else:
        labels = [_targets(part, names, declared, notes) for part in parts]
        num_classes = 1 if train.y.ndim == 1 else train.y.shape[1]
    features = [_features(part, dtype, names, declared, notes) for part in parts]
    shards = [Shards(x, y, p.offsets) for x, y, p in zip(features, labels, parts, strict=True)]
    return Checked(shards, num_classes, frozenset(inferred), tuple(notes))


def _dtype(parts: list[RawPart], declared: Declared) -> np.dtype[Any]:
    """Return the features' type: the declared one; else integers stay such, unless anything may be in their place."""
    integers = declared.vocabulary is not None
    if not integers and not declared.repair:
        # A part without rows says nothing about types.
        integers = all(part.x.dtype.kind in "iu" for part in parts if len(part.x))
    return np.dtype(np.int64 if integers else np.float32)


def _check_shapes(part: RawPart, train: RawPart, names: Names, declared: Declared) -> None:
    x, y = part.field("x"), part.field("y")
    if part.x.ndim < 2 or 0 in part.x.shape[1:]:
        raise InputError(f"has shape {part.x.shape}, but it must be (samples, features) or (samples, ...)", field=x)
    if part.y.ndim != 1 and (declared.targets == "classes" or part.y.ndim != 2):
        right = (
            "one label per sample: (samples,)" if declared.targets == "classes" else "(samples,) or (samples, numbers)"
        )
        raise InputError(f"has shape {part.y.shape}, but it must have {right}", field=y)
    if len(part.x) != len(part.y):
        raise InputError(
            f"has {len(part.y)} labels, but {x} has {len(part.x)} samples and they must be as many", field=y
        )
    for field, own, first in ((x, part.x, train.x), (y, part.y, train.y)):
        if own.shape[1:] != first.shape[1:]:
            raise InputError(
                f"has samples of shape {own.shape[1:]}, but they must be like the training samples, {first.shape[1:]}",
                field=field,
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


def _features(part: RawPart, dtype: np.dtype[Any], names: Names, declared: Declared, notes: list[str]) -> NDArray[Any]:
    out = part.x if _ready(part.x, dtype) else np.empty(part.x.shape, dtype)
    repaired, first = 0, ""
    for start, chunk in chunks(part.x):
        rows = slice(start, start + len(chunk))
        if out is not part.x:
            with np.errstate(over="ignore", invalid="ignore"):
                out[rows] = chunk
        fine = _fine_features(chunk, out[rows], declared.vocabulary)
        if fine is None or fine.all():
            continue
        place = tuple(int(i) for i in np.argwhere(~fine)[0])
        if not declared.repair:
            _refuse_feature(part, start, place, chunk[place], dtype, names, declared.vocabulary)
        if out is part.x:
            out = np.array(part.x)  # what somebody else owns, perhaps a file, is not written to
        out[rows][~fine] = 0
        first = first or " at ".join(_feature_place(part, start, place, names))
        repaired += int(np.count_nonzero(~fine))
    if repaired:
        what = _right_feature(dtype, declared.vocabulary)
        notes.append(f"{part.field('x')}: {repaired} values that are not {what} count as 0, the first of {first}")
    return out


def _fine_features(before: NDArray[Any], after: NDArray[Any], vocabulary: int | None) -> NDArray[np.bool_] | None:
    """Return where values are finite and survived the conversion; None where that cannot be otherwise."""
    if after.dtype.kind == "f":
        return np.asarray(np.isfinite(after))
    if vocabulary is not None:
        # nan fails every comparison.
        is_whole = before == np.floor(before) if before.dtype.kind == "f" else True
        return np.asarray((before >= 0) & (before < vocabulary) & is_whole)
    if before.dtype.kind == "u":
        return np.asarray(after >= 0)  # an unsigned value beyond int64 wraps to a negative one
    return None


def _right_feature(dtype: np.dtype[Any], vocabulary: int | None) -> str:
    return f"a finite {dtype}" if vocabulary is None else f"a token id from 0 to {vocabulary - 1}"


def _feature_place(part: RawPart, start: int, place: tuple[int, ...], names: Names) -> tuple[str, str]:
    client, row = part.where(start + place[0], names)
    return f"client {client}", f"row {row}, {names.column(place[1:])} (counted from 0)"


def _refuse_feature(
    part: RawPart,
    start: int,
    place: tuple[int, ...],
    value: Any,
    dtype: np.dtype[Any],
    names: Names,
    vocabulary: int | None,
) -> None:
    client, where = _feature_place(part, start, place, names)
    right = "every feature must be a finite number"
    if vocabulary is not None:
        right = f"every feature must be a token id from 0 to {vocabulary - 1}, because vocabulary is {vocabulary}"
    elif np.isfinite(value):
        right += f" that {dtype} can hold"
    raise InputError(f"{part.field('x')} of {client} is {value} at {where}, but {right}")


def _labels(part: RawPart, names: Names, declared: Declared, notes: list[str]) -> Ints:
    out: Ints = part.y if _ready(part.y, np.dtype(np.int64)) else np.empty(part.y.shape, np.int64)
    limit = np.iinfo(np.int64).max
    if declared.repair:
        limit = (MOST_CLASSES_GUESSED if declared.classes is None else declared.classes) - 1
    repaired, first = 0, -1
    for start, chunk in chunks(part.y):
        rows = slice(start, start + len(chunk))
        if chunk.dtype.kind == "f":
            # Beyond 2^53 a float no longer tells whole numbers apart; nan fails every comparison.
            fine = (chunk >= 0) & (chunk < min(2.0**53, limit + 1)) & (chunk == np.floor(chunk))
        else:
            fine = (chunk >= 0) & (chunk <= limit)
        if out is not part.y:
            with np.errstate(invalid="ignore"):
                out[rows] = chunk
        if fine.all():
            continue
        wrong = np.flatnonzero(~fine)
        if not declared.repair:
            _refuse_label(
                part, start + int(wrong[0]), names, "labels must be whole numbers from 0 on (or targets='numbers')"
            )
        if out is part.y:
            out = np.array(part.y)
        out[rows][wrong] = 0
        first = start + int(wrong[0]) if first < 0 else first
        repaired += wrong.size
    if repaired:
        client, row = part.where(first, names)
        notes.append(
            f"{part.field('y')}: {repaired} labels that are no class count as class 0, the first of client {client} "
            f"at row {row} (counted from 0)"
        )
    return out


def _targets(part: RawPart, names: Names, declared: Declared, notes: list[str]) -> NDArray[Any]:
    """Return numbers or labels as float32."""
    with np.errstate(over="ignore"):
        out = part.y.astype(np.float32)
    fine = np.isfinite(out) if declared.targets == "numbers" else (out == 0) | (out == 1)
    if fine.all():
        return out
    right = "a finite float32" if declared.targets == "numbers" else "0 or 1"
    if not declared.repair:
        _refuse_label(part, int(np.argwhere(~fine)[0][0]), names, f"targets must be {right}")
    out[~fine] = 0
    notes.append(f"{part.field('y')}: {int((~fine).sum())} targets that are not {right} count as 0")
    return out


def _num_classes(parts: list[RawPart], labels: list[Ints], names: Names, declared: Declared) -> int:
    largest = [int(y.max()) if len(y) else 0 for y in labels]
    if declared.classes is None:
        if max(largest) >= MOST_CLASSES_GUESSED:
            worst = largest.index(max(largest))
            row = int(labels[worst].argmax())
            _refuse_label(parts[worst], row, names, "labels must be class numbers from 0 on (or give num_classes)")
        if max(largest) == 0 and not declared.repair:
            raise InputError(
                "holds class 0 only, but there must be two classes or more (or give num_classes)", field="y"
            )
        return max(2, max(largest) + 1)
    count = declared.classes
    for part, y, top in zip(parts, labels, largest, strict=True):
        if top >= count:
            why = f"num_classes is {count}" if declared.label_names is None else f"there are {count} label names"
            right = f"labels must be whole numbers from 0 to {count - 1}, because {why}"
            _refuse_label(part, int(np.flatnonzero(y >= count)[0]), names, right)
    return count


def _refuse_label(part: RawPart, row: int, names: Names, right: str) -> None:
    client, own = part.where(row, names)
    raise InputError(
        f"{part.field('y')} of client {client} is {part.y[row]} at row {own} (counted from 0), but {right}"
    )
