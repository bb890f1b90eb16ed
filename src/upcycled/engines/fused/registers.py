"""How the kernels' own instructions are made: LLVM's vector type for Numba, and a decorator to register them.

A function that emits instructions becomes one that compiled code can call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
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
