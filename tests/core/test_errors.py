from __future__ import annotations

import numpy as np
import pytest

from upcycled.core.errors import InputError, check_number


@pytest.mark.parametrize("value", [1, 1.5, np.float32(2), np.int64(3), 10**300])
def test_finite_numbers_of_any_type_pass(value):
    check_number("x", value, above=0)


@pytest.mark.parametrize("value", [True, "1", None, float("nan"), float("inf"), 10**400, 0, -1, [1], 1j])
def test_anything_else_is_refused_by_name(value):
    with pytest.raises(InputError, match=r"^x is .*, but it must be a finite number > 0$"):
        check_number("x", value, above=0)


@pytest.mark.parametrize("value", [5.0, 2.5, np.float64(3)])
def test_an_integer_is_an_integer(value):
    with pytest.raises(InputError, match="an integer"):
        check_number("x", value, integer=True)


def test_limits_are_compared_exactly():
    check_number("seed", 2**63 - 1, below=2**63, integer=True)
    with pytest.raises(InputError):
        check_number("seed", 2**63, below=2**63, integer=True)


def test_a_number_too_long_to_write_out_is_told_so():
    with pytest.raises(InputError, match="x is a number of more than 4300 digits"):
        check_number("x", 10**5000)
