"""The local solvers: what a lane (one client in one round) does with its gradients, and the loops over lanes.

Threads call a kernel with the same counter and lanes, longest lane first, and each takes the next lane when it is done
with one; a lane touches nothing of another, so the results do not depend on who did what. A further solver is one
more kernel here and one more row in ``engine.py``.
"""

from __future__ import annotations

import numpy as np

from upcycled.engines.fused.compiled_streams import client_key, shuffle
from upcycled.engines.fused.moreau import gram_pays, step_by_gradients, step_by_gram
from upcycled.engines.fused.network import gradient, pad, unpad
from upcycled.engines.fused.simd import add, fma, load, splat, store, sub, take
from upcycled.engines.fused.workspace import (
    ANCHOR,
    CLASSES,
    LANES,
    LINEAR,
    MOVE,
    POINT,
    SIZE,
    SQUARE,
    START,
    TILE,
    Floats,
    Ints,
    Order,
)
from upcycled.support.kernel_cache import inlined, kernel

_ZERO = np.float32(0.0)

LR, MOMENTUM, DECAY, VARIANT, MOST, SECOND, EPS = 0, 1, 2, 3, 4, 5, 6
"""Numbers of an optimiser: VARIANT is Nesterov or AdamW, MOST the largest norm (0 for none), MOMENTUM also beta_1."""


@inlined
def copy_vector(work: Floats, size: int, source: int, to: int) -> None:
    for j in range(0, size, LANES):
        store(work, to + j, load(work, source + j))


@inlined
def clear(work: Floats, size: int, at: int) -> None:
    for j in range(0, size, LANES):
        store(work, at + j, splat(_ZERO))


@inlined
def begin_lane(work: Floats, table: Ints, places: Ints, b: Floats, lane: int) -> None:
    """Start a lane at w, with the gradient at zero and its own b."""
    copy_vector(work, places[SIZE], places[START], places[POINT])
    clear(work, places[SIZE], places[MOVE])
    if b.shape[0] > 0:
        pad(work, table, b[lane], places[LINEAR])


@inlined
def next_lane(queue: Ints, lanes: Ints, y: Ints, offsets: Ints, rows: Ints, places: Ints, faults: Ints) -> int:
    """Return the next lane to do, or -1 when all are taken.

    A client with a label that is no class of the model is marked and left out: trusting it would mean writing beyond
    the arrays.
    """
    classes = places[CLASSES]
    while True:
        turn = take(queue)
        if turn >= lanes.size:
            return -1
        lane = int(lanes[turn])
        if classes == 0:
            return lane
        fit = True
        for i in range(offsets[rows[lane]], offsets[rows[lane] + 1]):
            fit &= 0 <= y[i] < classes
        if fit:
            return lane
        faults[lane] = 1


@inlined
def _arrange(own: np.uint64, epoch: int, samples: int, batch: int, order: Order) -> None:
    """Write an epoch's order of samples: a fresh permutation, or their own order for full batches."""
    if batch > 0:
        shuffle(own, epoch, samples, order)
    elif epoch == 0:
        for i in range(samples):
            order[i] = i


@inlined
def sgd_step(work: Floats, places: Ints, begin: int, end: int, lr: float, a: float, corrected: bool) -> None:
    """v <- v + a (x - w) + b, x <- x - lr v for parameters begin .. end; gradient and momentum are in v already."""
    point, move, start, linear = places[POINT], places[MOVE], places[START], places[LINEAR]
    down, slope = splat(np.float32(-lr)), splat(np.float32(a))
    if corrected:
        for j in range(begin, end, LANES):
            x = load(work, point + j)
            v = add(fma(slope, sub(x, load(work, start + j)), load(work, move + j)), load(work, linear + j))
            store(work, move + j, v)
            store(work, point + j, fma(down, v, x))
    else:
        for j in range(begin, end, LANES):
            store(work, point + j, fma(down, load(work, move + j), load(work, point + j)))


@kernel
def train_sgd(
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
    numbers: Floats,
    model: Floats,
    a: float,
    b: Floats,
    table: Ints,
    places: Ints,
    work: Floats,
    order: Order,
    faults: Ints,
    out: Floats,
) -> None:
    """SGD with momentum; ``batch`` 0 means full batches, ``numbers`` are lr and momentum."""
    lr, momentum = numbers[0], numbers[1]
    pad(work, table, model, places[START])
    clear(work, places[SIZE], places[LINEAR])
    corrected = a != _ZERO or b.shape[0] > 0
    while True:
        lane = next_lane(queue, lanes, y, offsets, rows, places, faults)
        if lane < 0:
            break
        first = offsets[rows[lane]]
        samples = offsets[rows[lane] + 1] - first
        begin_lane(work, table, places, b, lane)
        own, length = client_key(key, clients[lane]), batch if batch > 0 else samples
        for epoch in range(epochs[lane] if samples > 0 else 0):
            _arrange(own, epoch, samples, batch, order)
            for at in range(0, samples, length):
                count = min(length, samples - at)
                gradient(work, table, places, momentum, x, y, first, order, at, count, True)
                sgd_step(work, places, 0, places[SIZE], lr, a, corrected)
        unpad(work, table, places[POINT], out[lane])


@inlined
def _correct(work: Floats, places: Ints, a: float) -> None:
    """g <- g + a (x - w) + b."""
    point, move, start, linear = places[POINT], places[MOVE], places[START], places[LINEAR]
    for j in range(places[SIZE]):
        work[move + j] += np.float32(a) * (work[point + j] - work[start + j]) + work[linear + j]


@inlined
def _scale_down(work: Floats, places: Ints, most: float) -> None:
    """Scale g down to norm ``most``, as torch's clip_grad_norm_ does."""
    move, total = places[MOVE], 0.0
    for j in range(places[SIZE]):
        total += np.float64(work[move + j]) * np.float64(work[move + j])
    scale = np.float32(min(1.0, np.float64(most) / (np.sqrt(total) + 1e-6)))
    for j in range(places[SIZE]):
        work[move + j] *= scale


@inlined
def _sgd_options(work: Floats, places: Ints, numbers: Floats) -> None:
    """v <- momentum v + g + decay x, x <- x - lr v, or Nesterov's step in the place of v."""
    lr, momentum, decay, nesterov = numbers[LR], numbers[MOMENTUM], numbers[DECAY], numbers[VARIANT] > _ZERO
    point, move, velocity = places[POINT], places[MOVE], places[ANCHOR]
    for j in range(places[SIZE]):
        g = work[move + j] + decay * work[point + j]
        v = momentum * work[velocity + j] + g
        work[velocity + j] = v
        work[point + j] -= lr * (g + momentum * v if nesterov else v)


@inlined
def _adam(work: Floats, places: Ints, numbers: Floats, taken: int) -> None:
    """Adam's step number ``taken``; with the variant AdamW's, whose decay is apart from the moments."""
    lr, decay, decoupled = numbers[LR], numbers[DECAY], numbers[VARIANT] > _ZERO
    first, second, eps = numbers[MOMENTUM], numbers[SECOND], numbers[EPS]
    point, move, mean, square = places[POINT], places[MOVE], places[ANCHOR], places[SQUARE]
    rate = np.float32(np.float64(lr) / (1.0 - np.float64(first) ** taken))
    root = np.float32(np.sqrt(1.0 - np.float64(second) ** taken))
    shrink = np.float32(1.0) - lr * decay
    for j in range(places[SIZE]):
        x, g = work[point + j], work[move + j]
        if decoupled:
            x *= shrink
        else:
            g += decay * x
        m = work[mean + j] + (np.float32(1.0) - first) * (g - work[mean + j])
        v = second * work[square + j] + (np.float32(1.0) - second) * g * g
        work[mean + j], work[square + j] = m, v
        work[point + j] = x - rate * m / (np.sqrt(v) / root + eps)


@kernel
def train_optimised(
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
    numbers: Floats,
    model: Floats,
    a: float,
    b: Floats,
    table: Ints,
    places: Ints,
    work: Floats,
    order: Order,
    faults: Ints,
    out: Floats,
) -> None:
    """SGD with all its options, or Adam (``numbers[SECOND]`` above 0), on the gradient of the whole objective."""
    pad(work, table, model, places[START])
    clear(work, places[SIZE], places[LINEAR])
    corrected = a != _ZERO or b.shape[0] > 0
    while True:
        lane = next_lane(queue, lanes, y, offsets, rows, places, faults)
        if lane < 0:
            break
        first = offsets[rows[lane]]
        samples = offsets[rows[lane] + 1] - first
        begin_lane(work, table, places, b, lane)
        clear(work, places[SIZE], places[ANCHOR])
        clear(work, places[SIZE], places[SQUARE])
        own, length, taken = client_key(key, clients[lane]), batch if batch > 0 else samples, 0
        for epoch in range(epochs[lane] if samples > 0 else 0):
            _arrange(own, epoch, samples, batch, order)
            for at in range(0, samples, length):
                count = min(length, samples - at)
                gradient(work, table, places, _ZERO, x, y, first, order, at, count, True)
                taken += 1
                if corrected:
                    _correct(work, places, a)
                if numbers[MOST] > _ZERO:
                    _scale_down(work, places, numbers[MOST])
                if numbers[SECOND] > _ZERO:
                    _adam(work, places, numbers, taken)
                else:
                    _sgd_options(work, places, numbers)
        unpad(work, table, places[POINT], out[lane])


@kernel
def train_moreau(
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
    numbers: Floats,
    model: Floats,
    a: float,
    b: Floats,
    table: Ints,
    places: Ints,
    work: Floats,
    order: Order,
    faults: Ints,
    out: Floats,
    private: Floats,
    inner_steps: int,
) -> None:
    """The Moreau envelope's gradient steps; ``numbers`` are lr lam, lam and inner_lr."""
    pad(work, table, model, places[START])
    clear(work, places[SIZE], places[LINEAR])
    corrected = a != _ZERO or b.shape[0] > 0
    by_gram = not corrected and gram_pays(table, inner_steps)
    while True:
        lane = next_lane(queue, lanes, y, offsets, rows, places, faults)
        if lane < 0:
            break
        first = offsets[rows[lane]]
        samples = offsets[rows[lane] + 1] - first
        begin_lane(work, table, places, b, lane)
        copy_vector(work, places[SIZE], places[START], places[ANCHOR])
        own, length = client_key(key, clients[lane]), batch if batch > 0 else samples
        for epoch in range(epochs[lane] if samples > 0 else 0):
            _arrange(own, epoch, samples, batch, order)
            for at in range(0, samples, length):
                count = min(length, samples - at)
                if by_gram and count <= TILE:
                    step_by_gram(work, table, places, numbers, x, y, first, order, at, count, inner_steps)
                else:
                    step_by_gradients(
                        work, table, places, numbers, a, corrected, x, y, first, order, at, count, inner_steps
                    )
        unpad(work, table, places[ANCHOR], out[lane])
        unpad(work, table, places[POINT], private[lane])
