"""Every mechanism of the table costs a site's account what it costs the simulator's, bit for bit."""

from dataclasses import replace

import pytest

import upcycled as up
from tests.federation.in_process import NAMES, Mail, experiment_of, make_site, run_over
from tests.mechanism_cases import EVERY_MECHANISM, charges_in_bytes, dear_tables_of, tables_of
from upcycled.federation.coordinator import NotEnoughError
from upcycled.privacy.accounts.account import Account


def sites_of(federation, folder, account):
    table = {"simulation": False, "account": account}
    return {name: make_site(federation, i, folder, **table) for i, name in enumerate(NAMES)}


def account_of(folder, site):
    return Account.read(folder / site / "site" / site / "account")


@EVERY_MECHANISM
def test_sites_and_the_simulator_are_charged_the_same_bits(mechanism, federation, tmp_path):
    experiment = experiment_of(**tables_of(mechanism))
    terms = {"epsilon": 50.0, "delta": 1e-3}
    whole = Account.open(tmp_path / "all", **terms)
    given = replace(federation, inferred=frozenset(), test=None)
    up.train(given, experiment.spec(3).replace(progress=False, account=whole.folder))
    whole = Account.read(whole.folder)
    run_over(Mail(sites_of(federation, tmp_path, terms)), experiment)
    for i, site in enumerate(NAMES):
        own = account_of(tmp_path, site)
        assert charges_in_bytes(own.charges_of(site)) == charges_in_bytes(whole.charges_of(str(i)))
        assert own.clients == (site,)
        assert own.rounds(site) == whole.rounds(str(i)) == 3
        assert own.share(site) == whole.share(str(i)) > 0


@EVERY_MECHANISM
def test_a_site_lets_nothing_leave_that_its_account_cannot_pay_for(mechanism, federation, tmp_path):
    """One data round that costs far more than the account has."""
    experiment = experiment_of(**dear_tables_of(mechanism), iterations=1)
    sites = sites_of(federation, tmp_path, {"epsilon": 1.0, "delta": 1e-3})
    with pytest.raises(NotEnoughError, match=r"site's account.*pay.*data round 1"):
        run_over(Mail(sites), experiment)
    for site in NAMES:
        own = account_of(tmp_path, site)  # and it can be read
        assert own.charges == ()
        assert own.share(site) == 0
