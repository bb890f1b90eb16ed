"""Nothing a client does may depend visibly on its data: every client sends a normal release, whatever it holds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import upcycled as up
from tests.conftest import ragged
from tests.privacy.runs import QUIET, make, server_sees
from upcycled.privacy import (
    DPSGD,
    BoltOnSGD,
    CentralDPFedAvg,
    ErmOutput,
    ModelClipping,
    ObjectivePerturbation,
    UpdateClipping,
)

MECHANISMS = {
    "model": ModelClipping(1.0, 0.1),
    "update": UpdateClipping(1.0, 0.1),
    "erm": ErmOutput(1.0, 0.1, prox_mu=0.5),
    "minimiser": ErmOutput(1.0, 0.1, prox_mu=0.5, gamma=1e-8),
    "bolt-on": BoltOnSGD(1.0, 0.1),
    "objective": ObjectivePerturbation(5.0, norm_bound=1.0, prox_mu=0.5),
    "dpsgd": DPSGD(1.0, 1.0),
    "central": CentralDPFedAvg(1.0, 1.0),
}


def broken(how):
    """The federation whose second client holds data that break things, past the checks of the container."""
    xs, ys = ragged()
    data = up.FederatedData.from_arrays(xs, ys, num_classes=3)
    rows = slice(int(data.train.offsets[1]), int(data.train.offsets[2]))
    data.train.x.flags.writeable = True
    data.train.x[rows] = {
        "NaN features": np.nan,
        "infinite features": np.inf,
        "overflow": 3e38,
        "slow solver": np.eye(1, 5, dtype=np.float32) * 1e6,
        "all zero": 0.0,
    }[how]
    return data


@pytest.mark.parametrize("how", ["NaN features", "infinite features", "overflow", "slow solver", "all zero"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_client_with_broken_data_releases_like_any_other(monkeypatch, mechanism, how):
    with server_sees("fedavg", monkeypatch) as seen:
        result = up.train(
            broken(how),
            algorithm=up.FedAvg(),
            privacy=MECHANISMS[mechanism],
            iterations=4,
            upcycle=0.5,
            **QUIET,
        )
    assert len(seen) == 2
    for arrived in seen:
        assert arrived.release.clients.tolist() == [0, 1, 2, 3]
        assert np.isfinite(arrived.release.vectors).all()
        assert arrived.release.num_samples.tolist() == [23, 7, 41, 12]
    healthy = up.train(
        broken("all zero"), algorithm=up.FedAvg(), privacy=MECHANISMS[mechanism], iterations=4, upcycle=0.5, **QUIET
    )
    assert torch.isfinite(result.params).all()
    # Nothing public differs: rounds, cohorts, step counts, charges, messages.
    for mine, theirs in zip(result.history, healthy.history, strict=True):
        assert np.array_equal(mine.client_steps, theirs.client_steps)
        assert (mine.messages, mine.gradient_steps) == (theirs.messages, theirs.gradient_steps)
    for mine, theirs in zip(result.privacy, healthy.privacy, strict=True):
        assert mine.kind == theirs.kind
        assert np.array_equal(mine.clients, theirs.clients)


@pytest.mark.parametrize("mechanism", ["model", "update", "dpsgd", "central"])
def test_training_that_overflows_stays_on_the_client(mechanism):
    # DP-SGD's clipped steps are of the learning rate's size, and a model of 1e29 counts as diverged.
    local = up.LocalSGD(lr=1e15 if mechanism == "dpsgd" else 1e30, epochs=3, batch_size=8)
    result = up.train(
        broken("overflow"), algorithm=up.FedAvg(), privacy=MECHANISMS[mechanism], local=local, iterations=1, **QUIET
    )
    assert torch.isfinite(result.params).all()


def test_dpsgd_without_noise_and_clipping_is_full_batch_sgd(federation):
    local = up.LocalSGD(lr=0.2, momentum=0.4, epochs=3, batch_size=None)
    for name in ("scaffold", "feddyn", "pfedme"):
        settings = local if name != "pfedme" else up.LocalSGD(lr=0.2, epochs=3, batch_size=None)
        plain, private = (
            up.train(federation, algorithm=make(name), local=settings, privacy=p, iterations=3, **QUIET)
            for p in (None, DPSGD(1e6, 0.0))
        )
        assert torch.allclose(plain.params, private.params, atol=2e-6)


def test_dpsgd_clips_sample_by_sample_and_divides_by_the_expected_batch(federation):
    local = up.LocalSGD(lr=1.0, batch_size=None)
    start = up.train(federation, algorithm=up.FedAvg(), iterations=1, local=up.LocalSGD(lr=1e-12), **QUIET).params
    after = up.train(
        federation, algorithm=up.FedAvg(), privacy=DPSGD(1e-3, 0.0), local=local, iterations=1, **QUIET
    ).params
    # Every gradient is longer than 0.001: the mean of clipped ones moves by 0.001 at most.
    assert 1e-5 < torch.linalg.norm(after - start) <= 1e-3 * (1 + 1e-5)


@pytest.mark.usefixtures("known_entropy")
@pytest.mark.parametrize("noise", ["seeded", "system"])
def test_poisson_batches_have_the_stated_rate_and_empty_ones_still_take_a_noisy_step(monkeypatch, noise):
    from upcycled.engines.dpsgd import noisy

    rows, original = [], noisy.NoisyGradient._clipped_sum

    def spy(self, at, chosen):
        rows.append(chosen)
        return original(self, at, chosen)

    monkeypatch.setattr(noisy.NoisyGradient, "_clipped_sum", spy)
    rng = np.random.default_rng(0)
    data = up.FederatedData.from_arrays([rng.normal(size=(40, 3))], [rng.integers(0, 2, 40)], num_classes=2)
    run = up.train(
        data,
        algorithm=up.FedAvg(),
        privacy=DPSGD(1.0, 1.0),
        local=up.LocalSGD(epochs=10, batch_size=2),
        iterations=1,
        noise=noise,
        **QUIET,
    )
    counts = np.bincount(np.concatenate(rows), minlength=40)
    steps = run.history[0].gradient_steps
    assert steps == 200
    # Each record enters 200 steps with probability 1/20: mean 10, sd 3.1; their sum has mean 400, sd 19.5.
    assert abs(counts.sum() - 400) < 5 * 19.5
    assert counts.max() <= 10 + 6 * 3.1
    # A batch is empty with probability 0.95^40 = 0.129; those steps have no sum but noise all the same.
    assert 200 * 0.129 / 3 < sum(chosen.size == 0 for chosen in rows) < 200 * 0.129 * 3
    assert next(iter(run.privacy)).charge.steps.tolist() == [200]


def test_batches_with_real_noise_do_not_follow_from_the_seed(monkeypatch):
    from upcycled.engines.dpsgd import noisy

    rows, original = [], noisy.NoisyGradient._clipped_sum
    monkeypatch.setattr(
        noisy.NoisyGradient,
        "_clipped_sum",
        lambda self, at, chosen: (rows.append(tuple(chosen.tolist())), original(self, at, chosen))[1],
    )
    rng = np.random.default_rng(0)
    data = up.FederatedData.from_arrays([rng.normal(size=(40, 3))], [rng.integers(0, 2, 40)], num_classes=2)
    for _ in range(2):
        up.train(data, algorithm=up.FedAvg(), privacy=DPSGD(1.0, 1.0), iterations=1, noise="system", seed=0,
                 local=up.LocalSGD(epochs=2, batch_size=20), **QUIET)  # fmt: skip
    assert len(rows) == len(set(rows)) == 8


@pytest.mark.slow
def test_dpsgd_trains_an_lstm_and_a_model_with_dropout():
    rng = np.random.default_rng(0)
    tokens = [rng.integers(0, 9, (6, 4)) for _ in range(2)]
    labels = [rng.integers(0, 2, 6) for _ in range(2)]
    data = up.FederatedData.from_arrays(tokens, labels, num_classes=2)
    options = {"hidden": 3, "embedding": 4, "vocabulary": 9}
    lstm = up.train(
        data, algorithm=up.FedAvg(), model="lstm", model_options=options, privacy=DPSGD(1.0, 0.1), iterations=2, **QUIET
    )
    assert torch.isfinite(lstm.params).all()
    xs, ys = ragged()
    dropout = nn.Sequential(nn.Dropout(0.5), nn.Linear(5, 3))
    runs = [
        up.train(up.FederatedData.from_arrays(xs, ys, num_classes=3), algorithm=up.FedAvg(), model=dropout,
                 privacy=DPSGD(1.0, 0.1), iterations=1, **QUIET) for _ in "ab"
    ]  # fmt: skip
    assert torch.equal(runs[0].params, runs[1].params)


def test_the_server_step_gets_the_aggregate_in_the_place_of_every_central_release(federation, monkeypatch):
    with server_sees("fedavg", monkeypatch) as seen:
        up.train(federation, algorithm=up.FedAvg(), privacy=CentralDPFedAvg(1.0, 1.0), iterations=2, **QUIET)
    for arrived in seen:
        assert (arrived.release.vectors == arrived.mean).all()


def test_secret_cohorts_may_be_empty_and_then_noise_alone_moves_the_model(federation, monkeypatch):
    privacy = CentralDPFedAvg(1.0, 1.0, secret_sampling=True)
    with server_sees("fedavg", monkeypatch) as seen:
        result = up.train(
            federation,
            algorithm=up.FedAvg(),
            privacy=privacy,
            participation=0.2,
            sampling="poisson",
            iterations=12,
            **QUIET,
        )
    sizes = [arrived.release.clients.size for arrived in seen]
    # Four clients at 0.2: empty with probability 0.41, so that twelve rounds without one have probability 0.002.
    assert 0 in sizes
    assert max(sizes) > 0
    assert len(sizes) == 12
    assert (result.privacy.rounds == 12).all()
    before = [arrived.mean for arrived in seen]
    assert all(not np.array_equal(a, b) for a, b in itertools.pairwise(before))
