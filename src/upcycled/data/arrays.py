"""Turn arrays that a user brings into flat features and labels, or say in one sentence what is wrong.

Numbers and classes written as text, each value by itself: what one says never changes how another is read.

Put what a user brings for many clients together into flat parts, before anything is converted.

Everything is read in chunks of rows: a memory-mapped array that already has the right type is looked at once
and never copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from upcycled.core.errors import InputError, check_number
from upcycled.core.vectors import Ints, Real, Shards
from upcycled.data.options import DataOptions

_WORDS = {"true": 1.0, "false": 0.0}


def as_numbers(values: NDArray[Any]) -> Real:
    """Return values of any type as numbers, nan where one is none.

    >>> as_numbers(np.array(["3", " 2.5", "", "yes", "True"])).tolist()
    [3.0, 2.5, nan, nan, 1.0]
    """
    flat = values.reshape(-1).tolist()
    try:
        found = np.fromiter(map(float, flat), np.float64, len(flat))
    except (TypeError, ValueError, OverflowError):
        found = np.fromiter(map(_number, flat), np.float64, len(flat))
    return found.reshape(values.shape)


def class_numbers(values: NDArray[Any], names: tuple[str, ...]) -> Real:
    """Return the class of every name; of other values the number they are, and nan where they are none.

    >>> class_numbers(np.array(["yes", "no", "1", "maybe"]), ("no", "yes")).tolist()
    [1.0, 0.0, 1.0, nan]
    """
    known = {name: float(i) for i, name in enumerate(names)}
    flat = values.reshape(-1).tolist()
    found = (known[value] if isinstance(value, str) and value in known else _number(value) for value in flat)
    return np.fromiter(found, np.float64, len(flat)).reshape(values.shape)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return _WORDS.get(value.strip().lower(), np.nan) if isinstance(value, str) else np.nan


def flat_part(title: str, x: ArrayLike, y: ArrayLike, offsets: ArrayLike, options: DataOptions) -> RawPart:
    """Return a part of flat arrays whose offsets are sound."""
    prefix = "" if title == "train" else f"{title} "
    rows = numbers(f"{prefix}x", x, options.repair)
    labels = labels_of(f"{prefix}y", y, options)
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
    options: DataOptions,
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
        rows, own = numbers(x_field, x, options.repair), labels_of(y_field, y, options)
        if own.ndim == 0:
            raise InputError(
                f"{prefix}ys holds single values, but it must be a list with one array per client (from_flat takes one "
                "array for all clients, with offsets)"
            )
        if own.ndim != 1 and (options.kind == "classes" or own.ndim != 2):
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


def labels_of(field: str, value: object, options: DataOptions) -> NDArray[Any]:
    """Return labels as numbers; names become the numbers of their classes where those were options."""
    array = _array(field, value)
    if options.label_names is None or array.dtype.kind in "iufb":
        if array.dtype.kind in "USO" and options.kind == "classes" and not options.repair:
            raise InputError(
                f"holds values of type {array.dtype}, but it must hold class numbers, or names that label_names lists",
                field=field,
            )
        return numbers(field, array, options.repair)
    found = class_numbers(array, options.label_names)
    strange = np.flatnonzero(np.isnan(found))
    if strange.size and not options.repair:
        name = array.reshape(-1)[strange[0]]
        raise InputError(
            f"is {str(name)!r} at row {strange[0]} (counted from 0), but it must be {_one_of(options.label_names)}",
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
class CheckedParts:
    """Parts that were converted, the training part first, and how."""

    shards: list[Shards]
    num_classes: int
    inferred: frozenset[str]
    """The public facts that were read off the samples."""
    notes: tuple[str, ...]
    """What was repaired."""


def check_parts(parts: list[RawPart], names: Names, options: DataOptions) -> CheckedParts:
    """Convert the parts, the training part first, or say what is wrong; repaired, only shapes can be wrong."""
    train = parts[0]
    clients = len(train.offsets) - 1
    if clients < 1:
        raise InputError("the data has no clients, but there must be at least one")
    for part in parts:
        _check_shapes(part, train, names, options)
    empty = np.flatnonzero(train.offsets[1:] == train.offsets[:-1])
    if empty.size:
        raise InputError(
            f"client {names.client(int(empty[0]))} has no training samples, but every client needs at least one"
        )
    dtype, inferred = _dtype(parts, options), set[str]()
    if options.kind == "classes" and options.classes is None:
        inferred.add("classes")
    if dtype.kind == "i" and options.vocabulary is None:
        inferred.add("vocabulary")
    if options.vocabulary is None and not options.repair and not all(part.is_typed for part in parts):
        inferred.add("dtype")
    notes: list[str] = []
    labels: list[NDArray[Any]]
    if options.kind == "classes":
        labels = [_labels(part, names, options, notes) for part in parts]
        num_classes = _num_classes(parts, labels, names, options)
    else:
        labels = [_targets(part, names, options, notes) for part in parts]
        num_classes = 1 if train.y.ndim == 1 else train.y.shape[1]
    features = [_features(part, dtype, names, options, notes) for part in parts]
    shards = [Shards(x, y, p.offsets) for x, y, p in zip(features, labels, parts, strict=True)]
    return CheckedParts(shards, num_classes, frozenset(inferred), tuple(notes))


def _dtype(parts: list[RawPart], options: DataOptions) -> np.dtype[Any]:
    """Return the features' type: the declared one; else integers stay such, unless anything may be in their place."""
    integers = options.vocabulary is not None
    if not integers and not options.repair:
        # A part without rows says nothing about types.
        integers = all(part.x.dtype.kind in "iu" for part in parts if len(part.x))
    return np.dtype(np.int64 if integers else np.float32)


def _check_shapes(part: RawPart, train: RawPart, names: Names, options: DataOptions) -> None:
    x, y = part.field("x"), part.field("y")
    if part.x.ndim < 2 or 0 in part.x.shape[1:]:
        raise InputError(f"has shape {part.x.shape}, but it must be (samples, features) or (samples, ...)", field=x)
    if part.y.ndim != 1 and (options.kind == "classes" or part.y.ndim != 2):
        right = "one label per sample: (samples,)" if options.kind == "classes" else "(samples,) or (samples, numbers)"
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


def _converted(
    array: NDArray[Any],
    dtype: np.dtype[Any],
    valid: Callable[[NDArray[Any], NDArray[Any]], NDArray[np.bool_] | None],
    refuse: Callable[[tuple[int, ...]], None] | None,
) -> tuple[NDArray[Any], int, tuple[int, ...]]:
    """Return an array of this type, how many of its values were repaired, and the place of the first of them.

    ``valid`` compares a chunk before and after its conversion: None where everything is valid. ``refuse`` raises for
    the first invalid value; without it invalid values become 0.
    """
    out = array if array.dtype == dtype and array.flags.c_contiguous else np.empty(array.shape, dtype)
    repaired, first = 0, tuple[int, ...]()
    for start, chunk in chunks(array):
        rows = slice(start, start + len(chunk))
        if out is not array:
            with np.errstate(over="ignore", invalid="ignore"):
                out[rows] = chunk
        fine = valid(chunk, out[rows])
        if fine is None or fine.all():
            continue
        row, *within = (int(i) for i in np.argwhere(~fine)[0])
        first = first or (start + row, *within)
        if refuse is not None:
            refuse(first)
        if out is array:
            out = np.array(array)  # what somebody else owns, perhaps a file, is not written to
        out[rows][~fine] = 0
        repaired += int(np.count_nonzero(~fine))
    return out, repaired, first


def _features(
    part: RawPart, dtype: np.dtype[Any], names: Names, options: DataOptions, notes: list[str]
) -> NDArray[Any]:
    vocabulary = options.vocabulary

    def where(place: tuple[int, ...]) -> tuple[str, str]:
        client, row = part.where(place[0], names)
        return f"client {client}", f"row {row}, {names.column(place[1:])} (counted from 0)"

    def refuse(place: tuple[int, ...]) -> None:
        (client, position), value = where(place), part.x[place]
        right = "every feature must be a finite number"
        if vocabulary is not None:
            right = f"every feature must be a token id from 0 to {vocabulary - 1}, because vocabulary is {vocabulary}"
        elif np.isfinite(value):
            right += f" that {dtype} can hold"
        raise InputError(f"{part.field('x')} of {client} is {value} at {position}, but {right}")

    def valid(before: NDArray[Any], after: NDArray[Any]) -> NDArray[np.bool_] | None:
        return _fine_features(before, after, vocabulary)

    out, repaired, first = _converted(part.x, dtype, valid, None if options.repair else refuse)
    if repaired:
        what = f"a finite {dtype}" if vocabulary is None else f"a token id from 0 to {vocabulary - 1}"
        place = " at ".join(where(first))
        notes.append(f"{part.field('x')}: {repaired} values that are not {what} count as 0, the first of {place}")
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


def _labels(part: RawPart, names: Names, options: DataOptions, notes: list[str]) -> Ints:
    limit = np.iinfo(np.int64).max
    if options.repair:
        limit = (MOST_CLASSES_GUESSED if options.classes is None else options.classes) - 1

    def valid(before: NDArray[Any], after: NDArray[Any]) -> NDArray[np.bool_]:
        if before.dtype.kind != "f":
            return np.asarray((before >= 0) & (before <= limit))
        # Beyond 2^53 a float no longer tells whole numbers apart; nan fails every comparison.
        return np.asarray((before >= 0) & (before < min(2.0**53, limit + 1)) & (before == np.floor(before)))

    def refuse(place: tuple[int, ...]) -> None:
        _refuse_label(part, place[0], names, "labels must be whole numbers from 0 on (or targets='numbers')")

    out, repaired, first = _converted(part.y, np.dtype(np.int64), valid, None if options.repair else refuse)
    if repaired:
        client, row = part.where(first[0], names)
        notes.append(
            f"{part.field('y')}: {repaired} labels that are no class count as class 0, the first of client {client} "
            f"at row {row} (counted from 0)"
        )
    return out


def _targets(part: RawPart, names: Names, options: DataOptions, notes: list[str]) -> NDArray[Any]:
    """Return numbers or labels as float32."""
    right = "a finite float32" if options.kind == "numbers" else "0 or 1"

    def valid(before: NDArray[Any], after: NDArray[Any]) -> NDArray[np.bool_]:
        return np.asarray(np.isfinite(after) if options.kind == "numbers" else (after == 0) | (after == 1))

    def refuse(place: tuple[int, ...]) -> None:
        _refuse_label(part, place[0], names, f"targets must be {right}")

    out, repaired, _ = _converted(part.y, np.dtype(np.float32), valid, None if options.repair else refuse)
    if repaired:
        notes.append(f"{part.field('y')}: {repaired} targets that are not {right} count as 0")
    return out


def _num_classes(parts: list[RawPart], labels: list[Ints], names: Names, options: DataOptions) -> int:
    largest = [int(y.max()) if len(y) else 0 for y in labels]
    if options.classes is None:
        if max(largest) >= MOST_CLASSES_GUESSED:
            worst = largest.index(max(largest))
            row = int(labels[worst].argmax())
            _refuse_label(parts[worst], row, names, "labels must be class numbers from 0 on (or give num_classes)")
        if max(largest) == 0 and not options.repair:
            raise InputError(
                "holds class 0 only, but there must be two classes or more (or give num_classes)", field="y"
            )
        return max(2, max(largest) + 1)
    count = options.classes
    for part, y, top in zip(parts, labels, largest, strict=True):
        if top >= count:
            why = f"num_classes is {count}" if options.label_names is None else f"there are {count} label names"
            right = f"labels must be whole numbers from 0 to {count - 1}, because {why}"
            _refuse_label(part, int(np.flatnonzero(y >= count)[0]), names, right)
    return count


def _refuse_label(part: RawPart, row: int, names: Names, right: str) -> None:
    client, own = part.where(row, names)
    raise InputError(
        f"{part.field('y')} of client {client} is {part.y[row]} at row {own} (counted from 0), but {right}"
    )
