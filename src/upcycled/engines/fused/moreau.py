"""A step on the Moreau envelope: K gradient steps on one minibatch, then the step of x.

Every inner gradient of the first layer is D X, with the same rows X: after a step c theta + (1 - c) x - inner_lr D X,
with c = 1 - inner_lr lam, the layer's outputs are

    Z <- c Z + (1 - c) Z_x - inner_lr D G,    G = X X^T,

so wide rows are gone over three times in all (the outputs at theta, those at x, one sum of outer products at the end)
instead of twice in each inner step.
"""

from __future__ import annotations

import numpy as np

from upcycled.engines.fused.blocks import dots, outers
from upcycled.engines.fused.network import above, deltas, gather, gradient, products
from upcycled.engines.fused.simd import add, fma, load, mul, splat, store, sub
from upcycled.engines.fused.workspace import (
    ACTS,
    ANCHOR,
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
    START,
    SUMMED,
    TILE,
    Floats,
    Ints,
    Order,
)
from upcycled.support.kernel_cache import inlined

_ONE, _ZERO = np.float32(1.0), np.float32(0.0)


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
        gradient(work, table, places, _ZERO, x, y, first, order, at, count, inner == 0)
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
        products(work, table, 1, places[MOVE], _ZERO, count)
        inner_step(work, places, rest, places[SIZE], inner_lr, lam, _ZERO, False)
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
