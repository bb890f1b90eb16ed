"""Sampled releases with noise on a grid have no larger divergence than accounts charge, however coarse the grid."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

import upcycled as up
from upcycled.core.mechanism import Charge
from upcycled.core.vectors import grid_scale
from upcycled.privacy.accounting import renyi
from upcycled.privacy.accounting.discrete_noise import GRID_SCALE, lattice_renyi
from upcycled.privacy.accounting.renyi import draws_renyi, sampled_renyi
from upcycled.privacy.accounts.filters import make_pot

RATES = (1e-3, 0.05, 0.5, 0.99)
ORDERS = (1.05, 1.5, 2.0, 3.3, 8.0, 30.0)
SCALES = (0.2, 0.35, 0.5, 0.7, 1.0, 2.0, 4.0, 16.0)


def exact(u, v, scale, q, order):
    """The divergence of (1-q) Z + q (Z + u) from (1-q) Z + q (Z + v) by its definition, a sum over the integers.

    E[p_v ((p_u/p_v)^order - 1 - order (p_u/p_v - 1))] under Z, which has no negative terms: nothing cancels.
    """
    u, v = np.array(u, dtype=float), np.array(v, dtype=float)
    far = int(order * np.linalg.norm(u - v) + np.linalg.norm(u) + np.linalg.norm(v) + 40 * scale + 2)
    axes = np.meshgrid(*[np.arange(-far, far + 1)] * u.size, indexing="ij")
    x = np.stack([axis.ravel() for axis in axes], axis=1)
    log_weights = -(x**2).sum(axis=1) / (2 * scale**2)
    log_weights -= np.logaddexp.reduce(log_weights)

    def log_mixture(shift):
        return np.logaddexp(math.log1p(-q), math.log(q) + (x @ shift - shift @ shift / 2) / scale**2)

    log_p, log_q = log_mixture(u), log_mixture(v)
    t = log_p - log_q
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        large = order * t + np.log1p(-np.exp(math.log(order) + t - order * t))
        small = np.log(np.expm1(np.minimum(order * t, 600.0)) - order * np.expm1(np.minimum(t, 600.0)))
        tiny = np.log(order * (order - 1) / 2) + 2 * np.log(np.abs(t)) + np.log1p((order + 1) * t / 3)
    log_g = np.where(order * t > 40, large, np.where(np.abs(order * t) < 1e-5, tiny, small))
    log_excess = np.logaddexp.reduce(np.where(np.isnan(log_g), -np.inf, log_weights + log_q + log_g))
    return (
        float(np.logaddexp(0.0, log_excess)) / (order - 1) if log_excess > -30 else math.exp(log_excess) / (order - 1)
    )


def charged(length, size, scale, q, order):
    """What is charged for one step of noise on such a grid: by the rule of ``sampled_renyi``, whose grid is finer."""
    multiplier = scale / length
    smooth = float(sampled_renyi(q=q, noise_multiplier=multiplier, steps=1, order=order))
    more = float(lattice_renyi(noise_multiplier=multiplier, draws=size, order=order, scale=scale))
    return smooth, min(smooth + more, 2 * order / multiplier**2)


@pytest.mark.parametrize("scale", SCALES)
def test_no_sum_over_the_integers_exceeds_what_is_charged(scale):
    """Replaced, added or removed: the worst pair and others, for all orders, also on grids as coarse as the noise."""
    for length, q, order in itertools.product((1, 2, 5, 40), RATES, ORDERS):
        _, most = charged(length, 1, scale, q, order)
        pairs = [(length, -length), (length, 0), (0, length), (length, 1 - length), (1, -length)]
        for u, v in pairs if order < 30 or scale < 4 else pairs[:1]:
            found = exact([u], [v], scale, q, order)
            assert found <= most * (1 + 1e-9), (u, v, q, order)


@pytest.mark.parametrize("scale", [0.3, 0.5, 1.0, 3.0])
@pytest.mark.parametrize(("u", "v"), [((1, 1), (-1, -1)), ((1, 0), (0, 1)), ((1, 2), (-2, 1)), ((1, 1), (-1, 1))])
def test_the_same_in_two_dimensions_along_the_grid_and_across(u, v, scale):
    for q, order in itertools.product(RATES, (1.05, 2.0, 3.3, 8.0)):
        _, most = charged(math.hypot(*u), 2, scale, q, order)
        assert exact(u, v, scale, q, order) <= most * (1 + 1e-9), (q, order)


def test_on_a_coarse_grid_continuous_noise_would_be_too_cheap():
    """So the part for the grid is needed: the divergence of continuous noise alone is no bound."""
    smooth, most = charged(1, 1, 0.5, 1e-3, 1.05)
    assert 1.04 * smooth < exact([1], [-1], 0.5, 1e-3, 1.05) < most
    over = [
        exact([c], [-c], s, q, order) > charged(c, 1, s, q, order)[0] * (1 + 1e-6)
        for s, c, q, order in itertools.product((0.5, 0.7, 1.0), (1, 2, 3), RATES, (1.05, 1.5, 3.3))
    ]
    assert sum(over) >= 10


def test_on_the_grid_of_real_noise_the_part_is_below_every_rounding():
    assert grid_scale(np.array([1e-9, 0.37, 1.0, 1.999, 1e9])).min() >= GRID_SCALE
    for order, multiplier in itertools.product((1.004, 2.0, 10.2, 1e4), (1e-3, 0.1, 1.0, 20.0)):
        assert 0 < lattice_renyi(noise_multiplier=multiplier, draws=1e12, order=order) < 1e-250
    # Less noise, and orders that no sum of e^order bears: the rule without sampling bounds it.
    for order, multiplier in ((1e6, 1e-2), (10.0, 1e-8)):
        one = {"noise_multiplier": multiplier, "steps": 3, "order": order}
        assert sampled_renyi(q=0.1, **one, draws=10**6) <= 3 * 2 * order / multiplier**2
    assert lattice_renyi(noise_multiplier=0.0, draws=1, order=2.0) == np.inf
    assert sampled_renyi(q=0.0, noise_multiplier=1e-9, steps=3, order=2.0, draws=10**6) == 0.0
    assert sampled_renyi(q=0.5, noise_multiplier=0.0, steps=3, order=2.0, draws=10**6) == np.inf


def test_an_account_charges_what_the_grid_adds(monkeypatch):
    pot = make_pot("mixed", 4.0, 1e-5)
    ones, draws = np.ones(1), np.array([7])
    rest = {"sampling_rate": 0.01 * ones, "steps": np.array([2])}
    charge = Charge("sampled", np.array([0]), ones, ones, **rest, draws=draws)
    before = pot.costs(charge)
    monkeypatch.setattr(renyi, "lattice_renyi", lambda *, noise_multiplier, draws, order: 1e-3 * draws)
    assert pot.costs(charge) == pytest.approx(before + 7e-3, rel=1e-12)


def test_a_run_of_dpsgd_is_charged_by_the_same_rule(federation, tmp_path):
    account = up.privacy.Account.open(tmp_path / "account", epsilon=30.0, delta=1e-3)
    data = replace(federation, inferred=frozenset(), test=None)
    asked = {"algorithm": up.FedAvg(), "privacy": up.privacy.DPSGD(1.0, 1.0), "noise": "system", "iterations": 2}
    up.train(data, **asked, account=account.folder, progress=False)
    account = up.privacy.Account.read(account.folder)
    (pot,) = account.terms.pots
    for client in account.clients:
        spent = 0.0
        for charge, place in account.charges_of(client):
            one = charge[np.array([place])]
            steps = {"steps": one.steps, "order": pot.order, "draws": one.draws}
            multiplier = one.noise_std / one.sensitivity
            each = sampled_renyi(q=one.sampling_rate, noise_multiplier=multiplier, **steps)
            spent += float((each + draws_renyi(draws=one.draws, order=pot.order))[0])
        assert account.share(client) == spent / pot.limit
