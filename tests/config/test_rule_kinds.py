"""Rules by name in experiment files."""

from __future__ import annotations

import pytest

from upcycled import coefficients
from upcycled.config.registry import UPCYCLES

NOT_IN_FILES = ("Rule", "ScalarRule")  # the contract, around a coefficient
RULES = [name for name in coefficients.__all__ if hasattr(getattr(coefficients, name), "move")]


@pytest.mark.parametrize("name", sorted({*RULES, "Signal"} - {*NOT_IN_FILES}))
def test_every_rule_has_its_kind_with_the_rules_own_defaults(name):
    table = UPCYCLES[name.lower()]
    assert table(kind=name.lower()).build() == getattr(coefficients, name)()


def test_a_rules_constants_can_be_set_in_the_file():
    assert UPCYCLES["signal"](kind="signal", relaxation=1.5).build() == coefficients.Signal(relaxation=1.5)
