"""Give epsilon and delta, get the noise: what the ledger then adds up is what was asked for."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

import upcycled as up
from tests.privacy.runs import QUIET, cohort, setting, wide
from upcycled.core.mechanism import Trained
from upcycled.core.solvers import Problem
from upcycled.core.vectors import Shards, grid_step
from upcycled.privacy import (
    DPSGD,
    BoltOnSGD,
    CentralDPFedAvg,
    ErmOutput,
    Ledger,
    ModelClipping,
    ObjectivePerturbation,
    UpdateClipping,
)
from upcycled.privacy.noise.sources import SeededNoise

DELTA = 1e-5
GAUSSIAN = [
    ModelClipping(10.0, epsilon=2.0, delta=DELTA),
    UpdateClipping(1.0, epsilon=2.0, delta=DELTA),
    ErmOutput(1.0, epsilon=2.0, delta=DELTA),
    ErmOutput(1.0, epsilon=2.0, delta=DELTA, gamma=1e-9),
    BoltOnSGD(1.0, epsilon=2.0, delta=DELTA),
]


def noise_std(fitted, clients=3):
    """Each client's noise, as it is charged."""
    return fitted.charge(cohort(range(clients))).noise_std


def spent(mechanism, facts, rounds=None):
    """The ledger's epsilon after each client's own number of rounds."""
    fitted = mechanism.fit(facts)
    ledger = Ledger(fitted, "seeded", facts)
    rounds = facts.rounds if rounds is None else rounds
    for m in range(1, int(rounds.max()) + 1):
        ledger.charge(m, m, 0, fitted.charge(cohort(np.flatnonzero(rounds >= m))))
    return fitted, ledger.epsilon(DELTA)


@pytest.mark.parametrize("mechanism", GAUSSIAN, ids=lambda m: m.name)
def test_every_client_spends_exactly_its_epsilon_over_its_own_rounds(mechanism):
    facts = setting(rounds=np.array([40, 12, 3]))
    _, epsilon = spent(mechanism, facts)
    assert (epsilon <= 2.0 * (1 + 1e-9)).all()
    assert np.allclose(epsilon, 2.0, rtol=1e-9)


@pytest.mark.parametrize("mechanism", GAUSSIAN, ids=lambda m: m.name)
def test_one_noise_for_all_is_what_the_neediest_client_needs(mechanism):
    from dataclasses import replace

    facts = setting(rounds=np.array([40, 12, 3]))
    own = noise_std(mechanism.fit(facts))
    fitted, epsilon = spent(replace(mechanism, per_client=False), facts)
    assert np.unique(noise_std(fitted)).size == 1
    assert noise_std(fitted)[0] == pytest.approx(own.max(), rel=1e-9)
    assert epsilon.max() == pytest.approx(2.0, rel=1e-9)
    assert epsilon.min() < 2.0 or np.unique(own).size == 1


@pytest.mark.parametrize("delta", [1e-7, 1e-10])
def test_an_epsilon_that_rounding_alone_would_exceed_is_refused(delta):
    # Noise grows the grid, and the grid the sensitivity: each time 2^-20 sqrt(40 rounds 42 numbers) / mu-fold, mu being
    # sqrt(2 pi) delta where epsilon is nearly zero. At the smaller delta that soon is no number any more.
    asked = ModelClipping(10.0, epsilon=1e-9, delta=delta)
    with pytest.raises(up.InputError, match=r"small.*42 parameters"), np.errstate(over="ignore"):
        asked.fit(setting())
    fitted, _ = spent(ModelClipping(10.0, epsilon=1e-3, delta=1e-5), setting())
    assert np.isfinite(noise_std(fitted)).all()


def test_the_calibrated_noise_of_erm_output_is_the_published_value():
    path = Path(__file__).parents[3] / "shared" / "spec" / "golden.json"
    wanted = [{"epsilon": 2, "rounds": 40, "L": 2, "a": 0.5, "n": 224, "std": 0.45035633}]
    if path.exists():
        assert json.loads(path.read_text())["erm_std_per_client"] == wanted
    row = wanted[0]
    # L = 2 is R = 1 with a bias. So many steps that gradient descent is at the minimiser; the grid and rounding add
    # 2^-22 sqrt(42) and one part in 10^5 to a sensitivity of 0.0357.
    fitted = ErmOutput(1.0, epsilon=row["epsilon"], delta=DELTA, steps=200).fit(setting())
    charge = fitted.charge(cohort([0]))
    assert charge.noise_std[0] == pytest.approx(row["std"], rel=1e-4)
    assert charge.noise_std[0] > row["std"]
    exact = charge.sensitivity[0] - grid_step(charge.noise_std)[0] * np.sqrt(42)
    assert exact == pytest.approx(2 * 2 / (224 * 0.5) * (1 + 1e-5), rel=1e-12)


def test_a_client_with_few_samples_gets_more_noise():
    std = noise_std(ErmOutput(1.0, epsilon=2.0, delta=DELTA).fit(setting(sizes=[400, 200, 50])))
    assert np.allclose(std / std[0], [1, 2, 8], rtol=1e-3)


def test_upcycling_needs_less_noise_by_the_square_root_of_two_at_equal_iterations():
    data = wide(features=5, classes=3)
    privacy = ErmOutput(1.0, epsilon=2.0, delta=DELTA)
    runs = [
        up.train(data, algorithm=up.FedProx(), privacy=privacy, iterations=20, upcycle=rho, **QUIET)
        for rho in (None, 0.5)
    ]
    (vanilla, upcycled) = (next(iter(run.privacy)).charge.noise_std for run in runs)
    assert np.allclose(vanilla / upcycled, np.sqrt(2), rtol=1e-4)
    assert all(run.privacy.max_epsilon(DELTA) == pytest.approx(2.0, rel=1e-9) for run in runs)


@pytest.mark.parametrize("delta", [None, DELTA])
def test_objective_perturbation_spends_exactly_its_epsilon(delta):
    facts = setting(rounds=np.array([40, 12, 3]))
    fitted, _ = spent(ObjectivePerturbation(norm_bound=1.0, epsilon=30.0, delta=delta), facts)
    ledger = Ledger(fitted, "seeded", facts)
    for m in range(1, 41):
        ledger.charge(m, m, 0, fitted.charge(cohort(np.flatnonzero(facts.rounds >= m))))
    assert np.allclose(ledger.epsilon(delta or 0.0), 30.0, rtol=1e-9)
    assert (ledger.epsilon(delta or 0.0) <= 30.0 * (1 + 1e-12)).all()


def test_objective_perturbation_charges_the_published_epsilon_and_its_cover():
    fitted = ObjectivePerturbation(20.0, norm_bound=1.0, gamma=1e-10, cover_alpha=2.5e6).fit(setting(sizes=[224]))
    # 14.64127218 / 40 without the solver's error; 2 alpha2 gamma / a = 0.001; the grid adds alpha2 g sqrt(42).
    grid = 2.5e6 * grid_step(np.array([1 / 2.5e6]))[0] * np.sqrt(42)
    assert fitted.charge(cohort([0])).epsilon[0] == pytest.approx(14.64127218 / 40 + 0.001 + grid, rel=1e-9)
    assert grid < 1e-5
    assert fitted.paper.epsilon(np.array([40]), np.array([224]), DELTA)[0] == pytest.approx(7.252857143, rel=1e-9)


def test_the_least_alpha_serves_all_clients_of_objective_perturbation():
    own = ObjectivePerturbation(norm_bound=1.0, epsilon=30.0).fit(setting())
    common = ObjectivePerturbation(norm_bound=1.0, epsilon=30.0, per_client=False).fit(setting())
    assert np.unique(common.alpha).tolist() == pytest.approx([own.alpha.min()], rel=1e-6)


def test_dpsgd_is_calibrated_to_each_clients_rate_and_steps():
    facts = setting(rounds=np.array([4, 2, 4]), local=up.LocalSGD(epochs=2, batch_size=32))
    fitted, epsilon = spent(DPSGD(1.5, epsilon=4.0, delta=DELTA), facts)
    assert (epsilon <= 4.0).all()
    assert (epsilon > 3.99).all()
    charge = fitted.charge(cohort(range(3)))
    assert charge.sampling_rate.tolist() == [32 / 224, 32 / 45, 32 / 400]
    assert charge.steps.tolist() == [14, 4, 26]
    common, epsilon = spent(DPSGD(1.5, epsilon=4.0, delta=DELTA, per_client=False), facts)
    assert np.unique(noise_std(common)).size == 1
    assert 3.99 < epsilon.max() <= 4.0


def test_dpsgd_charges_by_the_sampled_gaussian_of_the_multiplier_given():
    facts = setting(rounds=np.array([3, 3, 3]), local=up.LocalSGD(epochs=2, batch_size=32))
    _, epsilon = spent(DPSGD(1.0, noise_multiplier=1.0), facts)
    exact = up.privacy.sampled_gaussian_epsilon(q=32 / 224, noise_multiplier=1.0, steps=3 * 14, delta=DELTA)
    assert epsilon[0] == pytest.approx(exact, rel=1e-3)
    assert epsilon[0] >= exact * (1 - 1e-6)  # the grid can only add


def test_pfedme_pays_for_every_inner_gradient_of_dpsgd(federation):
    inner, plain = (
        up.train(federation, algorithm=a, privacy=DPSGD(1.0, 2.0), iterations=1, **QUIET)
        for a in (up.PFedMe(inner_steps=3), up.FedAvg())
    )
    charged = [next(iter(run.privacy)).charge.steps for run in (inner, plain)]
    assert (charged[0] == 3 * charged[1]).all()


def test_central_noise_is_calibrated_to_the_busiest_client_and_charged_at_client_level():
    facts = setting(sizes=[30] * 50, rounds=np.arange(1, 51), data_rounds=50, algorithm="fedavg", penalty=0.0)
    fitted, epsilon = spent(CentralDPFedAvg(1.0, epsilon=2.0, delta=1e-4), facts)
    (std,) = noise_std(fitted, 1)
    ledger = up.privacy.gaussian_epsilon(rounds=50, sensitivity=2.0, noise_std=std, delta=1e-4)
    assert ledger == pytest.approx(2.0, rel=1e-4)
    assert epsilon.argmax() == 49
    assert fitted.promise.unit == "client"


def test_amplification_charges_everybody_in_every_round_at_the_secret_rate():
    facts = setting(sizes=[30] * 50, data_rounds=20, sampling="poisson", participation=0.1, algorithm="fedavg")
    fitted = CentralDPFedAvg(1.0, epsilon=2.0, delta=1e-4, secret_sampling=True).fit(facts)
    ledger = Ledger(fitted, "seeded", facts)
    for m in range(1, 21):
        ledger.charge(m, m, 0, fitted.charge(cohort([3, 4])))
    assert (ledger.rounds == 20).all()
    assert np.allclose(ledger.epsilon(1e-4), 2.0, rtol=2e-3)
    assert (ledger.epsilon(1e-4) <= 2.0).all()
    unamplified = CentralDPFedAvg(1.0, epsilon=2.0, delta=1e-4).fit(setting(sizes=[30] * 50, rounds=np.full(50, 20)))
    assert noise_std(fitted)[0] < 0.5 * noise_std(unamplified)[0]


@pytest.mark.parametrize(
    "mechanism",
    [
        *GAUSSIAN,
        ObjectivePerturbation(norm_bound=1.0, epsilon=30.0),
        ObjectivePerturbation(5.0, paper_mode=True),
        DPSGD(1.0, 1.0),
        CentralDPFedAvg(1.0, 1.0),
    ],
    ids=lambda m: m.name,
)
def test_a_fitted_mechanism_works_the_same_after_its_way_to_a_worker_process(mechanism):
    def one_round(fitted):
        rng, noise, who = np.random.default_rng(0), SeededNoise(1, 1), cohort([0, 2])
        sent = rng.normal(size=42).astype(np.float32)
        problem = fitted.problem(Problem(), sent, who, noise)
        trained = Trained(rng.normal(size=(2, 42)).astype(np.float32), np.array([7, 7]))
        release = fitted.release(trained, sent, who, np.array([224, 400]), noise)
        mean, charge = fitted.aggregate(release, sent, noise), fitted.charge(who)
        rows = Shards(rng.normal(size=(5, 20)), np.zeros(5, dtype=np.int64), np.array([0, 5]))
        numbers = [release.vectors, mean, charge.sensitivity, charge.noise_std, fitted.prepare(rows).x]
        tilt = [] if problem.b is None else [problem.b]
        step_sums = fitted.solver(up.LocalSGD()).step_sum(np.array([3]))
        facts = problem.a, fitted.promise, fitted.mean_noise_std(release), dict(fitted.shared)
        return [array.tobytes() for array in (*numbers, *tilt, step_sums)], facts

    here = mechanism.fit(setting())
    there = pickle.loads(cloudpickle.dumps(here))
    assert one_round(there) == one_round(here)
