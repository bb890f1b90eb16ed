"""Gaussian noise inside the objective: what is charged, drawn, released and refused."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import upcycled as up
from tests.privacy.runs import cohort, first_arrival, setting, wide
from tests.privacy.test_mechanism_calibration import spent
from tests.privacy.test_mechanism_noise import assert_scale, softmax_gradient
from upcycled.core.generalised_linear import softmax_loss
from upcycled.privacy import Account, GaussianObjective, Ledger, ObjectivePerturbation
from upcycled.privacy.accounting.tilted_renyi import tilted_epsilon, tilted_renyi
from upcycled.privacy.ledger.joint import joint_epsilon
from upcycled.privacy.mechanisms.objective_cover import likely_normal_norm
from upcycled.privacy.mechanisms.projection import project

DELTA = 1e-5


def test_every_client_spends_exactly_its_epsilon_over_its_own_rounds():
    facts = setting(rounds=np.array([40, 3, 12]))
    _, epsilon = spent(GaussianObjective(norm_bound=1.0, epsilon=2.0, delta=DELTA), facts)
    assert (epsilon <= 2.0).all()
    assert epsilon == pytest.approx(2.0, rel=1e-6)


def test_the_charge_is_by_hand():
    # L = 2 and S = 1 at R~^2 = 2: moves 2 L/n = 4/n, kappa = S/(n a) = 2/n with a = 0.5.
    fitted = GaussianObjective(0.4, norm_bound=1.0, gamma=1e-9, cover_alpha=1e5).fit(setting(sizes=[224, 45, 400]))
    charge = fitted.charge(cohort([1]))
    assert charge.sensitivity == pytest.approx([4 / 45])
    assert charge.noise_std == pytest.approx([0.4])
    assert charge.curvature == pytest.approx([2 / 45])
    assert charge.rank.tolist() == [1]
    # 2 cover_alpha gamma/a and the grid's part: g = 2^(floor(log2 1e-5) - 20), g sqrt(42)/2 more than gamma/a.
    grid = 2.0 ** (np.floor(np.log2(1e-5)) - 20)
    assert charge.epsilon == pytest.approx([2 * 1e5 * (1e-9 / 0.5 + grid * np.sqrt(42) / 2)])
    about = {"curvature": 2 / 45, "rank": 1, "cover": float(charge.epsilon[0])}
    expected = tilted_epsilon(squares=(4 / 45 / 0.4) ** 2, rounds=7, delta=DELTA, **about)
    facts = setting(rounds=np.array([0, 7, 0]))
    _, found = spent(GaussianObjective(0.4, norm_bound=1.0, gamma=1e-9, cover_alpha=1e5), facts)
    assert found == pytest.approx([0, expected, 0])


def test_three_classes_pay_for_their_rank():
    facts = setting(convex=softmax_loss(3), num_classes=3, num_parameters=63)
    assert GaussianObjective(0.4, norm_bound=1.0).fit(facts).charge(cohort([0])).rank.tolist() == [2]


def test_one_noise_for_all_is_the_largest_that_one_needs():
    own = GaussianObjective(norm_bound=1.0, epsilon=4.0, delta=DELTA).fit(setting())
    common = GaussianObjective(norm_bound=1.0, epsilon=4.0, delta=DELTA, per_client=False).fit(setting())
    everyone = cohort(range(3))
    assert common.charge(everyone).noise_std == pytest.approx(np.full(3, own.charge(everyone).noise_std.max()))


def test_less_noise_than_pure_privacy_needs():
    pure = ObjectivePerturbation(norm_bound=1.0, epsilon=2.0, delta=DELTA).fit(setting(sizes=[224]))
    ours = GaussianObjective(norm_bound=1.0, epsilon=2.0, delta=DELTA).fit(setting(sizes=[224]))
    per_coordinate = np.sqrt(43) / pure.alpha[0]  # E ||n||^2 = D (D + 1) / alpha^2
    assert ours.charge(cohort([0])).noise_std[0] < per_coordinate / 6


def test_a_likely_tilt_is_exceeded_with_a_probability_below_e_to_the_minus_50():
    for size in (2, 42, 7850):
        assert stats.chi2.logsf((likely_normal_norm(np.array([3.0]), size)[0] / 3) ** 2, size) < -50


@pytest.mark.usefixtures("known_entropy")
@pytest.mark.parametrize("noise", ["seeded", "system"])
def test_the_noise_is_found_again_in_the_minimiser(monkeypatch, noise):
    """At the minimiser n = -(gradient + a (x - w)); b is zero in the first round."""
    data, a = wide(), 0.5
    privacy = GaussianObjective(0.3, norm_bound=1.0)
    module = up.models.logistic((40,), 10, seed=3)
    start = np.concatenate([p.detach().numpy().ravel() for p in module.parameters()]).astype(np.float64)
    released = first_arrival(monkeypatch, data, "fedprox", privacy, noise=noise).release.vectors.astype(np.float64)
    train = project(data.train, 1.0)
    found = []
    for client in range(4):
        x, y = train.client(client)
        found.append(-softmax_gradient(released[client], x.astype(np.float64), y, 10) - a * (released[client] - start))
    assert_scale(np.array(found), 0.3)


def test_a_bound_on_the_noise_of_a_release_is_known_to_weights_and_steps(federation):
    run = up.train(
        federation, algorithm=up.FedProx(mu=0.5), privacy=GaussianObjective(0.2, norm_bound=1.0), iterations=4,
        upcycle=up.coefficients.Signal(), aggregation="precision", progress=False,
    )  # fmt: skip
    assert run.error is None


def test_no_budget_is_enforced_and_an_account_takes_the_divergence(federation, tmp_path):
    run = {"algorithm": up.FedProx(mu=1.0), "privacy": GaussianObjective(2.0, norm_bound=1.0), "iterations": 2}
    with pytest.raises(up.InputError, match="a budget cannot be enforced"):
        up.train(federation, **run, budget=up.privacy.Budget(2.0, 1e-4), progress=False)
    Account.open(tmp_path / "account", epsilon=50.0, delta=1e-4)
    result = up.train(
        federation, **run, noise="system", account=tmp_path / "account", progress=False, engine="sequential"
    )
    account = Account.read(tmp_path / "account")
    pot = account.terms.pots[0]
    charge = next(entry.charge for entry in result.privacy if entry.charge is not None)
    each = tilted_renyi(
        squares=(charge.sensitivity / charge.noise_std) ** 2, curvature=charge.curvature, rank=charge.rank,
        cover=charge.epsilon, order=pot.order,
    )  # fmt: skip
    assert account.share("0") == pytest.approx(2 * each[0] / pot.limit, rel=1e-6)


def test_ledgers_of_two_runs_compose_by_adding_rounds():
    facts = setting()
    ledgers = []
    for name in ("a", "b"):
        fitted = GaussianObjective(0.5, norm_bound=1.0).fit(facts)
        ledger = Ledger(fitted, "seeded", facts, run=name)
        for m in range(1, 11):
            ledger.charge(m, m, 0, fitted.charge(cohort(range(3))))
        ledgers.append(ledger)
    both = joint_epsilon(ledgers, DELTA)
    facts = setting(rounds=np.full(3, 20))
    _, whole = spent(GaussianObjective(0.5, norm_bound=1.0), facts)
    assert both == pytest.approx(whole)
