"""The arrays that kernels read, where everything lies in a thread's work array, and streams of a client.

Arrays as the kernels take them, without copying what may be larger than memory.

Where everything lies in a thread's work array: vector width, the table of layers, the places kernels read.

Streams of a client in compiled code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from llvmlite import binding  # type: ignore[import-untyped]
from numpy.typing import DTypeLike, NDArray

from upcycled._utils.compilation import compiled, inlined
from upcycled._utils.compiled_randomness import mix
from upcycled.core.vectors import Shards
from upcycled.engines.fused.supported import DenseStack, FusedLoss


class _Unmarked:
    """The same memory, not marked read-only."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array  # keeps the memory alive
        described = array.__array_interface__
        self.__array_interface__ = {**described, "data": (described["data"][0], False)}


def plain(array: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """Return the same numbers row by row in memory and not marked read-only; a view wherever that is possible.

    Numba compiles a kernel again for arrays marked read-only, as memory-mapped ones are. The kernels write into
    what they return and into nothing else.
    """
    made = np.ascontiguousarray(array, dtype=dtype)
    return made if made.flags.writeable else np.asarray(_Unmarked(made))


@dataclass(frozen=True)
class FlatRows:
    """Shards as the kernels take them: the features of all samples end to end, views of what was given."""

    x: Floats
    y: Ints | Floats
    offsets: Ints

    @property
    def count(self) -> int:
        return int(self.offsets[-1])

    def row_parts(self, size: int) -> Ints:
        """Return the bounds of parts of ``size`` samples."""
        return np.append(np.arange(0, self.count, size, dtype=np.int64), self.count)

    def client_parts(self, size: int) -> Ints:
        """Return the bounds, in clients, of parts of about ``size`` samples."""
        block = self.offsets[:-1] // size
        cuts = np.flatnonzero(np.diff(block)) + 1
        return np.concatenate([[0], cuts, [block.size]]).astype(np.int64)


def rows_of(shards: Shards, as_labels: bool) -> FlatRows:
    """Return views of the shards' arrays, which ``support`` has checked; targets of another type are copied.

    Cross-entropy takes whole numbers and every other loss float32, so that kernels know their loss when compiled.
    """
    targets = plain(shards.y, np.int64 if as_labels else np.float32).reshape(-1)
    return FlatRows(plain(shards.x, np.float32).reshape(-1), targets, plain(shards.offsets, np.int64))


Floats: TypeAlias = NDArray[np.float32]
Reals: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Order: TypeAlias = NDArray[np.int32]

LANES: int = 16 if binding.get_host_cpu_features().get("avx512f", False) else 8
"""float32 numbers in one vector; where registers are smaller, LLVM splits the vectors."""
TILE = 32
"""Samples worked on at once: their rows stay in the first cache levels, and memory does not grow with the batch."""

# Columns of the table of layers.
INPUTS, OUTPUTS = 0, 1
BIAS = 2
"""1 with a bias, else 0."""
PITCH = 3
"""Distance between two rows of weights: inputs and bias, padded to whole vectors."""
WEIGHTS = 4
"""Where the layer starts among the padded parameters."""
ACTS, ROW = 5, 6
"""Where the layer's inputs start, one row a sample, and the distance between two rows."""
OUTS = 7
"""Where its outputs start, one row of TILE a unit; the deltas take their place."""
FLAT_WEIGHT, FLAT_BIAS = 8, 9
"""Where its parameters start in the flat vector."""
_COLUMNS = 10

# Places in the work array: a tile's targets, one row of TILE each; the largest logit and the sum of exponentials of
# every sample.
LABELS, TOPS, TOTALS = 0, 1, 2
SIZE = 3
"""Not a place: the number of padded parameters. The vectors below have that length."""
START, POINT, MOVE, ANCHOR, LINEAR = 4, 5, 6, 7, 8
"""w; where the gradient is taken; the gradient or velocity; the x of the Moreau envelope; b."""
GRAM = 9
"""The inner products of a tile's samples. The three below have the shape of the first layer's outputs."""
PULLED, DRIVEN, SUMMED = 10, 11, 12
"""Its outputs at x; at theta, after every inner step; the sum of the inner steps' deltas."""
SQUARE = 13
"""Adam's second moment; ANCHOR holds the first, or a velocity, of optimisers with steps of their own."""
# Not places either.
LOSS = 14
"""Which loss: one of the five below."""
TARGETS = 15
"""Numbers of a sample's target."""
CLASSES = 16
"""Labels are below it; 0 where targets are no classes."""
THRESHOLD = 17
"""Where Huber's threshold lies."""
_PLACES = 18

CROSS_ENTROPY, BINARY, SQUARED, HUBER, DOUBLE_SOFTMAX = 0, 1, 2, 3, 4

_LINE = 16
"""float32 numbers in a cache line."""


@dataclass(frozen=True)
class Workspace:
    """The layout of a work array for one stack of layers."""

    table: Ints
    places: Ints
    length: int
    threshold: float

    def new_work(self) -> Floats:
        """Return a work array that starts on a cache line; zero but for the ones that biases are multiplied with."""
        raw = np.zeros(self.length + _LINE, dtype=np.float32)
        first = -raw.ctypes.data // raw.itemsize % _LINE
        work = raw[first : first + self.length]
        for layer in self.table:
            ones = layer[ACTS] + np.arange(TILE) * layer[ROW] + layer[INPUTS]
            if layer[BIAS]:
                work[ones] = 1.0
        work[self.places[THRESHOLD]] = self.threshold
        return work


def workspace_for(stack: DenseStack, loss: FusedLoss) -> Workspace:
    table = np.zeros((len(stack.layers), _COLUMNS), dtype=np.int64)
    places = np.zeros(_PLACES, dtype=np.int64)
    free = 0

    def reserve(count: int) -> int:
        nonlocal free
        at, free = free, free + -(-count // _LINE) * _LINE
        return at

    places[[LOSS, TARGETS, CLASSES]] = loss.code, loss.targets, loss.classes
    places[LABELS] = reserve(TILE * loss.targets)
    for place in (TOPS, TOTALS):
        places[place] = reserve(TILE)
    places[THRESHOLD] = reserve(1)
    size = 0
    for row, layer in zip(table, stack.layers, strict=True):
        has_bias = layer.bias is not None
        pitch = padded(layer.inputs + has_bias)
        row[[INPUTS, OUTPUTS, BIAS, PITCH]] = layer.inputs, layer.outputs, has_bias, pitch
        row[[WEIGHTS, FLAT_WEIGHT, FLAT_BIAS]] = size, layer.weight, layer.bias or 0
        size += layer.outputs * pitch
        # Rows a power of two apart would all compete for the same few lines of the cache.
        row[ROW] = pitch + LANES if pitch % 128 == 0 else pitch
        row[ACTS], row[OUTS] = reserve(TILE * int(row[ROW])), reserve(TILE * layer.outputs)
    places[SIZE] = size
    for place in (START, POINT, MOVE, ANCHOR, LINEAR, SQUARE):
        places[place] = reserve(size)
    places[GRAM] = reserve(TILE * TILE)
    for place in (PULLED, DRIVEN, SUMMED):
        places[place] = reserve(TILE * stack.layers[0].outputs)
    return Workspace(table, places, free, loss.threshold)


def padded(count: int) -> int:
    """Return ``count`` rounded up to whole vectors."""
    return -(-count // LANES) * LANES


# Numba turns uint64 with int64 into float64, so every number that meets a word is unsigned.
_32 = np.uint64(32)


@inlined
def client_key(round_key: np.uint64, client: int) -> np.uint64:
    """Return one client's key, as core.randomness.client_keys does for many."""
    key: np.uint64 = mix(np.uint64(client) ^ round_key)
    return key


@compiled
def shuffle(key: np.uint64, epoch: int, size: int, order: Order) -> None:
    """Write row ``epoch`` of core.randomness.permutations(key, size, ...) into order[:size]."""
    for i in range(size):
        order[i] = i
    first = np.uint64(epoch * size)
    for i in range(size - 1, 0, -1):
        word = mix(key + mix(first + np.uint64(i))) >> _32
        j = np.int64((word * np.uint64(i + 1)) >> _32)
        order[i], order[j] = order[j], order[i]
