"""How numbers look to a reader."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upcycled.support import formats

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
    assert shown == ["none", "0", "0.500", "999.999", "100,000", "0.0001"]
