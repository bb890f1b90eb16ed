"""The errors a user can meet: each is one sentence saying what is wrong, where, and what would be right."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable


class UpcycledError(Exception):
    """Base of every error this package raises on purpose."""


class InputError(UpcycledError, ValueError):
    """Something the caller gave is wrong (exit code 2 on the command line)."""


class DivergedError(UpcycledError, ArithmeticError):
    """The global model stopped being finite (exit code 1 on the command line)."""


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
    kind = "an integer" if integer else "a finite number"
    right = f"{kind} {wanted}".strip()
    ok = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if ok and integer:
        ok = float(value).is_integer()  # type: ignore[arg-type]
    if ok:
        number = float(value)  # type: ignore[arg-type]
        ok = (
            (above is None or number > above)
            and (at_least is None or number >= at_least)
            and (at_most is None or number <= at_most)
            and (below is None or number < below)
        )
    if not ok:
        raise InputError(f"{field} is {value!r}, but it must be {right}")
