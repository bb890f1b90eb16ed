"""A mechanism of one's own whose charge is None claims nothing: its epsilon is infinite wherever it is stated."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

import upcycled as up
from tests.federation.in_process import experiment_of, make_site
from tests.federation.test_hostile_server import question, said
from tests.wording import has_all
from upcycled.privacy import Ledger, ModelClipping
from upcycled.privacy.accounts.account import Account
from upcycled.privacy.ledger.joint import joint_epsilon
from upcycled.report import write_report

DELTA = 1e-3
CODE = """
from dataclasses import dataclass, replace

import upcycled as up


@dataclass(frozen=True)
class Free:
    name = "free"

    def fit(self, setting):
        return replace(up.privacy.ModelClipping(1.0, 8.0).fit(setting), charge=lambda cohort: None)
"""


@dataclass(frozen=True)
class Free:
    name = "free"

    def fit(self, setting):
        return replace(ModelClipping(1.0, 8.0).fit(setting), charge=no_charge)


def no_charge(cohort):
    return None


@pytest.fixture
def data(federation):
    return replace(federation, inferred=frozenset(), test=None)


def run(data, **kept):
    return up.train(data, algorithm=up.FedAvg(), privacy=Free(), upcycle=0.5, iterations=4, progress=False, **kept)


@pytest.mark.parametrize("noise", ["seeded", "system"])
def test_result_ledger_and_statement_say_infinity(noise, data, tmp_path):
    result = run(data, noise=noise, ledger=tmp_path / "ledger.jsonl")
    for ledger in (result.privacy, Ledger.read(tmp_path / "ledger.jsonl")):
        assert ledger.kind == "none"
        assert ledger.rounds.tolist() == [2] * 4
        assert ledger.epsilon(DELTA).tolist() == [math.inf] * 4
        assert ledger.max_epsilon(DELTA) == math.inf
        assert ledger.epsilon_over_rounds(DELTA).worst == (math.inf, math.inf)
        assert "\nepsilon (claimed by free, not proven by this package): inf for the worst" in ledger.statement(DELTA)
        assert "infinite at delta" in str(ledger)
    assert np.isinf(joint_epsilon([result.privacy], DELTA)).all()


def test_only_some_rounds_without_a_charge_are_rejected(data):
    @dataclass(frozen=True)
    class Sometimes:
        name = "sometimes"

        def fit(self, setting):
            fitted = ModelClipping(1.0, 8.0).fit(setting)
            return replace(fitted, charge=lambda cohort: None if 0 in cohort.clients else fitted.charge(cohort))

    asked = {"algorithm": up.FedAvg(), "privacy": Sometimes(), "iterations": 8, "participation": 0.5}
    with pytest.raises(up.InputError, match=r"charge.*'(gaussian|none)'.*'(none|gaussian)'"):
        up.train(data, **asked, progress=False)


def test_an_account_and_a_budget_refuse_it_before_anything_is_trained(data, tmp_path):
    account = Account.open(tmp_path / "account", epsilon=5.0, delta=DELTA)
    with pytest.raises(up.InputError, match=r"epsilon.*mechanism"):
        run(data, noise="system", account=account.folder)
    assert Account.read(account.folder).charges == ()
    with pytest.raises(up.InputError, match=r"budget.*'free'"):
        run(data, budget=up.privacy.Budget(5.0, DELTA))


def test_a_site_refuses_it(federation, tmp_path, monkeypatch):
    (tmp_path / "free_parts.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    limits = {"mechanisms": ["free"], "least_noise": 0.1, "code": ["free_parts:Free"]}
    site = make_site(federation, 0, tmp_path, simulation=False, privacy=limits)
    experiment = experiment_of(privacy={"mechanism": "free_parts:Free", "noise": "system"})
    assert has_all(said(site, question(site, federation, experiment)), "'free'", "epsilon")


def test_summary_and_report_say_infinity(data, tmp_path):
    run(data, results=tmp_path / "free")
    (place,) = tmp_path.rglob("summary.json")
    stated = json.loads(place.read_text())["privacy"]["epsilon"]
    assert stated == {"max": None, "median": None, "clients": [None] * 4}  # JSON has no infinity
    page = write_report(tmp_path / "free").read_text()
    assert "Worst ε of a run, claimed by free, not proven by this package</dt><dd>infinite</dd>" in page
    assert page.count("<td>infinite</td>") >= 2 + 4  # of the run, and of each client
