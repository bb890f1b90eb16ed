"""Ledgers of several runs together: totals by hand, by other formulas, and by dp_accounting itself."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import upcycled as up
from tests.privacy.runs import cohort, setting, unplanned
from tests.wording import has_all
from upcycled.cli.main import main
from upcycled.core.mechanism import Charge
from upcycled.privacy import DPSGD, CentralDPFedAvg, ErmOutput, Ledger, ModelClipping, ObjectivePerturbation
from upcycled.privacy.accounting import gdp_epsilon, pure_composition_epsilon
from upcycled.privacy.ledger.joint import (
    FIXED_ONLY,
    charges_of,
    deltas_of_events,
    epsilon_of_events,
    events_as_json,
    events_of,
    group_epsilon,
    joint_epsilon,
)

DELTA = 1e-5


def ledger(mechanism, rounds, clients=(0, 1, 2), path=None, run=None, noise="seeded", **changes):
    facts = setting(noise=noise, **changes)
    fitted = mechanism.fit(facts)
    made = Ledger(fitted, noise, unplanned(facts), path=path, run=run or repr((mechanism, rounds)))
    for m in range(1, rounds + 1):
        made.charge(m, m, 0, fitted.charge(cohort(clients)))
    return made


def test_gaussian_ledgers_add_up_their_squares():
    one, other = ledger(ModelClipping(1.0, 8.0), 3), ledger(ErmOutput(norm_bound=1.0, noise_std=0.5), 5, clients=(0, 1))
    squares = sum(
        (entry.charge.sensitivity[0] / entry.charge.noise_std[0]) ** 2 for each in (one, other) for entry in each
    )
    found = joint_epsilon([one, other], DELTA)
    assert found[0] == pytest.approx(gdp_epsilon(mu=math.sqrt(squares), delta=DELTA))
    assert found[2] == pytest.approx(one.epsilon(DELTA)[2])  # it took no part in the other


def test_pure_ledgers_compose_optimally():
    one, other = (ledger(ObjectivePerturbation(alpha, norm_bound=1.0), 20) for alpha in (2.0, 3.0))
    each = [float(entry.charge.epsilon[1]) for ledger in (one, other) for entry in ledger]
    expected = pure_composition_epsilon(epsilons=np.array(each), delta=DELTA)
    assert joint_epsilon([one, other], DELTA)[1] == pytest.approx(expected)


def test_different_kinds_are_one_privacy_loss_and_less_than_their_sum():
    gaussian = ledger(ErmOutput(norm_bound=1.0, noise_std=0.5), 10)
    pure = ledger(ObjectivePerturbation(2.0, norm_bound=1.0), 10)
    sampled = ledger(DPSGD(clip_norm=1.0, noise_multiplier=2.0), 5, local=up.LocalSGD(batch_size=20))
    together = joint_epsilon([gaussian, pure, sampled], DELTA)
    alone = [each.epsilon(DELTA) for each in (gaussian, pure, sampled)]
    assert (together < np.sum(alone, axis=0)).all()
    assert (together > np.max(alone, axis=0)).all()
    # A kind alone, as events, is the ledger's own number: what the evidence's script relies on.
    for each in (gaussian, pure, sampled):
        charges = [(entry.charge, 0) for entry in each]
        assert epsilon_of_events(events_of(charges), 0, DELTA) == pytest.approx(each.epsilon(DELTA)[0], rel=5e-3)


def test_events_avoid_the_librarys_pitfalls():
    ones = np.ones(1)
    charges = [
        (Charge("gaussian", np.array([0]), ones, 3 * ones), 0),
        (Charge("gaussian", np.array([0]), ones, 3 * ones), 0),
        (Charge("pure", np.array([0]), ones, ones, epsilon=0.5 * ones), 0),
        (Charge("sampled", np.array([0]), ones, 2 * ones, sampling_rate=0.1 * ones, steps=np.array([7])), 0),
    ]
    assert events_as_json(events_of(charges)) == [
        {"event": "GaussianDpEvent", "noise_multiplier": 6.0, "count": 2},
        {"event": "PoissonSampledDpEvent", "sampling_probability": 0.1, "noise_multiplier": 2.0, "count": 7},
        {
            "event": "RandomizedResponseDpEvent",
            "noise_parameter": 2 / (1 + math.exp(0.5)),
            "num_buckets": 2,
            "count": 1,
        },
    ]
    assert events_of([(Charge("gaussian", np.array([0]), ones, 0 * ones), 0)]) is None
    assert epsilon_of_events(None, 0, DELTA) == math.inf
    assert epsilon_of_events(events_of(charges), 10**9, DELTA) > epsilon_of_events(events_of(charges), 0, DELTA)
    # No room for so many draws, and a pure round has no divergence of a Gaussian: nothing is proven.
    assert epsilon_of_events(events_of(charges), 2**50, DELTA) == math.inf


def test_what_cannot_be_added_up_is_refused_in_a_sentence():
    one = ledger(ModelClipping(1.0, 8.0), 3)
    with pytest.raises(up.InputError, match="counts once"):
        joint_epsilon([one, one], DELTA)
    with pytest.raises(up.InputError, match=r"3.*2 clients"):
        joint_epsilon([one, ledger(ModelClipping(1.0, 8.0), 2, clients=(0, 1), sizes=[50, 50])], DELTA)
    # The same clients in another order: the sum would be one client's first study and another's second.
    with pytest.raises(up.InputError, match=r"client 0.*samples.*ledger.*7"):
        joint_epsilon([one, ledger(ModelClipping(1.0, 8.0), 2, sizes=[7, *one.sizes[1:].tolist()])], DELTA)
    clients = ledger(CentralDPFedAvg(1.0, 4.0), 2)
    with pytest.raises(up.InputError, match=r"record.*client"):
        joint_epsilon([one, clients], 1e-5)


def test_the_command_composes_files_and_says_when_that_holds(tmp_path, capsys):
    files = [tmp_path / name / "ledger.jsonl" for name in ("a", "b")]
    made = [ledger(ModelClipping(1.0, 8.0), 3 + i, path=file, run=str(i)) for i, file in enumerate(files)]
    assert main(["privacy", "ledger", str(files[0]), str(files[1].parent), "--delta", "1e-5"]) == 0
    shown = capsys.readouterr()
    assert FIXED_ONLY in shown.out
    assert "simulations" in shown.err
    assert main(["privacy", "ledger", *map(str, files), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["clients"][0]["rounds"] == 7
    assert found["clients"][0]["epsilon"] == pytest.approx(joint_epsilon(made, 1e-5)[0])
    assert main(["privacy", "ledger", str(tmp_path / "c")]) == 2


def summed_up(made, file, **changes):
    """Write the summary of a run beside its ledger."""
    said = {"head": made.head.as_json(), "delta": DELTA, "epsilon": {"max": made.max_epsilon(DELTA)}, **changes}
    (file.parent / "summary.json").write_text(json.dumps({"privacy": said}))


def test_the_command_holds_a_ledger_against_the_head_in_the_summary_beside_it(tmp_path, capsys):
    file = tmp_path / "ledger.jsonl"
    made = ledger(ModelClipping(1.0, 8.0), 3, path=file)
    whole = file.read_bytes()
    unanchored = f"{file} is unanchored: lines at the end may be missing, and epsilon too small."

    assert main(["privacy", "ledger", str(file)]) == 0
    assert unanchored in capsys.readouterr().out

    summed_up(made, file)
    assert main(["privacy", "ledger", str(file)]) == 0
    assert "unanchored" not in capsys.readouterr().out

    file.write_bytes(whole[: whole[:-1].rindex(b"\n") + 1])  # the last charge is gone
    assert main(["privacy", "ledger", str(file)]) == 2
    assert has_all(capsys.readouterr().err, "3", "lines", "4", "head")
    file.write_bytes(whole[:-5])  # the last charge is torn
    assert main(["privacy", "ledger", str(tmp_path)]) == 2

    # A summary without a head still says what the run spent.
    summed_up(made, file, head=None)
    assert main(["privacy", "ledger", str(file)]) == 2
    assert "run's summary" in capsys.readouterr().err


def test_a_summarys_head_is_of_the_last_attempt_and_made_by_the_holders_key_where_that_is_there(tmp_path, capsys):
    first, last = tmp_path / "ledger.jsonl", tmp_path / "ledger-10.jsonl"
    ledger(ModelClipping(1.0, 8.0), 1, path=first, run="first")
    ledger(ModelClipping(1.0, 8.0), 1, path=tmp_path / "ledger-9.jsonl", run="ninth")
    summed_up(ledger(ModelClipping(1.0, 8.0), 2, path=last, run="last"), last)
    assert main(["privacy", "ledger", str(first), str(last), "--json"]) == 0
    assert [one["chain"] for one in json.loads(capsys.readouterr().out)["ledgers"]] == ["unanchored", "anchored"]
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "ledger.key").write_bytes(bytes(32))
    assert main(["privacy", "ledger", str(last)]) == 2  # no key made this head
    (tmp_path / "summary.json").write_text("{")
    assert main(["privacy", "ledger", str(last)]) == 2
    assert has_all(capsys.readouterr().err, "expected", "summary", "head")


def test_a_group_of_records_counts_as_often_as_it_has_records():
    # An event's number is 2 std / sensitivity: four releases of mu = 1/2 are one of mu = 1, and three records' of 3.
    epsilon, gaussian = 0.5, {("GaussianDpEvent", 4.0, 1.0): 4}
    assert group_epsilon(gaussian, 0, DELTA, 3) == pytest.approx(gdp_epsilon(mu=3.0, delta=DELTA))
    assert group_epsilon(gaussian, 0, DELTA, 1) == pytest.approx(epsilon_of_events(gaussian, 0, DELTA))
    (pure,) = events_of([(Charge("pure", np.array([0]), np.ones(1), np.ones(1), epsilon=np.array([epsilon])), 0)])
    (grown,) = events_of([(Charge("pure", np.array([0]), np.ones(1), np.ones(1), epsilon=np.array([3 * epsilon])), 0)])
    assert group_epsilon({pure: 2}, 0, DELTA, 3) == pytest.approx(epsilon_of_events({grown: 2}, 0, DELTA))
    assert group_epsilon({("PoissonSampledDpEvent", 2.0, 0.1): 7}, 0, DELTA, 3) is None  # not that simple
    assert group_epsilon(None, 0, DELTA, 3) is None


def test_what_moves_nothing_is_no_event_and_what_is_not_proven_has_delta_one():
    zero, one = np.zeros(1), np.ones(1)
    still = [
        Charge("gaussian", np.array([0]), zero, one),
        Charge("pure", np.array([0]), one, one, epsilon=zero),
        Charge("sampled", np.array([0]), one, one, sampling_rate=zero, steps=np.array([7])),
        Charge("sampled", np.array([0]), one, one, sampling_rate=one, steps=np.array([0])),
    ]
    assert not events_of([(charge, 0) for charge in still])
    assert events_of([(Charge("gaussian", np.array([0]), np.inf * one, one), 0)]) is None
    assert deltas_of_events(None, 0, [0.1, 1.0]).tolist() == [1.0, 1.0]
    found = deltas_of_events({("GaussianDpEvent", 4.0, 1.0): 4}, 0, [0.5, 1.0])
    assert found == pytest.approx([up.privacy.gdp_delta(mu=1.0, epsilon=epsilon) for epsilon in (0.5, 1.0)])
    with pytest.raises(up.InputError, match="one ledger"):
        joint_epsilon([], DELTA)


def test_who_is_in_no_round_or_left_out_of_one_has_spent_nothing():
    gaussian, pure = (ErmOutput(norm_bound=1.0, noise_std=0.5), ObjectivePerturbation(2.0, norm_bound=1.0))
    one, other = (ledger(each, 2, clients=(0, 1)) for each in (gaussian, pure))
    before = joint_epsilon([one, other], DELTA)
    assert before[2] == 0
    assert (before[:2] > 0).all()
    one.upcycled(3, 2)
    one.leave_out(4, 3, 0, np.array([1, 2]))
    assert joint_epsilon([one, other], DELTA).tolist() == before.tolist()
    assert [len(charges_of(one, client)) for client in range(3)] == [2, 2, 0]
    # What moves nothing tells nothing, however many numbers were drawn.
    assert epsilon_of_events({}, 2**50, DELTA) == 0


def test_deltas_of_several_kinds_go_back_to_their_epsilons():
    events = {("GaussianDpEvent", 4.0, 1.0): 4, ("PoissonSampledDpEvent", 2.0, 0.1): 7}
    epsilon = epsilon_of_events(events, 0, DELTA)
    at, above = deltas_of_events(events, 0, [epsilon, epsilon + 0.5])
    assert at == pytest.approx(DELTA, rel=1e-3)
    assert above < at
    # Real noise costs (1 + e^epsilon) 2^-43 sqrt(N) more.
    assert deltas_of_events(events, 10**9, [1.0])[0] - deltas_of_events(events, 0, [1.0])[0] == pytest.approx(
        (1 + math.e) * 2.0**-43 * math.sqrt(10**9), rel=1e-6
    )
