"""Rules by name in experiment files."""

from __future__ import annotations

import pytest

from upcycled.config.registry import UPCYCLES
from upcycled.core import rules


@pytest.mark.parametrize("name", [name for name in rules.__all__ if name != "Repeated"])
def test_every_rule_has_its_kind_with_the_rules_own_defaults(name):
    table = UPCYCLES[name.lower()]
    assert table(kind=name.lower()).build() == getattr(rules, name)()


def test_a_rules_constants_can_be_set_in_the_file():
    assert UPCYCLES["trend"](kind="trend", most=1.0, threshold=0.5).build() == rules.Trend(most=1.0, threshold=0.5)
