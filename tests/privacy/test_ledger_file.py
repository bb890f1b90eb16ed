"""A ledger that goes on from its file: nothing is lost, nothing is charged twice that was released once."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import upcycled as up
from tests.privacy.runs import QUIET, cohort, setting, unplanned
from upcycled.core.mechanism import Charge
from upcycled.privacy import DPSGD, Account, Budget, ErmOutput, Ledger, ModelClipping, ObjectivePerturbation
from upcycled.privacy.ledger.entries import Entry, from_line, to_line
from upcycled.privacy.ledger.ledger_file import LedgerFile, run_of

DELTA = 1e-5
MECHANISMS = [
    ModelClipping(10.0, 0.8),
    ErmOutput(1.0, noise_std=0.5),
    ObjectivePerturbation(20.0, norm_bound=1.0),
    DPSGD(1.0, 1.5),
]


def opened(path, mechanism=MECHANISMS[0], noise="seeded", run="r", **changes):
    facts = setting(**changes)
    return Ledger(mechanism.fit(facts), noise, unplanned(facts), path=path, run=run)


def spend(ledger, mechanism, rounds):
    """Charge rounds to changing clients, with an upcycled iteration after each."""
    fitted = mechanism.fit(setting())
    for m in rounds:
        ledger.charge(2 * m - 1, m, 0, fitted.charge(cohort([m % 3, (m + 1) % 3])))
        ledger.upcycled(2 * m, m)


def lines_of(ledger):
    return [to_line(entry) for entry in ledger]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.name)
def test_a_reopened_ledger_is_the_one_that_was_never_closed(tmp_path, mechanism):
    whole = opened(None, mechanism)
    spend(whole, mechanism, range(1, 8))
    spend(opened(tmp_path / "a", mechanism), mechanism, range(1, 5))
    again = opened(tmp_path / "a", mechanism)
    assert len(again) == 8
    spend(again, mechanism, range(3, 8))  # rounds 3 and 4 are the same simulated releases
    assert lines_of(again) == lines_of(whole)
    assert np.array_equal(again.epsilon(DELTA), whole.epsilon(DELTA))
    assert np.array_equal(again.rounds, whole.rounds)
    assert again.repeated == 0


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.name)
def test_with_real_noise_what_is_repeated_is_charged_again(tmp_path, mechanism):
    spend(opened(tmp_path / "a", mechanism, "system"), mechanism, range(1, 5))
    again = opened(tmp_path / "a", mechanism, "system")
    before = again.epsilon(DELTA)
    spend(again, mechanism, [4, 5])
    charged = [entry.round for entry in again if entry.kind == "data"]
    assert charged == [1, 2, 3, 4, 4, 5]
    assert again.rounds.sum() == 12
    assert (again.epsilon(DELTA) >= before).all()
    assert again.epsilon(DELTA)[1] > before[1]  # client 1 is in rounds 4 and 5
    assert again.repeated == 1
    # What it would have cost without: the same rounds in a ledger that was never closed.
    whole = opened(None, mechanism, "system")
    spend(whole, mechanism, range(1, 6))
    assert again.epsilon_without_repeats(DELTA) == pytest.approx(whole.max_epsilon(DELTA), rel=1e-12)
    assert whole.repeated == 0
    said, words = (
        dict(again.statement_items(DELTA)),
        "1 charge is a repeat, made with new noise after the run had stopped",
    )
    assert said["paid again"].startswith(words)
    stated = re.search(r"which is why epsilon is (\S+) and not (\S+);", said["paid again"])
    assert (stated is None) == (not math.isfinite(whole.max_epsilon(DELTA)))
    if stated is not None:
        both = again.max_epsilon(DELTA), whole.max_epsilon(DELTA)
        assert [float(number) for number in stated.groups()] == pytest.approx(both, rel=1e-5)
        assert both[0] > both[1]
    assert "paid again" not in dict(whole.statement_items(DELTA))
    assert lines_of(opened(tmp_path / "a", mechanism, "system")) == lines_of(again)


def test_a_line_cut_off_by_a_kill_was_never_released_and_is_cut_away(tmp_path):
    path, mechanism = tmp_path / "a", MECHANISMS[0]
    spend(opened(path), mechanism, [1, 2])
    whole = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for length in sorted({*range(0, len(whole), 41), *ends, *(end - 1 for end in ends)}):
        path.write_bytes(whole[:length])
        kept = sum(end <= length for end in ends)
        assert len(opened(path)) == max(kept - 1, 0)
        assert path.read_bytes() == whole[: ends[max(kept - 1, 0)]]
    path.write_bytes(whole[:-1])
    again = opened(path)
    spend(again, mechanism, [1, 2])
    assert path.read_bytes() == whole


@pytest.mark.parametrize("content", [b"my notes", b"\0", b'{"kind":"other","run":"r"', b"{}{", b"\xff\xfe"])
def test_a_file_that_is_no_ledger_is_refused_and_not_touched(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(up.InputError, match=r"damaged.*line 1"):
        opened(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == content


@pytest.mark.parametrize("line", [b"nonsense", b"[]", b'{"kind":"data"}', b'"text"', b"\xff"])
@pytest.mark.parametrize("noise", ["seeded", "system"])
def test_damage_in_the_middle_is_refused_in_one_sentence_and_not_touched(tmp_path, line, noise):
    path = tmp_path / "a"
    spend(opened(path, noise=noise), MECHANISMS[0], [1, 2])
    lines = path.read_bytes().splitlines()
    content = b"\n".join([*lines[:2], line, *lines[3:]]) + b"\n"
    path.write_bytes(content)
    with pytest.raises(up.InputError, match=r"^ledger '.*'.*damaged.*line 3"):
        opened(path, noise=noise)
    assert path.read_bytes() == content


def test_a_charge_that_lost_a_client_is_damage(tmp_path):
    path = tmp_path / "a"
    spend(opened(path), MECHANISMS[0], [1])
    path.write_text(path.read_text().replace('"noise_std":[0.8,0.8]', '"noise_std":[0.8]'))
    with pytest.raises(up.InputError, match=r"damaged.*line 2"):
        opened(path)


@pytest.mark.parametrize(
    "other",
    [
        {"run": "s"},
        {"noise": "system"},
        {"mechanism": MECHANISMS[1]},
        {"data_rounds": 39},
        {"sizes": [224, 45, 400, 9]},
    ],
)
def test_another_runs_file_is_refused_and_not_touched(tmp_path, other):
    path = tmp_path / "a"
    spend(opened(path), MECHANISMS[0], [1])
    path.write_bytes(path.read_bytes()[:-3])
    before = path.read_bytes()
    with pytest.raises(up.InputError, match=r"charges.*another"):
        opened(path, **other)
    assert path.read_bytes() == before


def test_a_run_goes_on_under_the_account_that_paid_and_no_other(tmp_path):
    mechanism, facts = ModelClipping(1.0, 8.0), setting()
    fitted = mechanism.fit(facts)
    accounts = [Account.open(tmp_path / str(i), epsilon=8.0, delta=1e-4) for i in range(2)]
    payers = [one.begin("r", fitted.name, fitted.promise, ("a", "b", "c"), facts.facts.sizes) for one in accounts]
    path = tmp_path / "ledger"
    asked = {"mechanism": fitted, "noise": "system", "setting": facts, "path": path, "run": "r"}
    spend(Ledger(**asked, account=payers[0]), mechanism, [1])
    before = path.read_bytes()
    for payer, name in ((payers[1], accounts[1].id), (None, "none")):
        with pytest.raises(up.InputError, match=rf"account.*'{name}'.*{accounts[0].id}"):
            Ledger(**asked, account=payer)
    assert path.read_bytes() == before
    assert Ledger(**asked, account=payers[0]).rounds.tolist() == [0, 1, 1]


def test_a_file_says_whose_it_is(tmp_path):
    path = tmp_path / "a"
    assert run_of(path) is None
    opened(path, run="mine")
    assert run_of(path) == "mine"
    path.write_bytes(path.read_bytes()[:-1])
    assert run_of(path) is None


def test_a_budget_goes_on_from_what_the_file_says(federation, tmp_path):
    # Each round costs (2 * 10 / 20)^2 = 1 a client; the budget admits mu^2 just above 3 rounds.
    mechanism, facts = ModelClipping(10.0, 20.0), setting()
    fitted = mechanism.fit(facts)
    cost = float((fitted.charge(cohort(range(3))).sensitivity[0] / 20.0) ** 2)
    assert cost == pytest.approx(1.0, rel=1e-4)
    epsilon = up.privacy.gaussian_epsilon(rounds=3, sensitivity=20.1, noise_std=20.0, delta=DELTA)
    budget = Budget(epsilon, DELTA)

    def reopened(noise):
        return Ledger(fitted, noise, facts, budget, tmp_path / noise, "r")

    everybody = fitted.charge(cohort(range(3)))
    for noise in ("seeded", "system"):
        ledger = reopened(noise)
        ledger.charge(1, 1, 0, fitted.charge(cohort(range(3))))
        ledger.charge(2, 2, 0, fitted.charge(cohort([0, 1])))
        ledger.charge(3, 3, 0, fitted.charge(cohort([0])))
        assert reopened(noise).can_pay(everybody, 4).tolist() == [False, True, True]
    # A simulated round that is replayed is paid for by who paid it; a real one must be paid again.
    assert reopened("seeded").can_pay(everybody, 3).tolist() == [True, False, False]
    assert reopened("system").can_pay(everybody, 3).tolist() == [False, True, True]


COUNTS = st.integers(1, 10**6)
ROUNDS = 10**6
NUMBERS = st.floats(0, 1e300)
CLIENTS = 1000


@st.composite
def entries(draw):
    kind = draw(st.sampled_from(["data", "left out", "upcycled"]))
    sizes = {"min_size": kind == "left out", "max_size": 0 if kind == "upcycled" else 4}
    ids = draw(st.lists(st.integers(0, CLIENTS - 1), unique=True, **sizes))
    clients = np.array(ids, dtype=np.int64)

    def column(values, dtype=np.float64):
        return np.array([draw(values) for _ in clients], dtype=dtype)

    charge = None
    if kind == "data":
        composes = draw(st.sampled_from(["gaussian", "pure", "sampled", "none"]))
        optional = {"epsilon": column(NUMBERS)} if composes == "pure" else {}
        if composes == "sampled":
            optional = {"sampling_rate": column(st.floats(0, 1)), "steps": column(COUNTS, np.int64)}
        sensitivity = column(st.floats(0, exclude_min=composes == "sampled"))
        charge = Charge(composes, clients, sensitivity, column(NUMBERS), **optional)
    iteration = draw(COUNTS)
    return Entry(iteration, kind, draw(st.integers(1, iteration)), draw(COUNTS), clients, charge)


@given(entries())
@settings(max_examples=100)
def test_an_entry_comes_back_from_its_line_as_it_was(entry):
    again = from_line(json.loads(json.dumps(to_line(entry))), CLIENTS, ROUNDS)
    assert to_line(again) == to_line(entry)
    assert (again.key, again.clients.dtype) == (entry.key, np.int64)
    if entry.charge is None or again.charge is None:
        assert again.charge is entry.charge
        return
    for name, value in vars(entry.charge).items():
        other = getattr(again.charge, name)
        if isinstance(value, np.ndarray):
            assert other.dtype == value.dtype
            assert other.tobytes() == value.tobytes()
        else:
            assert other == value


def test_a_repeated_simulation_with_a_torn_ledger_completes_it(federation, tmp_path):
    path = tmp_path / "ledger.jsonl"
    arguments = {"algorithm": up.FedAvg(), "privacy": MECHANISMS[0], "iterations": 6, "upcycle": 0.5, "ledger": path}
    first = up.train(federation, **arguments, **QUIET)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    again = up.train(federation, **arguments, **QUIET)
    assert path.read_bytes() == whole
    assert lines_of(again.privacy) == lines_of(first.privacy)


@pytest.mark.parametrize("when", ["as it opens", "as it appends"])
def test_a_line_of_another_writer_is_never_lost(when, tmp_path, monkeypatch):
    spend(opened(tmp_path / "a"), MECHANISMS[0], [1])
    ours, other = (opened(tmp_path / "a") for _ in range(2))
    place, name = (LedgerFile, "_take_up") if when == "as it opens" else (LedgerFile, "_rest")
    plain = getattr(place, name)

    def slow(*given):
        found = plain(*given)
        monkeypatch.setattr(place, name, plain)
        spend(other, MECHANISMS[0], [2])
        return found

    monkeypatch.setattr(place, name, slow)
    with pytest.raises(up.InputError, match="another process wrote to it"):
        spend(opened(tmp_path / "a") if when == "as it opens" else ours, MECHANISMS[0], [3, 4])
    charged = [json.loads(line).get("round") for line in (tmp_path / "a").read_bytes().splitlines()]
    assert charged.count(2) == 2


def test_a_file_that_lost_lines_meanwhile_takes_no_more(tmp_path):
    ledger = opened(tmp_path / "a")
    spend(ledger, MECHANISMS[0], [1, 2])
    short = b"".join((tmp_path / "a").read_bytes().splitlines(keepends=True)[:3])
    (tmp_path / "a").write_bytes(short)
    with pytest.raises(up.InputError, match="shorter than it was"):
        spend(ledger, MECHANISMS[0], [3])
    assert (tmp_path / "a").read_bytes() == short
