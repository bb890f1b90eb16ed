"""How far an upcycled iteration goes: scheduled coefficients, and rules that set it from what was released already.

All of it is post-processing of releases: free of data, messages and privacy cost. To add one: a frozen dataclass with
``coefficient_at`` (a schedule), or with what :class:`~upcycled.core.upcycling.Rule` lists (a rule), in a file of its
own, and its line in ``COEFFICIENTS``.

What ``upcycle=`` may be: the coefficients and rules by the names that files have for them.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

from upcycled.coefficients.scheduled import (
    Auto,
    Coefficient,
    Constant,
    Decaying,
    LambdaHalf,
    Proximal,
    ScalarRule,
    Schedule,
)
from upcycled.coefficients.signal import Signal
from upcycled.core.errors import InputError
from upcycled.core.upcycling import Move, Observed, Rule, RuleState, extrapolate
from upcycled.core.user_code import check_members

COEFFICIENTS: dict[str, type[Any]] = {
    "constant": Constant,
    "lambda_half": LambdaHalf,
    "proximal": Proximal,
    "decaying": Decaying,
    "auto": Auto,
    "signal": Signal,
}


def as_rule(value: object) -> Rule:
    """Turn what a user passes as ``upcycle=`` into a rule: ``"auto"``, a number, a coefficient, or a rule.

    Args:
        value: the number, name, coefficient or rule.

    Returns:
        The rule.

    Raises:
        InputError: for anything else, or a negative number.

    >>> as_rule(0.5)
    ScalarRule(coefficient=Constant(coefficient=0.5))
    """
    if isinstance(value, str) and value == "auto":
        return ScalarRule(Auto())
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            return ScalarRule(Constant(float(value)))
        except InputError as error:
            raise error.renamed("upcycle") from None
    if isinstance(value, Coefficient):
        check_members("upcycle", value, (), {"coefficient_at": ("data_round", "horizon")})
        return ScalarRule(value)
    if isinstance(value, Rule):
        check_members("upcycle", value, (), {"start": (), "move": ("own", "seen", "moves")})
        return value
    if isinstance(value, str) and value.lower() in COEFFICIENTS:
        name = COEFFICIENTS[value.lower()].__name__
        raise InputError(field="upcycle", value=value, must=f"the object itself, up.coefficients.{name}(...)")
    raise InputError(
        field="upcycle",
        value=value,
        must=(
            "None, 'auto', a number >= 0, one of up.coefficients (Constant, LambdaHalf, Proximal, Decaying, Signal), "
            "or your own: with coefficient_at, or with depth, uses_spread, start and move"
        ),
    )


__all__ = [
    "COEFFICIENTS",
    "Auto",
    "Coefficient",
    "Constant",
    "Decaying",
    "LambdaHalf",
    "Move",
    "Observed",
    "Proximal",
    "Rule",
    "RuleState",
    "ScalarRule",
    "Schedule",
    "Signal",
    "as_rule",
    "extrapolate",
]
