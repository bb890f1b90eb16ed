"""A stack of Linear and ReLU on one tile of samples: outputs, deltas, gradient.

The slopes of a tile's cross-entropy in float64, vector by vector: compilers unroll loops over a tile, and miss that.

Nothing is fused or reordered here, whatever the function that calls it lets the compiler do: call it from one that lets
it do nothing.

Parameters lie padded in the work array: a row of weights, then its bias, then zeros up to whole vectors; samples and
activations carry a 1 in the place of the bias. So a bias is a weight like any other, and no loop has a remainder.
Outputs and deltas are one row per unit, one column per sample.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils

from upcycled._utils.compilation import compiled, inlined
from upcycled.engines.fused.blocks import dots, outers
from upcycled.engines.fused.simd import (
    ARRAY,
    F64,
    HALF,
    INT,
    VOID,
    WIDE,
    Vec,
    add,
    divide,
    exp,
    fma,
    holds_labels,
    larger,
    load,
    load_tail,
    mul,
    operation,
    splat,
    spread_wide,
    store,
    sub,
    where_equal,
)
from upcycled.engines.fused.workspace import (
    ACTS,
    BIAS,
    BINARY,
    DOUBLE_SOFTMAX,
    FLAT_BIAS,
    FLAT_WEIGHT,
    HUBER,
    INPUTS,
    LABELS,
    LANES,
    LOSS,
    MOVE,
    OUTPUTS,
    OUTS,
    PITCH,
    POINT,
    ROW,
    SQUARED,
    TARGETS,
    THRESHOLD,
    TILE,
    WEIGHTS,
    Floats,
    Ints,
    Order,
    Reals,
)

_SIDE_BY_SIDE = 4
"""Vectors whose chains of sums a core works on at once."""
_ROUNDS = 6755399441055744.0
"""1.5 2^52: what is added to it is rounded to a whole number."""
_LOG_2 = 6.93147180369123816490e-01, 1.90821492927058770002e-10
"""log 2 in two parts, as fdlibm has it."""
_SERIES = (
    1.6059043836821613e-10,
    2.08767569878681e-09,
    2.505210838544172e-08,
    2.755731922398589e-07,
    2.7557319223985893e-06,
    2.48015873015873e-05,
    1.984126984126984e-04,
    1.388888888888889e-03,
    8.333333333333333e-03,
    4.1666666666666664e-02,
    1.6666666666666666e-01,
    0.5,
)
"""1/13!, 1/12!, ..., 1/2!."""


def _all(value: float) -> Any:
    return ir.Constant(WIDE, [value] * HALF)


def _larger(builder: Any, x: Any, y: Any) -> Any:
    """Return the larger of both; x where either is no number."""
    return builder.select(builder.fcmp_ordered(">", y, x), y, x)


def _exponential(builder: Any, x: Any) -> Any:
    """Return e^x for x at most 0 within two units in the last place, and about 1e-307 instead of anything smaller.

    x = k log 2 + r with log 2 in two parts; e^r by its series, |r| <= log(2) / 2. What is no number stays none.
    """
    times, plus, minus = builder.fmul, builder.fadd, builder.fsub
    x = _larger(builder, x, _all(-706.0))
    k = minus(plus(times(x, _all(1.4426950408889634)), _all(_ROUNDS)), _all(_ROUNDS))
    r = minus(minus(x, times(k, _all(_LOG_2[0]))), times(k, _all(_LOG_2[1])))
    p = _all(_SERIES[0])
    for term in _SERIES[1:]:
        p = plus(times(p, r), _all(term))
    p = plus(_all(1.0), plus(r, times(times(r, r), p)))
    # The lowest bits of k + 1023 + 1.5 2^52 are the exponent of 2^k.
    whole = ir.VectorType(ir.IntType(64), HALF)
    bits = builder.shl(builder.bitcast(plus(k, _all(_ROUNDS + 1023)), whole), ir.Constant(whole, [52] * HALF))
    return times(p, builder.bitcast(bits, WIDE))


@operation(VOID, ARRAY, ARRAY, INT, INT)
def _slopes(builder: Any, scores: Any, labels: Any, at: Any, classes: Any) -> None:
    row, zero = ir.Constant(classes.type, TILE), ir.Constant(classes.type, 0)

    def places(base: Any, start: Any, first: int) -> list[Any]:
        steps = [ir.Constant(classes.type, (first + j) * HALF) for j in range(_SIDE_BY_SIDE)]
        return [builder.bitcast(builder.gep(base, [builder.add(start, s)]), WIDE.as_pointer()) for s in steps]

    def read(place: Any) -> Any:
        found = builder.load(place)
        found.align = 8
        return found

    for first in range(0, TILE // HALF, _SIDE_BY_SIDE):
        tops = [cgutils.alloca_once_value(builder, read(place)) for place in places(scores, zero, first)]
        with cgutils.for_range(builder, classes) as loop:
            for top, place in zip(tops, places(scores, builder.mul(loop.index, row), first), strict=True):
                builder.store(_larger(builder, builder.load(top), read(place)), top)
        sums = [cgutils.alloca_once_value(builder, _all(0.0)) for _ in tops]
        with cgutils.for_range(builder, classes) as loop:
            for top, sum_, place in zip(tops, sums, places(scores, builder.mul(loop.index, row), first), strict=True):
                found = _exponential(builder, builder.fsub(read(place), builder.load(top)))
                builder.store(found, place).align = 8
                builder.store(builder.fadd(builder.load(sum_), found), sum_)
        own = [read(place) for place in places(labels, at, first)]
        with cgutils.for_range(builder, classes) as loop:
            k = spread_wide(builder, builder.sitofp(loop.index, F64))
            for label, sum_, place in zip(own, sums, places(scores, builder.mul(loop.index, row), first), strict=True):
                share = builder.fdiv(read(place), builder.load(sum_))
                hit = builder.select(builder.fcmp_ordered("==", label, k), _all(1.0), _all(0.0))
                is_none = builder.fcmp_ordered("<", label, _all(0.0))
                builder.store(builder.select(is_none, _all(0.0), builder.fsub(share, hit)), place).align = 8


@compiled
def softmax_slopes(scores: Reals, labels: Reals, at: int, classes: int) -> None:
    """Put p - e_y in the place of a tile's logits, whose samples lie side by side, TILE in a row.

    Their labels lie in ``labels`` from ``at`` on; where one is below zero there is no sample, and zeros are put.
    """
    _slopes(scores, labels, at, classes)


_ONE, _ZERO = np.float32(1.0), np.float32(0.0)


@inlined
def pad(work: Floats, table: Ints, flat: Floats, to: int) -> None:
    """Write a flat vector into the work array in padded form."""
    for k in range(table.shape[0]):
        width = table[k, INPUTS]
        for i in range(table[k, OUTPUTS]):
            row, start = to + table[k, WEIGHTS] + i * table[k, PITCH], table[k, FLAT_WEIGHT] + i * width
            for j in range(width):
                work[row + j] = flat[start + j]
            for j in range(width, table[k, PITCH]):
                work[row + j] = _ZERO
            if table[k, BIAS]:
                work[row + width] = flat[table[k, FLAT_BIAS] + i]


@inlined
def unpad(work: Floats, table: Ints, source: int, flat: Floats) -> None:
    """Write padded parameters back as a flat vector."""
    for k in range(table.shape[0]):
        width = table[k, INPUTS]
        for i in range(table[k, OUTPUTS]):
            row, start = source + table[k, WEIGHTS] + i * table[k, PITCH], table[k, FLAT_WEIGHT] + i * width
            for j in range(width):
                flat[start + j] = work[row + j]
            if table[k, BIAS]:
                flat[table[k, FLAT_BIAS] + i] = work[row + width]


@inlined
def gather(
    work: Floats,
    table: Ints,
    places: Ints,
    x: Floats,
    y: Ints,
    first: int,
    order: Order,
    at: int,
    count: int,
) -> None:
    """Copy rows first + order[at], ... of the data into the first layer's input rows, and their targets as numbers."""
    width, row, acts = table[0, INPUTS], table[0, ROW], table[0, ACTS]
    labels, targets = places[LABELS], places[TARGETS]
    whole = width // LANES * LANES
    tail, one = table[0, PITCH] > whole, np.float32(table[0, BIAS])
    for s in range(count):
        source = first + order[at + s]
        if holds_labels(y):
            work[labels + s] = np.float32(y[source])
        else:
            for k in range(targets):
                work[labels + k * TILE + s] = np.float32(y[source * targets + k])
        start, to = source * width, acts + s * row
        for j in range(0, whole, LANES):
            store(work, to + j, load(x, start + j))
        if tail:
            store(work, to + whole, load_tail(x, start + whole, width - whole, one))


@inlined
def forward(work: Floats, table: Ints, theta: int, count: int) -> None:
    """Compute the outputs of every layer for the gathered samples; the logits are the last layer's outputs."""
    _outputs(work, table, theta, 0, count)
    above(work, table, theta, count)


@inlined
def above(work: Floats, table: Ints, theta: int, count: int) -> None:
    """Compute the outputs of every layer above the first from those of the first."""
    for k in range(1, table.shape[0]):
        outs, acts, row = table[k - 1, OUTS], table[k, ACTS], table[k, ROW]
        for s in range(count):
            for i in range(table[k - 1, OUTPUTS]):
                z = work[outs + i * TILE + s]
                # Written so that a NaN is passed on.
                work[acts + s * row + i] = _ZERO if z <= _ZERO else z
        _outputs(work, table, theta, k, count)


@inlined
def _outputs(work: Floats, table: Ints, theta: int, k: int, count: int) -> None:
    weights, pitch, outputs = theta + table[k, WEIGHTS], table[k, PITCH], table[k, OUTPUTS]
    dots(work, table[k, OUTS], TILE, weights, pitch, table[k, ACTS], table[k, ROW], outputs, count, pitch)


@inlined
def exponentials(work: Floats, table: Ints, s: int) -> tuple[Vec, Vec]:
    """Turn the logits of one vector of samples into exp(z - max); return the max and the sum of the exponentials."""
    last = table.shape[0] - 1
    logits, classes = table[last, OUTS] + s, table[last, OUTPUTS]
    top = load(work, logits)
    for k in range(1, classes):
        top = larger(load(work, logits + k * TILE), top)
    total = splat(_ZERO)
    for k in range(classes):
        e = exp(sub(load(work, logits + k * TILE), top))
        store(work, logits + k * TILE, e)
        total = add(total, e)
    return top, total


@inlined
def _by_logits(work: Floats, table: Ints, labels: int, count: int, weight: float) -> None:
    """Turn logits into weight times the derivative of the samples' cross-entropies by them."""
    last = table.shape[0] - 1
    share = splat(np.float32(weight))
    for s in range(0, count, LANES):
        _, total = exponentials(work, table, s)
        scale, label = divide(share, total), load(work, labels + s)
        for k in range(table[last, OUTPUTS]):
            at = table[last, OUTS] + k * TILE + s
            minus = sub(splat(_ZERO), where_equal(label, np.float32(k), share))
            store(work, at, fma(scale, load(work, at), minus))


@inlined
def _by_probabilities(work: Floats, table: Ints, labels: int, count: int, weight: float) -> None:
    """Turn logits into weight times the derivative of the cross-entropies of their probabilities taken for logits.

    With p = softmax(z) and g = softmax(p) - e_y it is p_k (g_k - sum_j p_j g_j).
    """
    last = table.shape[0] - 1
    outs, classes = table[last, OUTS], table[last, OUTPUTS]
    share, one = splat(np.float32(weight)), splat(_ONE)
    for s in range(0, count, LANES):
        _, total = exponentials(work, table, s)
        scale, label = divide(one, total), load(work, labels + s)
        outer = splat(_ZERO)  # of exp(p), which is between 1 and e
        for k in range(classes):
            p = mul(scale, load(work, outs + k * TILE + s))
            store(work, outs + k * TILE + s, p)
            outer = add(outer, exp(p))
        inverse, mean = divide(one, outer), splat(_ZERO)
        for k in range(classes):
            p = load(work, outs + k * TILE + s)
            g = sub(mul(inverse, exp(p)), where_equal(label, np.float32(k), one))
            mean = fma(p, g, mean)
        for k in range(classes):
            p = load(work, outs + k * TILE + s)
            g = sub(mul(inverse, exp(p)), where_equal(label, np.float32(k), one))
            store(work, outs + k * TILE + s, mul(share, mul(p, sub(g, mean))))


@inlined
def _by_outputs(work: Floats, table: Ints, places: Ints, count: int, weight: float) -> None:
    """Turn outputs into weight times the derivative of the samples' other losses by them."""
    last, loss = table.shape[0] - 1, places[LOSS]
    outputs = table[last, OUTPUTS]
    scale = np.float32(weight) / np.float32(outputs)
    share, zero = splat(scale + scale if loss == SQUARED else scale), splat(_ZERO)
    least = splat(-work[places[THRESHOLD]])
    for k in range(outputs):
        for s in range(0, count, LANES):
            at = table[last, OUTS] + k * TILE + s
            z, target = load(work, at), load(work, places[LABELS] + k * TILE + s)
            if loss == BINARY:
                # e^min(z, 0) and e^min(-z, 0): their shares are the two probabilities, and neither overflows.
                up, down = exp(sub(z, larger(z, zero))), exp(sub(sub(zero, z), larger(sub(zero, z), zero)))
                away = sub(divide(up, add(up, down)), target)
            else:
                away = sub(z, target)
                if loss == HUBER:
                    cut = sub(zero, larger(sub(zero, larger(away, least)), least))
                    # The difference is 0, or NaN where the model has stopped being finite.
                    away = add(cut, sub(away, away))
            store(work, at, mul(share, away))


@inlined
def deltas(work: Floats, table: Ints, places: Ints, y: Ints, theta: int, count: int, weight: float) -> None:
    """Turn every layer's outputs into weight times the derivative of the samples' losses by them."""
    last = table.shape[0] - 1
    if holds_labels(y):
        _by_logits(work, table, places[LABELS], count, weight)
    elif places[LOSS] == DOUBLE_SOFTMAX:
        _by_probabilities(work, table, places[LABELS], count, weight)
    else:
        _by_outputs(work, table, places, count, weight)
    columns = -(-count // LANES) * LANES
    for k in range(last, 0, -1):
        out, units = table[k - 1, OUTS], table[k, INPUTS]
        above, pitch, outputs = theta + table[k, WEIGHTS], table[k, PITCH], table[k, OUTPUTS]
        outers(work, out, TILE, _ZERO, above, 1, pitch, table[k, OUTS], TILE, units, columns, outputs)
        acts, row = table[k, ACTS], table[k, ROW]
        for s in range(count):
            for i in range(units):
                # Written so that no branch depends on the data: every second one would be guessed wrong.
                d = work[out + i * TILE + s]
                work[out + i * TILE + s] = _ZERO if work[acts + s * row + i] == _ZERO else d


@inlined
def products(work: Floats, table: Ints, begin: int, out: int, keep: float, count: int) -> None:
    """From layer ``begin`` on, out <- keep out + the products of deltas and inputs, summed over the samples."""
    for k in range(begin, table.shape[0]):
        to, pitch, outputs = out + table[k, WEIGHTS], table[k, PITCH], table[k, OUTPUTS]
        outers(work, to, pitch, keep, table[k, OUTS], TILE, 1, table[k, ACTS], table[k, ROW], outputs, pitch, count)


@inlined
def gradient(
    work: Floats,
    table: Ints,
    places: Ints,
    keep: float,
    x: Floats,
    y: Ints,
    first: int,
    order: Order,
    start: int,
    count: int,
    fresh: bool,
) -> None:
    """MOVE <- keep MOVE + the gradient at POINT of the mean loss over samples order[start : start + count].

    ``fresh`` says that the samples differ from the last call's: a tile that is still there is not gathered again.
    """
    theta, out = places[POINT], places[MOVE]
    weight = _ONE / np.float32(count)
    for at in range(start, start + count, TILE):
        here = min(TILE, start + count - at)
        if fresh or count > TILE:
            gather(work, table, places, x, y, first, order, at, here)
        forward(work, table, theta, here)
        deltas(work, table, places, y, theta, here, weight)
        kept = keep if at == start else _ONE
        products(work, table, 0, out, kept, here)
