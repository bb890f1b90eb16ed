"""Every line of "needs", violated once: refused in one sentence before any work."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
from torch import nn

import upcycled as up
from tests.privacy.runs import QUIET, setting
from upcycled.privacy import (
    DPSGD,
    BoltOnSGD,
    Budget,
    CentralDPFedAvg,
    ErmOutput,
    ModelClipping,
    ObjectivePerturbation,
    UpdateClipping,
)

GIVEN = {"is_local_given": True, "local": up.LocalSGD(lr=0.1)}
PERSONAL = {"algorithm": "pfedme", "is_personal": True}
NO_PENALTY = {"algorithm": "fedavg", "penalty": 0.0}
ERM, OBJECTIVE = ErmOutput(1.0, 0.5), ObjectivePerturbation(10.0, norm_bound=1.0)


def one_sentence(error):
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("kind", [ModelClipping, UpdateClipping])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"clip_norm": None, "noise_std": 1.0}, r"noise.*clipping"),
        ({"clip_norm": float("inf"), "noise_std": 1.0}, r"noise.*clipping"),
        ({"clip_norm": 1.0}, r"noise.*noise_std=.*epsilon.*delta="),
        ({"clip_norm": 1.0, "noise_std": 1.0, "epsilon": 1.0, "delta": 1e-5}, "not both"),
        ({"clip_norm": 1.0, "noise_std": 1.0, "delta": 1e-5}, "not both"),
        ({"clip_norm": 1.0, "epsilon": 1.0}, r"epsilon.*delta"),
        ({"clip_norm": 1.0, "epsilon": 0, "delta": 1e-5}, r"epsilon.*0"),
        ({"clip_norm": 1.0, "epsilon": 1.0, "delta": 0}, r"delta.*0"),
        ({"clip_norm": 1.0, "noise_std": -1.0}, r"noise_std.*-1\.0"),
    ],
)
def test_noise_is_given_in_exactly_one_way_and_never_without_clipping(kind, arguments, words):
    with pytest.raises(up.InputError) as error:
        kind(**arguments)
    assert re.search(words, one_sentence(error))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ErmOutput(0.0, 1.0), r"norm_bound.*0\.0"),
        (lambda: ErmOutput(1.0, 1.0, prox_mu=-1), r"prox_mu.*-1"),
        (lambda: ErmOutput(1.0, 1.0, steps=5, gamma=1e-9), r"steps.*gamma"),
        (lambda: ErmOutput(1.0, 1.0, steps=0), r"steps.*0"),
        (lambda: ErmOutput(1.0), "has no noise"),
        (lambda: BoltOnSGD(1.0), "has no noise"),
        (lambda: DPSGD(None, 1.0), r"noise.*clipping"),
        (lambda: DPSGD(1.0, 1.0, epsilon=1.0), "not both"),
        (lambda: CentralDPFedAvg(None, 1.0), r"noise.*clipping"),
        (lambda: CentralDPFedAvg(1.0), "has no noise"),
        (lambda: ObjectivePerturbation(10.0), "no norm_bound"),
        (lambda: ObjectivePerturbation(norm_bound=1.0), r"noise.*alpha=.*epsilon="),
        (lambda: ObjectivePerturbation(10.0, norm_bound=1.0, epsilon=1.0), "not both"),
        (lambda: ObjectivePerturbation(0.0, norm_bound=1.0), r"alpha.*0\.0"),
        (lambda: ObjectivePerturbation(epsilon=1.0, paper_mode=True), r"paper.*epsilon"),
        (lambda: ObjectivePerturbation(10.0, norm_bound=1.0, gamma=0), r"gamma.*0"),
        (lambda: Budget(0, 1e-5), r"Budget epsilon.*0"),
    ],
)
def test_a_wrong_hyper_parameter_is_named(make, words):
    with pytest.raises(up.InputError) as error:
        make()
    assert re.search(words, one_sentence(error))


@pytest.mark.parametrize(
    ("mechanism", "facts", "words"),
    [
        (ERM, {"convex": None}, "linear model"),
        (ERM, NO_PENALTY, r"0.*ErmOutput.*prox_mu.*0"),
        (ERM, PERSONAL, "pFedMe"),
        (ERM, GIVEN, "local solver"),
        (ErmOutput(1.0, 0.5, gamma=1e-9), {"stragglers": 0.5}, r"stragglers.*0\.5"),
        (BoltOnSGD(1.0, 0.5), {"convex": None}, "no dropout"),
        (BoltOnSGD(1.0, 0.5), PERSONAL, "pFedMe"),
        (BoltOnSGD(1.0, 0.5), {"local": up.LocalSGD(momentum=0.5)}, r"local\.momentum.*0\.5"),
        # S = 1 with a bias at R = 1, a = 0.5: 2/(S + a) = 4/3.
        (BoltOnSGD(1.0, 0.5), {"local": up.LocalSGD(lr=1.34)}, r"2/\(S.*= 1\.33333"),
        (OBJECTIVE, {"convex": None}, "linear model"),
        (OBJECTIVE, NO_PENALTY, r"prox_mu.*0"),
        (OBJECTIVE, PERSONAL, "pFedMe"),
        (OBJECTIVE, {"stragglers": 0.1}, r"stragglers.*0\.1"),
        (OBJECTIVE, GIVEN, "local solver"),
        (ObjectivePerturbation(10.0, paper_mode=True), PERSONAL, "pFedMe"),
        (ObjectivePerturbation(norm_bound=1.0, epsilon=0.01), {}, "noise reaches"),
        (DPSGD(1.0, 1.0), {"has_batch_norm": True}, "batch norm"),
        (
            CentralDPFedAvg(1.0, 1.0),
            {"algorithm": "scaffold", "remembers": ("c_i",)},
            r"scaffold.*client's",
        ),
        (CentralDPFedAvg(1.0, 1.0), {"algorithm": "fednova", "uses_releases": True}, r"fednova.*client's"),
        (CentralDPFedAvg(1.0, 1.0), {"algorithm": "feddyn", "remembers": ("h_i",)}, r"feddyn.*client's"),
        (CentralDPFedAvg(1.0, 1.0), PERSONAL, r"pfedme.*client's"),
        (CentralDPFedAvg(1.0, 1.0, secret_sampling=True), {"participation": 0.3}, "sampling='poisson'"),
        (CentralDPFedAvg(1.0, 1.0, secret_sampling=True), {"sampling": "poisson"}, r"participation.*1"),
    ],
)
def test_a_mechanism_refuses_a_run_for_which_it_is_not_sound(mechanism, facts, words):
    with pytest.raises(up.InputError) as error:
        mechanism.fit(setting(**facts))
    assert re.search(words, one_sentence(error))


CALIBRATED = [
    lambda delta: ModelClipping(1.0, epsilon=1.0, delta=delta),
    lambda delta: UpdateClipping(1.0, epsilon=1.0, delta=delta),
    lambda delta: ErmOutput(1.0, epsilon=1.0, delta=delta),
    lambda delta: BoltOnSGD(1.0, epsilon=1.0, delta=delta),
    lambda delta: ObjectivePerturbation(norm_bound=1.0, epsilon=20.0, delta=delta),
    lambda delta: DPSGD(1.0, epsilon=4.0, delta=delta),
]


@pytest.mark.parametrize("make", CALIBRATED)
def test_delta_of_one_over_n_is_refused_and_one_of_a_tenth_of_that_is_warned_about(make):
    sizes = {"sizes": [100, 50], "rounds": np.ones(2, dtype=np.int64), "local": up.LocalSGD(batch_size=None)}
    with pytest.raises(up.InputError, match=r"1/n = 0\.01 \(100 =.*largest client\)"):
        make(0.01).fit(setting(**sizes))
    with pytest.warns(UserWarning, match=r"1/\(10.*= 0\.001"):
        make(0.0011).fit(setting(**sizes))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(0.0009).fit(setting(**sizes))


def test_at_client_level_delta_is_held_against_the_number_of_clients():
    with pytest.raises(up.InputError, match=r"1/n = 0\.333 \(3 = N clients\)"):
        CentralDPFedAvg(1.0, epsilon=1.0, delta=0.4).fit(setting())
    with pytest.warns(UserWarning, match="N clients"):
        CentralDPFedAvg(1.0, epsilon=1.0, delta=0.1).fit(setting())


class FitsToNothing:
    name = "nothing"

    def fit(self, setting):
        return None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"privacy": ErmOutput(1.0, 0.5), "algorithm": up.FedAvg()}, r"prox_mu.*0"),
        ({"privacy": ErmOutput(1.0, 0.5), "algorithm": up.FedProx(mu=0.0)}, r"prox_mu.*0"),
        ({"privacy": ErmOutput(1.0, 0.5, prox_mu=1.0), "algorithm": up.PFedMe()}, "pFedMe"),
        ({"privacy": ErmOutput(1.0, 0.5), "model": "mlp"}, "linear model"),
        ({"privacy": ErmOutput(1.0, 0.5), "local": up.LocalSGD(epochs=3)}, "local solver"),
        ({"privacy": BoltOnSGD(1.0, 0.5), "model": nn.Sequential(nn.Dropout(0.5), nn.Linear(5, 3))}, "no dropout"),
        ({"privacy": DPSGD(1.0, 1.0), "model": nn.Sequential(nn.BatchNorm1d(5, track_running_stats=False),
                                                              nn.Linear(5, 3))}, "batch norm"),
        ({"privacy": DPSGD(1.0, 1.0), "budget": Budget(1.0, 1e-5)}, r"budget.*'dpsgd'"),
        ({"privacy": ModelClipping(1.0, 1.0), "budget": Budget(1.0, 0.0)}, r"budget\.delta.*0\.0"),
        ({"privacy": ModelClipping(1.0, 1.0), "budget": Budget(1.0, 0.5)}, r"budget\.delta.*0\.5"),
        ({"budget": Budget(1.0, 1e-5)}, r"budget.*privacy"),
        ({"ledger": "x.jsonl"}, r"ledger.*privacy"),
        ({"privacy": ModelClipping}, r"privacy.*<class"),
        ({"privacy": FitsToNothing()}, r"up\.Fitted.*NoneType"),
        ({"privacy": OBJECTIVE, "stragglers": 0.5}, "stragglers"),
        ({"privacy": ErmOutput(1.0, 0.5, steps=1), "stragglers": 0.5}, "must be at least 2"),
    ],
)  # fmt: skip
def test_train_refuses_it_before_any_work(federation, arguments, words):
    with pytest.raises(up.InputError) as error:
        up.train(federation, **({"algorithm": up.FedProx(), "iterations": 2} | QUIET | arguments))
    assert re.search(words, one_sentence(error))


def test_default_local_settings_are_not_held_against_a_solver_of_its_own():
    ERM.fit(setting(is_local_given=True, local=up.LocalSGD()))
