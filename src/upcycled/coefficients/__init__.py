"""How far an upcycled iteration goes: scheduled coefficients, and rules that set it from what was released already.

All of it is post-processing of releases: free of data, messages and privacy cost. To add one: a frozen dataclass with
``rho`` (a schedule), or with what :class:`~upcycled.core.rule.Rule` lists (a rule), in a file of its own, and
its line in ``COEFFICIENTS``.
"""

from __future__ import annotations

from upcycled.coefficients.forms import Auto, Constant, Decaying, LambdaHalf, Proximal, Schedule
from upcycled.coefficients.scalar import Coefficient, ScalarRule
from upcycled.coefficients.signal import Signal
from upcycled.coefficients.table import COEFFICIENTS, as_rule
from upcycled.core.rule import Move, Observed, Rule, RuleState, extrapolate

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
