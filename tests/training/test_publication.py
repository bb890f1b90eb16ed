"""What callbacks, measurements and results show of a private run, and what stays with the holder of its data."""

from __future__ import annotations

import json
import os
import pickle
import stat
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

import upcycled as up
from examples.own_rule import FedExP
from tests.training.watching import stop_at
from tests.wording import has_all
from upcycled.training import Record
from upcycled.training.checkpoint.files import read_newest
from upcycled.training.checkpoint.fingerprint import hash_of_data, hash_of_shards
from upcycled.training.history import SCALARS
from upcycled.training.plan import make_plan
from upcycled.training.publication import COHORT, Publication, publication_of
from upcycled.training.worker_processes import Returned

CLIPPING = up.privacy.UpdateClipping(clip_norm=1.0, noise_std=0.5)
SECRET = up.privacy.CentralDPFedAvg(clip_norm=1.0, noise_multiplier=1.0, secret_sampling=True)
CENTRAL = up.privacy.CentralDPFedAvg(clip_norm=1.0, noise_multiplier=1.0)
PRIVATE = {"algorithm": up.FedAvg(), "privacy": CLIPPING, "noise": "system", "upcycle": 0.5, "iterations": 4}
QUIET = {"progress": False, "engine": "sequential"}
BY_SECRET_DRAWS = {"privacy": SECRET, "sampling": "poisson", "participation": 0.5}


@pytest.fixture
def data():
    return up.data.synthetic(0.5, 0.5, clients=4, dim=3, sizes=20, seed=0)


class Watcher:
    """Keeps all that a callback is told."""

    def start(self, plan, before):
        self.plan, self.before, self.records, self.runs = plan, before, [], []

    def record(self, record, run):
        self.records.append(record)
        self.runs.append(run)


class Measuring:
    """A measurement that has a secret, and a number that it says may be published."""

    publishes = ("moved",)

    def __init__(self):
        self.steps = []

    def measure(self, step):
        self.steps.append(step)
        return {"moved": float(np.abs(step.after - step.before).sum()), "own": 3.0}


def holders(record):
    """The fields of a record that hold nothing."""
    return {f.name for f in fields(Record) if getattr(record, f.name) is None}


SCORES_AND_TIMES = {"accuracy", "loss", "global_accuracy", "global_loss", "seconds", "eval_seconds"}


@pytest.mark.parametrize(
    ("changes", "is_restricted"),
    [
        ({}, True),
        ({"noise": "seeded"}, False),
        ({"noise": "seeded", "privacy": None}, False),
        ({"privacy": None}, False),
    ],
)
def test_a_run_is_restricted_when_real_noise_protects_data_that_are_not_public(data, changes, is_restricted):
    plan = make_plan(data, up.RunSpec(**PRIVATE | changes))
    assert publication_of(plan).is_restricted is is_restricted
    assert publication_of(make_plan(replace(data, public=True), plan.spec)).is_restricted is False


def test_scores_and_seconds_of_a_restricted_run_are_its_holders(data):
    watcher = Watcher()
    result = up.train(data, **PRIVATE | QUIET, callbacks=[watcher])
    for record in (*result.history, *watcher.records):
        assert holders(record) - {"coefficient"} == SCORES_AND_TIMES
        assert record.clients is not None
    assert result.accuracy is result.loss is None
    assert [record.iteration for record in result.private.history] == [1, 2, 3, 4]
    for record in result.private.history:
        assert holders(record) - {"coefficient"} == set()
    # The same model, scored by hand.
    x, y = data.test.x, data.test.y
    weight, bias = (value.detach().numpy() for value in result.model.parameters())
    assert result.private.history[-1].accuracy == pytest.approx(((x @ weight.T + bias).argmax(1) == y).mean())


def test_an_unrestricted_run_is_published_as_it_is(data):
    watcher = Watcher()
    for changes, own in (({"noise": "seeded"}, data), ({}, replace(data, public=True))):
        result = up.train(own, **PRIVATE | QUIET | changes, callbacks=[watcher])
        assert result.private is None
        assert all(record.accuracy is not None and record.seconds is not None for record in watcher.records)
        assert list(result.history) == watcher.records
        assert watcher.plan.task.train.num_rows == own.train.num_rows
    plan = make_plan(data, up.RunSpec(**PRIVATE | {"noise": "seeded"}))
    assert publication_of(plan).about(data)["sha256"] == hash_of_data(data)


def test_personal_models_of_a_restricted_run_are_its_holders(data):
    watcher = Watcher()
    asked = PRIVATE | QUIET | {"algorithm": up.PFedMe(), "callbacks": [watcher]}
    result = up.train(data, **asked)
    assert result.personal_models is None
    assert sorted(result.private.personal_models) == [0, 1, 2, 3]
    assert all(run.private.names == () and run.private.clients.size == 0 for run in watcher.runs)
    simulated = up.train(data, **asked | {"noise": "seeded"})
    assert sorted(simulated.personal_models) == [0, 1, 2, 3]
    assert watcher.runs[-1].private.names == ("model",)


def test_a_restricted_run_warns_its_holder_alone_that_most_samples_are_scaled_down(data):
    erm = up.privacy.ErmOutput(norm_bound=0.1, epsilon=4.0, delta=1e-5)
    given = {**PRIVATE, **QUIET, "algorithm": up.FedProx(mu=0.5), "privacy": erm}
    watcher = Watcher()
    result = up.train(data, **{**given, "callbacks": [watcher]})
    assert any("norm_bound" in words for words in result.private.notes)
    assert (result.notes, watcher.plan.warned, watcher.plan.notes) == ((), (), ())
    public = up.train(replace(data, public=True), **given)
    assert any("norm_bound" in words for words in public.notes)


def test_callbacks_of_a_restricted_run_see_no_sample(data):
    watcher = Watcher()
    up.train(data, **PRIVATE | QUIET, callbacks=[watcher])
    task = watcher.plan.task
    assert (task.train.x.size, task.train.y.size, task.train.num_rows, task.test) == (0, 0, 0, None)


@pytest.mark.parametrize("engine", ["sequential", "fused"])
def test_callbacks_of_a_batch_are_told_no_more_than_those_of_a_run(data, engine):
    watchers = [Watcher(), Watcher()]
    runs = [{"data": data, **PRIVATE, "engine": engine, "seed": i, "callbacks": [w]} for i, w in enumerate(watchers)]
    results = up.train_many(runs, progress=False)
    for watcher, result in zip(watchers, results, strict=True):
        assert [holders(record) - {"coefficient"} for record in watcher.records] == [SCORES_AND_TIMES] * 4
        assert watcher.plan.task.train.num_rows == 0
        assert result.accuracy is None
        assert result.private.history.last_scored().iteration == 4


def test_a_pickled_result_has_nothing_of_the_holders_own(data):
    result = up.train(data, **PRIVATE | QUIET | {"algorithm": up.PFedMe()})
    own = result.private.personal_models.params(0).numpy().tobytes()
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        content = pickle.dumps(result, protocol)
        assert own not in content
        again = pickle.loads(content)
        assert again.private is None
        assert torch.equal(again.params, result.params)
        assert again.privacy.epsilon(1e-5).tolist() == result.privacy.epsilon(1e-5).tolist()
    error = up.DivergedError("the model is not finite")
    error.result = result
    assert own not in pickle.dumps(error)
    assert pickle.loads(pickle.dumps(error)).result.private is None
    assert result.private is not None


def test_who_took_part_in_secret_draws_is_hidden_with_all_that_counts_them(data):
    watcher, measuring = Watcher(), Measuring()
    result = up.train(data, **PRIVATE | QUIET | BY_SECRET_DRAWS, callbacks=[watcher, measuring])
    for record in (*result.history, *watcher.records):
        assert holders(record) - {"coefficient"} == SCORES_AND_TIMES | set(COHORT)
    data_steps = [step for step in measuring.steps if step.release is not None]
    assert [step.iteration for step in data_steps] == [1, 3]
    assert all(step.release.clients.size == len(step.release.vectors) == 0 for step in data_steps)
    assert all(record.clients is not None for record in result.private.history)
    assert result.history.total("messages") is None
    # Public draws hide nothing of the kind.
    shown = up.train(data, **PRIVATE | QUIET | {"privacy": CENTRAL})
    assert shown.history.total("messages") == 2 * 4 * 2


def test_a_rule_is_not_told_whether_a_secret_cohort_was_empty(data, monkeypatch):
    watcher = Watcher()
    asked = PRIVATE | QUIET | BY_SECRET_DRAWS | {"upcycle": FedExP(), "callbacks": [watcher]}
    up.train(data, **asked)
    assert [run.state.spread for run in watcher.runs] == [None] * 4


def test_measurements_of_a_central_mechanism_see_the_aggregate_in_the_place_of_each_vector(data):
    measuring = Measuring()
    up.train(data, **PRIVATE | QUIET | {"privacy": CENTRAL, "iterations": 1}, callbacks=[measuring])
    vectors = measuring.steps[0].release.vectors
    assert len(vectors) == 4
    assert (vectors == vectors[0]).all()


def test_a_measurement_stays_with_the_holder_unless_it_says_that_it_may_be_published(data):
    result = up.train(data, **PRIVATE | QUIET, callbacks=[Measuring()])
    assert [dict(record.metrics).keys() for record in result.history] == [{"moved"}] * 4
    assert result.private.history.column("own") == [3.0] * 4
    simulated = up.train(data, **PRIVATE | QUIET | {"noise": "seeded"}, callbacks=[Measuring()])
    assert simulated.history.column("own") == [3.0] * 4


def test_what_is_said_of_private_data_is_public_sizes_and_a_name_that_is_drawn(data):
    found = [Publication(True).about(data) for _ in range(2)]
    assert found[0].keys() == {"clients", "classes", "train_samples", "id"}
    assert (found[0]["clients"], found[0]["classes"], found[0]["train_samples"]) == (4, 2, 72)
    assert found[0]["id"] != found[1]["id"]


def test_a_resumed_restricted_run_tells_callbacks_of_its_earlier_records_what_it_told_before(data, tmp_path):
    watcher = Watcher()
    asked = PRIVATE | QUIET | {"checkpoint": tmp_path / "kept"}
    stop_at(data, 2, **asked)
    result = up.train(data, **asked, callbacks=[watcher])
    assert [holders(record) - {"coefficient"} for record in watcher.before] == [SCORES_AND_TIMES] * 2
    assert [record.accuracy is None for record in result.private.history] == [False] * 4
    assert not any("went on" in note for note in result.private.notes)


def modes(folder):
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}


def test_the_folder_of_a_restricted_run_is_for_its_user_alone_whatever_the_umask(data, tmp_path):
    before = os.umask(0)
    try:
        (tmp_path / "kept").mkdir(mode=0o777)
        up.train(data, **PRIVATE | QUIET, checkpoint=tmp_path / "kept", ledger=tmp_path / "ledger.jsonl")
    finally:
        os.umask(before)
    found = modes(tmp_path / "kept")
    assert found.pop("kept") == 0o700
    assert len(found) >= 3
    assert set(found.values()) == {0o600}


def test_a_restricted_run_goes_on_with_other_data_and_tells_its_holder(data, tmp_path, capsys):
    asked = PRIVATE | QUIET | {"checkpoint": tmp_path}
    stop_at(data, 2, **asked)
    capsys.readouterr()
    labels = data.train.y.copy()
    labels[0] = 1 - labels[0]
    other = replace(data, train=replace(data.train, y=labels))
    result = up.train(other, **asked)
    assert (result.error, len(result.history)) == (None, 4)
    assert capsys.readouterr() == ("", "")
    assert any(has_all(note, "iteration 2", "data") for note in result.private.notes)
    # It is still known when the finished run is asked for once more, with the same data.
    assert up.train(other, **asked).private.notes == result.private.notes
    simulated = asked | {"noise": "seeded", "checkpoint": tmp_path / "simulated"}
    stop_at(data, 2, **simulated)
    with pytest.raises(up.InputError, match="training data"):
        up.train(other, **simulated)


def test_a_restricted_checkpoint_knows_its_data_by_a_keyed_hash(data, tmp_path):
    asked = PRIVATE | QUIET
    kept = {}
    for name, noise in (("a", "system"), ("b", "system"), ("simulated", "seeded")):
        up.train(data, **asked | {"noise": noise}, checkpoint=tmp_path / name)
        content = read_newest(tmp_path / name, tell=pytest.fail)[1]
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]["upcycled"]
        kept[name] = json.loads(header)["facts"]["identity"]
    plain = {"training data": hash_of_shards(data.train), "test data": hash_of_shards(data.test)}
    for name, words in plain.items():
        assert kept["simulated"][name] == words
        assert len({kept[run][name] for run in ("a", "b")} | {words}) == 3
    assert len((tmp_path / "a" / "data.key").read_bytes()) == 32


def test_what_may_be_hidden_is_a_field_of_a_record():
    assert set(COHORT) | SCORES_AND_TIMES <= {f.name for f in fields(Record)}
    # Whoever adds a field decides whose it is, here.
    assert set(SCALARS) - SCORES_AND_TIMES - set(COHORT) == {"iteration", "kind", "data_round", "coefficient"}


def test_restricted_runs_are_compared_by_what_they_cost(data):
    asked = {key: value for key, value in PRIVATE.items() if key not in ("upcycle", "iterations")} | {"engine": "fused"}
    found = up.compare(data, iterations=4, seeds=(0, 1), progress=False, **asked)
    # Everybody in two rounds, down and up.
    assert "vanilla 2 data rounds, 16 messages, worst epsilon" in str(found)
    assert "data holder's" in str(found)
    with pytest.raises(up.InputError, match="holder's"):
        _ = found.paired.mean


def test_an_outcome_brings_the_holders_own_back_from_a_worker_process(data):
    result, error = up.train(data, **PRIVATE | QUIET), up.DivergedError("the model is not finite")
    error.result = result
    for outcome in (result, error):
        back = pickle.loads(pickle.dumps(Returned(outcome, result.private))).joined()
        found = back if outcome is result else back.result
        assert found.private.history.column("accuracy") == result.private.history.column("accuracy")
