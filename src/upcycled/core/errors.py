"""The errors a user can meet: each is one sentence saying what is wrong, where, and what would be right."""

from __future__ import annotations

import difflib
import math
import numbers
import operator
from collections.abc import Iterable
from typing import Any


class UpcycledError(Exception):
    """Base of every error this package raises on purpose."""


class InputError(UpcycledError, ValueError):
    """Something the caller gave is wrong (exit code 2 on the command line)."""


class DivergedError(UpcycledError, ArithmeticError):
    """The global model stopped being finite (exit code 1 on the command line)."""


class BudgetSpentError(UpcycledError):
    """No client is left that may pay for another data round (exit code 1 on the command line)."""


def suggest(word: str, options: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'? (known: ...)"`` for a misspelt word.

    >>> suggest("fedporx", ["fedavg", "fedprox"])
    "; did you mean 'fedprox'? (known: fedavg, fedprox)"
    """
    known = list(options)
    near = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.5)
    hint = f"; did you mean '{near[0]}'?" if near else ";"
    return f"{hint} (known: {', '.join(known)})"


def check_number(
    field: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    integer: bool = False,
) -> None:
    """Raise :class:`InputError` unless ``value`` is a finite number within the stated range.

    >>> check_number("lr", 0.1, above=0)
    >>> check_number("lr", -1, above=0)
    Traceback (most recent call last):
    ...
    upcycled.core.errors.InputError: lr is -1, but it must be a finite number > 0
    """
    limits = [(">", above), (">=", at_least), ("<=", at_most), ("<", below)]
    wanted = " and ".join(f"{sign} {limit:g}" for sign, limit in limits if limit is not None)
    right = f"{'an integer' if integer else 'a finite number'} {wanted}".strip()
    kind = numbers.Integral if integer else numbers.Real
    if isinstance(value, bool) or not isinstance(value, kind) or not _is_finite(value) or not _within(value, limits):
        raise InputError(f"{field} is {_shown(value)}, but it must be {right}")


def _shown(value: object) -> str:
    try:
        return repr(value)
    except ValueError:  # Python does not write out integers of more than 4300 digits
        return "a number of more than 4300 digits"


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond every float: nothing here is meant to be that large
        return False


def _within(value: Any, limits: list[tuple[str, float | None]]) -> bool:
    compare = {">": operator.gt, ">=": operator.ge, "<=": operator.le, "<": operator.lt}
    return all(limit is None or compare[sign](value, limit) for sign, limit in limits)
