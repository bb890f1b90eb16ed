"""How numbers look to a reader."""

from __future__ import annotations

import ast
import math
import re
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import upcycled
from upcycled._utils import formats

NUMBERS = st.floats(-1e12, 1e12)


@given(NUMBERS, st.integers(0, 6))
def test_fixed_is_the_nearest_number_with_so_many_digits(value, digits):
    words = formats.fixed(value, digits)
    assert 2 * abs(Decimal(words.replace(",", "")) - Decimal(value)) <= Decimal(10) ** -digits
    assert len(words.partition(".")[2]) == digits
    assert words.strip("-0.") or not words.startswith("-")  # no negative zero


@given(NUMBERS)
def test_a_sign_is_shown_unless_the_shown_number_is_zero(value):
    words = formats.signed(value)
    assert words[0] in "+−" or words == "0.00"
    assert words.lstrip("+−") == formats.fixed(abs(value))
    assert words[0] != ("−" if value > 0 else "+")


@pytest.mark.parametrize("name", ["fixed", "significant", "epsilon", "count", "megabytes", "signed"])
def test_what_is_not_known_is_a_dash(name):
    show = getattr(formats, name)
    assert show(None) == show(math.nan) == formats.NONE == "–"
    assert formats.mean_sd({"mean": None, "sd": None}) == formats.setting(None) == "–"


def test_an_epsilon_that_nothing_proves_is_none_and_a_large_one_has_no_digits():
    shown = [formats.epsilon(value) for value in (math.inf, 0.0, 0.5, 999.9994, 1e5, 1e-4)]
    assert shown == ["infinite", "0", "0.500", "999.999", "100,000", "0.0001"]


DIGITS = re.compile(r"[.,]")
"""In a format specification: so many digits, or groups of three."""
OTHERS = {
    "audit/evidence/verify.py",  # is copied into a folder of evidence and imports nothing of the package
    "report/charts.py",  # coordinates of a drawing
}


def chosen_digits(source: str) -> list[int]:
    """Lines that decide how many digits of a number are shown, but for errors and numbers that are only rounded."""
    found: list[int] = []

    def walk(node: ast.AST) -> None:
        called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        if isinstance(node, ast.Raise) or called == "float" or called.endswith("Error") or called == "warn":
            return
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "warn":
            return
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            parts = node.format_spec.values
            if any(isinstance(part, ast.Constant) and DIGITS.search(part.value) for part in parts):
                found.append(node.lineno)
        for child in ast.iter_child_nodes(node):
            walk(child)

    walk(ast.parse(source))
    return found


def test_how_many_digits_a_reader_sees_is_decided_in_one_place():
    package = Path(upcycled.__file__).parent
    found = {path.relative_to(package).as_posix(): chosen_digits(path.read_text()) for path in package.rglob("*.py")}
    assert found["_utils/formats.py"]
    assert {name for name, lines in found.items() if lines} - OTHERS == {"_utils/formats.py"}


def test_the_walk_sees_digits_and_groups_and_passes_over_errors_and_rounding():
    assert chosen_digits('print(f"{x:.3g}")') == chosen_digits('a = f"{x:,}"') == [1]
    assert chosen_digits('raise InputError(f"{x:.3g}")') == chosen_digits('y = float(f"{x:.12g}")') == []
    assert chosen_digits('print(f"{x:g} {x!r} {x:<{width}}")') == []
