"""Files of many clients: no larger than cohorts and rounds make them, and with the answers of files that list all."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

import upcycled as up
from tests.privacy.runs import chained, cohort, setting
from tests.privacy.test_ledger_evidence import outcomes, said
from upcycled.core.vectors import Shards
from upcycled.privacy import DPSGD, Budget, ErmOutput, Ledger, ModelClipping, ObjectivePerturbation
from upcycled.privacy.ledger.entries import LISTED, seal_of
from upcycled.privacy.ledger.joint import joint_epsilon

DELTA = 1e-5
MANY = LISTED + 1
SIZES = 20 + np.arange(MANY) % 7
MECHANISMS = [
    ModelClipping(10.0, 0.8),
    ModelClipping(10.0, epsilon=2.0, delta=1e-6, per_client=True),
    ErmOutput(1.0, noise_std=0.5),
    ObjectivePerturbation(20.0, norm_bound=1.0),
    DPSGD(1.0, 1.5),
]
COHORTS = ([7, 10_000, 3], [10_000, 4, 9_999, 7], [3, 7])


def facts_of(sizes=SIZES, noise="seeded"):
    rounds = np.ones(len(sizes), dtype=np.int64) * 3
    return setting(sizes=sizes, rounds=rounds, data_rounds=3, participation=3e-4, noise=noise)


def opened(path, mechanism=MECHANISMS[0], noise="seeded", run="r", sizes=SIZES, **more):
    facts = facts_of(sizes, noise)
    return Ledger(mechanism.fit(facts), noise, facts, path=path, run=run, **more)


def spend(ledger, mechanism=MECHANISMS[0], rounds=(1, 2, 3)):
    fitted = mechanism.fit(facts_of(noise=ledger.noise))
    for m in rounds:
        ledger.charge(2 * m - 1, m, 0, fitted.charge(cohort(COHORTS[m - 1])))
        ledger.upcycled(2 * m, m)
    return ledger


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def mapped(folder, clients, features=2):
    """Two samples each, in files."""
    rng, rows = np.random.default_rng(0), 2 * clients
    for name, values in {"x": rng.random((rows, features), dtype=np.float32), "y": np.arange(rows) % 2}.items():
        np.save(folder / f"{name}.npy", values)
    x, y = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in "xy")
    return up.FederatedData(train=Shards(x, y, np.arange(0, rows + 1, 2)), test=None, num_classes=2, has_copies=False)


@pytest.mark.parametrize("clients", [50_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_a_file_is_as_large_as_its_cohorts_whatever_the_population(tmp_path, clients):
    data, path = mapped(tmp_path, clients), tmp_path / "ledger.jsonl"
    asked = {"algorithm": up.FedAvg(), "privacy": ModelClipping(1.0, 1.0), "upcycle": 0.5, "progress": False}
    live = up.train(data, **asked, iterations=10, participation=10 / clients, engine="fused", ledger=path).privacy
    assert path.stat().st_size < 64_000
    assert live.rounds.sum() == 50
    read = Ledger.read(path, head=live.head)
    assert np.array_equal(read.epsilon(1e-4), live.epsilon(1e-4))
    assert read.max_epsilon(1e-4) > 0


def test_a_header_has_the_sizes_of_all_in_short(tmp_path):
    many = opened(tmp_path / "many")
    # By hand: every size as eight bytes, the lowest first.
    whole = b"".join(int(n).to_bytes(8, "little") for n in SIZES)
    assert lines_of(tmp_path / "many")[0]["sizes"] == {"largest": 26, "sha256": hashlib.sha256(whole).hexdigest()}
    assert many.header.seal.sha256 == hashlib.sha256(whole).hexdigest()


def test_parts_of_sizes_have_the_digest_of_the_whole(monkeypatch):
    whole = seal_of(SIZES)
    monkeypatch.setattr("upcycled.privacy.ledger.entries._PART", 999)
    assert seal_of(SIZES) == whole


def test_a_client_stands_in_the_line_that_first_charges_it_and_in_no_other(tmp_path):
    ledger = opened(tmp_path / "a", MECHANISMS[1])
    ledger.leave_out(1, 1, 0, np.array([4]))
    spend(ledger, MECHANISMS[1])
    found = [line for line in lines_of(tmp_path / "a") if line["kind"] != "upcycled"]
    assert [line.get("first", {}).get("sizes") for line in found[1:]] == [
        None,
        SIZES[[7, 10_000, 3]].tolist(),
        SIZES[[4, 9_999]].tolist(),
        None,
    ]
    # The paper's number of each is the noise that it was calibrated to.
    assert found[2]["first"]["paper"] == found[2]["noise_std"]
    assert found[3]["first"]["paper"] == [found[3]["noise_std"][1], found[3]["noise_std"][2]]
    assert "noise_std" not in found[0]["paper"]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.name)
def test_its_answers_are_those_of_the_run(tmp_path, mechanism):
    live = spend(opened(tmp_path / "a", mechanism), mechanism)
    read = Ledger.read(tmp_path / "a")
    assert read.default_delta == live.default_delta
    delta = live.default_delta
    assert np.array_equal(read.epsilon(delta), live.epsilon(delta))
    assert read.epsilon_over_rounds(delta) == live.epsilon_over_rounds(delta)
    assert read.statement(delta).splitlines()[:-1] == live.statement(delta).splitlines()[:-1]
    assert read.states_paper_epsilon == live.states_paper_epsilon
    assert read.header.seal.sha256 == live.header.seal.sha256
    if read.states_paper_epsilon:
        assert np.array_equal(read.paper_epsilon(delta), live.paper_epsilon(delta))
    assert np.array_equal(live.sizes, SIZES)
    charged = np.unique(np.concatenate(COHORTS))
    assert np.array_equal(read.sizes[charged], SIZES[charged])
    assert read.sizes.sum() == SIZES[charged].sum()


def test_delta_is_held_against_the_largest_client_charged_or_not(tmp_path):
    spend(opened(tmp_path / "a", sizes=np.append(5_000, SIZES[1:])))
    read = Ledger.read(tmp_path / "a")
    assert read.sizes.max() < 5_000
    with pytest.raises(up.InputError, match=r"1/n = 0.0002 \(5000 =.*largest client\)"):
        read.epsilon(1e-3)


@pytest.mark.parametrize("noise", ["seeded", "system"])
def test_a_file_that_was_cut_off_goes_on_to_the_bytes_of_one_that_was_not(tmp_path, noise):
    path = tmp_path / "a"
    spend(opened(path, noise=noise))
    whole = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for length in (ends[0], ends[0] + 40, ends[1], ends[2], ends[3] - 1, ends[4] + 500):
        path.write_bytes(whole[:length])
        again = opened(path, noise=noise)
        done = {entry.round for entry in again if entry.kind == "upcycled"}
        charged = {entry.round for entry in again if entry.kind == "data"} - done
        for m in charged:
            again.upcycled(2 * m, m)
        spend(again, rounds=[m for m in (1, 2, 3) if m not in done | charged])
        assert path.read_bytes() == whole


def test_a_run_that_was_stopped_goes_on_in_its_file(tmp_path):
    data = mapped(tmp_path, 12_000)
    asked = {"algorithm": up.FedAvg(), "privacy": ModelClipping(1.0, 1.0), "iterations": 6, "progress": False}
    asked |= {"participation": 1e-3, "engine": "sequential"}
    whole = up.train(data, **asked, ledger=tmp_path / "whole", checkpoint=tmp_path / "c0")

    def kill(record):
        if record.iteration == 4:
            raise KeyboardInterrupt

    kept = {"ledger": tmp_path / "a", "checkpoint": tmp_path / "c1", "checkpoint_every": 1}
    up.train(data, **asked, **kept, callbacks=[kill])
    # What was being written when it ended.
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes() + b'{"kind":"data","iteration":5,"round"')
    again = up.train(data, **asked, **kept)
    assert again.error is None
    # The name of the run is that of its arguments, which say where it is kept.
    names = [path.read_text().splitlines()[1:] for path in (tmp_path / "whole", tmp_path / "a")]
    one, two = ([line.partition(',"chain"')[0] for line in lines] for lines in names)
    assert one == two
    assert np.array_equal(again.privacy.epsilon(1e-4), whole.privacy.epsilon(1e-4))


@pytest.mark.parametrize("noise", ["seeded", "system"])
@pytest.mark.parametrize("client", [7, 5], ids=["charged", "never charged"])
def test_a_run_of_other_sizes_is_refused_and_its_file_not_touched(tmp_path, client, noise):
    path = tmp_path / "a"
    spend(opened(path, noise=noise))
    before = path.read_bytes()
    sizes = SIZES.copy()
    sizes[client] += 1
    with pytest.raises(up.InputError, match=r"charges.*another"):
        opened(path, noise=noise, sizes=sizes)
    assert path.read_bytes() == before


# Evidence


@pytest.mark.parametrize("with_head", [True, False])
def test_random_edits_are_refused_or_harmless(tmp_path, with_head):
    path, key = tmp_path / "a", bytes(range(32))
    live = spend(opened(path, noise="system", key=key))
    ledgers = [(path.read_bytes(), live.head, key if with_head else None, said(live), live)]
    refused, harmless = outcomes(ledgers, tmp_path / "b", 220, 0, with_head)
    assert refused > 150
    assert harmless > 0


EDITS = {
    "a size": ('"first":{"sizes":[20,', '"first":{"sizes":[21,'),
    "the largest size": ('"largest":26', '"largest":27'),
    "the paper's number": ('"paper":[0.8,0.8,0.8]', '"paper":[0.8,0.7,0.8]'),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_size_breaks_the_chain(tmp_path, name):
    path, (before, after) = tmp_path / "a", EDITS[name]
    head = spend(opened(path)).head
    content = path.read_text()
    assert content.count(before) == 1
    path.write_text(content.replace(before, after))
    for given in (None, head):
        with pytest.raises(up.InputError, match="is not what the run wrote, or does not follow"):
            Ledger.read(path, head=given)
    with pytest.raises(up.InputError, match="is not what the run wrote, or does not follow"):
        opened(path)


FORGED = {
    "a size above the largest": (2, {"first": {"sizes": [20, 27, 23], "paper": [0.8] * 3}}, r"1.*26"),
    "a size of nothing": (2, {"first": {"sizes": [20, 0, 23], "paper": [0.8] * 3}}, r"1.*26"),
    "a size that is no number": (2, {"first": {"sizes": [20, True, 23], "paper": [0.8] * 3}}, r"1.*26"),
    "a size too few": (2, {"first": {"sizes": [20, 24], "paper": [0.8] * 3}}, "does not say as much"),
    "a number too few": (2, {"first": {"sizes": [20, 24, 23], "paper": [0.8] * 2}}, "does not say as much"),
    "a number below zero": (2, {"first": {"sizes": [20, 24, 23], "paper": [-0.8] * 3}}, "must be"),
    "no numbers": (2, {"first": {"sizes": [20, 24, 23]}}, "does not say as much"),
    "no list": (2, {"first": {"sizes": {"7": 20}, "paper": [0.8] * 3}}, r"1.*26"),
    "no table": (2, {"first": [20, 24, 23]}, "must be a table"),
    "nothing": (2, {"first": None}, "does not say as much"),
    "a name of its own": (2, {"first": {"sizes": [20, 24, 23], "paper": [0.8] * 3, "x": 1}}, "run wrote"),
    "a free line with sizes": (3, {"first": {"sizes": []}}, r"written.*ledger"),
    "sizes of who was charged": (6, {"first": {"sizes": [23, 20], "paper": [0.8] * 2}}, "does not say as much"),
    "a seal that is none": (1, {"sizes": {"largest": 26}}, r"largest.*hash"),
    "a listed size": (1, {"sizes": [26] * 3}, r"largest.*hash"),
    "a largest that is none": (1, {"sizes": {"largest": 0, "sha256": "0" * 64}}, "integer >= 1"),
    "no seal": (1, {"sizes": None}, r"largest.*hash"),
    "a listed paper": (
        1,
        {"paper": {"theorem": "output", "clip_norm": 10.0, "noise_std": [0.8]}},
        "'paper'",
    ),
    "too many clients": (1, {"num_clients": 2**31 + 1}, "2147483648"),
}


@pytest.mark.parametrize("name", FORGED)
def test_what_no_ledger_writes_is_refused_whoever_chained_it(tmp_path, name):
    path, (number, change, sentence) = tmp_path / "a", FORGED[name]
    spend(opened(path))
    lines = lines_of(path)
    chain = lines[number - 1].pop("chain")
    lines[number - 1] |= change | {"chain": chain}
    path.write_text(chained(lines))
    with pytest.raises(up.InputError, match=rf"^ledger '.*'.*damaged.*line {number} \(.*{sentence}"):
        Ledger.read(path)


# What pays, and what adds up


def test_a_budget_holds_among_many(tmp_path):
    mechanism, facts = ModelClipping(1.0, 2.0), facts_of()
    fitted = mechanism.fit(facts)
    ledger = Ledger(fitted, "seeded", facts, Budget(1.5, 1e-5), tmp_path / "a", "r")
    ledger.charge(1, 1, 0, fitted.charge(cohort([7, 3])))
    read = Ledger.read(tmp_path / "a")
    assert read.budget == Budget(1.5, 1e-5)
    assert read.sizes[7] == SIZES[7]


def test_ledgers_add_up_if_everybody_has_the_same_size_in_all(tmp_path):
    one, two = ModelClipping(1.0, 8.0), ModelClipping(1.0, 9.0)
    spend(opened(tmp_path / "one", one, run="one"), one)
    spend(opened(tmp_path / "two", two, run="two"), two)
    ledgers = [Ledger.read(tmp_path / name) for name in ("one", "two")]
    found = joint_epsilon(ledgers, DELTA)
    # By hand: client 7 paid three times in both.
    squares = 3 * sum(float(ledger._spent._totals["squares"][7]) / 3 for ledger in ledgers)
    assert found[7] == pytest.approx(up.privacy.gdp_epsilon(mu=squares**0.5, delta=DELTA), rel=1e-9)
    for client, sentence in {
        7: "client 7 has 20 samples in one ledger and 21 in",
        5: "was not charged in both",
    }.items():
        sizes = SIZES.copy()
        sizes[client] += 1
        other = opened(tmp_path / f"other{client}", two, run="other", sizes=sizes)
        spend(other, two)
        other.charge(6, 3, 1, two.fit(facts_of()).charge(cohort([5])))
        with pytest.raises(up.InputError, match=sentence):
            joint_epsilon([ledgers[0], Ledger.read(tmp_path / f"other{client}")], DELTA)
