"""Accounts: what is charged over studies, retries, processes and kills never exceeds what was committed."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import signal
import stat
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

import upcycled as up
from tests.privacy.runs import QUIET, wide
from upcycled.core.mechanism import Charge, Promise
from upcycled.core.sampling import everybody
from upcycled.engines.sequential import Sequential
from upcycled.privacy import Account, ModelClipping
from upcycled.privacy.accounting import gdp_epsilon, gdp_mu
from upcycled.privacy.accounting.gaussian import squared_ratio
from upcycled.privacy.accounting.renyi import (
    best_order,
    draws_renyi,
    pure_renyi,
    renyi_budget,
    renyi_epsilon,
    sampled_renyi,
)
from upcycled.privacy.accounts.account import Cost
from upcycled.privacy.accounts.filters import Pot, commitment_of, make_pot
from upcycled.privacy.ledger.entries import Entry
from upcycled.training.charging import begin_in_account, costs_of
from upcycled.training.checkpoint.fingerprint import hash_of_shards
from upcycled.training.plan import make_plan, plan_of
from upcycled.training.publication import publication_of
from upcycled.training.round import answer

ROOT = Path(__file__).parents[2]
PROMISE = Promise("something", ())
SIZES = np.array([100, 100, 100])
NAMES = ("ann", "bob", "cy")


def opened(folder, **terms):
    return Account.open(folder, **({"epsilon": 2.0, "delta": 1e-5} | terms))


def begun(account, run="r", clients=NAMES):
    return account.begin(run, "some", PROMISE, clients, SIZES)


def gaussian(clients, ratio, draws=None):
    clients = np.asarray(clients, dtype=np.int64)
    moves = np.full(clients.size, float(ratio))
    drawn = None if draws is None else np.full(clients.size, draws)
    return Charge("gaussian", clients, moves, np.ones(clients.size), draws=drawn)


def pure(clients, epsilon):
    clients = np.asarray(clients, dtype=np.int64)
    ones = np.ones(clients.size)
    return Charge("pure", clients, ones, ones, epsilon=epsilon * ones)


def sampled(clients, q, z, steps):
    clients = np.asarray(clients, dtype=np.int64)
    ones = np.ones(clients.size)
    return Charge("sampled", clients, ones, z * ones, sampling_rate=q * ones, steps=np.full(clients.size, steps))


def entry(charge, m=1):
    return Entry(m, "data", m, 0, charge.clients, charge)


def study(**changes):
    asked = {"algorithm": up.FedProx(mu=0.5), "iterations": 4, "noise": "system", **QUIET}
    return asked | {"privacy": up.privacy.ErmOutput(norm_bound=1.0, noise_std=10.0)} | changes


# The formulas


@pytest.mark.parametrize(("q", "z", "order"), [(0.1, 0.8, 6.0), (0.5, 2.0, 11.4), (0.02, 1.1, 30.0), (0.9, 4.0, 2.5)])
def test_the_divergence_of_a_sampled_step_is_the_integrals_and_never_below_it(q, z, order):
    def log_density(x, centre):
        return -((x - centre) ** 2) / (2 * z**2) - math.log(z * math.sqrt(2 * math.pi))

    def log_mixture(x, centre):
        return np.logaddexp(math.log(1 - q) + log_density(x, 0), math.log(q) + log_density(x, centre))

    def integrand(x):
        return math.exp(order * log_mixture(x, 1) + (1 - order) * log_mixture(x, -1))

    # Each peak by itself, or the adaptive rule misses one.
    edges = np.linspace(-12 * z, 2 * order + 8 * z, 60)
    total = sum(quad(integrand, a, b, epsabs=0, epsrel=1e-12)[0] for a, b in pairwise(edges))
    expected = math.log(total) / (order - 1)
    found = float(sampled_renyi(q=q, noise_multiplier=z, steps=1, order=order))
    assert found == pytest.approx(expected, rel=1e-7)
    assert found >= expected * (1 - 1e-10)


def test_without_sampling_a_step_is_a_gaussian_moved_by_twice_the_clip_norm():
    assert float(sampled_renyi(q=1.0, noise_multiplier=2.0, steps=5, order=7.0)) == pytest.approx(
        5 * 7 * (2 / 2) ** 2 / 2
    )
    nearly = sampled_renyi(q=1 - 1e-9, noise_multiplier=2.0, steps=5, order=7.0)
    assert float(nearly) == pytest.approx(17.5, rel=1e-6)


def test_small_rates_cost_about_their_square():
    # To second order D_alpha = alpha/2 chi^2-like term: (alpha/2) (2 q)^2 sinh(1/z^2) for the pair that differs by q.
    for q in (1e-4, 1e-6):
        found = float(sampled_renyi(q=q, noise_multiplier=1.5, steps=1, order=5.0))
        assert found == pytest.approx(2.5 * 2 * q**2 * (math.exp(1 / 1.5**2) - math.exp(-1 / 1.5**2)), rel=1e-2)


def test_the_conversion_is_that_of_dp_accounting():
    from dp_accounting.rdp import compute_epsilon

    for order, spent in ((4.0, 0.7), (20.0, 0.2)):
        theirs, _ = compute_epsilon([order], [spent], 1e-5)
        assert renyi_epsilon(spent=spent, order=order, delta=1e-5) == pytest.approx(theirs, rel=1e-12)
        assert renyi_budget(epsilon=theirs, order=order, delta=1e-5) == pytest.approx(spent, rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_one_order_costs_at_most_a_tenth_of_mu(epsilon):
    order = best_order(epsilon=epsilon, delta=1e-5)
    mu = math.sqrt(2 * renyi_budget(epsilon=epsilon, order=order, delta=1e-5) / order)
    assert 0.9 < mu / gdp_mu(epsilon=epsilon, delta=1e-5) < 1
    for other in (order * 0.8, order * 1.25):
        assert math.sqrt(2 * renyi_budget(epsilon=epsilon, order=other, delta=1e-5) / other) < mu


def test_pure_releases_and_draws_by_hand():
    np.testing.assert_allclose(pure_renyi(epsilon=[0.1, 2.0], order=6.0), [0.03, 2.0])
    assert float(draws_renyi(draws=2**44, order=3.0)) == pytest.approx(
        2.5, rel=1e-5
    )  # (2 3 - 1)/(3 - 1) a relative one


# What fits


def test_a_gaussian_account_is_exact(tmp_path):
    account = opened(tmp_path / "a", kind="gaussian")
    run, ratio = begun(account), 0.1
    rounds = 0
    while run.fits(gaussian([0], ratio)).all():
        run.pay(entry(gaussian([0], ratio), rounds + 1))
        rounds += 1
    # Up to the 1024th of delta that is set aside for the sampler.
    assert rounds == int(gdp_mu(epsilon=2.0, delta=1e-5 * (1 - 2**-10)) ** 2 / ratio**2)
    assert account.epsilon("ann") <= 2.0
    assert account.epsilon("ann") == pytest.approx(gdp_epsilon(mu=ratio * rounds**0.5, delta=1e-5 * (1 - 2**-10)))
    with pytest.raises(up.BudgetSpentError, match="'ann'"):
        run.pay(entry(gaussian([0, 1], ratio), rounds + 1))
    assert account.rounds("bob") == 0  # all of a charge is paid, or nothing


def test_a_mixed_account_adds_up_every_kind_at_its_order(tmp_path):
    account = opened(tmp_path / "a", order=8.0)
    run = begun(account)
    run.pay(entry(gaussian([0, 1], 0.2, draws=1000)))
    run.pay(entry(pure([0], 0.1)))
    run.pay(entry(sampled([0, 2], 0.1, 2.0, 3)))
    limit = renyi_budget(epsilon=2.0, order=8.0, delta=1e-5 * (1 - 2**-10))
    step = float(sampled_renyi(q=0.1, noise_multiplier=2.0, steps=1, order=8.0))
    by_hand = {"ann": 0.16 + 0.04 + 3 * step, "bob": 0.16, "cy": 3 * step}
    again = Account.read(account.folder)
    for client, spent in by_hand.items():
        assert account.share(client) == again.share(client) == pytest.approx(spent / limit, rel=1e-6)


def test_pots_are_filled_by_their_own_kinds_and_add_up(tmp_path):
    pots = [{"kind": "gaussian", "epsilon": 1.0, "delta": 1e-6}, {"kind": "pure", "epsilon": 0.5, "delta": 0.0}]
    account = Account.open(tmp_path / "a", pots=pots)
    assert (account.terms.epsilon, account.terms.delta) == (1.5, 1e-6)
    run = begun(account)
    for _ in range(5):  # ten of 0.1 would be too many, five fit exactly
        run.pay(entry(pure([0], 0.1)))
    assert not run.fits(pure([0], 0.001)).any()
    assert run.fits(gaussian([0], 0.05)).all()
    with pytest.raises(up.InputError, match=r"open.*account"):
        run.pay(entry(sampled([0], 0.1, 2.0, 3)))


def test_draws_are_counted_against_what_was_committed(tmp_path):
    account = opened(tmp_path / "a", kind="gaussian", draws=1000)
    run = begun(account)
    run.pay(entry(gaussian([0], 0.01, draws=600)))
    assert not run.fits(gaussian([0], 0.01, draws=600)).any()
    assert run.fits(gaussian([0], 0.01, draws=400)).all()
    # More draws, less of delta left: at most what the budget allows without any.
    assert make_pot("gaussian", 2.0, 1e-5, draws=10**9).limit < make_pot("gaussian", 2.0, 1e-5, draws=1).limit


@pytest.mark.parametrize(
    ("terms", "word"),
    [
        ({"kind": "other"}, "kind"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 0.0}, "pure"),
        ({"kind": "pure"}, r"0.*pure"),
        ({"kind": "gaussian", "order": 3.0}, "order"),
        ({"order": 1.0}, "order"),
        ({"order": 1.001}, r"nothing.*left"),
        ({"unit": "person"}, "unit"),
        ({"epsilon": None}, "epsilon"),
        ({"draws": -1}, "draws"),
        ({"pots": [{"kind": "pure", "epsilon": 1.0, "delta": 0.0}]}, "pots"),
        ({"kind": "gaussian", "draws": 10**30}, "draws"),
        ({"kind": "gaussian", "draws": 10**15}, "delta"),
    ],
)
def test_terms_that_no_account_can_have_are_refused_in_a_sentence(tmp_path, terms, word):
    with pytest.raises(up.InputError, match=word):
        opened(tmp_path / "a", **terms)
    assert not (tmp_path / "a").exists()


CHARGES = st.one_of(
    st.tuples(st.just("gaussian"), st.floats(0.01, 1.0)),
    st.tuples(st.just("pure"), st.floats(0.01, 1.0)),
    st.tuples(st.just("sampled"), st.sampled_from([0.01, 0.2, 1.0]), st.sampled_from([0.7, 3.0]), st.integers(1, 20)),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["pay", "pay", "pay", "kill", "torn", "other"]), CHARGES, st.sets(st.integers(0, 2), min_size=1)
    ),
    max_size=15,
)
_KINDS = {"gaussian": gaussian, "pure": pure, "sampled": sampled}
_COUNT = [0]


def held_to_its_budget(folder, kind, epsilon, steps):
    """Play a history with two who charge, kills and torn lines; add everything up anew."""
    terms = {"kind": kind, "epsilon": epsilon, "delta": 0.0 if kind == "pure" else 1e-5}
    account = opened(folder, **terms)
    runs = [begun(account), begun(Account.read(folder), "other")]
    pot, sums = account.terms.pots[0], dict.fromkeys(NAMES, 0.0)
    for what, (name, *numbers), clients in steps:
        if kind not in ("mixed", name):
            continue
        charge = _KINDS[name](sorted(clients), *numbers)
        run = runs[what == "other"]
        fits = run.fits(charge)
        costs = [_cost(pot, name, *numbers)] * 3
        for client in sorted(clients):
            can = sums[NAMES[client]] + costs[client] <= pot.limit * (1 + 1e-9)
            assert fits[sorted(clients).index(client)] == can or can  # never more than independent sums allow
        try:
            run.pay(entry(charge))
        except up.BudgetSpentError:
            assert not fits.all()
        else:
            assert fits.all()
            for client in clients:
                sums[NAMES[client]] += costs[client]
        if what == "torn":
            with (Path(folder) / "account.jsonl").open("ab") as file:
                file.write(b'{"kind":"charge","study":1,"ent')
        if what in ("torn", "kill"):  # charged, and nothing was released: it stays charged
            runs = [begun(Account.read(folder)), begun(Account.read(folder), "other")]
    last = Account.read(folder)
    for client in NAMES:
        assert last.share(client) * pot.limit == pytest.approx(sums[client], rel=1e-6, abs=1e-12)
        assert sums[client] <= pot.limit * (1 + 1e-11)
        assert last.epsilon(client) <= epsilon * (1 + 1e-11)


def _cost(pot, name, *numbers):
    if pot.kind == "pure":
        return numbers[0]
    if pot.kind == "gaussian":
        return numbers[0] ** 2
    if name == "gaussian":
        return pot.order * numbers[0] ** 2 / 2
    if name == "pure":
        return min(numbers[0], pot.order * numbers[0] ** 2 / 2)
    q, z, steps = numbers
    return steps * float(sampled_renyi(q=q, noise_multiplier=z, steps=1, order=pot.order))


@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from(["mixed", "gaussian", "pure"]), epsilon=st.sampled_from([0.3, 1.0, 2.5, 6.0]), steps=STEPS)
def test_no_history_exceeds_the_budget(tmp_path_factory, monkeypatch_module, kind, epsilon, steps):
    _COUNT[0] += 1
    held_to_its_budget(tmp_path_factory.getbasetemp() / f"h{_COUNT[0]}", kind, epsilon, steps)


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None)
@given(kind=st.sampled_from(["mixed", "gaussian", "pure"]), epsilon=st.sampled_from([0.3, 1.0, 2.5, 6.0]), steps=STEPS)
def test_none_of_ten_thousand_histories_exceeds_the_budget(tmp_path_factory, monkeypatch_module, kind, epsilon, steps):
    _COUNT[0] += 1
    held_to_its_budget(tmp_path_factory.getbasetemp() / f"h{_COUNT[0]}", kind, epsilon, steps)


@pytest.fixture(scope="module")
def monkeypatch_module():
    """The disk is not what these histories are about."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


OTHER = """
import sys
sys.path.insert(0, {root!r})
from tests.privacy.test_accounts import Account, begun, entry, gaussian, up
run = begun(Account({folder!r}), "other")
print("ready", flush=True)
paid = 0
while True:
    try:
        run.pay(entry(gaussian([0], 0.05)))
        paid += 1
    except up.BudgetSpentError:
        break
print(paid)
"""


@pytest.mark.slow
def test_two_processes_together_spend_what_one_could(tmp_path):
    account = opened(tmp_path / "a", kind="gaussian", epsilon=1.0)
    code = OTHER.format(root=str(ROOT), folder=str(account.folder))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        run, paid = begun(account), 0
        assert other.stdout.readline() == "ready\n"
        while run.fits(gaussian([0], 0.05)).all():
            try:
                run.pay(entry(gaussian([0], 0.05)))
            except up.BudgetSpentError:  # the other was faster between question and charge
                break
            paid += 1
        theirs = int(other.communicate()[0])
    assert paid + theirs == int(account.terms.pots[0].limit / 0.05**2)
    assert len(Account.read(account.folder).charges) == paid + theirs


# Studies


def test_a_run_charges_each_round_before_its_release_and_under_the_holders_names(tmp_path, monkeypatch):
    account = opened(tmp_path / "a", kind="gaussian", epsilon=8.0)
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(30, 4)).astype(np.float32) for _ in range(3)]
    ys = [rng.integers(0, 2, 30) for _ in range(3)]
    data = up.FederatedData.from_arrays(xs, ys, num_classes=2, client_names=NAMES)
    seen = []

    def told(plan, engine, asked, noise, ledger=None):
        release = plan.mechanism.release

        def spied(*arguments):
            seen.append(len(Account.read(account.folder).charges))
            return release(*arguments)

        return answer(dataclasses.replace(plan, mechanism=dataclasses.replace(plan.mechanism, release=spied)),
                      engine, asked, noise, ledger)  # fmt: skip

    monkeypatch.setattr("upcycled.training.round.answer", told)
    result = up.train(data, **study(iterations=3), account=account.folder)
    assert seen == [1, 2, 3]
    account = Account.read(account.folder)
    assert set(account.clients) == set(NAMES)
    charge = next(iter(result.privacy)).charge
    squares = 3 * (charge.sensitivity / charge.noise_std) ** 2
    for client, name in enumerate(NAMES):
        assert account.share(name) == pytest.approx(squares[client] / account.terms.pots[0].limit, rel=1e-12)
    assert result.privacy.account == account.terms
    items = dict(result.privacy.statement_items(1e-5))
    assert account.id in items["account"]
    assert account.id in items["epsilon (proven)"]
    assert "this run only" not in items["not covered"]


def test_a_simulation_and_a_run_without_an_account_charge_nobody(tmp_path):
    account, data = opened(tmp_path / "a"), wide()
    seeded = up.train(data, **study(noise="seeded", iterations=2), account=account.folder)
    alone = up.train(data, **study(iterations=2))
    assert not Account.read(account.folder).charges
    for result in (seeded, alone):
        assert result.privacy.account is None
        assert "this run only" in dict(result.privacy.statement_items(1e-5))["epsilon (proven)"]


def test_many_runs_that_do_not_fit_together_are_refused_before_the_first_trains(tmp_path, monkeypatch):
    account, data = opened(tmp_path / "a", kind="gaussian", epsilon=1.0), wide()
    one = study(iterations=2) | {"account": account.folder}
    most = int(1 / account.share_of(costs_of(make_plan(data, up.RunSpec(**one)))))
    assert most >= 2  # each alone would be let through
    many = [dict(data=data, **one, seed=seed) for seed in range(most + 1)]
    free = dict(data=data, **study(noise="seeded", iterations=2))
    with monkeypatch.context() as patch:
        patch.setattr(Sequential, "train", None)
        refused = up.train_many(many, progress=False)
    assert {str(one.error) for one in refused} == {str(refused[0].error)}
    assert f"these {most + 1} runs together" in str(refused[0].error)
    assert not Account.read(account.folder).charges
    *paid, apart = up.train_many([*many[:most], free], progress=False)
    assert [one.error for one in (*paid, apart)] == [None] * (most + 1)
    assert len(Account.read(account.folder).charges) == 2 * most


def test_a_run_without_privacy_costs_nothing_and_a_server_without_data_notes_none(tmp_path):
    data, account = wide(), opened(tmp_path / "a")
    alone = {"algorithm": up.FedAvg(), "iterations": 3, **QUIET}
    assert costs_of(make_plan(data, up.RunSpec(**alone))) == ()
    (cost,) = costs_of(make_plan(data, up.RunSpec(**alone, privacy=ModelClipping(1.0, 8.0))))
    assert cost.times.tolist() == [3] * 4
    spec = up.RunSpec(**study(), account=account.folder)
    server, holder = plan_of(data.facts(), spec), make_plan(data, spec)
    for plan, noted in ((server, False), (holder, True)):
        assert begin_in_account(plan, plan.setting, "r").study == 1
        assert (account.folder / "data.jsonl").exists() == noted


def test_what_does_not_fit_is_refused_before_anything_is_trained_or_written(tmp_path, monkeypatch):
    account, data = opened(tmp_path / "a", kind="gaussian", epsilon=1.0), wide()
    up.train(data, **study(iterations=2), account=account.folder)
    before = account.content
    asked = study(iterations=4000)
    plan = make_plan(data, up.RunSpec(**asked))
    each = float(((charge := plan.mechanism.charge(_all(4))).sensitivity / charge.noise_std).max() ** 2)
    left = account.terms.pots[0].limit - 2 * each
    monkeypatch.setattr("upcycled.engines.sequential.Sequential.train", None)
    with pytest.raises(up.InputError, match=rf"{int(left / each)}.*4000 data rounds"):
        up.train(data, **asked, account=account.folder, ledger=tmp_path / "ledger.jsonl", checkpoint=tmp_path / "c")
    assert account.content == before
    assert not (tmp_path / "ledger.jsonl").exists()


def _all(clients):
    from upcycled.core.sampling import everybody

    return everybody(clients)


def test_secret_draws_charge_everybody_and_scores_are_charged_too(tmp_path):
    account, data = opened(tmp_path / "a", epsilon=20.0, delta=1e-3), wide()
    central = up.privacy.CentralDPFedAvg(1.0, 4.0, secret_sampling=True)
    secret = study(algorithm=up.FedAvg(), privacy=central, sampling="poisson", participation=0.5, iterations=3)
    up.train(data, **secret, account=account.folder)
    account = Account.read(account.folder)
    assert [account.rounds(client) for client in account.clients] == [3] * 4
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(20, 4)).astype(np.float32) for _ in range(4)], [rng.integers(0, 2, 20) for _ in range(4)]
    tested = up.FederatedData.from_arrays(*rows, test=rows, num_classes=2)
    scores = up.privacy.ChargedScores(noise_std=30.0, every=2)
    up.train(tested, **study(charged_scores=scores), account=account.folder)
    kinds = [one.entry.kind for one in Account.read(account.folder).charges[3:]]
    assert kinds == ["data", "data", "scores", "data", "data", "scores"]


def test_an_account_refuses_what_it_cannot_vouch_for(tmp_path):
    data = wide()
    clients = opened(tmp_path / "clients", unit="client", delta=1e-3)
    with pytest.raises(up.InputError, match="protects records"):
        up.train(data, **study(), account=clients.folder)
    gaussians = opened(tmp_path / "gaussians", kind="gaussian")
    objective = up.privacy.ObjectivePerturbation(20.0, norm_bound=1.0)
    with pytest.raises(up.InputError, match=r"open.*account"):
        up.train(data, **study(privacy=objective), account=gaussians.folder)
    wasteful = opened(tmp_path / "wasteful", delta=0.5)
    with pytest.raises(up.InputError, match="below 1/n"):
        up.train(data, **study(), account=wasteful.folder)
    with pytest.raises(up.InputError, match="privacy account open"):
        up.train(data, **study(), account=tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    gaussians.close()
    with pytest.raises(up.InputError, match="is closed"):
        up.train(data, **study(), account=gaussians.folder)
    with pytest.raises(up.InputError, match="without privacy"):
        up.train(data, algorithm=up.FedAvg(), account=clients.folder, **QUIET)
    with pytest.raises(up.InputError, match="account already"):
        opened(tmp_path / "clients")


class Spends:
    """Another study, which spends all but the cost of two rounds of client 1 when a run begins, and all that it can."""

    def __init__(self, account):
        self.other = begun(account, "other", ("0", "1", "2", "3"))

    def start(self, plan, before):
        two = plan.mechanism.charge(everybody(4))[np.array([1, 1])]
        squares = float(squared_ratio(two.sensitivity, two.noise_std).sum())
        while self.other.fits(gaussian([1], 0.02)).all() and self.leaves(squares):
            self.other.pay(entry(gaussian([1], 0.02)))

    def leaves(self, squares):
        account = self.other.account
        return (1 - account.share("1")) * account.terms.pots[0].limit > squares + 0.02**2

    def record(self, record, run):
        for ratio in (0.2, 0.06, 0.02):
            while self.other.fits(gaussian([1], ratio)).all():
                self.other.pay(entry(gaussian([1], ratio)))

    def finish(self):
        pass


def test_clients_that_spent_elsewhere_meanwhile_are_left_out_and_the_others_go_on(tmp_path):
    account, data = opened(tmp_path / "a", kind="gaussian", epsilon=0.9), wide()
    result = up.train(data, **study(iterations=4), account=account.folder, callbacks=[Spends(account)])
    assert result.privacy.left_out.tolist() == [0, 2, 0, 0]
    assert result.privacy.rounds.tolist() == [4, 2, 4, 4]
    # What an account has left is others' doing: that client's epsilon is the planned one, and so is what it keeps.
    assert not result.privacy.is_as_planned
    whole = up.train(data, **study(iterations=4)).privacy
    assert result.privacy.epsilon(1e-5) == pytest.approx(whole.epsilon(1e-5), rel=1e-9)
    assert Account.read(account.folder).share("1") == 1


def test_what_others_spend_meanwhile_is_not_what_a_run_planned(tmp_path):
    account, data = opened(tmp_path / "a", kind="gaussian", epsilon=0.9), wide()
    spends = Spends(account)
    spends.start = lambda plan, before: None
    result = up.train(data, **study(iterations=4), account=account.folder, callbacks=[spends])
    assert result.privacy.is_as_planned
    assert result.privacy.rounds.tolist() == [4, 4, 4, 4]
    assert Account.read(account.folder).share("1") <= 1


def test_changed_data_are_noted_for_the_holder_and_reset_nothing(tmp_path):
    account, data = opened(tmp_path / "a"), wide()
    up.train(data, **study(), account=account.folder)
    half = Account.read(account.folder).share("0")
    changed = wide(seed=1)
    up.train(changed, **study(), account=account.folder)
    up.train(changed, **study(), account=account.folder)
    after = Account.read(account.folder)
    assert after.share("0") == pytest.approx(3 * half)
    assert after.times_changed == 1
    # The hash is keyed, and the published file has nothing of it.
    macs = [json.loads(line)["hmac"] for line in (account.folder / "data.jsonl").read_text().splitlines()]
    assert not any(mac.encode() in after.content for mac in macs)
    assert hash_of_shards(data.train) not in macs
    spec = up.RunSpec(**study(), account=account.folder)
    plan = make_plan(data, spec)
    assert plan.records_hash == hash_of_shards(data.train)
    assert publication_of(plan).plan(plan).records_hash is None


KILLED = """
import dataclasses, os, signal, sys
sys.path.insert(0, {root!r})
import upcycled.training.round as loop
from tests.privacy.test_accounts import answer, study, up, wide
def killed(plan, engine, asked, noise, ledger=None):
    def release(*arguments):
        os.kill(os.getpid(), signal.SIGKILL)
    if asked.round == 3:
        plan = dataclasses.replace(plan, mechanism=dataclasses.replace(plan.mechanism, release=release))
    return answer(plan, engine, asked, noise, ledger)
loop.answer = killed
up.train(wide(), **study(), account={account!r}, checkpoint={kept!r}, checkpoint_every=1)
"""


@pytest.mark.slow
def test_a_kill_between_charge_and_release_leaves_it_charged_and_the_retry_pays_again(tmp_path):
    account, kept = opened(tmp_path / "a", kind="gaussian", epsilon=8.0), tmp_path / "kept"
    code = KILLED.format(root=str(ROOT), account=str(account.folder), kept=str(kept))
    ended = subprocess.run([sys.executable, "-c", code], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert len(Account.read(account.folder).charges) == 3
    result = up.train(wide(), **study(), account=account.folder, checkpoint=kept, checkpoint_every=1)
    after = Account.read(account.folder)
    assert [one.entry.round for one in after.charges] == [1, 2, 3, 3, 4]
    assert len(after.studies) == 1
    assert result.privacy.repeated == 1
    # Finished: asked for again, it costs nothing, also when the account is closed.
    after.close()
    up.train(wide(), **study(), account=account.folder, checkpoint=kept, checkpoint_every=1)
    assert len(Account.read(account.folder).charges) == 5
    with pytest.raises(up.InputError, match="that were charged there"):
        up.train(wide(), **study(), checkpoint=kept, checkpoint_every=1)


# The file


def test_an_account_is_its_owners_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        account = opened(tmp_path / "a")
        up.train(wide(), **study(), account=account.folder)
    finally:
        os.umask(before)
    assert stat.S_IMODE(account.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in account.folder.iterdir()} == {0o600}


def test_an_edited_account_is_refused_or_reads_as_before(tmp_path):
    account = opened(tmp_path / "a")
    run = begun(account)
    for m in range(1, 4):
        run.pay(entry(gaussian([0, 2], 0.1), m))
    path, whole, head = account.folder / "account.jsonl", account.content, account.head
    share, rng = account.share("ann"), random.Random(0)
    for _ in range(300):
        place = rng.randrange(len(whole))
        edits = (
            whole[:place] + bytes([whole[place] ^ (1 << rng.randrange(8))]) + whole[place + 1 :],
            whole[:place] + whole[place + 1 :],
            whole[:place],
            b"\n".join(sorted(whole.split(b"\n"), key=lambda line: rng.random())),
        )
        path.write_bytes(rng.choice(edits))
        try:
            found = Account.read(account.folder, head=head)
        except up.InputError:
            continue
        assert found.share("ann") == share
    # Without the head, last lines may be missing, and nobody can tell.
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    assert Account.read(account.folder).share("ann") == pytest.approx(share * 2 / 3)
    with pytest.raises(up.InputError, match="does not hold all"):
        Account.read(account.folder, head=head)


def test_a_file_that_shrinks_under_a_run_is_noticed(tmp_path):
    account = opened(tmp_path / "a")
    run, whole = begun(account), account.content
    run.pay(entry(gaussian([0], 0.1)))
    (account.folder / "account.jsonl").write_bytes(whole)
    with pytest.raises(up.InputError, match="shorter than it was"):
        run.pay(entry(gaussian([0], 0.1)))


def test_costs_of_several_runs_are_checked_together(tmp_path):
    account = opened(tmp_path / "a", kind="gaussian", epsilon=1.0)
    most = int(account.terms.pots[0].limit / 0.1**2)
    cost = Cost(NAMES, gaussian([0, 1], 0.1), np.array([most // 2, 1]))
    account.check([cost, cost])
    assert account.share_of([cost, cost]) == pytest.approx(2 * (most // 2) * 0.01 / account.terms.pots[0].limit)
    with pytest.raises(up.InputError, match=rf"client 'ann'.*{most}.*{3 * (most // 2)} data"):
        account.check([cost] * 3, "these runs")


def test_a_pot_says_what_it_is(tmp_path):
    assert Pot("pure", 1.0, 0.0).limit == 1.0
    with pytest.raises(up.InputError, match="kind"):
        Pot("other", 1.0, 1e-5)


def test_a_step_that_nobody_is_in_costs_nothing_and_a_grid_too_fine_costs_as_without_sampling():
    assert sampled_renyi(q=0.0, noise_multiplier=1.0, steps=5, order=4.0) == 0.0
    # So little noise that the integral would take billions of points: alpha (2/z)^2 / 2 is never too little.
    assert sampled_renyi(q=0.5, noise_multiplier=1e-4, steps=3, order=4.0) == pytest.approx(3 * 4 * (2 / 1e-4) ** 2 / 2)


def test_a_closed_account_pays_for_nothing_any_more_and_is_closed_once(tmp_path):
    account = opened(tmp_path / "a", kind="gaussian")
    run, charge = begun(account), gaussian([0, 2], 0.1)
    run.pay(entry(charge))
    account.close()
    closed = account.content
    account.close()
    assert account.content == closed
    assert run.fits(charge).tolist() == [False, False]
    with pytest.raises(up.BudgetSpentError, match=r"client 'ann'.*account.*closed"):
        run.pay(entry(charge, 2))
    with pytest.raises(up.InputError, match=r"closed.*charged"):
        begun(account, "another")
    assert begun(account).study == run.study  # begun before: what it was charged for stays its own
    # A run that charges nobody needs no account that is open.
    account.check([Cost(NAMES, charge, np.array([0, 0]))])
    with pytest.raises(up.InputError, match=r"closed.*charged"):
        account.check([Cost(NAMES, charge, np.array([0, 1]))])
    assert account.content == closed


def test_whoever_is_in_no_round_of_a_run_needs_no_budget_for_it(tmp_path):
    account = opened(tmp_path / "a", kind="gaussian", epsilon=1.0)
    dear = gaussian([0, 1], 100.0)
    with pytest.raises(up.InputError, match=r"client 'bob'.*100"):
        account.check([Cost(NAMES, dear, np.array([0, 1]))])
    # Bob would have no noise at all, but Ann alone is in that round; nobody is in the others, and sampled releases are
    # not the account's at all.
    cheap = Charge("gaussian", np.array([1, 0]), np.full(2, 0.1), np.array([0.0, 1.0]))
    paid = Cost(NAMES, cheap, np.array([0, 1]))
    nobodys = [Cost(NAMES, charge, np.array([0, 0])) for charge in (dear, sampled([0, 1], 0.1, 2.0, 3))]
    account.check([*nobodys, paid])
    assert account.share_of([*nobodys, paid]) == pytest.approx(0.01 / account.terms.pots[0].limit)
    with pytest.raises(up.InputError, match=r"client 'ann'.*100"):
        account.check([Cost(NAMES, cheap, np.array([0, 1000]))])


def test_a_refusal_says_when_numbers_of_real_noise_are_what_is_short(tmp_path):
    account = opened(tmp_path / "a", kind="gaussian", draws=1000)
    begun(account).pay(entry(gaussian([0], 0.01, draws=600)))
    cost = Cost(NAMES, gaussian([0], 0.01, draws=150), np.array([3]))
    with pytest.raises(up.InputError, match=r"400.*noise.*2.*3 data"):
        account.check([cost])
    account.check([Cost(NAMES, gaussian([0], 0.01, draws=150), np.array([2]))])


def test_two_clients_of_one_name_and_a_charge_without_a_claim_are_refused(tmp_path):
    account = opened(tmp_path / "a")
    with pytest.raises(up.InputError, match=r"two.*same"):
        begun(account, clients=("ann", "bob", "ann"))
    assert not account.studies
    run, ones = begun(account), np.ones(1)
    with pytest.raises(up.InputError, match=r"epsilon.*mechanism"):
        run.pay(entry(Charge("none", np.array([0]), ones, ones)))
    assert not Account.read(account.folder).charges


UNREADABLE = {
    "negative noise": (entry(Charge("gaussian", np.array([0]), np.ones(1), -np.ones(1))), "its noise_std is -1"),
    "NaN": (entry(Charge("gaussian", np.array([0]), np.full(1, np.nan), np.ones(1))), "it is no JSON"),
    "a column too long": (entry(Charge("gaussian", np.array([0]), np.ones(1), np.ones(2))), "one number for each"),
    "client twice": (entry(gaussian([0, 0], 0.1)), "it names a client twice"),
    "an unknown client": (entry(gaussian([3], 0.1)), "client 3 is not one of 0 to 2"),
    "no round": (Entry(1, "data", 0, 0, np.array([0]), gaussian([0], 0.1)), "its round is 0"),
    "no charge": (Entry(2, "upcycled", 1, 0, np.zeros(0, dtype=np.int64), None), "it is a charge of nothing"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_pay_rejects_what_readers_would_reject_and_writes_nothing(tmp_path, name):
    account = opened(tmp_path / "a")
    run, (wrong, words) = begun(account), UNREADABLE[name]
    before = account.content
    with pytest.raises(up.InputError, match=rf"back .*{words}"):
        run.pay(wrong)
    assert account.content == before
    assert Account.read(account.folder).charges == account.charges == ()
    run.pay(entry(gaussian([0], 0.1)))  # and it goes on
    assert Account.read(account.folder).share("ann") == account.share("ann") > 0


def test_an_entry_is_about_the_clients_of_its_charge():
    with pytest.raises(up.InputError, match=r"charge.*clients.*entry"):
        Entry(1, "data", 1, 0, np.array([1]), gaussian([0], 0.1))


def test_an_account_adds_up_what_readers_get(tmp_path):
    """Columns of another type are charged as the file has them: sums do not change when the file is read again."""
    account = opened(tmp_path / "a")
    third = np.full(1, 1 / 3, dtype=np.float32)
    run = begun(account)
    run.pay(entry(Charge("gaussian", np.array([0]), third, np.full(1, 7.0, dtype=np.float32))))
    (charged,) = account.charges
    assert charged.charge.sensitivity.dtype == np.float64
    assert Account.read(account.folder).share("ann") == account.share("ann")


def test_the_statement_says_what_adds_up_and_whose_server_is_trusted(tmp_path):
    pots = [{"kind": "gaussian", "epsilon": 1.0, "delta": 1e-6}, {"kind": "pure", "epsilon": 0.5, "delta": 0.0}]
    account = Account.open(tmp_path / "a", pots=pots)
    begun(account)
    items = dict(account.statement_items())
    squares, pures = items["how"].split("; ")
    assert squares.startswith(
        f"a filter: squares of sensitivity / noise std add up to {account.terms.pots[0].limit:.6g}, "
    )
    assert pures == "a filter: pure epsilons add up to 0.5, epsilon 0.5 at delta 0"
    assert "trusted" not in items["adversary"]
    sums = dataclasses.replace(PROMISE, sees="aggregates")
    account.begin("sums", "some", sums, NAMES, SIZES)
    assert "of 1 studies aggregates only, whose servers are trusted" in dict(account.statement_items())["adversary"]


@pytest.mark.parametrize(
    ("pots", "words"),
    [
        ([], "one or more"),
        (
            [{"kind": "pure", "epsilon": 1.0, "delta": 0.0}, {"kind": "pure", "epsilon": 2.0, "delta": 0.0}],
            "of its own",
        ),
        ([{"kind": "pure", "epsilon": 1.0, "delta": 0.0, "sigma": 2.0}], r"'sigma'.*epsilon"),
    ],
)
def test_pots_that_no_account_can_have_are_refused(tmp_path, pots, words):
    with pytest.raises(up.InputError, match=words):
        Account.open(tmp_path / "a", pots=pots)
    assert not (tmp_path / "a").exists()


def test_a_mixed_pot_pays_for_so_many_draws_and_not_for_one_more():
    # A thousandth of delta covers draws (1 + e^epsilon) 2^-125; for so large an epsilon that is a number to reach.
    most = int(2.0**-10 * 1e-5 * 2.0**125 / (1 + math.exp(40.0)))
    assert make_pot("mixed", 40.0, 1e-5).draws == pytest.approx(most, rel=1e-12)
    make_pot("mixed", 40.0, 1e-5, draws=int(most * (1 - 1e-9)))
    with pytest.raises(up.InputError, match=r"sampler's.*delta"):
        make_pot("mixed", 40.0, 1e-5, draws=int(most * (1 + 1e-9)))


def test_terms_are_read_as_an_account_writes_them_and_not_otherwise(tmp_path):
    written = opened(tmp_path / "a").terms.to_json()
    assert commitment_of(written).to_json() == written
    with pytest.raises(ValueError, match=r"\bid\b.*7"):
        commitment_of(written | {"id": 7})
    (pot,) = written["pots"]
    for other in (written | {"note": "x"}, written | {"pots": [{name: pot[name] for name in pot if name != "draws"}]}):
        with pytest.raises(ValueError, match="account writes"):
            commitment_of(other)


def test_an_account_that_another_process_opens_meanwhile_is_the_only_one(tmp_path, monkeypatch):
    place = tmp_path / "account"

    def slow(folder):
        monkeypatch.undo()
        Account.open(folder, epsilon=1.0, delta=1e-3)

    monkeypatch.setattr("upcycled.privacy.accounts.account.make_private", slow)
    with pytest.raises(up.InputError, match="has an account already"):
        Account.open(place, epsilon=9.0, delta=1e-3)
    assert Account.read(place).terms.epsilon == 1.0
