"""A charge keeps every column when it is sliced or joined, and has the columns of its kind."""

from dataclasses import fields

import numpy as np
import pytest

import upcycled as up
from upcycled.core.mechanism import Charge
from upcycled.privacy.charge_kinds import KINDS, kind_of

COLUMNS = [column.name for column in fields(Charge) if column.name not in ("kind", "more")]
BUILT_IN = ("gaussian", "pure", "sampled", "none")


def charge_of(kind, clients=(4, 2, 7), draws=True):
    names = [name for name in KINDS[kind].columns() if draws or name != "draws"]
    columns = {name: np.array([k * 10 + c for c in clients], dtype=np.float64) for k, name in enumerate(names)}
    return Charge(kind, np.array(clients), **columns)


def same(one, other):
    return one.kind == other.kind and all(
        np.array_equal(getattr(one, name), getattr(other, name))
        if getattr(one, name) is not None
        else getattr(other, name) is None
        for name in COLUMNS
    )


@pytest.mark.parametrize("draws", [True, False])
@pytest.mark.parametrize("kind", BUILT_IN)
def test_slices_and_joins_have_every_column(kind, draws):
    whole = charge_of(kind, draws=draws)
    parts = [whole[np.array([place])] for place in range(3)]
    for place, part in enumerate(parts):
        assert part.columns.keys() == whole.columns.keys()
        assert all(values[0] == whole.columns[name][place] for name, values in part.columns.items())
    assert same(Charge.joined(parts), whole)
    assert same(Charge.joined(parts[::-1]), whole[np.array([2, 1, 0])])


def test_every_column_of_a_charge_is_that_of_a_kind_which_has_a_range_for_it():
    ranges = {name: limits for kind in BUILT_IN for name, limits in KINDS[kind].columns().items()}
    assert set(COLUMNS) == {"clients"} | set(ranges)
    assert all(limits.at_most is not None for limits in ranges.values())


def test_an_unknown_kind_and_missing_or_extra_columns_are_rejected():
    ones = np.ones(1)
    with pytest.raises(up.InputError, match=r"unknown.*'zcdp'; expected.*pure"):
        kind_of(Charge("zcdp", np.array([0]), ones, ones))
    with pytest.raises(up.InputError, match=r"'pure'.*columns noise_std, sensitivity; expected .*epsilon"):
        kind_of(Charge("pure", np.array([0]), ones, ones))
    with pytest.raises(up.InputError, match=r"'gaussian'.*columns epsilon, noise_std, sensitivity"):
        kind_of(Charge("gaussian", np.array([0]), ones, ones, epsilon=ones))
    with pytest.raises(up.InputError, match=r"'gaussian'.*columns noise_std, scale, sensitivity"):
        kind_of(Charge("gaussian", np.array([0]), ones, ones, more={"scale": ones}))


@pytest.mark.parametrize("other", [charge_of("pure"), charge_of("gaussian", draws=False)])
def test_different_charges_do_not_join(other):
    with pytest.raises(up.InputError, match=r"2.*kinds.*sets.*columns; expected"):
        Charge.joined([charge_of("gaussian"), other])
