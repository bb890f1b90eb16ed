"""A data round in ask, answer and take: separate clients that know only their own give the simulator's bits."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import upcycled as up
from examples.own_rule import FedExP
from upcycled.core.algorithm import Server, own_shares
from upcycled.core.mechanism import Release
from upcycled.core.vectors import Shards
from upcycled.training.plan import make_plan, plan_of, with_data
from upcycled.training.round import (
    _noise_energy,
    _noise_std,
    _spread,
    answer,
    ask,
    data_round,
    joined,
    repeat,
    take,
)
from upcycled.training.state import start_run

ALGORITHMS = {
    "fedavg": up.FedAvg(server_lr=0.9),
    "fedavgm": up.FedAvgM(server_momentum=0.3),
    "fedprox": up.FedProx(mu=0.5),
    "scaffold": up.Scaffold(),
    "feddyn": up.FedDyn(alpha=0.1),
    "pfedme": up.PFedMe(lam=5.0, inner_steps=2),
    "fedyogi": up.FedYogi(),
    "fedadam": up.FedAdam(),
    "fednova": up.FedNova(),
}
PRIVACY = {
    "model_clipping": up.privacy.ModelClipping(clip_norm=1.0, epsilon=2.0, delta=1e-3),
    "update_clipping, one noise": up.privacy.UpdateClipping(clip_norm=1.0, epsilon=2.0, delta=1e-3, per_client=False),
    "erm_output": up.privacy.ErmOutput(norm_bound=1.0, epsilon=2.0, delta=1e-3),
    "erm_output, one noise": up.privacy.ErmOutput(norm_bound=1.0, epsilon=2.0, delta=1e-3, per_client=False),
    "bolt_on_sgd": up.privacy.BoltOnSGD(norm_bound=1.0, epsilon=2.0, delta=1e-3),
    "objective": up.privacy.ObjectivePerturbation(norm_bound=1.0, epsilon=20.0),
    "objective, one alpha": up.privacy.ObjectivePerturbation(norm_bound=1.0, epsilon=20.0, per_client=False),
    "objective, paper mode": up.privacy.ObjectivePerturbation(alpha=10.0, paper_mode=True),
    "dpsgd": up.privacy.DPSGD(clip_norm=1.0, noise_multiplier=1.0),
    "dpsgd, one noise": up.privacy.DPSGD(clip_norm=1.0, epsilon=8.0, delta=1e-3, per_client=False),
    "central": up.privacy.CentralDPFedAvg(clip_norm=1.0, noise_multiplier=1.0),
    "update_clipping, adaptive": up.privacy.UpdateClipping(clip_norm=1.0, noise_std=0.05, fill=0.5),
    "central, adaptive": up.privacy.CentralDPFedAvg(clip_norm=1.0, noise_multiplier=1.0, quantile=0.5),
}
SECRET = up.privacy.CentralDPFedAvg(clip_norm=1.0, noise_multiplier=1.0, secret_sampling=True)
LOCAL = up.LocalSGD(lr=0.05, epochs=2, batch_size=8)


def spec_for(algorithm, participation=1.0, upcycle=0.5, **more):
    return up.RunSpec(
        algorithm=algorithm,
        upcycle=upcycle,
        iterations=5,
        participation=participation,
        engine="sequential",
        seed=3,
        progress=False,
        **{"local": LOCAL} | more,
    )


def own_data(data, client):
    """What one client has: its rows alone, as client 0 of a federation of one."""
    x, y = data.train.client(client)
    return up.FederatedData(Shards(x.copy(), y.copy(), np.array([0, len(y)])), None, data.num_classes)


def federated(data, spec):
    """Train with a server that never sees rows and clients that never see each other; return the final server state."""
    facts = data.facts()
    server = plan_of(facts, spec)
    clients = {}
    for i in range(data.num_clients):
        plan = with_data(plan_of(facts.of_client(i, server.mechanism.shared), spec), own_data(data, i))
        clients[i] = plan, plan.engine.open(plan.task, 1)
    run, charges = start_run(server), []
    while run.state.iteration < server.iterations:
        if server.strategy.kind(run.state) != "data":
            run = replace(run, state=server.strategy.upcycle(run.state, server.data_rounds))
            continue
        asked = ask(server, run)
        answers = []
        # Whatever order the answers come in.
        for client in reversed(asked.cohort.clients.tolist()):
            plan, engine = clients[client]
            own = asked.of(client)
            answers.append(answer(plan, engine, own, run.noise_for(plan, own.round, own.attempt)))
        whole = joined(asked, answers)
        charges.append(whole.charge)
        run, _ = take(server, run, asked, whole, run.noise_for(server, asked.round, asked.attempt))
    return run, charges


def check_equal(data, spec):
    whole = up.train(data, spec)
    run, charges = federated(data, spec)
    assert torch.equal(whole.params, torch.from_numpy(run.state.server.model))
    if whole.personal_models is not None:
        for client in whole.personal_models:
            own = run.private.gather(np.array([client]))["model"][0]
            assert torch.equal(whole.personal_models.params(client), torch.from_numpy(own))
    if whole.privacy is not None:
        written = [entry.charge for entry in whole.privacy if entry.charge is not None]
        assert len(written) == len(charges)
        for a, b in zip(written, charges, strict=True):
            assert a.kind == b.kind
            for name in ("clients", "sensitivity", "noise_std", "epsilon", "sampling_rate", "steps"):
                assert np.array_equal(getattr(a, name), getattr(b, name)), name


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("upcycle", [None, 0.5])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_separate_answers_equal_the_simulator_bit_for_bit(name, participation, upcycle, federation):
    check_equal(federation, spec_for(ALGORITHMS[name], participation, upcycle))


# Each client calibrates its noisy steps by itself, which takes seconds.
SLOW = ("dpsgd, one noise", 1.0)


@pytest.mark.parametrize(
    ("name", "participation"),
    [
        pytest.param(name, share, marks=[pytest.mark.slow] if (name, share) == SLOW else [])
        for name in PRIVACY
        for share in (1.0, 0.5)
    ],
)
def test_separate_private_answers_equal_the_simulator_bit_for_bit(name, participation, federation):
    own_solver = name.startswith(("erm", "objective", "gaussian")) and "paper" not in name
    local = None if own_solver else up.LocalSGD(lr=0.05, epochs=1, batch_size=8)
    check_equal(federation, spec_for(up.FedProx(mu=0.5), participation, privacy=PRIVACY[name], local=local))


@pytest.mark.parametrize("algorithm", ["scaffold", "feddyn", "pfedme"])
def test_separate_private_answers_serve_algorithms_with_memories(algorithm, federation):
    check_equal(federation, spec_for(ALGORITHMS[algorithm], 0.5, privacy=PRIVACY["update_clipping, one noise"]))


def test_separate_answers_serve_rules_that_look_at_the_spread(federation):
    check_equal(federation, spec_for(up.FedAvg(), 0.5, FedExP(), privacy=PRIVACY["model_clipping"]))


@pytest.mark.parametrize("engine", ["fused", "vectorised"])
def test_other_engines_answer_for_one_client_too(engine, federation):
    """A client's streams follow from its number in the federation, not from where its rows lie."""
    spec = spec_for(up.Scaffold(), 0.5)
    whole = up.train(federation, spec)
    run, _ = federated(federation, spec.replace(engine=engine))
    assert np.allclose(whole.params.numpy(), run.state.server.model, atol=1e-5)


def test_a_client_is_told_nobody_elses_size(federation):
    facts = federation.facts().of_client(2, {})
    assert facts.sizes.tolist() == [int(federation.train.sizes[2])]
    with pytest.raises(up.InputError, match=r"clients \[1\].*\[2\]"):
        facts.rows_of(np.array([1]))


def test_a_round_takes_the_part_of_the_cohort_that_came(federation):
    """FedAvg over two of four clients is their mean weighted by n_i, and the others' memories stay."""
    spec = spec_for(up.Scaffold(), upcycle=None)
    plan = make_plan(federation, spec)
    engine, run = plan.engine.open(plan.task, 1), start_run(plan)
    asked = ask(plan, run)
    noise = run.noise_for(plan, 1, 0)
    some = joined(asked, [answer(plan, engine, asked.of(client), noise) for client in (3, 1)])
    after, release = take(plan, run, asked, some, noise)
    assert release.clients.tolist() == [1, 3]
    sizes = federation.train.sizes[[1, 3]].astype(np.float64)
    expected = (sizes[:, None] * release.vectors).sum(axis=0) / sizes.sum()
    assert np.allclose(after.state.server.model, expected, atol=1e-6)
    assert after.memory.clients.tolist() == [1, 3]


def test_a_bound_follows_the_releases_whether_or_not_their_charge_came_with_them(federation):
    adaptive = up.privacy.UpdateClipping(clip_norm=0.3, noise_std=0.01, fill=0.9)
    plan = make_plan(federation, spec_for(up.FedAvg(), privacy=adaptive))
    run = start_run(plan)
    asked, engine, noise = ask(plan, run), plan.engine.open(plan.task, 1), run.noise_for(plan, 1, 0)
    whole = answer(plan, engine, asked, noise)
    charged, _ = take(plan, run, asked, whole, noise)
    bare, _ = take(plan, run, asked, replace(whole, charge=None), noise)
    assert charged.state.clip_scale == bare.state.clip_scale != 1.0
    assert np.array_equal(charged.state.server.model, bare.state.server.model)


def test_a_repeated_round_draws_another_cohort_and_counts_as_the_same_round(federation):
    plan = make_plan(federation, spec_for(up.FedAvg(), participation=0.5))
    run = start_run(plan)
    first, again = ask(plan, run), ask(plan, repeat(run))
    assert (first.round, first.attempt, again.round, again.attempt) == (1, 0, 1, 1)
    draws = [ask(plan, one).cohort.clients.tolist() for one in (run, repeat(run), repeat(repeat(run)))]
    assert len({tuple(draw) for draw in draws}) > 1


def test_nobody_is_asked_who_is_not_in_the_cohort(federation):
    plan = make_plan(federation, spec_for(up.FedAvg(), participation=0.5))
    asked = ask(plan, start_run(plan))
    absent = next(i for i in range(4) if i not in asked.cohort.clients)
    with pytest.raises(up.InputError, match=rf"client {absent}.*cohort.*data round 1"):
        asked.of(absent)


def released(vectors, samples):
    """A release of clients 0, 1, ... as it is told to the server."""
    count = len(samples)
    return Release(np.arange(count), np.float32(vectors), np.array(samples), np.ones(count, dtype=np.int64))


def spread(vectors, samples, noise_std=None, *, kind="gaussian", central=None, weights=None):
    arrived = SimpleNamespace(release=released(vectors, samples))
    mechanism = SimpleNamespace(is_central=central is not None, mean_noise_std=lambda release: central)
    charge = None if noise_std is None else SimpleNamespace(kind=kind, noise_std=np.array(noise_std))
    return _spread(arrived, Server(np.float32([1, 0])), charge, mechanism, weights)


def test_the_spread_is_the_mean_squared_step_less_the_noise_in_it():
    # From (1, 0): steps (2, 0) and (0, 3), of 1 and 3 samples: 4/4 + 27/4.
    vectors, samples = [[3, 0], [1, 3]], [1, 3]
    assert spread(vectors, samples) == pytest.approx(7.75)
    assert spread(vectors, samples, weights=np.array([0.5, 0.5])) == pytest.approx(6.5)
    # Two coordinates, each with the mean of 0.5^2 and 1.5^2 by samples.
    assert spread(vectors, samples, [0.5, 1.5]) == pytest.approx(7.75 - 2 * (0.25 + 3 * 2.25) / 4)
    assert spread(vectors, samples, [0.5, 1.5], kind="pure") == pytest.approx(7.75)  # of no known variance
    assert spread(vectors, samples, [9.0, 9.0], central=1.5) == pytest.approx(7.75 - 2 * 2.25)
    assert spread(vectors, samples, [3.0, 3.0]) == 0.0  # more noise than there is
    assert spread(np.zeros((0, 2)), [], []) == 0.0  # of nobody


def test_the_noise_of_a_weighted_mean_is_known_where_it_is_gaussian():
    weighted = SimpleNamespace(weights=np.array([0.25, 0.75]))
    charge = SimpleNamespace(kind="gaussian", noise_std=np.array([4.0, 2.0]))
    assert _noise_std(weighted, charge) == pytest.approx((1.0 + 2.25) ** 0.5)
    assert _noise_std(SimpleNamespace(weights=None), charge) == 0.0
    assert _noise_std(weighted, None) == 0.0
    assert _noise_std(weighted, SimpleNamespace(kind="pure", noise_std=charge.noise_std)) == 0.0


class Gained:
    """An algorithm whose server step multiplies noise by a known number, or by none."""

    name = "gained"

    def __init__(self, gain):
        self.noise_gain = self.noise_kept = gain


def test_the_noise_that_a_round_brings_is_known_by_gain_weights_and_stds():
    release, stds = released([[0, 0], [0, 0]], [1, 3]), np.array([4.0, 2.0])
    mechanism = SimpleNamespace(release_noise_std=lambda release: stds)

    def energy(gain=1.5, mechanism=mechanism, combination=None):
        algorithm = Gained(gain)
        plan = SimpleNamespace(strategy=SimpleNamespace(algorithm=algorithm), directions=SimpleNamespace(dimension=7))
        return _noise_energy(plan, mechanism, combination, release)

    # Samples weigh 1/4 and 3/4: variances 1 and 2.25 a direction.
    assert energy() == pytest.approx(1.5**2 * 7 * 3.25)
    assert energy(combination=SimpleNamespace(weights=np.array([0.5, 0.5]))) == pytest.approx(1.5**2 * 7 * 5.0)
    assert energy(gain=None) is None
    assert energy(mechanism=SimpleNamespace(release_noise_std=None)) is None
    assert energy(combination=SimpleNamespace(weights=None)) is None


def test_shares_are_those_of_the_samples_unless_an_algorithm_has_its_own():
    release = released([[0, 0], [0, 0]], [1, 3])
    assert own_shares(up.FedAvg(), release.num_samples).tolist() == [0.25, 0.75]
    assert own_shares(up.FedDyn(), release.num_samples).tolist() == [0.5, 0.5]


@pytest.mark.parametrize(("upcycle", "sampling"), [(FedExP(), "poisson"), (0.5, "fixed")])
def test_a_rule_is_told_the_spread_only_if_it_asks_and_draws_are_no_secret(upcycle, sampling, federation):
    # With secret Poisson draws the spread would tell an empty cohort from others, which no charge covers.
    secret = SECRET if sampling == "poisson" else None
    spec = up.RunSpec(
        algorithm=up.FedAvg(),
        iterations=4,
        upcycle=upcycle,
        participation=0.5,
        sampling=sampling,
        privacy=secret,
        engine="sequential",
    )
    plan = make_plan(federation, spec)
    assert plan.mechanism.draws_secretly is (secret is not None)
    run, _, _ = data_round(plan, plan.engine.open(plan.task, None), start_run(plan))
    assert run.state.spread is None
