"""Numbers and classes written as text, each value by itself: what one says never changes how another is read."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled.core.vectors import Real

_WORDS = {"true": 1.0, "false": 0.0}


def as_numbers(values: NDArray[Any]) -> Real:
    """Return values of any type as numbers, nan where one is none.

    >>> as_numbers(np.array(["3", " 2.5", "", "yes", "True"])).tolist()
    [3.0, 2.5, nan, nan, 1.0]
    """
    flat = values.reshape(-1).tolist()
    try:
        found = np.fromiter(map(float, flat), np.float64, len(flat))
    except (TypeError, ValueError, OverflowError):
        found = np.fromiter(map(_number, flat), np.float64, len(flat))
    return found.reshape(values.shape)


def class_numbers(values: NDArray[Any], names: tuple[str, ...]) -> Real:
    """Return the class of every name; of other values the number they are, and nan where they are none.

    >>> class_numbers(np.array(["yes", "no", "1", "maybe"]), ("no", "yes")).tolist()
    [1.0, 0.0, 1.0, nan]
    """
    known = {name: float(i) for i, name in enumerate(names)}
    flat = values.reshape(-1).tolist()
    found = (known[value] if isinstance(value, str) and value in known else _number(value) for value in flat)
    return np.fromiter(found, np.float64, len(flat)).reshape(values.shape)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return _WORDS.get(value.strip().lower(), np.nan) if isinstance(value, str) else np.nan
