"""Checked numbers and arrays: the accounting functions take one number, or one per client.

They return ``float | Floats``: a float if every argument is a single number, otherwise an array. A caller that passes
single numbers converts the result with ``float``; a caller that passes arrays converts it with ``np.asarray``.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from upcycled.core.errors import InputError, check_number

Floats: TypeAlias = NDArray[np.float64]


def numbers(
    field: str,
    value: ArrayLike,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    integer: bool = False,
) -> Floats:
    """Return ``value`` as float64 of its own shape, or raise :class:`InputError` naming the first wrong entry.

    >>> numbers("n", [224, 0], at_least=1, integer=True)
    Traceback (most recent call last):
    ...
    upcycled.core.errors.InputError: n[1] is 0, but it must be an integer >= 1
    """
    limits: dict[str, Any] = {"above": above, "at_least": at_least, "at_most": at_most, "below": below}
    try:
        raw = np.asarray(value)
    except ValueError:  # ragged lists
        raise InputError(field=field, value=value, must="a number or an array of numbers") from None
    if raw.dtype.kind not in "iuf":
        check_number(field, None if raw.dtype.kind == "O" and raw.ndim == 0 else value, integer=integer, **limits)
        raise InputError(field=field, value=value, must="a number or an array of numbers")
    array = raw.astype(np.float64)
    good = np.isfinite(array)
    if integer:
        good &= np.floor(array) == array
    for limit, holds in ((above, np.greater), (at_least, np.greater_equal), (at_most, np.less_equal), (below, np.less)):
        if limit is not None:
            good &= holds(array, limit)
    if not good.all():
        index = tuple(int(i) for i in np.argwhere(~good)[0])
        name = field + (f"[{', '.join(map(str, index))}]" if index else "")
        check_number(name, raw[index].item(), integer=integer, **limits)
    return array


def broadcast(**fields: Floats) -> tuple[Floats, ...]:
    """Return the arrays broadcast against one another; the error names the ones that do not fit.

    >>> broadcast(n=np.ones(3), noise_std=np.ones(2))
    Traceback (most recent call last):
    ...
    upcycled.core.errors.InputError: n has shape (3,), noise_std has shape (2,), but they must fit one another
    """
    try:
        return tuple(np.broadcast_arrays(*fields.values()))
    except ValueError:
        shapes = ", ".join(f"{name} has shape {array.shape}" for name, array in fields.items() if array.ndim)
        raise InputError(f"{shapes}, but they must fit one another") from None


def plain(result: Floats) -> float | Floats:
    """Return a float where only single numbers were given, the array otherwise."""
    return float(result) if np.ndim(result) == 0 else result
