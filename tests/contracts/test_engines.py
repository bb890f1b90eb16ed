"""Every engine in the table against the sequential one, on every algorithm: they differ in speed only."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import upcycled as up
from tests.conftest import ragged
from upcycled.algorithms import ALGORITHMS
from upcycled.engines import ENGINES

FAST = [name for name in ENGINES if name != "sequential"]


def federation(classes=4):
    xs, ys = ragged(sizes=(23, 7, 41, 12, 33), features=6, classes=classes)
    txs, tys = ragged(sizes=(9, 4, 0, 5, 8), features=6, classes=classes, seed=1)
    return up.FederatedData.from_arrays(xs, ys, test=(txs, tys), num_classes=classes)


def settings(name, engine, **changes):
    base = {
        "algorithm": ALGORITHMS[name](),
        # 8 leaves short last batches for every client but none full; stragglers make the number of steps ragged too.
        "local": up.LocalSGD(lr=0.1, momentum=0.0 if name == "pfedme" else 0.5, epochs=4, batch_size=8),
        "participation": 0.8,
        "stragglers": 0.5,
        "iterations": 10,
        "engine": engine,
        "progress": False,
        "seed": 3,
    }
    return base | changes


def assert_close(got, expected):
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()


# The data rounds of an upcycled run start from more places than a vanilla one's; engines see nothing else of it.
UPCYCLES = [pytest.param(None, id="vanilla", marks=pytest.mark.slow), pytest.param(0.6, id="upcycled")]


@pytest.mark.parametrize("upcycle", UPCYCLES)
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("engine", FAST)
def test_engines_agree_with_the_sequential_one_after_10_iterations(engine, name, upcycle):
    data = federation()
    slow = up.train(data, upcycle=upcycle, **settings(name, "sequential"))
    fast = up.train(data, upcycle=upcycle, **settings(name, engine))
    assert fast.settings["engine"] == engine
    assert_close(fast.params.numpy(), slow.params.numpy())
    for mine, theirs in zip(fast.history, slow.history, strict=True):
        assert mine.accuracy == pytest.approx(theirs.accuracy, abs=1e-9)
        assert mine.loss == pytest.approx(theirs.loss, rel=1e-4)
        assert mine.global_loss == pytest.approx(theirs.global_loss, rel=1e-4)
        assert mine.gradient_steps == theirs.gradient_steps
    if name == "pfedme":
        for client in slow.personal_models:
            assert_close(fast.personal_models.params(client).numpy(), slow.personal_models.params(client).numpy())


@pytest.mark.parametrize("engine", FAST)
@pytest.mark.parametrize("batch_size", [1, 7, 1000, None])
def test_engines_agree_for_any_batch_size(engine, batch_size):
    local = up.LocalSGD(lr=0.05, momentum=0.3, epochs=2, batch_size=batch_size)
    slow, fast = (up.train(federation(), **settings("feddyn", e, local=local)) for e in ("sequential", engine))
    assert_close(fast.params.numpy(), slow.params.numpy())


@pytest.mark.parametrize("engine", FAST)
def test_engines_agree_on_a_stack_of_layers(engine):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 5, bias=False), nn.ReLU(), nn.Linear(5, 4))
    slow, fast = (up.train(federation(), model=module, **settings("scaffold", e)) for e in ("sequential", engine))
    assert_close(fast.params.numpy(), slow.params.numpy())


@pytest.mark.parametrize("engine", FAST)
def test_engines_agree_under_output_perturbation(engine):
    privacy = up.privacy.ModelClipping(clip_norm=2.0, noise_std=0.1)
    slow, fast = (up.train(federation(), privacy=privacy, **settings("fedyogi", e)) for e in ("sequential", engine))
    assert_close(fast.params.numpy(), slow.params.numpy())


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ("scaffold", "pfedme") else pytest.mark.slow) for name in ALGORITHMS],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_batch_gives_bit_for_bit_what_the_runs_give_one_by_one(engine, name):
    data = federation()
    runs = [
        {"data": data, "upcycle": rho, **settings(name, engine, seed=seed, iterations=4)}
        for rho in (None, 0.5)
        for seed in (0, 1)
    ]
    together = up.train_many(runs, progress=False)
    for arguments, result in zip(runs, together, strict=True):
        alone = up.train(data, **{key: value for key, value in arguments.items() if key != "data"})
        assert result.error is None
        assert result.params.numpy().tobytes() == alone.params.numpy().tobytes()
        assert result.history.column("loss") == alone.history.column("loss")


def test_a_failed_or_diverged_run_is_reported_and_the_others_finish():
    data = federation()
    good = {"data": data, **settings("fedavg", "auto", iterations=2)}
    # Each step multiplies x - w by |1 - lr mu| = 99: it overflows in the first round.
    diverging = good | {"algorithm": up.FedProx(mu=10.0), "local": up.LocalSGD(lr=10.0, epochs=40)}
    results = up.train_many([good, good | {"iterations": -1}, diverging, good], progress=False)
    assert results[0].error is None
    assert "iterations is -1" in str(results[1].error)
    assert isinstance(results[2].error, up.DivergedError)
    assert torch.equal(results[3].params, results[0].params)


def test_the_callers_thread_settings_are_restored():
    from threadpoolctl import threadpool_info

    def blas():
        return [pool["num_threads"] for pool in threadpool_info()]

    data = federation()
    before, torch_before = blas(), torch.get_num_threads()
    up.train_many([{"data": data, **settings("fedavg", e, iterations=2)} for e in ENGINES], progress=False)
    for engine in ENGINES:
        up.train(data, **settings("fedavg", engine, iterations=2))
    # An engine may have loaded a library that was not there before; those that were keep their setting.
    assert blas()[: len(before)] == before
    assert torch.get_num_threads() == torch_before


def test_auto_takes_the_fastest_engine_that_supports_the_case():
    data = federation()
    quick = {"algorithm": up.FedAvg(), "iterations": 1, "progress": False}
    assert up.train(data, **quick).settings["engine"] == "fused"
    tanh = nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 4))
    assert up.train(data, model=tanh, **quick).settings["engine"] == "sequential"
    assert up.train(data, model=tanh, **quick).settings["way"] == "one by one"
    dropout = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5), nn.Linear(3, 4))
    assert up.train(data, model=dropout, **quick).settings["engine"] == "sequential"


@pytest.mark.parametrize("engine", FAST)
def test_an_engine_refuses_dropout_at_the_start_in_one_sentence(engine):
    module = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5), nn.Linear(3, 4))
    with pytest.raises(up.InputError) as error:
        up.train(federation(), model=module, **settings("fedavg", engine))
    assert f"engine '{engine}'" in str(error.value)
    assert "\n" not in str(error.value)
