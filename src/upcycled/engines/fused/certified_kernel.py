"""The certified solvers' kernel: full-batch and minibatch descent for linear models, all in float64.

It does what ``engines/certified.py`` does; privacy proofs count on its steps, so there is nothing adaptive in it.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from upcycled._utils.compilation import kernel
from upcycled.core.engine import Task
from upcycled.core.mechanism import Ask
from upcycled.core.solvers import CertifiedMinimiser, ShiftedMinimiser
from upcycled.engines.fused.blocks import listed_tile, wide_dots
from upcycled.engines.fused.network import softmax_slopes
from upcycled.engines.fused.simd import take
from upcycled.engines.fused.workspace import (
    BINARY,
    CROSS_ENTROPY,
    LOSS,
    OUTPUTS,
    TARGETS,
    TILE,
    Floats,
    Ints,
    Order,
    client_key,
    plain,
    shuffle,
)

Doubles = NDArray[np.float64]

_KEPT = 1 << 17
"""Numbers that stay laid out over the passes of one client: what a core's own cache holds."""


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _other_slopes(
    kind: int,
    threshold: float,
    targets: int,
    scores: Doubles,
    outputs: int,
    y: Ints,
    first: int,
    order: Order,
    begin: int,
    here: int,
) -> None:
    """Put the derivatives of one logit's logistic loss, or of Huber's, in the place of a tile's outputs."""
    for k in range(outputs):
        for s in range(TILE):
            if s >= here:
                scores[k, s] = 0.0
                continue
            z, target = scores[k, s], np.float64(y[(first + order[begin + s]) * targets + k])
            if kind == BINARY:
                small = math.exp(-abs(z))
                scores[k, s] = (1.0 if z >= 0 else small) / (1.0 + small) - target
            else:
                scores[k, s] = min(max(z - target, -threshold), threshold) / outputs


# Sums over a tile may be reordered, which lets them be vectorised: a fixed order once compiled, for any thread.
@numba.njit(error_model="numpy", fastmath={"reassoc", "contract"})  # type: ignore[untyped-decorator]
def _add_gradient(
    kind: int,
    threshold: float,
    targets: int,
    point: Doubles,
    weight: int,
    bias: int,
    outputs: int,
    features: int,
    x: Floats,
    y: Ints,
    first: int,
    order: Order,
    at: int,
    count: int,
    tiles: Doubles,
    labels: Doubles,
    kept: bool,
    ready: bool,
    scores: Doubles,
    slots: Ints,
    sums: Doubles,
    total: Doubles,
) -> None:
    """Add the gradients of samples order[at .. at+count-1] to ``total``; the samples of a tile lie side by side.

    ``kept`` gives every tile a place of its own, and ``ready`` says that the samples are there from the last call.
    """
    whole = sums.size
    for begin in range(at, at + count, TILE):
        here = min(TILE, at + count - begin)
        place = (begin - at) // TILE if kept else 0
        tile = tiles[place]
        if not (kept and ready):
            for s in range(here):
                row = (first + order[begin + s]) * features
                for j in range(features):
                    tile[j, s] = x[row + j]
            for s in range(here, TILE):
                for j in range(features):
                    tile[j, s] = 0.0
            if kind == CROSS_ENTROPY:
                for s in range(TILE):
                    labels[place, s] = y[first + order[begin + s]] if s < here else -1.0
        for k in range(outputs):
            level = point[bias + k] if bias >= 0 else 0.0
            for s in range(TILE):
                scores[k, s] = level
            listed_tile(scores, k * TILE, True, point, slots, weight + k * features, features, tile, 0)
        if kind == CROSS_ENTROPY:
            softmax_slopes(scores, labels, place * TILE, outputs)
        else:
            _other_slopes(kind, threshold, targets, scores, outputs, y, first, order, begin, here)
        for k in range(outputs):
            if bias >= 0:
                sum_ = 0.0
                for s in range(TILE):
                    sum_ += scores[k, s]
                total[bias + k] += sum_
            if whole == features:  # no number of a row is beyond its end
                wide_dots(total, weight + k * features, whole, scores, k * TILE, tile, 0, TILE)
                continue
            wide_dots(sums, 0, whole, scores, k * TILE, tile, 0, TILE)
            for j in range(features):
                total[weight + k * features + j] += sums[j]
                sums[j] = 0.0


@kernel
def descend(
    queue: Ints,
    lanes: Ints,
    x: Floats,
    y: Ints,
    offsets: Ints,
    rows: Ints,
    clients: Ints,
    epochs: Ints,
    key: np.uint64,
    batch: int,
    lr: float,
    start: Doubles,
    a: float,
    b: Doubles,
    shifted: bool,
    table: Ints,
    places: Ints,
    work: Floats,
    order: Order,
    out: Doubles,
    weight: int,
    bias: int,
    features: int,
    threshold: float,
) -> None:
    """x <- x - lr (sum of gradients / nominal batch + a (x - w) + b); ``batch`` 0 means full batches.

    From w, or ``shifted`` to w - b/a. ``threshold`` is Huber's, in float64: rounded up it would break a promise.
    """
    outputs, kind, targets = table[0, OUTPUTS], places[LOSS], places[TARGETS]
    room, padded = _KEPT // (features * TILE), (features + 3) // 4 * 4
    tiles = np.zeros((max(1, room if batch == 0 else 1), padded, TILE))
    scores, labels, sums = np.zeros((outputs, TILE)), np.zeros((tiles.shape[0], TILE)), np.zeros(padded)
    slots = np.zeros(start.size, dtype=np.int64)
    for k in range(outputs):
        for j in range(features):
            slots[weight + k * features + j] = j * TILE
    total, point = np.zeros(start.size), np.zeros(start.size)
    while True:
        turn = take(queue)
        if turn >= lanes.size:
            break
        lane = lanes[turn]
        first = offsets[rows[lane]]
        samples = offsets[rows[lane] + 1] - first
        size: int = min(batch, samples) if batch > 0 else samples  # type: ignore[assignment]
        kept = batch == 0 and samples <= room * TILE
        own = client_key(key, clients[lane])
        point[:] = start
        if shifted and b.shape[0] > 0:
            for j in range(start.size):
                point[j] -= b[lane, j] / a
        for i in range(samples):
            order[i] = i
        for epoch in range(epochs[lane]):
            if batch > 0:
                shuffle(own, epoch, samples, order)
            for at in range(0, samples, size):
                count = min(size, samples - at)
                total[:] = 0.0
                _add_gradient(
                    *(kind, threshold, targets, point, weight, bias, outputs, features),
                    *(x, y, first, order, at, count, tiles, labels, kept, epoch > 0, scores, slots, sums, total),
                )
                for j in range(start.size):
                    linear = b[lane, j] if b.shape[0] > 0 else 0.0
                    point[j] -= lr * (total[j] / size + a * (point[j] - start[j]) + linear)
        out[lane, :] = point


def passes_of(task: Task, asked: Ask) -> Ints:
    """Return how many passes each client takes: fixed in advance, or what the promised gradient norm asks for."""
    if not isinstance(task.solver, CertifiedMinimiser):
        return plain(asked.cohort.epochs, np.int64)
    b, count = asked.problem.b, asked.cohort.clients.size
    norms = np.zeros(count) if b is None else np.linalg.norm(b.astype(np.float64), axis=1)
    return np.array([task.solver.steps_for(float(norm)) for norm in norms], dtype=np.int64)


def numbers_of(task: Task, asked: Ask) -> tuple[Any, ...]:
    """Return lr, w, a, b and whether to start at w - b/a, as the kernel takes them."""
    b = np.zeros((0, task.layout.size)) if asked.problem.b is None else plain(asked.problem.b, np.float64)
    shifted = isinstance(task.solver, ShiftedMinimiser)
    return task.solver.local.rate, plain(asked.model, np.float64), float(asked.problem.a), b, shifted
