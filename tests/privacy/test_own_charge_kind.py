"""A kind of charge that the package does not know: one class outside of it, with a column of its own, is enough."""

import json
import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
import pytest

import upcycled as up
from tests.privacy.runs import chained
from upcycled.audit.evidence.folder import write_evidence
from upcycled.audit.evidence.verify import Client, Inconsistent, _check_columns
from upcycled.core.errors import Limits
from upcycled.core.mechanism import Charge
from upcycled.core.vectors import Real
from upcycled.privacy import Account, Ledger, ModelClipping
from upcycled.privacy.charge_kinds import KINDS, PURE, ChargeKind, Gaussian, Total, register
from upcycled.privacy.ledger.joint import charges_of, events_as_json, events_of, joint_epsilon

RATIOS = np.array([0.1, 0.25, 0.05])
DELTA = 1e-3


@dataclass(frozen=True, eq=False, kw_only=True)
class Laplace(ChargeKind):
    """Laplace noise: L1 sensitivity over scale adds up."""

    kind: ClassVar = "laplace"
    is_pure: ClassVar = True
    pots: ClassVar = ("pure",)
    totals: ClassVar = {"ratios": Total(np.add, 0.0)}

    ratio: Annotated[Real, Limits(at_least=0, at_most=100)]

    def amounts(self):
        return {"ratios": self.ratio}

    @classmethod
    def epsilons(cls, points, delta):
        return [ratios for ratios, _ in points]

    def pot_cost(self):
        return self.ratio

    def events(self, place):
        return [((PURE, 2 / (1 + math.exp(self.ratio[place])), 1.0), 1)]


@dataclass(frozen=True)
class LaplaceClipping:
    name = "laplace_clipping"

    def fit(self, setting):
        return replace(ModelClipping(1.0, 8.0).fit(setting), charge=charge_of_round, release_noise_std=None)


def charge_of_round(cohort):
    ones = np.ones(cohort.clients.size)
    return Charge("laplace", cohort.clients, ones, 8 * ones, more={"ratio": RATIOS[cohort.clients]})


@pytest.fixture(autouse=True)
def kind(monkeypatch):
    monkeypatch.setattr("upcycled.privacy.charge_kinds.KINDS", KINDS)
    monkeypatch.setitem(KINDS, "laplace", Laplace)
    assert register(Laplace) is Laplace


@pytest.fixture(scope="module")
def data():
    return up.data.synthetic("iid", clients=3, sizes=40, seed=0)


def run(data, **kept):
    asked = {"algorithm": up.FedAvg(), "privacy": LaplaceClipping(), "upcycle": 0.5, "iterations": 6, "seed": 1}
    return up.train(data, **(asked | kept), progress=False)


def test_a_run_charges_it_and_the_file_gives_the_same_epsilons(data, tmp_path):
    result = run(data, ledger=tmp_path / "a")
    line = json.loads((tmp_path / "a").read_text().splitlines()[1])
    assert [*line][5:9] == ["charge", "sensitivity", "noise_std", "ratio"]
    assert line["charge"] == "laplace"
    assert line["ratio"] == RATIOS.tolist()
    read = Ledger.read(tmp_path / "a", head=result.privacy.head)
    assert read.kind == "laplace"
    for ledger in (result.privacy, read):
        assert ledger.rounds.tolist() == [3, 3, 3]
        for delta in (0.0, DELTA):
            assert ledger.epsilon(delta) == pytest.approx(3 * RATIOS)
            assert ledger.max_epsilon(delta) == pytest.approx(0.75)
        assert ledger.epsilon_over_rounds(DELTA).worst == pytest.approx((0.25, 0.5, 0.75))
        assert "0.75 for the worst client" in ledger.statement(DELTA)


def test_a_run_that_stops_is_charged_for_its_plan(data, tmp_path):
    def stop(run):
        return up.STOP if run.iteration == 2 else None

    result = run(data, ledger=tmp_path / "a", callbacks=[stop])
    read = Ledger.read(tmp_path / "a")
    assert not read.is_as_planned
    for ledger in (result.privacy, read):
        assert ledger.epsilon(DELTA) == pytest.approx(3 * RATIOS)


def test_accounts_take_it_and_refuse_what_exceeds_their_budget(data, tmp_path):
    account = Account.open(tmp_path / "account", epsilon=1.0, delta=0, kind="pure")
    run(data, noise="system", account=account.folder)
    read = Account.read(account.folder)
    assert [read.epsilon(str(client)) for client in range(3)] == pytest.approx((3 * RATIOS).tolist())
    assert {one.charge.kind for one in read.charges} == {"laplace"}
    with pytest.raises(up.InputError, match=r"cannot pay.*client '1'"):
        run(data, noise="system", account=account.folder, seed=2)
    gaussian = Account.open(tmp_path / "other", epsilon=1.0, delta=DELTA, kind="gaussian")
    with pytest.raises(up.InputError, match=r"'gaussian' budgets.*'laplace'"):
        run(data, noise="system", account=gaussian.folder)


def test_what_a_kind_leaves_out_is_refused_before_the_first_round(data):
    with pytest.raises(up.InputError, match=r"budget.*'laplace_clipping'"):
        run(data, budget=up.privacy.Budget(1.0, DELTA))


def test_it_is_exported_as_events_and_composes_with_other_kinds(data):
    ledgers = [run(data, seed=seed).privacy for seed in (1, 2)]
    events = events_of([one for ledger in ledgers for one in charges_of(ledger, 1)])
    (row,) = events_as_json(events)
    assert (row["event"], row["count"]) == ("RandomizedResponseDpEvent", 6)
    assert joint_epsilon(ledgers, DELTA)[1] <= 6 * RATIOS[1] + 1e-3
    other = up.train(data, algorithm=up.FedAvg(), privacy=ModelClipping(1.0, 8.0), iterations=2, progress=False)
    both = joint_epsilon([ledgers[0], other.privacy], DELTA)
    assert (both > ledgers[0].epsilon(DELTA)).all()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ({"ratio": None}, "it has no 'ratio'"),
        ({"ratio": [0.1, 0.2]}, "one number for each client"),
        ({"ratio": [0.1, 0.2, -0.1]}, r"ratio is -0\.1.*0 to 100"),
        ({"ratio": [0.1, 0.2, 100.5]}, r"ratio is 100\.5.*0 to 100"),
        ({"ratio": ["a", 0.2, 0.1]}, "ratio is no list of numbers"),
        ({"charge": "cauchy"}, "its charge is 'cauchy'.*laplace"),
        ({"charge": "gaussian"}, "not written as a ledger"),
        ({"more": [1, 2, 3]}, "not written as a ledger"),
    ],
)
@pytest.mark.parametrize("place", [0, 1])
def test_damaged_columns_are_rejected(damage, sentence, place, data, tmp_path):
    run(data, ledger=tmp_path / "a")
    lines = [json.loads(line) for line in (tmp_path / "a").read_text().splitlines()]
    part = lines[1] if place else lines[0]["planned"]["data"]
    part |= damage
    if not place:
        sentence = f"{sentence}|planned"
    lines = [{name: value for name, value in line.items() if value is not None or name not in damage} for line in lines]
    planned = lines[0]["planned"]["data"]
    lines[0]["planned"] = {"data": {name: value for name, value in planned.items() if name != "ratio" or value}}
    (tmp_path / "a").write_text(chained(lines))
    with pytest.raises(up.InputError, match=rf"damaged in line {1 + place} .*({sentence})"):
        Ledger.read(tmp_path / "a")


def test_a_ledger_is_not_read_where_its_kind_is_not_registered(data, tmp_path, monkeypatch):
    run(data, ledger=tmp_path / "a")
    monkeypatch.delitem(KINDS, "laplace")
    with pytest.raises(up.InputError, match=r"its charge is 'laplace'; expected one of gaussian, pure"):
        Ledger.read(tmp_path / "a")


def test_a_mechanism_with_wrong_columns_is_refused_before_the_first_round(data, monkeypatch):
    for more in ({}, {"ratio": RATIOS, "scale": RATIOS}):
        monkeypatch.setattr(
            f"{__name__}.charge_of_round",
            lambda cohort, more=more: Charge("laplace", cohort.clients, np.ones(3), np.ones(3), more=more),
        )
        with pytest.raises(up.InputError, match=r"'laplace' has the columns.*expected.*ratio"):
            run(data)


def test_names_and_ranges_are_checked_when_a_kind_is_registered():
    @dataclass(frozen=True, eq=False, kw_only=True)
    class Other(ChargeKind):
        kind: ClassVar = "gaussian"

    @dataclass(frozen=True, eq=False, kw_only=True)
    class Bare(ChargeKind):
        kind: ClassVar = "bare"
        ratio: Real

    @dataclass(frozen=True, eq=False, kw_only=True)
    class Colliding(ChargeKind):
        kind: ClassVar = "colliding"
        round: Annotated[Real, Limits(at_least=0, at_most=1)]

    for made, sentence in ((Other, "registered already"), (Bare, "'ratio' has no range"), (Colliding, "'round'")):
        with pytest.raises(up.InputError, match=sentence):
            register(made)
    assert set(KINDS) == {"gaussian", "pure", "sampled", "none", "laplace"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"amounts": ChargeKind.amounts}, "no method amounts"),
        ({"epsilons": ChargeKind.epsilons}, "no method epsilons"),
        ({"pot_cost": ChargeKind.pot_cost}, "no method pot_cost"),
        ({"pots": ("pure", "mixed")}, "no method renyi"),
        ({"is_filterable": True}, "no method fits"),
        ({"totals": {}}, "nothing adds up"),
        ({"totals": {"draws": Total(np.add, 0.0)}}, "'draws' is no name for a total"),
    ],
)
def test_a_kind_that_would_charge_too_little_is_not_registered(changes, sentence):
    plain = {"epsilons": vars(ChargeKind)["epsilons"]} if "epsilons" in changes else changes
    with pytest.raises(up.InputError, match=rf"'other'.*{sentence}"):
        register(type("Other", (Laplace,), {"kind": "other", **plain}))
    assert "other" not in KINDS


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"totals": {"ratios": Total(np.add, 0)}}, "ratios is not an integer"),
        ({"totals": {"ratios": Total(np.add, 0.0), "count": Total(np.add, 0)}}, "expected count, ratios"),
        ({"amounts": lambda self: {"ratios": self.ratio * np.nan}}, "ratios is not a number"),
    ],
)
def test_amounts_that_would_be_lost_are_refused_before_anything_is_written(changes, sentence, data, tmp_path):
    KINDS["laplace"] = type("Laplace", (Laplace,), changes)
    with pytest.raises(up.InputError, match=sentence):
        run(data)
    account = Account.open(tmp_path / "account", epsilon=1.0, delta=0, kind="pure")
    with pytest.raises(up.InputError, match=sentence):
        run(data, noise="system", account=account.folder)
    assert not Account.read(account.folder).charges


def test_the_worst_epsilon_sees_the_smallest_minimum(data):
    least = {
        "totals": {"least": Total(np.minimum, math.inf)},
        "amounts": lambda self: {"least": self.ratio},
        "epsilons": classmethod(lambda cls, points, delta: [1 / ratio for ratio, _ in points]),
    }
    KINDS["laplace"] = type("Laplace", (Laplace,), least)
    ledger = run(data).privacy
    assert ledger.max_epsilon(DELTA) == ledger.epsilon(DELTA).max() == pytest.approx(20)


def test_an_epsilon_that_is_not_a_number_is_infinite(data):
    no_number = classmethod(lambda cls, points, delta: [math.nan if ratios > 0.5 else ratios for ratios, _ in points])
    KINDS["laplace"] = type("Laplace", (Laplace,), {"epsilons": no_number})
    ledger = run(data).privacy
    assert ledger.epsilon(DELTA) == pytest.approx([0.3, math.inf, 0.15])
    assert ledger.max_epsilon(DELTA) == math.inf


def test_scores_are_refused_beside_another_kind_before_the_first_round(data, monkeypatch):
    made = dataclass(frozen=True, eq=False, kw_only=True)(type("Laplace", (Gaussian,), {"kind": "laplace"}))
    KINDS["laplace"] = made
    monkeypatch.setattr(
        f"{__name__}.charge_of_round",
        lambda cohort: Charge("laplace", cohort.clients, np.ones(cohort.clients.size), np.ones(cohort.clients.size)),
    )
    with pytest.raises(up.InputError, match="charged_scores cannot be charged beside 'laplace_clipping'"):
        run(data, charged_scores=up.privacy.ChargedScores(noise_std=5.0))


def test_a_field_of_a_charge_is_not_given_twice():
    ones = np.ones(1)
    for name in ("draws", "noise_std", "clients"):
        with pytest.raises(up.InputError, match=rf"'more' has the column '{name}'"):
            Charge("gaussian", np.array([0]), ones, ones, more={name: ones})


def test_evidence_needs_a_kind_that_its_script_knows(data, tmp_path):
    account = Account.open(tmp_path / "account", epsilon=1.0, delta=0, kind="pure")
    run(data, noise="system", account=account.folder)
    with pytest.raises(up.InputError, match=r"'laplace'.*verify.py.*gaussian, pure, sampled"):
        write_evidence(account.folder, tmp_path / "evidence")
    assert not (tmp_path / "evidence").exists()
    entry = Account.read(account.folder).charges[0].entry
    with pytest.raises(Inconsistent, match=r"unknown charge 'laplace'; this script knows gaussian, pure, sampled"):
        _check_columns({"charge": entry.charge.kind}, 3, "line 3", set())
    assert not Client().events
