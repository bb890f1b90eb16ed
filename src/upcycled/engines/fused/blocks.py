"""The loops all matrix work is made of, each keeping a block of sums in registers.

``dots``: rows against rows, summed along both (the outputs of a layer). ``outers``: sums of outer products (the
gradients of the weights, the deltas of the layer below); ``listed_outers``: the same in float64, where many factors are
zero. Everything lies in flat arrays, matrices are named
by the place of their first number and the distance between rows. On layers of the usual sizes this keeps up with
BLAS, and one call takes a layer's gradient and the momentum in the same pass.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils

from upcycled._utils.compilation import compiled
from upcycled.engines.fused.simd import (
    ARRAY,
    F32,
    HALF,
    INT,
    REAL,
    VOID,
    WIDE,
    Op,
    fill,
    fused,
    operation,
    pick,
    read,
    shifted,
    spread,
    spread_wide,
    widened,
    write,
)
from upcycled.engines.fused.workspace import LANES, TILE, Floats, Ints, Reals

_PANEL = 128
"""Columns that ``outers`` stays in for all rows: a tile of samples of that width fits the first cache level."""
DEPTH = 2 * TILE
"""Samples that ``listed_outers`` sums over at most."""


def _sums(builder: Any, vectors: list[Any]) -> Any:
    """Return the sums of eight vectors as a vector of eight: a tree of pairwise sums."""

    def halved(x: Any, y: Any) -> Any:
        even = pick(builder, x, y, [0, 2, 8, 10, 4, 6, 12, 14])
        odd = pick(builder, x, y, [1, 3, 9, 11, 5, 7, 13, 15])
        return builder.fadd(even, odd)

    if LANES == 16:
        low, high = list(range(8)), list(range(8, 16))
        vectors = [builder.fadd(pick(builder, v, v, low), pick(builder, v, v, high)) for v in vectors]
    twos = [halved(vectors[i], vectors[i + 1]) for i in (0, 2, 4, 6)]
    x, y = halved(twos[0], twos[1]), halved(twos[2], twos[3])
    low, high = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
    return builder.fadd(pick(builder, x, y, low), pick(builder, x, y, high))


def _dot_block(rows: int) -> Op:
    """Make the block of ``rows`` left rows against 8 / rows right rows."""
    samples = 8 // rows

    @operation(VOID, ARRAY, INT, INT, INT, INT, INT, INT, INT)
    def block(
        builder: Any,
        base: Any,
        out: Any,
        out_row: Any,
        left: Any,
        left_row: Any,
        right: Any,
        right_row: Any,
        width: Any,
    ) -> None:
        sums = [cgutils.alloca_once_value(builder, fill(0.0)) for _ in range(8)]
        first, step = ir.Constant(width.type, 0), ir.Constant(width.type, LANES)
        with cgutils.for_range_slice(builder, first, width, step) as (at, _):
            lefts = [read(builder, base, builder.add(shifted(builder, left, left_row, i), at)) for i in range(rows)]
            for j in range(samples):
                value = read(builder, base, builder.add(shifted(builder, right, right_row, j), at))
                for i in range(rows):
                    place = sums[i * samples + j]
                    builder.store(fused(builder, lefts[i], value, builder.load(place)), place)
        eight = _sums(builder, [builder.load(place) for place in sums])
        for i in range(rows):
            part = pick(builder, eight, eight, list(range(i * samples, (i + 1) * samples)))
            write(builder, part, base, shifted(builder, out, out_row, i))

    return block


def _outer_block(rows: int, vectors: int) -> Op:
    """Make the block of ``rows`` rows by ``vectors`` vectors."""

    @operation(VOID, ARRAY, INT, INT, REAL, INT, INT, INT, INT, INT, INT)
    def block(
        builder: Any,
        base: Any,
        out: Any,
        out_row: Any,
        keep: Any,
        left: Any,
        left_row: Any,
        left_step: Any,
        right: Any,
        right_step: Any,
        depth: Any,
    ) -> None:
        sums = [[cgutils.alloca_once_value(builder, fill(0.0)) for _ in range(vectors)] for _ in range(rows)]
        lanes = ir.Constant(depth.type, LANES)
        with cgutils.for_range(builder, depth) as loop:
            start = builder.add(right, builder.mul(loop.index, right_step))
            values = [read(builder, base, shifted(builder, start, lanes, j)) for j in range(vectors)]
            number = builder.add(left, builder.mul(loop.index, left_step))
            for i in range(rows):
                factor = spread(builder, builder.load(builder.gep(base, [shifted(builder, number, left_row, i)])))
                for place, value in zip(sums[i], values, strict=True):
                    builder.store(fused(builder, factor, value, builder.load(place)), place)
        # As in BLAS, keep = 0 does not look at what was there: stale numbers could be NaN.
        forget = spread(builder, builder.fcmp_ordered("==", keep, ir.Constant(F32, 0.0)))
        factor = spread(builder, keep)
        for i in range(rows):
            row = shifted(builder, out, out_row, i)
            for j in range(vectors):
                at, total = shifted(builder, row, lanes, j), builder.load(sums[i][j])
                kept = fused(builder, factor, read(builder, base, at), total)
                write(builder, builder.select(forget, total, kept), base, at)

    return block


def _listed_block(vectors: int) -> Op:
    """Make the block of one row by ``vectors`` vectors of float64 sums, over the products that are listed."""

    @operation(VOID, ARRAY, INT, types.boolean, ARRAY, ARRAY, INT, INT, ARRAY, INT)
    def block(
        builder: Any,
        sums: Any,
        out: Any,
        adds: Any,
        factors: Any,
        slots: Any,
        first: Any,
        count: Any,
        rights: Any,
        right: Any,
    ) -> None:
        half, zero = ir.Constant(count.type, HALF), ir.Constant(WIDE, [0.0] * HALF)
        totals = [cgutils.alloca_once_value(builder, zero) for _ in range(vectors)]

        def address(base: Any, at: Any, j: int) -> Any:
            return builder.bitcast(builder.gep(base, [shifted(builder, at, half, j)]), WIDE.as_pointer())

        with cgutils.for_range(builder, count) as loop:
            at = builder.add(first, loop.index)
            factor = spread_wide(builder, builder.load(builder.gep(factors, [at])))
            start = builder.add(right, builder.load(builder.gep(slots, [at])))
            for j, place in enumerate(totals):
                value = builder.load(address(rights, start, j))
                value.align = 8
                builder.store(fused(builder, factor, value, builder.load(place)), place)
        with builder.if_then(adds):
            for j, place in enumerate(totals):
                before = builder.load(address(sums, out, j))
                before.align = 8
                builder.store(builder.fadd(before, builder.load(place)), place)
        for j, place in enumerate(totals):
            builder.store(builder.load(place), address(sums, out, j)).align = 8

    return block


@operation(VOID, ARRAY, INT, INT, ARRAY, INT, ARRAY, INT, INT)
def wide_dots(
    builder: Any, out: Any, at: Any, rows: Any, lefts: Any, left: Any, rights: Any, right: Any, right_row: Any
) -> None:
    """out[at + i] += the float64 dot of TILE numbers from ``left`` with those of row i from ``right``, for all rows.

    Four rows at a time, so that their sums within registers are one tree; ``rows`` is a multiple of four.
    """
    vectors, four = TILE // HALF, ir.Constant(rows.type, 4)

    def vector(base: Any, place: Any) -> Any:
        found = builder.load(builder.bitcast(builder.gep(base, [place]), WIDE.as_pointer()))
        found.align = 8
        return found

    with cgutils.for_range_slice(builder, ir.Constant(rows.type, 0), rows, four) as (i, _):
        first = builder.add(right, builder.mul(i, right_row))
        totals = [ir.Constant(WIDE, [0.0] * HALF)] * 4
        for j in range(vectors):
            shift = ir.Constant(rows.type, j * HALF)
            factor = vector(lefts, builder.add(left, shift))
            for k in range(4):
                value = vector(rights, builder.add(shifted(builder, first, right_row, k), shift))
                totals[k] = fused(builder, factor, value, totals[k])
        sums = _wide_sums(builder, totals)
        place = builder.bitcast(builder.gep(out, [builder.add(at, i)]), sums.type.as_pointer())
        before = builder.load(place)
        before.align = 8
        builder.store(builder.fadd(before, sums), place).align = 8


def _wide_sums(builder: Any, vectors: list[Any]) -> Any:
    """Return the sums of four float64 vectors as a vector of four."""
    while vectors[0].type.count > 4:
        half = vectors[0].type.count // 2
        vectors = [
            builder.fadd(pick(builder, v, v, list(range(half))), pick(builder, v, v, list(range(half, 2 * half))))
            for v in vectors
        ]

    def halved(x: Any, y: Any) -> Any:
        return builder.fadd(pick(builder, x, y, [0, 4, 2, 6]), pick(builder, x, y, [1, 5, 3, 7]))

    x, y = halved(vectors[0], vectors[1]), halved(vectors[2], vectors[3])
    return builder.fadd(pick(builder, x, y, [0, 1, 4, 5]), pick(builder, x, y, [2, 3, 6, 7]))


@operation(types.float64, ARRAY, INT, INT)
def square_sum(builder: Any, base: Any, at: Any, width: Any) -> Any:
    """Return the sum of the squares of ``width`` numbers (whole vectors) in float64, always in the same order."""
    totals = [cgutils.alloca_once_value(builder, ir.Constant(WIDE, [0.0] * HALF)) for _ in range(2)]
    first, step = ir.Constant(width.type, 0), ir.Constant(width.type, LANES)
    with cgutils.for_range_slice(builder, first, width, step) as (j, _):
        for i, place in enumerate(totals):
            value = widened(builder, base, builder.add(builder.add(at, j), ir.Constant(width.type, i * HALF)))
            builder.store(fused(builder, value, value, builder.load(place)), place)
    both = builder.fadd(builder.load(totals[0]), builder.load(totals[1]))
    total = builder.extract_element(both, ir.IntType(32)(0))
    for i in range(1, HALF):
        total = builder.fadd(total, builder.extract_element(both, ir.IntType(32)(i)))
    return total


_dots_1, _dots_2 = _dot_block(1), _dot_block(2)
_outers_1x1, _outers_2x1, _outers_2x3 = _outer_block(1, 1), _outer_block(2, 1), _outer_block(2, 3)
_outers_6x1, _outers_6x2 = _outer_block(6, 1), _outer_block(6, 2)
_listed_2, _listed_4 = _listed_block(2), _listed_block(4)
_listed_6, _listed_12 = _listed_block(6), _listed_block(12)
listed_tile = _listed_block(TILE // HALF)
"""A tile's row of float64 sums, over the products that are listed."""


@compiled
def dots(
    work: Floats,
    out: int,
    out_row: int,
    left: int,
    left_row: int,
    right: int,
    right_row: int,
    rows: int,
    samples: int,
    width: int,
) -> None:
    """out[i, j] <- <left[i], right[j]>, for i < rows and j < samples rounded up to a multiple of 8."""
    i = 0
    while i + 2 <= rows:
        o, f = out + i * out_row, left + i * left_row
        for j in range(0, samples, 4):
            _dots_2(work, o + j, out_row, f, left_row, right + j * right_row, right_row, width)
        i += 2
    if i < rows:
        o, f = out + i * out_row, left + i * left_row
        for j in range(0, samples, 8):
            _dots_1(work, o + j, out_row, f, left_row, right + j * right_row, right_row, width)


@compiled
def outers(
    work: Floats,
    out: int,
    out_row: int,
    keep: float,
    left: int,
    left_row: int,
    left_step: int,
    right: int,
    right_step: int,
    rows: int,
    width: int,
    depth: int,
) -> None:
    """out[i, j] <- keep out[i, j] + sum_k left[i, k] right[k, j], for i < rows and j < width (whole vectors).

    left[i, k] lies at left + i left_row + k left_step, right[k, j] at right + k right_step + j.
    """
    for panel in range(0, width, _PANEL):
        end = min(width, panel + _PANEL)
        i = 0
        while i + 6 <= rows:
            o, f, j = out + i * out_row, left + i * left_row, panel
            while j + 2 * LANES <= end:
                _outers_6x2(work, o + j, out_row, keep, f, left_row, left_step, right + j, right_step, depth)
                j += 2 * LANES
            if j < end:
                _outers_6x1(work, o + j, out_row, keep, f, left_row, left_step, right + j, right_step, depth)
            i += 6
        while i + 2 <= rows:
            o, f, j = out + i * out_row, left + i * left_row, panel
            while j + 3 * LANES <= end:
                _outers_2x3(work, o + j, out_row, keep, f, left_row, left_step, right + j, right_step, depth)
                j += 3 * LANES
            while j < end:
                _outers_2x1(work, o + j, out_row, keep, f, left_row, left_step, right + j, right_step, depth)
                j += LANES
            i += 2
        if i < rows:
            o, f = out + i * out_row, left + i * left_row
            for j in range(panel, end, LANES):
                _outers_1x1(work, o + j, out_row, keep, f, left_row, left_step, right + j, right_step, depth)


@compiled
def listed_outers(
    sums: Reals,
    out: int,
    out_row: int,
    adds: bool,
    factors: Reals,
    slots: Ints,
    listed: int,
    counts: Ints,
    first: int,
    last: int,
    rights: Reals,
    right: int,
    width: int,
) -> None:
    """sums[i] <- sum_k factor[i, k] rights[slot[i, k]] in float64, for i = first .. last; on top of it if ``adds``.

    Row i has counts[i] products, listed from ``listed + i (DEPTH + 1)`` on; a slot is where its right factor begins,
    from ``right`` on. Deltas below a ReLU are zero for every other sample: they are in no list, and cost nothing.
    """
    for panel in range(0, width, 6 * LANES):
        end = min(width, panel + 6 * LANES)
        for i in range(first, last):
            o, f, count = out + (i - first) * out_row, listed + i * (DEPTH + 1), counts[i]
            if end - panel == 6 * LANES:
                _listed_12(sums, o + panel, adds, factors, slots, f, count, rights, right + panel)
                continue
            j = panel
            while j + 3 * LANES <= end:
                _listed_6(sums, o + j, adds, factors, slots, f, count, rights, right + j)
                j += 3 * LANES
            while j + 2 * LANES <= end:
                _listed_4(sums, o + j, adds, factors, slots, f, count, rights, right + j)
                j += 2 * LANES
            if j < end:
                _listed_2(sums, o + j, adds, factors, slots, f, count, rights, right + j)
