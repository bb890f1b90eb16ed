"""Runs that end early: model and ledger so far are with the error, and with what a batch gives; displays say what
they show."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

import upcycled as up
from upcycled._utils.files import WriteError
from upcycled.training.plan import make_plan
from upcycled.training.progress import BatchProgress, LiveProgress, Watched

QUIET = {"algorithm": up.FedAvg(), "iterations": 6, "progress": False, "engine": "sequential"}
CLIPPING = up.privacy.ModelClipping(clip_norm=1.0, noise_std=4.0)
DELTA = 1e-3


def cost(federation, rounds):
    return up.train(federation, privacy=CLIPPING, **QUIET | {"iterations": rounds}).privacy.max_epsilon(DELTA)


def begun(federation):
    """The model that every run here begins with."""
    return make_plan(federation, up.RunSpec(**QUIET)).initial


def test_a_budget_that_pays_for_no_round_gives_the_first_model_and_the_ledger(federation):
    budget = up.Budget(epsilon=cost(federation, 1) * 0.9, delta=DELTA)
    with pytest.raises(up.BudgetSpentError, match=r"client.*data round 1.*pay") as caught:
        up.train(federation, privacy=CLIPPING, budget=budget, **QUIET)
    result = caught.value.result
    assert result.error is caught.value
    assert len(result.history) == 0
    assert np.array_equal(result.params.numpy(), begun(federation))
    assert result.privacy.rounds.tolist() == [0] * 4
    assert result.privacy.left_out.tolist() == [1] * 4


def test_a_run_that_diverges_at_once_gives_the_first_model_and_what_it_charged(federation, tmp_path):
    # Noise beyond float32's 3.4e38: what arrives is not finite.
    loud = up.privacy.ModelClipping(clip_norm=1.0, noise_std=1e40)
    arguments = QUIET | {"privacy": loud, "noise": "system", "ledger": tmp_path / "ledger.jsonl"}
    with pytest.raises(up.DivergedError) as caught:
        up.train(federation, **arguments)
    result = caught.value.result
    assert np.array_equal(result.params.numpy(), begun(federation))
    assert result.privacy.rounds.tolist() == [1] * 4  # the round was charged before its release
    assert up.privacy.Ledger.read(tmp_path / "ledger.jsonl", result.privacy.head).rounds.tolist() == [1] * 4


def test_what_ended_a_run_later_carries_its_result_too(federation):
    budget = up.Budget(epsilon=cost(federation, 3) * 1.001, delta=DELTA)
    result = up.train(federation, privacy=CLIPPING, budget=budget, **QUIET)
    assert isinstance(result.error, up.BudgetSpentError)
    assert result.error.result is result
    assert len(result.history) == 3
    again = pickle.loads(pickle.dumps(result))
    assert again.error.result is again
    assert torch.equal(again.params, result.params)


@pytest.mark.parametrize("together", [False, True])
def test_a_batch_gives_model_and_ledger_of_runs_that_failed(federation, together):
    budget = up.Budget(epsilon=cost(federation, 1) * 0.9, delta=DELTA)
    one = {"data": federation, "privacy": CLIPPING, "budget": budget, **QUIET}
    # Two runs of this engine have a worker process each: what they had comes over whole.
    for failed in up.train_many([one, one] if together else [one], progress=False):
        assert isinstance(failed, up.Failed)
        assert isinstance(failed.error, up.BudgetSpentError)
        assert np.array_equal(failed.result.params.numpy(), begun(federation))
        assert failed.result.privacy.left_out.tolist() == [1] * 4
        assert failed.result.privacy.statement(DELTA)
    [wrong] = up.train_many([one | {"noise": "none"}], progress=False)
    assert wrong.result is None


def test_a_disk_that_fills_up_leaves_model_and_ledger_in_the_error(federation, tmp_path, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    def fill(record):
        if record.iteration == 2:
            monkeypatch.setattr("upcycled.privacy.ledger.ledger_file.os.fsync", full)

    arguments = {"privacy": CLIPPING, "ledger": tmp_path / "ledger.jsonl", "callbacks": [fill]}
    with pytest.raises(WriteError) as caught:
        up.train(federation, **QUIET, **arguments)
    monkeypatch.undo()
    assert len(caught.value.result.history) == 2
    assert caught.value.result.privacy.rounds.tolist() == [2] * 4


@pytest.mark.parametrize(("noise", "words"), [("seeded", " (simulation)"), ("system", "")])
def test_displays_never_show_the_epsilon_of_a_simulation_alone(federation, noise, words):
    plan = make_plan(federation, up.RunSpec(privacy=CLIPPING, noise=noise, **QUIET))
    row, live, batch = Watched("a"), LiveProgress("a"), BatchProgress(2, shown=False)
    for display in (row, live._run):
        display.start(plan, ())
        assert display.spent == ""
        display.epsilon = 2.0
    assert row.spent == f"2.000{words}"
    assert f"worst epsilon 2.000{words}" in row.text
    assert f"worst epsilon 2.000{words}" in live._caption()
    shown = batch.row("a")
    shown.start(plan, ())
    shown.epsilon, shown.last = 2.0, up.train(federation, **QUIET | {"iterations": 1}).history[0]
    cells = [list(column.cells) for column in batch._table().columns]
    assert [f"2.000{words}"] in cells
