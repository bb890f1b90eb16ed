"""Elementwise operations on vectors of float32 for compiled code, and how their instructions are made.

How the kernels' own instructions are made: LLVM's vector type for Numba, and a decorator to register them.

A function that emits instructions becomes one that compiled code can call.

Elementwise operations on vectors of float32, for compiled code.

Written out rather than left to the auto-vectoriser, which is several times slower on rows of twenty features and
needs fast-math to sum in parallel. Here every order of summation is fixed in the source, so the same bits come out
of every thread, and NaN and infinity go through everything.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from upcycled.engines.fused.workspace import LANES

Op: TypeAlias = Callable[..., Any]
"""A function of compiled code; Python only ever sees its name."""

F32 = ir.FloatType()
I32 = ir.IntType(32)
VEC = ir.VectorType(F32, LANES)
IVEC = ir.VectorType(I32, LANES)
F64 = ir.DoubleType()
HALF = LANES // 2
"""float64 numbers in a register of LANES float32 numbers."""
WIDE = ir.VectorType(F64, HALF)
# The one liberty LLVM has: to fuse a product into the sum after it.
_FUSE = ("contract",)


class _VectorType(types.Type):  # type: ignore[misc]
    """Numba's name for a register."""

    def __init__(self) -> None:
        super().__init__(name=f"float32x{LANES}")


class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    """A value of it is an LLVM vector."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, VEC)


register_model(_VectorType)(_VectorModel)

VECTOR = _VectorType()
INT = types.intp
REAL = types.float32
VOID = types.void
ARRAY = None
"""Stands for an array of any kind; the emitting function gets the address of its first element."""


def operation(result: Any, *kinds: Any) -> Callable[[Callable[..., Any]], Op]:
    """Register ``emit(builder, *values)`` as an operation on values of these kinds."""

    def register(emit: Callable[..., Any]) -> Op:
        # Numba reads the number of arguments from the signature, which ``wraps`` takes over: builder stands in the
        # place of the typing context.
        @wraps(emit)
        def typed(typing: Any, *given: Any) -> Any:
            actual = [g if kind is ARRAY else kind for g, kind in zip(given, kinds, strict=True)]

            def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                values = [
                    context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
                    for kind, value in zip(actual, args, strict=True)
                ]
                made = emit(builder, *values)
                return context.get_dummy_value() if made is None else made

            return result(*actual), lower

        made: Op = intrinsic(typed)
        return made

    return register


def fill(value: float) -> Any:
    return ir.Constant(VEC, [value] * LANES)


def spread(builder: Any, scalar: Any) -> Any:
    """Return a vector of one number."""
    empty = ir.Constant(ir.VectorType(scalar.type, LANES), ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(empty, scalar, I32(0)), empty, ir.Constant(IVEC, [0] * LANES))


def pick(builder: Any, x: Any, y: Any, places: list[int]) -> Any:
    """Return the numbers at these places of x and y laid end to end."""
    return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(places)), places))


def fused(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """Return x y + z."""
    return builder.fadd(builder.fmul(x, y, flags=_FUSE), z, flags=_FUSE)


def read(builder: Any, base: Any, at: Any) -> Any:
    """Return the vector that starts at an index; rows of features start anywhere, so nothing is assumed aligned."""
    value = builder.load(builder.bitcast(builder.gep(base, [at]), VEC.as_pointer()))
    value.align = 4
    return value


def widened(builder: Any, base: Any, at: Any) -> Any:
    """Return half a register of float32 numbers from an index on, as float64 numbers."""
    kind = ir.VectorType(F32, HALF)
    value = builder.load(builder.bitcast(builder.gep(base, [at]), kind.as_pointer()))
    value.align = 4
    return builder.fpext(value, WIDE)


def spread_wide(builder: Any, scalar: Any) -> Any:
    """Return a float64 vector of one number."""
    empty, places = ir.Constant(WIDE, ir.Undefined), ir.Constant(ir.VectorType(I32, HALF), [0] * HALF)
    return builder.shuffle_vector(builder.insert_element(empty, scalar, I32(0)), empty, places)


def write(builder: Any, value: Any, base: Any, at: Any) -> None:
    """Write a vector of any length to an index."""
    builder.store(value, builder.bitcast(builder.gep(base, [at]), value.type.as_pointer())).align = 4


def shifted(builder: Any, start: Any, stride: Any, count: int) -> Any:
    """Return start + count strides."""
    return builder.add(start, builder.mul(stride, ir.Constant(stride.type, count)))


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
