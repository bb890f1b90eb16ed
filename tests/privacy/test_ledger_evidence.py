"""A ledger as evidence: whatever is done to its file, it reads as it was or not at all; with its head, always."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import pickle
import random
import stat

import numpy as np
import pytest

import upcycled as up
from tests.privacy.runs import chained, cohort, setting, unplanned
from tests.privacy.test_ledger_read import RUNS, trained
from upcycled.core.mechanism import Charge, Fitted, Promise
from upcycled.privacy import Budget, Ledger, ModelClipping, ObjectivePerturbation
from upcycled.privacy.ledger.chain import Head, key_at
from upcycled.privacy.ledger.entries import to_line
from upcycled.privacy.ledger.header import to_json

DELTA = 1e-5
KEY = bytes(range(32))


def opened(path, noise="system", mechanism=ModelClipping(10.0, 0.8), key=KEY, **more):  # noqa: B008 - frozen
    facts = setting(**more)
    return Ledger(mechanism.fit(facts), noise, unplanned(facts), path=path, run="r", key=key)


def spent(path, rounds=4, **more):
    """A ledger with so many data rounds, an upcycled iteration after each, and two lines about who was left out."""
    ledger = opened(path, **more)
    fitted = ModelClipping(10.0, 0.8).fit(setting())
    for m in range(1, rounds + 1):
        if m == 3:
            ledger.leave_out(2 * m - 1, m, 0, np.array([2]))
        ledger.charge(2 * m - 1, m, 0, fitted.charge(cohort([m % 3, (m + 1) % 3])))
        ledger.upcycled(2 * m, m)
    return ledger


def said(ledger):
    """Everything that a ledger's file says."""
    return json.dumps([to_json(ledger._header), *map(to_line, ledger)])


# Random edits


def flip(content, rng):
    place = rng.randrange(len(content))
    return content[:place] + bytes([content[place] ^ (1 << rng.randrange(8))]) + content[place + 1 :]


def replace_byte(content, rng):
    place = rng.randrange(len(content))
    return content[:place] + bytes([rng.randrange(256)]) + content[place + 1 :]


def change_digit(content, rng):
    place = rng.choice([i for i, byte in enumerate(content) if chr(byte).isdigit()])
    return content[:place] + rng.choice("0123456789-.e").encode() + content[place + 1 :]


def swap_bytes(content, rng):
    i, j = sorted(rng.randrange(len(content)) for _ in range(2))
    changed = bytearray(content)
    changed[i], changed[j] = changed[j], changed[i]
    return bytes(changed)


def delete_bytes(content, rng):
    place = rng.randrange(len(content))
    return content[:place] + content[place + rng.choice([1, 2, 5, 40, 300]) :]


def insert_bytes(content, rng):
    place = rng.randrange(len(content) + 1)
    new = rng.choice([rng.randbytes(rng.randrange(1, 9)), b"0", b" ", b"\n", b",1", b'"x":1,', b"-", b"NaN"])
    return content[:place] + new + content[place:]


def cut(content, rng):
    return content[: rng.randrange(len(content))]


def lines_of(content):
    return content.splitlines(keepends=True)


def delete_lines(content, rng):
    lines = lines_of(content)
    place = rng.randrange(len(lines))
    return b"".join(lines[:place] + lines[place + rng.randrange(1, 4) :])


def swap_lines(content, rng):
    lines = lines_of(content)
    i, j = (rng.randrange(len(lines)) for _ in range(2))
    lines[i], lines[j] = lines[j], lines[i]
    return b"".join(lines)


def insert_line(content, rng):
    lines = lines_of(content)
    lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
    return b"".join(lines)


def cut_lines(content, rng):
    lines = lines_of(content)
    return b"".join(lines[: rng.randrange(len(lines))])


EDITS = (
    flip,
    replace_byte,
    change_digit,
    swap_bytes,
    delete_bytes,
    insert_bytes,
    cut,
    delete_lines,
    swap_lines,
    insert_line,
    cut_lines,
)


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory):
    """A file of every kind, its head, its key, and what it says."""
    folder = tmp_path_factory.mktemp("ledgers")
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(n, 5)).astype(np.float32) for n in (23, 7, 41, 12)]
    ys = [rng.integers(0, 3, len(x)) for x in xs]
    held_out = ([x[:3] for x in xs], [y[:3] for y in ys])
    data = up.FederatedData.from_arrays(xs, ys, test=held_out, num_classes=3)
    found = []
    for i, arguments in enumerate(RUNS.values()):
        path = folder / str(i)
        key = folder / f"{i}.key" if arguments.get("noise") == "system" else None
        live = trained(data, path, **arguments, ledger_key=key)
        found.append((path.read_bytes(), live.head, None if key is None else key.read_bytes(), said(live), live))
    return found


def outcomes(ledgers, path, edits, seed, with_head):
    """Return how many edits were refused, how many harmless; anything else fails here."""
    rng, refused, harmless = random.Random(seed), 0, 0
    for n in range(edits):
        content, head, key, before, live = ledgers[n % len(ledgers)]
        edit = EDITS[n // len(ledgers) % len(EDITS)]
        changed = edit(content, rng)
        path.write_bytes(changed)
        try:
            read = Ledger.read(path, head=head, key=key) if with_head else Ledger.read(path)
        except up.InputError:
            refused += 1
            continue
        if with_head:
            assert said(read) == before, (n, edit.__name__)
            assert read.chain == "anchored"
        else:
            # Only whole last lines can be taken away: what is there is what the run wrote.
            assert before.startswith(said(read)[:-1]), (n, edit.__name__)
            assert len(read) <= len(live)
            assert read.chain == "unanchored"
        harmless += 1
    return refused, harmless


@pytest.mark.parametrize("with_head", [True, False])
def test_every_random_edit_is_refused_or_harmless(ledgers, tmp_path, with_head):
    refused, harmless = outcomes(ledgers, tmp_path / "a", 660, 0, with_head)
    assert refused > 500
    assert harmless > 0


@pytest.mark.slow
@pytest.mark.parametrize("with_head", [True, False])
def test_ten_thousand_random_edits_are_refused_or_harmless(ledgers, tmp_path, with_head):
    refused, _ = outcomes(ledgers, tmp_path / "a", 10_000, 1, with_head)
    assert refused > 8_000


# Edits with a name


NAMED = {
    "another kind": ('"kind":"data"', '"kind":"dat!"'),
    "another kind that there is": ('"kind":"data"', '"kind":"left out"'),
    "another charge": ('"charge":"gaussian"', '"charge":"gauSsian"'),
    "a charge without a claim": ('"charge":"gaussian"', '"charge":"none"'),
    "another client": ('"clients":[1,2]', '"clients":[1,0]'),
    "a client out of range": ('"clients":[1,2]', '"clients":[1,9]'),
    "a client less": ('"clients":[1,2]', '"clients":[1]'),
    "a smaller sensitivity": ('"sensitivity":[20.', '"sensitivity":[10.'),
    "negative noise": ('"noise_std":[0.8', '"noise_std":[-0.8'),
    "more noise": ('"noise_std":[0.8', '"noise_std":[8.8'),
    "another round": ('"round":2', '"round":1'),
    "an integer for a float": ('"noise_std":[0.8,0.8]', '"noise_std":[1,1]'),
    "a space": ('"round":2', '"round": 2'),
    "a key twice": ('"round":2', '"round":2,"round":2'),
    "a key more": ('"round":2', '"round":2,"note":2'),
    "another mechanism": ('"mechanism":"model_clipping"', '"mechanism":"model_Clipping"'),
    "a smaller largest": ('"largest":400', '"largest":300'),
    "smaller sizes": ('"first":{"sizes":[45,', '"first":{"sizes":[35,'),
    "fewer clients": ('"num_clients":3', '"num_clients":2'),
    "real noise": ('"noise":"system"', '"noise":"seeded"'),
    "a budget": ('"budget":null', '"budget":{"epsilon":1.0,"delta":1e-05}'),
    "another promise": ('"unit":"record"', '"unit":"client"'),
    "a format less": ('"format":4', '"format":3'),
}


@pytest.mark.parametrize("name", NAMED)
def test_an_edit_of_a_line_is_refused_with_and_without_a_head(tmp_path, name):
    before, after = NAMED[name]
    path = tmp_path / "a"
    head = spent(path).head
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))
    for how in ({}, {"head": head}, {"head": head, "key": KEY}):
        with pytest.raises(up.InputError, match=r"^ledger '.*'.*damaged.*line [1-9]"):
            Ledger.read(path, **how)


@pytest.mark.parametrize("lines", range(1, 9))
def test_last_lines_cut_are_refused_with_a_head_and_called_unanchored_without(tmp_path, lines):
    path = tmp_path / "a"
    head = spent(path).head
    kept = path.read_text().splitlines(keepends=True)[:-lines]
    path.write_text("".join(kept))
    with pytest.raises(up.InputError, match=rf"{len(kept)}.*lines.*10.*head"):
        Ledger.read(path, head=head)
    read = Ledger.read(path)
    assert read.chain == "unanchored"
    assert "ledger: unanchored; " in read.statement(DELTA)
    assert "last lines may be missing" in read.statement(DELTA)


def test_a_flipped_last_line_end_is_damage_and_not_a_line_that_was_never_finished(tmp_path):
    path = tmp_path / "a"
    spent(path)
    content = path.read_bytes()
    for byte in range(256):
        path.write_bytes(content[:-1] + bytes([byte]))
        if byte == ord("\n"):
            assert len(Ledger.read(path)) == 9
            continue
        with pytest.raises(up.InputError, match=r"damaged.*line 10"):
            Ledger.read(path)


def test_a_forger_without_the_key_gets_past_no_head_and_with_it_past_his_own(tmp_path):
    path = tmp_path / "a"
    head = spent(path).head
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    epsilon = Ledger.read(path, head, KEY).epsilon(DELTA).max()
    for line in lines[1:]:
        if line["kind"] == "data":
            line["sensitivity"] = [number / 2 for number in line["sensitivity"]]
    path.write_text(chained(lines))
    # Without a head anybody who can write the file can write any ledger.
    forged = Ledger.read(path)
    assert forged.epsilon(DELTA).max() < epsilon
    assert forged.chain == "unanchored"
    with pytest.raises(up.InputError, match=r"head.*line 10"):
        Ledger.read(path, head)
    # A head of his own stands beside a key of his own only.
    own = Head(10, forged.head.tip, hmac.new(bytes(32), b"anything", hashlib.sha256).hexdigest())
    for made in (own, forged.head):
        assert Ledger.read(path, made).chain == "anchored"
        assert "which no key was asked about" in Ledger.read(path, made).statement(DELTA)
        with pytest.raises(up.InputError, match=r"head.*(no HMAC|an HMAC of another key)"):
            Ledger.read(path, made, KEY)
    # With the key he is the holder.
    signed = hmac.new(KEY, f"upcycled ledger head 10 {forged.head.tip}".encode(), hashlib.sha256).hexdigest()
    assert Ledger.read(path, Head(10, forged.head.tip, signed), KEY).chain == "anchored"


def test_the_chain_is_the_hash_of_all_lines_before_and_the_head_names_its_end(tmp_path):
    path = tmp_path / "a"
    ledger = spent(path)
    text = path.read_text()
    assert chained([json.loads(line) for line in text.splitlines()]) == text
    assert ledger.head.lines == 10
    assert ledger.head.tip == json.loads(text.splitlines()[-1])["chain"]
    assert len(ledger.head.mac) == 64
    assert Ledger.read(path, ledger.head.as_json(), KEY).head == ledger.head
    assert json.loads(json.dumps(ledger.head.as_json())) == ledger.head.as_json()


def test_lines_after_the_head_are_charged_and_counted_as_ahead(tmp_path):
    path = tmp_path / "a"
    ledger = spent(path, rounds=2)
    head, before = ledger.head, ledger.epsilon(DELTA)
    charge = ModelClipping(10.0, 0.8).fit(setting()).charge(cohort([0, 1, 2]))
    ledger.charge(5, 3, 0, charge)
    read = Ledger.read(path, head, KEY)
    assert (read.chain, read.ahead, Ledger.read(path).ahead) == ("anchored", 1, 0)
    assert (read.epsilon(DELTA) > before).all()
    assert "which the holder's key made; 1 lines after the head are charged too" in read.statement(DELTA)
    # Those before the head are still held to it.
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2] + lines[3:]))
    with pytest.raises(up.InputError, match=r"damaged.*line 3"):
        Ledger.read(path, head, KEY)


@pytest.mark.parametrize(
    "head",
    [
        "abc",
        {},
        {"lines": 10, "tip": "0" * 64},
        {"lines": True, "tip": "0" * 64, "mac": None},
        {"lines": 0, "tip": "0" * 64, "mac": None},
        {"lines": 10, "tip": "0" * 63 + "G", "mac": None},
        {"lines": 10, "tip": "0" * 64, "mac": 3},
    ],
)
def test_what_is_no_head_gets_one_sentence(tmp_path, head):
    path = tmp_path / "a"
    spent(path)
    with pytest.raises(up.InputError, match=r"^head.*ledger's head"):
        Ledger.read(path, head)


def test_a_key_needs_a_head_and_is_never_shown(tmp_path):
    path = tmp_path / "a"
    head = spent(path).head
    with pytest.raises(up.InputError, match=r"key.*head"):
        Ledger.read(path, key=KEY)
    for wrong in (b"short key", "x" * 32):
        with pytest.raises(up.InputError, match=r"^key.*32 bytes") as error:
            Ledger.read(path, head, wrong)
        assert "short" not in str(error.value)


@pytest.mark.parametrize("version", [None, 3, 5, "4", True])
def test_a_file_of_another_format_is_rejected(tmp_path, version):
    path = tmp_path / "a"
    spent(path)
    first, *rest = path.read_text().splitlines()
    header = json.loads(first) | {"format": version}
    path.write_text("\n".join([json.dumps(header, separators=(",", ":")), *rest]) + "\n")
    with pytest.raises(up.InputError, match=r"line 1.*format.*; expected 4\)"):
        Ledger.read(path)


def test_a_run_that_finds_its_file_without_a_head_is_unanchored(tmp_path):
    first = spent(tmp_path / "a")
    assert first.chain == "anchored"
    assert opened(tmp_path / "a").chain == "unanchored"
    assert opened(None).chain is None
    assert opened(None).head is None
    assert "ledger: " not in opened(None).statement(DELTA)


# What a ledger writes, it reads


def test_whole_numbers_of_a_mechanism_come_back(tmp_path):
    ledger = opened(tmp_path / "a")
    ones = np.array([1, 1])
    ledger.charge(1, 1, 0, Charge("gaussian", np.array([0, 1]), ones, ones))
    assert Ledger.read(tmp_path / "a", ledger.head).epsilon(DELTA).tolist() == ledger.epsilon(DELTA).tolist()
    whole = opened(tmp_path / "b", mechanism=ModelClipping(10, 20), participation=1)
    assert Ledger.read(tmp_path / "b", whole.head).chain == "anchored"


@pytest.mark.parametrize(
    "wrong",
    [
        {"noise_std": [-1.0, 1.0]},
        {"noise_std": [1.0]},
        {"sensitivity": [float("nan"), 1.0]},
        {"clients": [0, 7]},
    ],
)
def test_a_charge_that_could_not_be_read_is_not_written(tmp_path, wrong):
    ledger = opened(tmp_path / "a")
    before = (tmp_path / "a").read_bytes()
    facts = {"clients": [0, 1], "sensitivity": [1.0, 1.0], "noise_std": [1.0, 1.0]} | wrong
    charge = Charge("gaussian", *(np.array(facts[name]) for name in ("clients", "sensitivity", "noise_std")))
    with pytest.raises(up.InputError, match=r"charge.*'model_clipping'.*ledger"):
        ledger.charge(1, 1, 0, charge)
    assert (tmp_path / "a").read_bytes() == before
    assert len(ledger) == 0


def test_a_promise_that_could_not_be_read_is_refused_before_the_first_round(tmp_path):
    fitted = Fitted(name="own", promise=Promise(3, ()), release=print, charge=print)
    with pytest.raises(up.InputError, match=r"promise.*mechanism 'own'.*ledger"):
        Ledger(fitted, "seeded", setting(), path=tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_iterations_and_rounds_of_a_forged_file_must_agree(tmp_path):
    path = tmp_path / "a"
    spent(path, noise="seeded", key=None)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    places = {"data 1": 1, "up 2": 2, "data 3": 3, "up 4": 4}
    for place, change, words in (
        ("data 3", {"round": 41, "iteration": 80}, r"line 4 \(its round is 41, and the run has 40\)"),
        ("data 1", {"round": 2}, r"line 2 \(its round is 2, which iteration 1 cannot have reached\)"),
        ("up 2", {"iteration": 9}, r"line 4 \(its iteration is 3, after 9\)"),
        ("up 4", {"iteration": 3, "round": 1}, r"line 5 \(its round is 1, and iteration 3 had another before\)"),
        ("up 4", {"round": 1}, r"line 1 \(rounds of the lines below go down where iterations go up\)"),
        ("up 2", {"clients": [1]}, r"line 3 \(it is 'upcycled' with 1 clients\)"),
        ("up 2", {"cost": 1}, r"line 3 \(it is not written as a ledger writes it\)"),
    ):
        changed = [line | (change if i == places[place] else {}) for i, line in enumerate(lines)]
        path.write_text(chained(changed))
        with pytest.raises(up.InputError, match=rf"damaged.*{words}"):
            Ledger.read(path)


# Files and keys


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_ledgers_keys_and_checkpoints_are_their_users_alone_whatever_the_umask(federation, tmp_path, open_umask):
    folder = tmp_path / "kept"
    arguments = {"algorithm": up.FedAvg(), "privacy": ModelClipping(10.0, 20.0), "noise": "system", "iterations": 2}
    up.train(federation, **arguments, checkpoint=folder, progress=False, engine="sequential")
    files = {path.name.partition("-")[0]: mode(path) for path in folder.iterdir() if path.name != ".lock"}
    assert files == dict.fromkeys(("ledger.jsonl", "ledger.key", "data.key", "iteration"), 0o600)
    os.umask(0o077)
    spent(tmp_path / "a")
    (tmp_path / "a").chmod(0o644)
    opened(tmp_path / "a")
    assert mode(tmp_path / "a") == 0o600


def test_a_ledger_that_was_moved_away_is_noticed_and_not_begun_in_the_middle(tmp_path):
    ledger = opened(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    with pytest.raises(up.UpcycledError, match="cannot be written"):
        ledger.upcycled(1, 1)
    assert not (tmp_path / "a").exists()


def test_a_key_is_made_once_for_its_user_alone(tmp_path, open_umask):
    path = tmp_path / "private" / "ledger.key"
    key = key_at(path)
    assert len(key) == 32
    assert key_at(path) == key
    assert key_at(tmp_path / "other") != key
    assert (mode(path), mode(path.parent)) == (0o600, 0o700)
    path.write_bytes(b"cut off")
    with pytest.raises(up.InputError, match=r"ledger\.key.*7 bytes.*key.*32.*key"):
        key_at(path)


def test_the_key_does_not_travel_with_a_ledger_and_its_head_does(tmp_path):
    ledger = spent(tmp_path / "a")
    content = pickle.dumps(ledger)
    assert KEY not in content
    sent = pickle.loads(content)
    assert sent.head == ledger.head
    assert sent.epsilon(DELTA).tolist() == ledger.epsilon(DELTA).tolist()
    assert sent.statement(DELTA) == ledger.statement(DELTA)
    with pytest.raises(up.InputError, match="takes no lines"):
        sent.upcycled(9, 4)


# Runs that are kept


def kept(tmp_path, noise="system", **more):
    arguments = {"algorithm": up.FedAvg(), "privacy": ModelClipping(10.0, 20.0), "iterations": 6, "noise": noise}
    return arguments | {"checkpoint": tmp_path / "kept", "checkpoint_every": 1, "progress": False} | more


def stop_after(iterations):
    return lambda record: up.STOP if record.iteration == iterations else None


@pytest.mark.parametrize("noise", ["seeded", "system"])
def test_a_run_goes_on_only_in_the_ledger_that_its_checkpoint_knows(federation, tmp_path, noise):
    first = up.train(federation, **kept(tmp_path, noise), callbacks=[stop_after(4)]).privacy
    path = tmp_path / "kept" / "ledger.jsonl"
    whole = path.read_text()
    lines = [json.loads(line) for line in whole.splitlines()]
    lines[1]["noise_std"] = [40.0] * 4
    path.write_text(chained(lines))  # as many lines, a sound chain, less epsilon
    with pytest.raises(up.InputError, match=r"ledger\.jsonl' is not the file that its head was made of"):
        up.train(federation, **kept(tmp_path, noise))
    path.write_text(whole)
    result = up.train(federation, **kept(tmp_path, noise))
    assert result.privacy.chain == "anchored"
    assert result.privacy.ahead == 3  # two rounds, and that it ended
    assert Ledger.read(path, first.head).ahead == 3
    assert (result.privacy.head.mac is None) == (noise == "seeded")


def test_a_run_whose_key_is_gone_is_told_so(federation, tmp_path):
    up.train(federation, **kept(tmp_path), callbacks=[stop_after(4)])
    key = tmp_path / "kept" / "ledger.key"
    kept_key = key.read_bytes()
    key.unlink()
    with pytest.raises(up.InputError, match=r"head.*HMAC.*key.*changed"):
        up.train(federation, **kept(tmp_path))
    key.write_bytes(kept_key)
    assert up.train(federation, **kept(tmp_path)).privacy.is_sealed


def test_the_key_lies_where_it_is_told_to_and_a_simulation_has_none(federation, tmp_path):
    own = tmp_path / "mine" / "my.key"
    result = up.train(federation, **kept(tmp_path), ledger_key=own)
    assert not (tmp_path / "kept" / "ledger.key").exists()
    assert Ledger.read(tmp_path / "kept" / "ledger.jsonl", result.privacy.head, own.read_bytes()).is_sealed
    simulated = up.train(federation, **kept(tmp_path, "seeded", checkpoint=tmp_path / "simulated")).privacy
    assert simulated.head.mac is None
    assert not list(tmp_path.glob("simulated/*.key"))
    with pytest.raises(up.InputError, match=r"ledger_key.*ledger.*checkpoint"):
        up.train(federation, **kept(tmp_path, checkpoint=None), ledger_key=own)


def test_a_budgets_ledger_and_a_pure_one_are_evidence_too(tmp_path):
    facts = setting()
    for i, (mechanism, budget) in enumerate(
        [(ModelClipping(10.0, 20.0), Budget(2, DELTA)), (ObjectivePerturbation(20.0, norm_bound=1.0), Budget(30.0, 0))]
    ):
        path = tmp_path / str(i)
        fitted = mechanism.fit(facts)
        ledger = Ledger(fitted, "system", facts, budget, path, "r", KEY)
        ledger.charge(1, 1, 0, fitted.charge(cohort([0, 1])))
        assert Ledger.read(path, ledger.head, KEY).budget == budget
