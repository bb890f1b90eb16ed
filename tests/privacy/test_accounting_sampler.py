"""What real noise costs for being sampled: taken off delta by calibration, ledger and budget alike."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import upcycled as up
from tests.privacy.runs import QUIET, cohort, setting, wide
from upcycled.core.errors import InputError
from upcycled.privacy.accounting import gdp_delta, gdp_epsilon, gdp_mu, sampled_gaussian_epsilon
from upcycled.privacy.accounting.discrete_noise import PARTS, epsilon_of_draws, part_of_delta, sampler_delta
from upcycled.privacy.charge_kinds import _quick_epsilon, _quick_worst, _sampled_epsilon
from upcycled.privacy.ledger import Budget, Ledger
from upcycled.training.plan import make_plan

LARGE = {"num_parameters": 155_800, "algorithm": "fedavg", "penalty": 0.0, "convex": None}
ETA = 2.0**-43
MECHANISMS = {
    "gaussian": lambda **given: up.privacy.ModelClipping(1.0, **given),
    "sampled": lambda **given: up.privacy.DPSGD(1.0, **given),
    "central": lambda **given: up.privacy.CentralDPFedAvg(1.0, **given),
    "secret": lambda **given: up.privacy.CentralDPFedAvg(1.0, secret_sampling=True, **given),
}
CLIENTS = {"sizes": np.full(50, 90)}


def facts(name, noise, **changes):
    poisson = {"sampling": "poisson", "participation": 0.5} if name == "secret" else {}
    return setting(**(LARGE | CLIENTS | poisson | {"noise": noise, "local": up.LocalSGD(batch_size=9)} | changes))


def spent(name, noise, epsilon=2.0, delta=1e-5, **changes):
    """Return the ledger after all planned rounds of a calibrated mechanism."""
    about = facts(name, noise, **changes)
    fitted = MECHANISMS[name](epsilon=epsilon, delta=delta).fit(about)
    ledger = Ledger(fitted, noise, about)
    for round in range(about.data_rounds):
        ledger.charge(round + 1, round + 1, 0, fitted.charge(cohort(range(50))))
    return ledger


def test_what_draws_cost_follows_the_stated_formula():
    assert sampler_delta(epsilon=2.0, draws=40 * 155_800) == pytest.approx(
        (1 + math.exp(2)) * math.sqrt(40 * 155_800) * 2**-43, rel=1e-12
    )
    assert sampler_delta(epsilon=700.0, draws=0) == 0


@pytest.mark.parametrize("name", MECHANISMS)
def test_what_is_calibrated_for_real_noise_is_stated_within_what_was_asked(name):
    draws = 155_800 * (10 if name == "sampled" else 1)  # ten batches
    few = {"data_rounds": 4, "rounds": np.full(50, 4)}
    real, simulated = spent(name, "system", **few), spent(name, "seeded", **few)
    charge = next(iter(real)).charge
    assert charge.draws.tolist() == [draws] * charge.clients.size
    assert next(iter(simulated)).charge.draws is None
    assert 1.99 < real.max_epsilon(1e-5) <= 2.0
    assert real.epsilon(1e-5).max() == real.max_epsilon(1e-5)
    # Real noise is larger, by what a little of delta costs and no more.
    ratio = charge.noise_std / next(iter(simulated)).charge.noise_std
    assert (ratio > 1).all()
    assert (ratio < 1.002).all()


def test_the_delta_claimed_for_155800_parameters_over_40_rounds_covers_the_sampler():
    """Exact Gaussian delta, and (1 + e^2) 2^-43 sqrt(N): together below 1e-5; all of it spent on the first is not."""
    together = {}
    for noise in ("system", "seeded"):
        charges = [entry.charge for entry in spent("gaussian", noise)]
        mu = math.sqrt(sum((charge.sensitivity[0] / charge.noise_std[0]) ** 2 for charge in charges))
        together[noise] = gdp_delta(mu=mu, epsilon=2.0) + (1 + math.exp(2)) * ETA * math.sqrt(40 * 155_800)
    assert 0.999e-5 < together["system"] <= 1e-5 < together["seeded"]


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_delta_that_the_sampler_alone_would_spend_is_refused_in_one_sentence(name):
    given = {"epsilon": 2.0, "delta": 1e-12}
    with pytest.raises(InputError, match=r"delta.*1e-12.*epsilon 2.*noise.*\d+"):
        MECHANISMS[name](**given).fit(facts(name, "system"))
    if name in ("gaussian", "central"):  # a privacy loss distribution of so many steps takes long
        MECHANISMS[name](**given).fit(facts(name, "seeded"))


def test_the_least_delta_that_is_named_is_accepted():
    with pytest.raises(InputError) as refused:
        part_of_delta(epsilon=2.0, delta=1e-9, draws=np.array([10**6, 10**7]))
    least = 10 * (1 + math.exp(2)) * ETA * math.sqrt(10**7)
    assert f"{least:.2g} or more" in str(refused.value)
    assert part_of_delta(epsilon=2.0, delta=least * 1.001, draws=np.array([0, 10**7])).tolist() == [0.0, PARTS[-1]]


def test_where_no_delta_would_do_the_largest_epsilon_is_named_and_accepted():
    # (1 + e^epsilon) 2^-43 sqrt(N) = delta / 10 at epsilon = ln(delta / 10 / (2^-43 sqrt(N)) - 1).
    largest = math.log(1e-5 / 10 / (ETA * math.sqrt(10**6)))
    with pytest.raises(InputError, match=rf"^epsilon.*40.0.*{largest:.3g}.*delta 1e-05"):
        part_of_delta(epsilon=40.0, delta=1e-5, draws=np.array([1, 10**6]))
    assert part_of_delta(epsilon=largest - 0.01, delta=1e-5, draws=np.array([10**6])).tolist() == [PARTS[-1]]
    with pytest.raises(InputError):
        part_of_delta(epsilon=largest + 0.01, delta=1e-5, draws=np.array([10**6]))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 6.0, 9.0])
@pytest.mark.parametrize("draws", [1, 10**4, 10**7, 10**9])
def test_a_stated_epsilon_pays_for_its_draws_and_is_near_the_least_that_does(epsilon, draws):
    mu, delta = gdp_mu(epsilon=epsilon, delta=1e-6), 1e-6
    found = float(_epsilon(mu, draws, delta))
    cost = (1 + math.exp(found)) * ETA * math.sqrt(draws)
    if cost <= delta / 10:
        assert gdp_delta(mu=mu, epsilon=found) + cost <= delta
        assert found <= gdp_epsilon(mu=mu, delta=0.9 * delta)
    else:
        rho = mu**2 / 2  # by the divergence: dearer, and no dearer than the plain conversion, which is larger still
        assert epsilon < found < rho + 2 * math.sqrt(rho * math.log(1.01e6)) + 1e-3


def _epsilon(mu, draws, delta):
    shift = np.array([mu])
    return epsilon_of_draws(
        lambda places, left: np.asarray(gdp_epsilon(mu=shift[places], delta=left)), shift, np.array([draws]), delta
    )[0]


def test_an_epsilon_beyond_the_samplers_reach_is_infinite():
    """A record that moves a sum by 20 stds makes releases that its neighbour cannot, for blocks end at 13."""
    assert np.isfinite(_epsilon(gdp_mu(epsilon=40.0, delta=1e-5), 10**6, 1e-5))
    assert _epsilon(20.0, 1, 1e-5) == np.inf
    assert np.isfinite(_epsilon(20.0, 0, 1e-5))  # a simulation's number is the formula's
    # So many draws that their relative errors of 2^-44 add up to more than 2^-12; delta is too small for another way.
    assert np.isfinite(_epsilon(1.0, 2**32, 1e-9))
    assert _epsilon(1.0, 2**33, 1e-9) == np.inf


def by_divergence(mu, delta):
    """Return the least epsilon that zero-concentrated DP of rho = mu^2/2 gives, over all orders.

    alpha rho + ln(1 - 1/alpha) + (ln(1/delta) - ln(alpha))/(alpha - 1) (Canonne, Kamath, Steinke 2020, proposition 12).
    """
    rho, rest = mu**2 / 2, -math.log(delta)

    def bound(log_above):
        above = math.exp(log_above)
        return (1 + above) * rho + math.log(above / (1 + above)) + (rest - math.log(1 + above)) / above

    return minimize_scalar(bound, bounds=(-8, 8), method="bounded", options={"xatol": 1e-10}).fun


def test_beyond_all_parts_of_delta_epsilon_is_the_divergences_with_room_for_relative_errors():
    """Of delta a part of 2^-10 is not to be spent; sparing none, or 2^-10 more, would be 0.005 less at this shift."""
    for mu, draws in ((5.0, 1), (6.0, 10**6), (6.0, 2**30)):
        least = by_divergence(mu, 1e-5 * (1 - 2.0**-10)) + 3 * draws * 2.0**-44
        assert least <= _epsilon(mu, draws, 1e-5) <= least + 0.002
        assert by_divergence(mu, 1e-5) < least - 0.0005


def test_what_the_sampler_cannot_reach_is_no_more_than_a_4096th_of_delta():
    """e^epsilon N 2^-125 <= 2^-12 1e-5 holds for one draw up to epsilon = 66.8; with 1e-5 / 2^-12 it would up to 83."""
    assert 60 < by_divergence(7.4, 1e-5) < 66
    assert np.isfinite(_epsilon(7.4, 1, 1e-5))
    assert 70 < by_divergence(8.5, 1e-5) < 80
    assert _epsilon(8.5, 1, 1e-5) == np.inf


def test_sampled_releases_beyond_all_parts_of_delta_pay_for_every_step_unsampled():
    """Each step then moves a sum by two clip norms: mu^2 = steps (2/z)^2, whatever the sampling."""
    point, least = (25.0, 0.9, -2.0, 1000.0), by_divergence(5.0, 1e-5 * (1 - 2.0**-10))
    assert least <= _sampled_epsilon(25.0, 0.9, 2.0, 1000.0, 1e-5) <= least + 0.002
    assert least <= _quick_worst([point], 1e-5) <= least + 0.002


def test_a_curves_number_is_the_close_bound_of_the_worst_point():
    worst, other = (40.0, 0.1, -1.0, 0.0), (40.0, 0.1, -1.2, 0.0)
    exact = sampled_gaussian_epsilon(q=0.1, noise_multiplier=1.0, steps=40, delta=1e-5)
    rough, close = (_quick_epsilon(worst, 1e-5, is_rough=is_rough) for is_rough in (True, False))
    assert exact <= close < rough
    assert _quick_worst([other, worst], 1e-5) == close
    assert close <= 1.01 * exact


def test_without_draws_every_number_is_the_formulas_own():
    mu = np.array([0.3, 5.0, 40.0])
    exact = np.asarray(gdp_epsilon(mu=mu, delta=1e-5))
    found = epsilon_of_draws(lambda places, left: exact[places], mu, np.zeros(3, dtype=np.int64), 1e-5)
    assert np.array_equal(found, exact)


def test_sampled_releases_are_stated_at_what_their_draws_leave():
    ledger = spent("sampled", "system", data_rounds=4, rounds=np.full(50, 4))
    charge = next(iter(ledger)).charge
    draws, z = 4 * int(charge.draws[0]), float(charge.noise_std[0] / charge.sensitivity[0])
    stated = ledger.max_epsilon(1e-5)
    part = next(p for p in PARTS if (1 + math.exp(stated)) * ETA * math.sqrt(draws) <= p * 1e-5)
    asked = {"q": 0.1, "noise_multiplier": z, "steps": 40}
    assert stated == sampled_gaussian_epsilon(**asked, delta=1e-5 * (1 - part))
    assert stated > sampled_gaussian_epsilon(**asked, delta=1e-5)


def test_a_run_with_real_noise_writes_its_draws_and_reads_them_again(tmp_path):
    data, path = wide(sizes=(9, 8), features=5, classes=3), tmp_path / "ledger.jsonl"
    privacy = up.privacy.ModelClipping(1.0, epsilon=1.0, delta=1e-5)
    run = up.train(
        data, algorithm=up.FedAvg(), privacy=privacy, noise="system", iterations=4, upcycle=0.5, ledger=path, **QUIET
    )
    read = Ledger.read(path)
    assert [entry.charge.draws.tolist() for entry in read if entry.charge is not None] == [[18, 18]] * 2
    assert read.max_epsilon(1e-5) == run.privacy.max_epsilon(1e-5) <= 1.0
    assert read.epsilon_over_rounds(1e-5).worst[-1] == read.max_epsilon(1e-5)
    text = path.read_text()
    for wrong in ("[18]", "[18, -1]", "[18, 1.5]", '"18"'):
        path.write_text(text.replace("[18, 18]", wrong, 1).replace("[18,18]", wrong, 1))
        with pytest.raises(InputError, match="line"):
            Ledger.read(path)


def rounds_paid(charge, planned):
    """Return how often everybody can pay a charge within epsilon 2 at delta 1e-5."""
    about = facts("gaussian", "system", data_rounds=planned)
    ledger = Ledger(MECHANISMS["gaussian"](noise_std=40.0).fit(about), "system", about, Budget(2.0, 1e-5))
    for round in range(1000):
        if not ledger.can_pay(charge).all():
            return round
        ledger.charge(round + 1, 1, round, charge)
    return math.inf


@pytest.mark.parametrize(("draws", "rounds"), [(None, 10), (155_800, 9)])
def test_a_budget_sets_aside_what_its_draws_need(draws, rounds):
    """Ten rounds that fit all of delta, but not what 40 rounds of 155,800 draws leave of it: 2^-10 less."""
    everything, rest = (gdp_mu(epsilon=2.0, delta=1e-5 * part) ** 2 for part in (1, 1 - 2.0**-10))
    std = math.sqrt(10 / ((everything + rest) / 2))
    draws = None if draws is None else np.full(50, draws)
    charge = up.Charge("gaussian", np.arange(50), np.ones(50), np.full(50, std), draws=draws)
    assert rounds_paid(charge, 40) == rounds


def test_a_budget_ends_when_the_draws_that_were_paid_for_are_used_up():
    """With next to no sensitivity only they count: 2^-10 of delta pays for so many, whatever rounds were planned."""
    draws = np.full(50, 20 * 155_800)
    charge = up.Charge("gaussian", np.arange(50), np.full(50, 1e-9), np.full(50, 40.0), draws=draws)
    paid = math.floor((2.0**-10 * 1e-5 / ((1 + math.exp(2)) * ETA)) ** 2 / draws[0])
    assert rounds_paid(charge, 2) == paid > 2


def test_a_budget_whose_delta_the_draws_would_spend_is_refused_when_the_run_is_planned():
    data = wide(sizes=(9, 8), features=5, classes=3)
    asked = {"algorithm": up.FedAvg(), "privacy": up.privacy.ModelClipping(1.0, 40.0), "iterations": 2}
    make_plan(data, up.RunSpec(**asked, budget=Budget(2.0, 1e-12)))
    with pytest.raises(InputError, match=r"delta.*1e-12.*noise.*36"):
        make_plan(data, up.RunSpec(**asked, budget=Budget(2.0, 1e-12), noise="system"))
