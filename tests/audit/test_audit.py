"""The audit catches what is wrong (each by a mutation of the real code) and passes what is right."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import upcycled as up
from upcycled.audit.attacks import audit, audit_worlds, neighbours
from upcycled.config.experiment import parse
from upcycled.core.errors import InputError
from upcycled.core.mechanism import NO_PRIVACY, Trained
from upcycled.core.upcycling import Strategy
from upcycled.core.vectors import grid_step, on_grid
from upcycled.engines.sequential import Sequential
from upcycled.privacy.mechanisms.clipping import Clipped
from upcycled.privacy.mechanisms.gaussian_noise import GaussianNoise
from upcycled.training import round as loop
from upcycled.training.plan import make_plan

CLIPPING = {"mechanism": "model_clipping", "clip_norm": 0.1, "noise_std": 0.25, "delta": None}
SOUND = {
    "model": {"mechanism": "model_clipping", "clip_norm": 0.1, "noise_std": 0.25},
    "update": {"mechanism": "update_clipping", "clip_norm": 0.1, "noise_std": 0.25},
    "erm": {"mechanism": "erm_output", "norm_bound": 1.0, "epsilon": 2.0, "delta": 1e-5},
    "bolt-on": {"mechanism": "bolt_on_sgd", "norm_bound": 1.0, "epsilon": 2.0, "delta": 1e-5},
    "objective": {"mechanism": "objective_perturbation", "norm_bound": 1.0, "alpha": 5.0},
    "dpsgd": {"mechanism": "dpsgd", "clip_norm": 1.0, "noise_multiplier": 2.0},
    "central": {"mechanism": "central_dp_fedavg", "clip_norm": 1.0, "noise_multiplier": 3.0},
    "secret": {"mechanism": "central_dp_fedavg", "clip_norm": 1.0, "noise_multiplier": 3.0, "secret_sampling": True},
}


def experiment(privacy, seed=0, **changes):
    clients = changes.pop("clients", 4)
    raw = {
        "name": "small",
        "iterations": 2,
        "seeds": [seed],
        "engine": "sequential",
        "data": {"source": "synthetic", "alpha": 0.5, "beta": 0.5, "clients": clients, "dim": 4, "sizes": 20},
        "algorithm": {"name": "fedprox", "mu": 0.5},
        "upcycle": {"coefficient": 0.7},
        "privacy": {key: value for key, value in privacy.items() if value is not None},
        "clients": {"participation": 0.25, "sampling": "poisson"} if privacy.get("secret_sampling") else None,
    }
    return parse({key: value for key, value in (raw | changes).items() if value is not None})


def run(privacy, seed=0, replays=600, **options):
    file = options.pop("file", {})
    return audit(experiment(privacy, seed, **file), "small.toml", replays=replays, **options)


def few(name):
    return 60 if name in ("objective", "dpsgd", "secret") else 300


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "dpsgd" else name for name in SOUND]
)
def test_a_sound_mechanism_passes(name):
    delta = 1e-2 if name in ("central", "secret") else None
    found = run(SOUND[name], replays=few(name), delta=delta)
    assert not found.is_broken
    assert found.checked_upcycled
    assert 0 <= found.epsilon_lower <= found.claim.epsilon < np.inf
    assert found.sentences[-1].endswith("is not refuted by this attack")


@pytest.mark.slow
def test_the_attack_on_clipping_comes_close_to_what_is_claimed():
    """Otherwise a mechanism with too little noise would pass."""
    found = run(SOUND["model"], replays=6000)
    assert found.claim.mu == pytest.approx(0.8, rel=1e-4)
    assert 0.6 < found.mu_lower <= found.claim.mu
    assert found.details["noiseless_distance"] == pytest.approx(0.2, rel=0.01)


def scaled(monkeypatch, change):
    """Let every Gaussian mechanism draw other noise than it charges for."""
    monkeypatch.setattr(
        GaussianNoise,
        "add",
        lambda self, values, cohort, source: on_grid(
            values,
            source.gaussian_steps(
                cohort.clients,
                values.shape[-1],
                change(self.noise_std[cohort.rows]) / grid_step(self.noise_std[cohort.rows]),
            ),
            self.noise_std[cohort.rows],
        ),
    )


@pytest.mark.parametrize("name", ["model", "update"])
def test_a_variance_used_as_a_std_is_caught(monkeypatch, name):
    scaled(monkeypatch, np.square)  # 0.25 becomes 0.0625
    assert run(SOUND[name]).is_broken


@pytest.mark.parametrize("name", ["erm", *(pytest.param(n, marks=pytest.mark.slow) for n in ("model", "update"))])
def test_noise_four_times_too_small_is_caught_at_a_claim_of_2(monkeypatch, name):
    scaled(monkeypatch, lambda std: std / 4)
    privacy = {key: value for key, value in SOUND[name].items() if key != "noise_std"}
    found = run(privacy | {"epsilon": 2.0, "delta": 1e-5}, replays=1200)
    assert found.claim.epsilon == pytest.approx(2.0)
    assert found.is_broken
    assert found.sentences[-1] == "the proven claim, epsilon 2 for this round, is BROKEN"


def test_a_release_that_skips_the_mechanism_is_caught(monkeypatch):
    monkeypatch.setattr(Clipped, "release", lambda self, *arguments: NO_PRIVACY.release(*arguments))
    # No number of replays could refute an epsilon of thousands; that nothing changes from replay to replay does.
    for privacy in (CLIPPING, CLIPPING | {"noise_std": 0.001}):
        found = run(privacy, replays=20)
        assert found.is_broken
        assert found.is_noiseless


def test_a_loop_that_hands_the_server_what_was_trained_is_caught(monkeypatch):
    original = loop.answer

    def leaky(plan, *arguments):
        mechanism = replace(plan.mechanism, release=NO_PRIVACY.release)
        return original(replace(plan, mechanism=mechanism), *arguments)

    monkeypatch.setattr(loop, "answer", leaky)
    assert run(CLIPPING, replays=20).is_broken


def test_clipping_that_is_left_out_is_caught(monkeypatch):
    from upcycled.privacy.mechanisms import clipping

    monkeypatch.setattr(clipping, "clip", lambda vectors, clip_norm: vectors.astype(np.float64))
    assert run(SOUND["model"]).is_broken


def test_an_even_iteration_that_uses_client_state_is_caught(monkeypatch):
    kept = {}
    train, upcycle = Sequential.train, Strategy.upcycle

    def remembering(self, asked, noise):
        kept["models"] = train(self, asked, noise)
        return kept["models"]

    def leaking(self, state, horizon):
        after = upcycle(self, state, horizon)
        model = after.server.model + 1e-3 * kept["models"].vectors.mean(axis=0)
        return replace(after, server=replace(after.server, model=model))

    monkeypatch.setattr(Sequential, "train", remembering)
    assert not run(SOUND["model"], replays=100).is_broken
    monkeypatch.setattr(Strategy, "upcycle", leaking)
    found = run(SOUND["model"], replays=100)
    assert found.is_broken
    assert "another model under the neighbouring data" in found.upcycled
    assert any("BROKEN: an upcycled iteration" in line for line in found.sentences)


def test_an_even_iteration_that_trains_is_caught(monkeypatch):
    kept = {}
    answer, upcycle = loop.answer, Strategy.upcycle

    def remembering(*arguments):
        kept["again"] = lambda: answer(*arguments)
        return answer(*arguments)

    monkeypatch.setattr(loop, "answer", remembering)
    monkeypatch.setattr(Strategy, "upcycle", lambda self, state, horizon: (kept["again"](), upcycle(self, state, 1))[1])
    assert run(SOUND["model"], replays=20).upcycled == "an upcycled iteration trained clients"


def test_a_vanilla_file_has_no_even_iterations_to_check():
    found = run(SOUND["model"], replays=20, file={"upcycle": None})
    assert not found.checked_upcycled
    assert found.as_json()["upcycled"] is None


def counter_example(monkeypatch):
    """Squared loss with x_1 = 1, y_1 = +-tau and all other x = 0: the minimiser is y_1, whatever n is."""
    tau, n = 10.0, 100

    def least_squares(self, asked, noise):
        vectors = np.zeros((1, self.task.layout.size), dtype=np.float32)
        x, y = self.task.train.client(int(asked.cohort.clients[0]))
        vectors[0, 0] = (x[:, 0] * tau * (2 * y - 1)).sum() / (x[:, 0] ** 2).sum()
        return Trained(vectors, np.ones(1, dtype=np.int64))

    monkeypatch.setattr(Sequential, "train", least_squares)
    x = np.zeros((n, 1), dtype=np.float32)
    x[0] = 1.0
    worlds = []
    for label in (0, 1):
        y = np.arange(n) % 2
        y[0] = label
        worlds.append(up.FederatedData.from_arrays([x], [y], num_classes=2))
    privacy = up.privacy.ModelClipping(tau, 1.0)
    spec = up.RunSpec(algorithm=up.FedAvg(), privacy=privacy, iterations=1, engine="sequential")
    plan = make_plan(worlds[0], spec)
    return plan, (worlds[0].train, worlds[1].train)


def test_the_papers_claim_is_refuted_on_its_counter_example(monkeypatch):
    plan, worlds = counter_example(monkeypatch)
    found = audit_worlds(plan, worlds, 0, replays=400, claim="paper")
    assert found.claim.paper_epsilon == pytest.approx(0.4848525912)
    assert found.claim.epsilon == pytest.approx(284.39, rel=1e-3)
    assert found.is_broken
    assert found.epsilon_lower > 3
    proven = audit_worlds(plan, worlds, 0, replays=400)
    assert not proven.is_broken
    assert proven.is_paper_broken
    assert any("the paper's number, 0.4849, is refuted" in line for line in proven.sentences)


@pytest.mark.slow
def test_the_papers_claim_of_half_is_audited_above_8(monkeypatch):
    plan, worlds = counter_example(monkeypatch)
    found = audit_worlds(plan, worlds, 0, replays=22_400, claim="paper")
    assert found.is_broken
    assert found.epsilon_lower > 8


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_mechanism_passes_with_at_least_19_of_20_seeds(name):
    delta = 1e-2 if name in ("central", "secret") else None
    broken = [seed for seed in range(20) if run(SOUND[name], seed, replays=few(name), delta=delta).is_broken]
    assert len(broken) <= 1


@pytest.mark.usefixtures("known_entropy")
def test_real_noise_is_audited_as_real_noise():
    found = run(SOUND["model"] | {"noise": "system"}, replays=200)
    assert not found.is_broken
    again = run(SOUND["model"] | {"noise": "system"}, replays=200)
    assert found.details["replays"] == 200
    assert run(SOUND["model"], replays=200) == run(SOUND["model"], replays=200)
    assert again.claim == found.claim


def test_neighbours_differ_in_one_record_of_the_client_and_in_nothing_else():
    file = experiment(SOUND["model"])
    data = file.build_data()
    plan = make_plan(data, file.spec(0))
    one, two = neighbours(plan, data.train, 2)
    first = int(data.train.offsets[2])
    for world in (one, two):
        changed = (world.x != data.train.x).any(axis=1) | (world.y != data.train.y)
        assert set(np.flatnonzero(changed)) <= {first}
    assert one.y[first] != two.y[first]
    assert np.array_equal(np.delete(one.y, first), np.delete(two.y, first))


def test_words_of_a_vocabulary_are_audited_too():
    rng = np.random.default_rng(0)
    data = up.FederatedData.from_arrays([rng.integers(0, 9, (6, 4)) for _ in range(2)], [[0, 1] * 3] * 2)
    spec = up.RunSpec(
        algorithm=up.FedAvg(), model="lstm", model_options={"hidden": 3, "embedding": 2, "vocabulary": 9},
        privacy=up.privacy.ModelClipping(1.0, 1.0), iterations=1, engine="sequential",
    )  # fmt: skip
    plan = make_plan(data, spec)
    worlds = neighbours(plan, data.train, 0)
    assert worlds[0].x.dtype == data.train.x.dtype
    assert not audit_worlds(plan, worlds, 0, replays=20).is_broken


@pytest.mark.parametrize(
    ("privacy", "options", "words"),
    [
        (SOUND["update"], {"claim": "paper"}, r"--claim.*'paper'.*paper.*epsilon"),
        (SOUND["model"], {"claim": "papr"}, r"--claim.*'papr'.*did you mean 'paper'\?"),
        (SOUND["model"], {"replays": 3}, r"--replays.*3.*integer >= 4"),
        (SOUND["model"] | {"noise_std": 0.0}, {}, r"privacy.*epsilon.*'model_clipping'"),
        (SOUND["model"], {"delta": 0.5}, r"--delta.*0\.5.*1/n"),
    ],
)
def test_what_cannot_be_audited_is_said_in_one_sentence(privacy, options, words):
    with pytest.raises(InputError) as error:
        run(privacy, **options)
    assert re.search(words, str(error.value))


def test_a_file_without_privacy_has_no_claim_to_test():
    with pytest.raises(InputError, match=r"small.toml: privacy.*missing.*audit.*claim"):
        audit(experiment(SOUND["model"]).model_copy(update={"privacy": None}), "small.toml")
