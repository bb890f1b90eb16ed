"""Every mechanism of the table in the simulator: ledgers and accounts hold the same charges, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest

import upcycled as up
from tests.federation.in_process import experiment_of
from tests.mechanism_cases import (
    CASES,
    EVERY_MECHANISM,
    charges_in_bytes,
    charges_of,
    dear_tables_of,
    tables_of,
)
from upcycled.privacy import Ledger
from upcycled.privacy.accounts.account import Account
from upcycled.privacy.ledger.joint import joint_epsilon
from upcycled.privacy.mechanisms import MECHANISMS

DELTA = 1e-3
CLIENTS = range(4)


@pytest.fixture
def data(federation):
    return replace(federation, inferred=frozenset(), test=None)


def trained(data, tables, folder, seed=3, **kept):
    spec = experiment_of(**tables).spec(seed).replace(progress=False, ledger=folder / f"{seed}.jsonl", **kept)
    result = up.train(data, spec)
    return result, Ledger.read(folder / f"{seed}.jsonl")


def test_every_mechanism_has_a_case_and_every_case_a_mechanism():
    assert set(CASES) == set(MECHANISMS)


@EVERY_MECHANISM
def test_run_ledger_and_account_hold_the_same_bits(mechanism, data, tmp_path):
    account = Account.open(tmp_path / "account", epsilon=50.0, delta=DELTA)
    result, read = trained(data, tables_of(mechanism), tmp_path, account=account.folder)
    account = Account.read(account.folder)
    for client in CLIENTS:
        expected = charges_in_bytes(charges_of(result.privacy, client))
        assert len(expected) == 3
        assert charges_in_bytes(charges_of(read, client)) == expected
        assert charges_in_bytes(account.charges_of(str(client))) == expected
        assert account.share(str(client)) > 0
    assert read.max_epsilon(DELTA) == result.privacy.max_epsilon(DELTA)
    assert 0 < read.max_epsilon(DELTA) < np.inf


@EVERY_MECHANISM
def test_an_account_refuses_a_run_that_it_cannot_pay_for(mechanism, data, tmp_path):
    account = Account.open(tmp_path / "account", epsilon=1.0, delta=DELTA)
    with pytest.raises(up.InputError, match=r"pay.*run"):
        trained(data, dear_tables_of(mechanism), tmp_path, account=account.folder)
    assert Account.read(account.folder).charges == ()


@EVERY_MECHANISM
def test_one_account_adds_up_this_mechanism_and_others(mechanism, data, tmp_path):
    """Shares of a mixed account add up, whatever was charged before."""
    order = [mechanism, "update_clipping", "objective_perturbation"]
    shares = []
    for k, names in enumerate((order, order[::-1])):
        account = Account.open(tmp_path / f"account-{k}", epsilon=50.0, delta=DELTA)
        for i, name in enumerate(names):
            place = tmp_path / f"{k}-{i}"
            place.mkdir()
            trained(data, tables_of(name), place, account=account.folder)
        account = Account.read(account.folder)
        assert len(account.studies) == 3
        shares.append([account.share(str(client)) for client in CLIENTS])
    assert shares[0] == pytest.approx(shares[1], rel=1e-12)
    assert min(shares[0]) > 0


@EVERY_MECHANISM
def test_two_ledgers_together_cost_more_than_each_and_less_than_their_sum(mechanism, data, tmp_path):
    pairs = [trained(data, tables_of(mechanism, noise="seeded"), tmp_path, seed) for seed in (3, 4)]
    live, read = ([one[place] if place else one[0].privacy for one in pairs] for place in (0, 1))
    found = joint_epsilon(read, DELTA)
    assert np.array_equal(found, joint_epsilon(live, DELTA))
    each = np.array([ledger.epsilon(DELTA / 2) for ledger in read])
    alone = np.array([ledger.epsilon(DELTA) for ledger in read])
    # What dp_accounting leaves open is a thousandth.
    assert (found >= alone.max(axis=0) * (1 - 1e-3)).all()
    assert (found <= each.sum(axis=0) * (1 + 1e-3)).all()
    assert np.isfinite(found).all()
