"""Callbacks: functions and objects with some of the methods, measurements, and runs that end early."""

import pytest
import torch

import upcycled as up
from tests.wording import has_all, only_line
from upcycled.training.callbacks import as_callback

QUIET = {"algorithm": up.FedAvg(), "engine": "sequential", "progress": False, "iterations": 6}


def test_a_function_of_the_record_or_of_record_and_run_is_a_callback(federation):
    told = []
    up.train(
        federation,
        callbacks=[lambda record: told.append(record.iteration), lambda record, run: told.append(run.state.iteration)],
        **QUIET | {"iterations": 2},
    )
    assert told == [1, 1, 2, 2]


def test_an_object_needs_only_the_methods_it_has(federation):
    class OnlyFinish:
        ended = 0

        def finish(self):
            self.ended += 1

    one = OnlyFinish()
    up.train(federation, callbacks=[one], **QUIET)
    assert one.ended == 1


def test_what_is_a_callback_already_is_not_wrapped_again():
    hooks = as_callback(lambda record: up.STOP)
    assert as_callback(hooks) is hooks
    assert hooks.record(None, None) is up.STOP


@pytest.mark.parametrize("wrong", ["text", [7], [lambda: None], [lambda a, b, c: None], [int]])
def test_what_is_no_callback_is_refused_in_one_sentence(federation, wrong):
    with pytest.raises(up.InputError, match=r"^callbacks "):
        up.train(federation, callbacks=wrong, **QUIET)


class Norm:
    """A measurement."""

    def measure(self, step):
        moved = float(((step.after - step.before) ** 2).sum())
        return {"moved": moved, "cohort": 0.0 if step.release is None else float(step.release.clients.size)}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["fused", "sequential"])
def test_what_a_callback_measures_is_in_the_records_also_of_a_batch(federation, engine):
    """A batch of sequential runs has processes: the measurement goes there with its run."""
    runs = [{"data": federation, **QUIET, "engine": engine, "seed": i, "upcycle": 0.5} for i in range(2)]
    runs = [run | {"callbacks": [Norm()]} for run in runs]
    alone = up.train(**runs[0])
    assert alone.history.column("cohort") == [4.0, 0.0] * 3
    assert all(value > 0 for value in alone.history.column("moved"))
    assert [row["moved"] for row in alone.history.rows()] == alone.history.column("moved")
    together = up.train_many(runs, progress=False)
    assert together[0].history.column("moved") == alone.history.column("moved")


def test_measurements_survive_a_checkpoint(federation, tmp_path):
    kept = QUIET | {"checkpoint": tmp_path, "checkpoint_every": 1}
    stop = up.train(federation, callbacks=[Norm(), lambda r: up.STOP if r.iteration == 3 else None], **kept)
    assert len(stop.history) == 3
    whole = up.train(federation, callbacks=[Norm()], **QUIET)
    assert up.train(federation, callbacks=[Norm()], **kept).history.column("moved") == whole.history.column("moved")


def test_stop_ends_a_run_with_the_result_so_far_and_all_callbacks_are_told(federation):
    told = []
    result = up.train(
        federation,
        callbacks=[lambda r: up.STOP if r.iteration == 2 else None, lambda r: told.append(r.iteration)],
        **QUIET,
    )
    assert told == [1, 2]
    assert result.error is None
    assert torch.equal(result.params, up.train(federation, **QUIET | {"iterations": 2}).params)


def test_stop_ends_a_run_of_a_batch_and_not_its_neighbour(federation):
    runs = [{"data": federation, **QUIET, "engine": "fused", "seed": i} for i in range(2)]
    runs[0]["callbacks"] = [lambda r: up.STOP if r.iteration == 2 else None]
    assert [len(result.history) for result in up.train_many(runs, progress=False)] == [2, 6]


def test_ctrl_c_gives_the_result_so_far_and_says_so(federation, capsys):
    def interrupt(record):
        if record.iteration == 4:
            raise KeyboardInterrupt

    result = up.train(federation, callbacks=[interrupt], **QUIET)
    assert isinstance(result.error, KeyboardInterrupt)
    assert torch.equal(result.params, up.train(federation, **QUIET | {"iterations": 4}).params)
    assert has_all(only_line(capsys.readouterr().err), "stopped", "Ctrl-C", "result", "iteration 4")


def test_ctrl_c_ends_a_batch(federation):
    def interrupt(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        up.train_many([{"data": federation, **QUIET, "callbacks": [interrupt]}], progress=False)


def test_a_diverged_run_gives_the_last_model_that_was_finite(federation, capsys):
    """A step multiplies x - w by |1 - lr mu| = 9: 9^20 = 1.2e19 is finite, and 1e30 times that is not."""
    local = up.LocalSGD(lr=1.0, epochs=20, batch_size=None)
    diverging = QUIET | {"algorithm": up.FedProx(mu=10.0), "local": local, "upcycle": 1e30}
    result = up.train(federation, **diverging)
    assert isinstance(result.error, up.DivergedError)
    assert len(result.history) == 1
    assert torch.isfinite(result.params).all()
    assert torch.equal(result.params, up.train(federation, **diverging | {"iterations": 1}).params)
    assert "iteration 2" in capsys.readouterr().err
    [again] = up.train_many([{"data": federation, **diverging}], progress=False)
    assert isinstance(again, up.Result)
    assert isinstance(again.error, up.DivergedError)


def test_a_spent_budget_gives_model_and_ledger(federation, capsys):
    clipping = up.privacy.ModelClipping(clip_norm=1.0, noise_std=4.0)
    once = up.train(federation, privacy=clipping, **QUIET | {"iterations": 3}).privacy.max_epsilon(1e-3)
    budget = up.Budget(epsilon=once * 1.01, delta=1e-3)
    result = up.train(federation, privacy=clipping, budget=budget, **QUIET)
    assert isinstance(result.error, up.BudgetSpentError)
    assert len(result.history) == 3
    assert result.privacy.max_epsilon(1e-3) == pytest.approx(once)
    assert has_all(capsys.readouterr().err, "client", "data round 4", "pay")


def test_the_comparison_of_runs_that_end_early_is_an_error(federation):
    clipping = up.privacy.ModelClipping(clip_norm=1.0, noise_std=4.0)
    with pytest.raises(up.BudgetSpentError):
        up.compare(
            federation,
            privacy=clipping,
            budget=up.Budget(epsilon=1.0, delta=1e-3),
            algorithm=up.FedAvg(),
            iterations=20,
            seeds=(0, 1),
            progress=False,
        )
