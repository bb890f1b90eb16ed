from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

import numpy as np
import pytest

from upcycled.core.errors import (
    COUNT,
    FRACTION,
    SEED,
    InputError,
    Limits,
    check_fields,
    check_number,
    limits_of,
    reason_of,
    suggest,
)


@pytest.mark.parametrize("value", [1, 1.5, np.float32(2), np.int64(3), 10**300, Fraction(1, 2)])
def test_finite_numbers_of_any_type_pass(value):
    check_number("x", value, above=0)


@pytest.mark.parametrize("value", [True, "1", None, float("nan"), float("inf"), 10**400, 0, -1, [1], 1j, np.True_])
def test_anything_else_is_refused_by_name(value):
    with pytest.raises(InputError, match=r"^x is .*, but it must be a finite number > 0$"):
        check_number("x", value, above=0)


@pytest.mark.parametrize("value", [5.0, 2.5, np.float64(3)])
def test_an_integer_is_an_integer(value):
    with pytest.raises(InputError, match="an integer"):
        check_number("x", value, integer=True)


def test_limits_are_compared_exactly():
    SEED.check("seed", 2**63 - 1)
    for seed in (2**63, np.uint64(2**63)):
        with pytest.raises(InputError, match=r"^seed is 9223372036854775808, but .* an integer >= 0 and < 2\^63$"):
            SEED.check("seed", seed)


def test_a_number_too_long_to_write_out_is_told_so():
    with pytest.raises(InputError, match="x is a number of more than 4300 digits"):
        check_number("x", 10**5000)


def test_a_long_value_is_shown_by_its_beginning_and_its_end():
    with pytest.raises(InputError) as error:
        check_number("x", "a" * 5000 + "b" * 5000)
    shown = "'" + "a" * 38 + "..." + "b" * 37 + "'"
    assert str(error.value) == f"x is {shown}, but it must be a finite number"
    assert error.value.value == "a" * 5000 + "b" * 5000


def test_a_value_of_several_lines_is_one_line_in_a_sentence():
    assert "\n" not in str(InputError(field="x", value="a\nb", must="a number"))
    assert str(InputError("first\n  second")) == "first second"


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.int32(3), 3),
        (np.uint8(3), 3),
        (np.float64(0.5), 0.5),
        (np.float32(0.1), 0.10000000149011612),
        (np.longdouble(0.5), 0.5),
        (Fraction(1, 4), 0.25),
        (7, 7),
        (7.0, 7.0),
    ],
)
def test_numbers_of_any_kind_become_pythons_own(value, plain):
    found = check_number("x", value)
    assert (type(found), found) == (type(plain), plain)


@pytest.mark.parametrize(
    ("limits", "phrase"),
    [
        (Limits(), "a finite number"),
        (Limits(above=-1, at_most=0), "a finite number > -1 and <= 0"),
        (FRACTION, "a finite number >= 0 and < 1"),
        (COUNT, "an integer >= 1"),
        (SEED, "an integer >= 0 and < 2^63"),
        (Limits(at_most=10**6, integer=True), "an integer <= 1e+06"),
    ],
)
def test_the_words_for_a_range_come_from_the_range(limits, phrase):
    assert limits.phrase == phrase


FULL = InputError(
    field="mu", of="FedProx", value=-1.5, must="a finite number >= 0", where=("my.toml",), hint="; try 0.1"
)


def facts(error):
    return {name: getattr(error, name) for name in ("sentence", "field", "value", "must", "but", "of", "where", "hint")}


def test_the_sentence_is_made_of_the_fields():
    assert str(FULL) == "my.toml: FedProx mu is -1.5, but it must be a finite number >= 0; try 0.1"
    assert str(InputError(field="beta", must="a number")) == "beta is missing, but it must be a number"
    assert str(InputError(field="n", value=3, but="there are 2")) == "n is 3, but there are 2"
    assert str(InputError("has 2 rows", field="x")) == "x has 2 rows"
    assert str(InputError("nothing fits")) == "nothing fits"
    assert repr(InputError("nothing fits")) == "InputError('nothing fits')"
    assert str(InputError(field="x", value=None, must="a number")) == "x is None, but it must be a number"


@pytest.mark.parametrize("error", [FULL, InputError("nothing fits"), InputError(field="beta", must="a number")])
@pytest.mark.parametrize("sent", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_arrives_in_another_process_with_all_its_fields(error, sent):
    arrived = sent(error)
    assert type(arrived) is InputError
    assert facts(arrived) == facts(error)
    assert str(arrived) == str(error)


def test_an_error_about_something_that_cannot_be_sent_arrives_with_its_words():
    error = InputError(field="upcycle", value=lambda m: m, must="a number")
    arrived = pickle.loads(pickle.dumps(error))
    assert str(arrived) == str(error)
    assert callable(error.value)


def test_a_changed_error_leaves_the_first_as_it_was():
    before = str(FULL)
    assert str(FULL.renamed("algorithm.mu")) == before.replace("FedProx mu", "algorithm.mu")
    assert str(FULL.at("all")) == f"all: {before}"
    assert str(FULL.at("my.toml")) == before
    assert str(FULL.hinted(" or 1")) == f"{before} or 1"
    assert str(FULL) == before


def test_a_value_that_reads_like_a_sentence_changes_nothing():
    error = InputError(field="name", value="x is 3, but it must be y", must="a folder name").renamed("key")
    assert str(error) == "key is 'x is 3, but it must be y', but it must be a folder name"


@dataclass(frozen=True)
class Declared:
    rate: Annotated[float, Limits(above=0)]
    steps: Annotated[int, COUNT] | None = 3
    is_fast: bool = True
    name: str = "it"


def test_a_dataclass_is_held_to_what_it_declares():
    assert limits_of(Declared) == {"rate": Limits(above=0), "steps": COUNT}
    check_fields(Declared(1.0, None))
    with pytest.raises(InputError, match=r"^Declared rate is None, but it must be a finite number > 0$"):
        check_fields(Declared(None))
    with pytest.raises(InputError, match=r"^the steps is 0, but it must be an integer >= 1$") as error:
        check_fields(Declared(1.0, 0), of="the")
    assert (error.value.of, error.value.field, error.value.value) == ("the", "steps", 0)
    with pytest.raises(InputError, match=r"^speed is 'yes', but it must be True or False$"):
        check_fields(Declared(1.0, is_fast="yes"), of="", is_fast="speed")


def test_a_frozen_dataclass_gets_pythons_own_numbers():
    made = Declared(np.float32(0.5), np.int64(2), np.False_)
    check_fields(made)
    assert repr(made) == "Declared(rate=0.5, steps=2, is_fast=False, name='it')"


def test_of_somebody_elses_error_the_first_line_is_told():
    assert reason_of(RuntimeError("\n  shapes (3,)  differ.\n\nstack of calls")) == "shapes (3,) differ"
    assert reason_of(MemoryError()) == "MemoryError"
    assert len(reason_of(ValueError("x" * 10_000))) == 160


def test_a_name_in_another_unicode_form_is_told_apart_from_its_twin():
    assert suggest("e\u0301tat", ["\u00e9tat"]) == (
        "; '\u00e9tat' looks the same and is other characters: copy it from there (known: \u00e9tat)"
    )
