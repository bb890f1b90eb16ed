"""Elementwise operations on vectors of float32, for compiled code.

Written out rather than left to the auto-vectoriser, which is several times slower on rows of twenty features and
needs fast-math to sum in parallel. Here every order of summation is fixed in the source, so the same bits come out
of every thread, and NaN and infinity go through everything.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils

from upcycled.engines.fused.registers import (
    ARRAY,
    F64,
    I32,
    INT,
    IVEC,
    REAL,
    VEC,
    VECTOR,
    VOID,
    fill,
    fused,
    operation,
    read,
    spread,
    write,
)
from upcycled.engines.fused.workspace import LANES

Vec: TypeAlias = Any
"""A vector in compiled code."""
Build: TypeAlias = Any
"""LLVM's instruction builder; the other arguments are LLVM values."""


@operation(VECTOR, ARRAY, INT)
def load(builder: Build, base: Any, at: Any) -> Any:
    """Return the vector at an index."""
    return read(builder, base, at)


@operation(VOID, ARRAY, INT, VECTOR)
def store(builder: Build, base: Any, at: Any, value: Any) -> None:
    """Write a vector to an index."""
    write(builder, value, base, at)


@operation(VECTOR, ARRAY, INT, INT, REAL)
def load_tail(builder: Build, base: Any, at: Any, count: Any, after: Any) -> Any:
    """Return ``count`` numbers (fewer than a vector), then ``after``, then zeros; touch nothing beyond the count."""
    place = ir.Constant(IVEC, list(range(LANES)))
    wanted = spread(builder, builder.trunc(count, I32))
    rest = builder.select(builder.icmp_signed("==", place, wanted), spread(builder, after), fill(0.0))
    mask = builder.icmp_signed("<", place, wanted)
    pointer = builder.bitcast(builder.gep(base, [at]), VEC.as_pointer())
    kind = ir.FunctionType(VEC, [pointer.type, I32, mask.type, VEC])
    masked = cgutils.get_or_insert_function(builder.module, kind, f"llvm.masked.load.v{LANES}f32.p0")
    return builder.call(masked, [pointer, I32(4), mask, rest])


@operation(VECTOR, REAL)
def splat(builder: Build, number: Any) -> Any:
    """Return a vector of one number."""
    return spread(builder, number)


@operation(VECTOR, VECTOR, VECTOR, VECTOR)
def fma(builder: Build, x: Any, y: Any, z: Any) -> Any:
    """Return x y + z."""
    return fused(builder, x, y, z)


@operation(VECTOR, VECTOR, VECTOR)
def add(builder: Build, x: Any, y: Any) -> Any:
    return builder.fadd(x, y)


@operation(VECTOR, VECTOR, VECTOR)
def sub(builder: Build, x: Any, y: Any) -> Any:
    return builder.fsub(x, y)


@operation(VECTOR, VECTOR, VECTOR)
def mul(builder: Build, x: Any, y: Any) -> Any:
    return builder.fmul(x, y)


@operation(VECTOR, VECTOR, VECTOR)
def divide(builder: Build, x: Any, y: Any) -> Any:
    return builder.fdiv(x, y)


@operation(VECTOR, VECTOR, VECTOR)
def larger(builder: Build, x: Any, y: Any) -> Any:
    """Return x where x > y, else y."""
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


@operation(VECTOR, VECTOR, REAL, VECTOR)
def where_equal(builder: Build, x: Any, number: Any, y: Any) -> Any:
    """Return y where x equals the number, else 0."""
    return builder.select(builder.fcmp_ordered("==", x, spread(builder, number)), y, fill(0.0))


@operation(VECTOR, VECTOR)
def exp(builder: Build, x: Any) -> Any:
    """Return e^x for x <= 0 to two units in the last place; below -87 it stays at e^-87, and NaN stays NaN.

    Cephes' expf: e^x = 2^n e^r with n = round(x / ln 2), ln 2 in two parts, and a polynomial in r.
    """
    floor = fill(-87.0)
    # n never comes from a NaN, whose conversion to an integer is undefined; r does, and carries it on.
    tame = builder.select(builder.fcmp_ordered(">", x, floor), x, floor)
    x = builder.select(builder.fcmp_ordered("<", x, floor), floor, x)
    kind = ir.FunctionType(VEC, [VEC])
    nearest = cgutils.get_or_insert_function(builder.module, kind, f"llvm.rint.v{LANES}f32")
    n = builder.call(nearest, [builder.fmul(tame, fill(1.44269504088896341))])
    r = fused(builder, n, fill(2.12194440e-4), fused(builder, n, fill(-0.693359375), x))
    p = fill(1.9875691500e-4)
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = fused(builder, p, r, fill(c))
    p = fused(builder, p, builder.fmul(r, r), builder.fadd(r, fill(1.0)))
    bits = builder.add(builder.fptosi(n, IVEC), ir.Constant(IVEC, [127] * LANES))
    return builder.fmul(p, builder.bitcast(builder.shl(bits, ir.Constant(IVEC, [23] * LANES)), VEC))


@operation(types.float64, types.float64)
def nearest(builder: Build, x: Any) -> Any:
    """Return the nearest whole number of a float64, the even one of two: one that LLVM can do several of at a time."""
    kind = ir.FunctionType(F64, [F64])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.rint.f64"), [x])


@operation(types.boolean, ARRAY)
def holds_labels(builder: Build, targets: Any) -> Any:
    """Return whether targets are whole numbers: known when a kernel is compiled, so the other way costs nothing."""
    return ir.Constant(ir.IntType(1), isinstance(targets.type.pointee, ir.IntType))


@operation(types.int64, ARRAY)
def take(builder: Build, counter: Any) -> Any:
    """Return counter[0] and add one to it, as one step that no other thread can come between."""
    return builder.atomic_rmw("add", counter, ir.Constant(ir.IntType(64), 1), "monotonic")
