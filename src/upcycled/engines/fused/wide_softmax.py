"""The slopes of a tile's cross-entropy in float64, vector by vector: compilers unroll loops over a tile, and miss that.

Nothing is fused or reordered here, whatever the function that calls it lets the compiler do: call it from one that lets
it do nothing.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils

from upcycled.engines.fused.registers import ARRAY, F64, HALF, INT, VOID, WIDE, operation, spread_wide
from upcycled.engines.fused.workspace import TILE, Reals
from upcycled.support.kernel_cache import compiled

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
