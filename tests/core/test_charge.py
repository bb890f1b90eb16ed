"""A charge keeps every column when it is sliced or joined, and has the columns of its kind."""

from dataclasses import fields

import numpy as np
import pytest

import upcycled as up
from upcycled.core.mechanism import CHARGE_COLUMNS, Charge
from upcycled.privacy.ledger.entries import MOST

COLUMNS = [column.name for column in fields(Charge) if column.name != "kind"]


def charge_of(kind, clients=(4, 2, 7), draws=True):
    names = [*CHARGE_COLUMNS[kind], *(["draws"] if draws else [])]
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
@pytest.mark.parametrize("kind", CHARGE_COLUMNS)
def test_slices_and_joins_have_every_column(kind, draws):
    whole = charge_of(kind, draws=draws)
    parts = [whole[np.array([place])] for place in range(3)]
    for place, part in enumerate(parts):
        assert part.columns.keys() == whole.columns.keys()
        assert all(values[0] == whole.columns[name][place] for name, values in part.columns.items())
    assert same(Charge.joined(parts), whole)
    assert same(Charge.joined(parts[::-1]), whole[np.array([2, 1, 0])])


def test_every_column_has_a_range_in_the_ledger_and_a_kind_that_requires_it():
    required = {name for names in CHARGE_COLUMNS.values() for name in names}
    assert set(COLUMNS) == {"clients", "draws"} | required
    assert set(MOST) == set(COLUMNS) - {"clients"}


def test_an_unknown_kind_and_missing_or_extra_columns_are_rejected():
    ones = np.ones(1)
    with pytest.raises(up.InputError, match=r"unknown.*'zcdp'; expected.*pure"):
        Charge("zcdp", np.array([0]), ones, ones)
    with pytest.raises(up.InputError, match=r"'pure'.*columns sensitivity, noise_std; expected .*epsilon"):
        Charge("pure", np.array([0]), ones, ones)
    with pytest.raises(up.InputError, match=r"'gaussian'.*columns sensitivity, noise_std, epsilon"):
        Charge("gaussian", np.array([0]), ones, ones, epsilon=ones)


@pytest.mark.parametrize("other", [charge_of("pure"), charge_of("gaussian", draws=False)])
def test_different_charges_do_not_join(other):
    with pytest.raises(up.InputError, match=r"2.*kinds.*sets.*columns; expected"):
        Charge.joined([charge_of("gaussian"), other])
