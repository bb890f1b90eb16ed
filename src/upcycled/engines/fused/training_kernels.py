"""The local solvers: what a lane (one client in one round) does with its gradients, and the loops over lanes.

A step on the Moreau envelope: K gradient steps on one minibatch, then the step of x.

Every inner gradient of the first layer is D X, with the same rows X: after a step c theta + (1 - c) x - inner_lr D X,
with c = 1 - inner_lr lam, the layer's outputs are

    Z <- c Z + (1 - c) Z_x - inner_lr D G,    G = X X^T,

so wide rows are gone over three times in all (the outputs at theta, those at x, one sum of outer products at the end)
instead of twice in each inner step.

Threads call a kernel with the same counter and lanes, longest lane first, and each takes the next lane when it is done
with one; a lane touches nothing of another, so the results do not depend on who did what. A further solver is one
more kernel here and one more row in ``engine.py``.
"""

from __future__ import annotations

import numpy as np

from upcycled._utils.compilation import inlined, kernel
from upcycled.engines.fused.blocks import dots, outers
from upcycled.engines.fused.network import above, deltas, gather, gradient, pad, products, unpad
from upcycled.engines.fused.simd import add, fma, load, mul, splat, store, sub, take
from upcycled.engines.fused.workspace import (
    ACTS,
    ANCHOR,
    CLASSES,
    DRIVEN,
    GRAM,
    LANES,
    LINEAR,
    MOVE,
    OUTPUTS,
    OUTS,
    PITCH,
    POINT,
    PULLED,
    ROW,
    SIZE,
    SQUARE,
    START,
    SUMMED,
    TILE,
    Floats,
    Ints,
    Order,
    client_key,
    shuffle,
)

_ONE, _NO_SUM = np.float32(1.0), np.float32(0.0)


@inlined
def gram_pays(table: Ints, inner_steps: int) -> bool:
    """Whether the Gram matrix saves more products per sample than it and the driven outputs cost."""
    width, units = table[0, PITCH], table[0, OUTPUTS]
    return bool((2 * inner_steps - 3) * width * units > TILE * (width + inner_steps * units))


@inlined
def inner_step(
    work: Floats, places: Ints, begin: int, end: int, inner_lr: float, lam: float, a: float, corrected: bool
) -> None:
    """theta <- theta - inner_lr (g + lam (theta - x) + a (theta - w) + b), for parameters ``begin`` to ``end``."""
    point, move, start, linear, anchor = places[POINT], places[MOVE], places[START], places[LINEAR], places[ANCHOR]
    down, pull, slope = splat(np.float32(-inner_lr)), splat(np.float32(lam)), splat(np.float32(a))
    for j in range(begin, end, LANES):
        theta = load(work, point + j)
        g = fma(pull, sub(theta, load(work, anchor + j)), load(work, move + j))
        if corrected:
            g = add(fma(slope, sub(theta, load(work, start + j)), g), load(work, linear + j))
        store(work, point + j, fma(down, g, theta))


@inlined
def outer_step(work: Floats, places: Ints, begin: int, rate: float) -> None:
    """x <- x - rate (x - theta), from the parameter ``begin`` on."""
    point, anchor, down = places[POINT], places[ANCHOR], splat(np.float32(-rate))
    for j in range(begin, places[SIZE], LANES):
        x = load(work, anchor + j)
        store(work, anchor + j, fma(down, sub(x, load(work, point + j)), x))


@inlined
def step_by_gradients(
    work: Floats,
    table: Ints,
    places: Ints,
    numbers: Floats,
    a: float,
    corrected: bool,
    x: Floats,
    y: Ints,
    first: int,
    order: Order,
    at: int,
    count: int,
    inner_steps: int,
) -> None:
    """Do one step as the definition reads; ``numbers`` are lr lam, lam and inner_lr."""
    for inner in range(inner_steps):
        gradient(work, table, places, _NO_SUM, x, y, first, order, at, count, inner == 0)
        inner_step(work, places, 0, places[SIZE], numbers[2], numbers[1], a, corrected)
    outer_step(work, places, 0, numbers[0])


@inlined
def step_by_gram(
    work: Floats,
    table: Ints,
    places: Ints,
    numbers: Floats,
    x: Floats,
    y: Ints,
    first: int,
    order: Order,
    at: int,
    count: int,
    inner_steps: int,
) -> None:
    """Do the same for at most a tile of samples and no correction, the first layer by its outputs."""
    rate, lam, inner_lr = numbers[0], numbers[1], numbers[2]
    pull = inner_lr * lam
    keep = np.float32(_ONE - pull)
    units, pitch, acts, row, outs = table[0, OUTPUTS], table[0, PITCH], table[0, ACTS], table[0, ROW], table[0, OUTS]
    theta, anchor, gram = places[POINT], places[ANCHOR], places[GRAM]
    pulled, driven, summed = places[PULLED], places[DRIVEN], places[SUMMED]
    columns, rest = -(-count // LANES) * LANES, units * pitch
    gather(work, table, places, x, y, first, order, at, count)
    dots(work, driven, TILE, theta, pitch, acts, row, units, count, pitch)
    dots(work, pulled, TILE, anchor, pitch, acts, row, units, count, pitch)
    dots(work, gram, TILE, acts, row, acts, row, count, count, pitch)
    down, towards, kept = splat(np.float32(-inner_lr)), splat(np.float32(pull)), splat(keep)
    for i in range(count):
        for s in range(0, columns, LANES):
            store(work, gram + i * TILE + s, mul(down, load(work, gram + i * TILE + s)))
    decay = _ONE
    for inner in range(inner_steps):
        for j in range(0, units * TILE, LANES):
            store(work, outs + j, load(work, driven + j))
        above(work, table, theta, count)
        deltas(work, table, places, y, theta, count, _ONE / np.float32(count))
        products(work, table, 1, places[MOVE], _NO_SUM, count)
        inner_step(work, places, rest, places[SIZE], inner_lr, lam, _NO_SUM, False)
        outers(work, driven, TILE, keep, outs, TILE, 1, gram, TILE, units, columns, count)
        for i in range(units):
            for s in range(i * TILE, i * TILE + columns, LANES):
                store(work, driven + s, fma(towards, load(work, pulled + s), load(work, driven + s)))
                new = mul(down, load(work, outs + s))
                # What the minibatch before left there is not looked at: it could be NaN.
                if inner > 0:
                    new = fma(kept, load(work, summed + s), new)
                store(work, summed + s, new)
        decay *= keep
    outers(work, theta, pitch, decay, summed, TILE, 1, acts, row, units, pitch, count)
    to_x, on = splat(np.float32(_ONE - decay)), splat(np.float32(-rate))
    for j in range(0, rest, LANES):
        point = load(work, anchor + j)
        moved = fma(to_x, point, load(work, theta + j))
        store(work, theta + j, moved)
        store(work, anchor + j, fma(on, sub(point, moved), point))
    outer_step(work, places, rest, rate)


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
