"""The whole audit finds each fault that it must, by the probe that is made for it, and passes what is sound."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import upcycled as up
from tests.audit.false_alarms import NOISE, RUNS, alarms, small
from tests.audit.test_audit import SOUND, experiment
from tests.mutation import faults
from upcycled.audit.full_audit import LEVEL, carry_out, survey, survey_of
from upcycled.config.experiment import load_config
from upcycled.core.errors import InputError
from upcycled.core.randomness import Purpose
from upcycled.privacy.mechanisms import MECHANISMS
from upcycled.privacy.noise.sources import SeededNoise
from upcycled.training.plan import make_plan

EXAMPLES = Path(__file__).parents[2] / "examples"
LOCAL = {"batch_size": 8, "epochs": 1, "lr": 0.1}

PROVEN, CLIPPED = "proven-epsilon.toml", "output-perturbation.toml"
SMALL_DPSGD = (
    "privacy={mechanism='dpsgd', clip_norm=1.0, noise_multiplier=4.0}",
    *("data.clients=3", "local={batch_size=64, epochs=1, lr=0.1}", "engine='sequential'"),
)
ON_EXAMPLES = {
    "no_noise_at_the_last_client": (PROVEN, (), "noise: scale"),
    "no_projection_at_the_last_client": (PROVEN, (), "projection"),
    "noise_reused_between_rounds": (PROVEN, (), "noise: rounds"),
    "noise_reused_between_runs": (PROVEN, (), "noise: runs"),
    "noise_reused_between_clients": (CLIPPED, (), "noise: clients"),
    "noise_reused_between_steps": (PROVEN, SMALL_DPSGD, "noise: scale"),
    "clip_after_noise": (CLIPPED, (), "noise: scale"),
    "no_clipping_at_the_last_client": (CLIPPED, (), "clipping"),
    "calibrated_by_the_n_of_all": (PROVEN, (), "canaries"),
    "calibrated_by_the_mean_n": (PROVEN, (), "canaries"),
    "memory_of_unreleased_models": (PROVEN, ("algorithm={name='scaffold'}", "privacy.prox_mu=0.5"), "replay"),
    "charges_stop_after_round_2": (PROVEN, (), "charges"),
    "charges_are_nothing_after_round_2": (CLIPPED, (), "charges"),
    "coins_from_the_public_seed": (PROVEN, SMALL_DPSGD, "rate"),
    "std_is_sigma_squared": (CLIPPED, (), "noise: scale"),
    "noise_four_times_too_small": (PROVEN, (), "noise: scale"),
}


def audited(file):
    return carry_out(survey(file, "small.toml"))


def caught(found):
    return {one.probe for one in found.findings if one.wrong is not None}


@pytest.mark.slow
@pytest.mark.parametrize("fault", ON_EXAMPLES)
def test_a_fault_in_an_example_is_found(fault, monkeypatch):
    file, changes, probe = ON_EXAMPLES[fault]
    asked = load_config(EXAMPLES / file, list(changes))
    getattr(faults, fault)(monkeypatch, last=(3 if changes == SMALL_DPSGD else 30) - 1)
    assert probe in caught(audited(asked))


@pytest.mark.slow
@pytest.mark.parametrize("file", [PROVEN, CLIPPED])
def test_the_examples_pass(file):
    assert caught(audited(load_config(EXAMPLES / file))) == set()


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one in ("model", "erm", "central") else pytest.mark.slow) for one in SOUND]
)
def test_a_sound_mechanism_passes_all_probes(name):
    found = audited(small(name))
    assert caught(found) == set()
    assert found.sentences[-1].endswith("is not refuted by this audit")


def test_every_mechanism_has_a_sound_file():
    assert {privacy["mechanism"] for privacy in SOUND.values()} == set(MECHANISMS)


@pytest.mark.slow
@pytest.mark.usefixtures("known_entropy")
@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("name", SOUND)
def test_sound_runs_are_called_broken_no_more_often_than_is_stated(name, noise):
    """One of 20 at most: two of them have a probability of 0.014 at the stated rate."""
    assert LEVEL * RUNS < 0.2
    assert len(alarms(name, noise)) <= 1


@pytest.mark.parametrize("name", ["secret", "dpsgd"])
def test_secret_coins_have_a_probe_of_their_own(name):
    found = audited(small(name, engine="fused"))
    assert caught(found) == set()
    assert {"rate", "clipping"} <= {one.probe for one in found.findings}
    assert {"rate", "clipping"} <= {one.probe for one in found.power}


def test_a_clip_norm_below_the_rounding_of_models_raises_no_alarm():
    data = up.data.synthetic("iid", clients=5, sizes=[16, 20, 30, 40, 64], seed=0)
    spec = up.RunSpec(
        algorithm=up.FedAvg(), privacy=up.privacy.DPSGD(1e-3, 4.0), local=up.LocalSGD(batch_size=8, epochs=1, lr=0.05),
        iterations=6, engine="fused",
    )  # fmt: skip
    assert caught(carry_out(survey_of(make_plan(data, spec), data.train))) == set()


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"local": LOCAL | {"momentum": 0.5}}, {"algorithm": {"name": "pfedme"}}])
def test_a_wrong_rate_is_found_with_momentum_and_inner_steps(changes, monkeypatch):
    """How many records were taken follows from what the first step leaves in a model."""
    faults.batches_at_twice_the_rate(monkeypatch, last=3)
    assert "rate" in caught(audited(small("dpsgd", **changes)))


@pytest.mark.parametrize(
    "changes",
    [
        {"local": LOCAL | {"epochs": 2, "momentum": 0.5}},
        pytest.param({"algorithm": {"name": "feddyn", "alpha": 0.5}}, marks=pytest.mark.slow),
        pytest.param({"algorithm": {"name": "pfedme"}}, marks=pytest.mark.slow),
    ],
)
def test_noise_inside_of_steps_has_the_scale_that_its_own_recursion_gives(changes):
    """Momentum, a quadratic term and inner steps each weigh a step's noise in another way."""
    found = audited(small("dpsgd", engine="fused", **changes))
    assert caught(found) == set()
    assert {"noise: scale", "rate", "clipping"} <= {one.probe for one in found.findings}


def test_real_noise_that_repeats_is_found(known_entropy, monkeypatch):
    file = experiment(SOUND["erm"] | {"noise": "system"}, iterations=8, engine="fused")
    assert caught(audited(file)) == set()
    faults.system_noise_that_repeats(monkeypatch, last=3)
    assert {"noise: rounds", "noise: runs"} <= caught(audited(file))


@pytest.mark.usefixtures("known_entropy")
@pytest.mark.parametrize("noise", ["seeded", "system"])
@pytest.mark.parametrize("clients", [4, pytest.param(8, marks=pytest.mark.slow), 20])
def test_secret_cohorts_are_looked_at(clients, noise):
    """Neighbours are replayed with the same cohorts: those that the system's coins draw for each would differ."""
    file = experiment(SOUND["secret"] | {"noise": noise}, iterations=8, engine="fused", clients=clients)
    found = audited(file)
    assert caught(found) == set()
    assert {"replay", "rate"} <= {one.probe for one in found.findings}


def test_numbers_as_targets_have_canaries_too():
    rng = np.random.default_rng(0)
    xs, ys = [rng.normal(size=(30, 3)).astype(np.float32) for _ in range(3)], [rng.normal(size=30) for _ in range(3)]
    data = up.FederatedData.from_arrays(xs, [y.astype(np.float32) for y in ys], targets="numbers")
    spec = up.RunSpec(algorithm=up.FedProx(mu=0.5), loss="huber", privacy=up.privacy.ErmOutput(1.0, noise_std=0.5),
                      iterations=3, engine="sequential")  # fmt: skip
    scope = survey_of(make_plan(data, spec), data.train)
    assert (scope.moved.ratios >= 1).all()
    assert scope.moved.ratios.min() < 2  # Huber's gradient is at its bound on both sides
    assert caught(carry_out(scope)) == set()


@pytest.mark.slow
def test_words_of_a_vocabulary_hide_the_noise_of_steps_and_the_power_says_so():
    rng = np.random.default_rng(0)
    data = up.FederatedData.from_arrays([rng.integers(0, 9, (6, 4)) for _ in range(2)], [[0, 1] * 3] * 2)
    spec = up.RunSpec(
        algorithm=up.FedAvg(), model="lstm", model_options={"hidden": 3, "embedding": 2, "vocabulary": 9},
        privacy=up.privacy.DPSGD(1.0, 4.0), local=up.LocalSGD(batch_size=3, epochs=1), iterations=2,
        engine="sequential",
    )  # fmt: skip
    scope = survey_of(make_plan(data, spec), data.train)
    assert [one.words for one in scope.power if one.probe == "noise: scale"] == ["cannot be found here"]


def test_an_audit_never_touches_an_account(tmp_path):
    """It is charged to nobody: neither the whole nor two worlds."""
    up.privacy.Account.open(tmp_path / "account", epsilon=10.0, delta=1e-4)
    file = experiment(SOUND["erm"] | {"noise": "system", "account": str(tmp_path / "account")}, iterations=4)
    before = {path: path.read_bytes() for path in sorted((tmp_path / "account").rglob("*")) if path.is_file()}
    audited(file)
    assert {path: path.read_bytes() for path in sorted((tmp_path / "account").rglob("*")) if path.is_file()} == before


def test_a_claim_of_nothing_is_refused():
    with pytest.raises(InputError, match=r"claims.*epsilon"):
        survey(experiment(SOUND["model"] | {"noise_std": 0.0}), "small.toml")


def test_the_documented_power_is_what_the_command_says():
    text = (EXAMPLES.parent / "docs" / "privacy.md").read_text()
    table = text.split("<!-- power -->")[1].split("<!-- end -->")[0].strip().splitlines()[2:]
    power = survey(load_config(EXAMPLES / PROVEN), PROVEN).power
    assert table == [f"| `{one.probe}` | {one.fault} | {one.words} |" for one in power]


@pytest.mark.slow
def test_the_last_of_very_many_clients_is_looked_at_as_all_others_are(monkeypatch):
    data = up.data.synthetic("iid", clients=230, sizes=12, dim=4, seed=0)
    spec = up.RunSpec(algorithm=up.FedAvg(), privacy=up.privacy.UpdateClipping(0.1, noise_std=1.0), iterations=4)
    plan = make_plan(data, spec)
    own = SeededNoise.normals

    def normals(self, clients, count, purpose=Purpose.NOISE, start=0):
        found = own(self, clients, count, purpose, start)
        once = own(replace(self, round=1), clients, count, purpose, start)
        return np.where((clients == 229)[:, None], once, found)

    assert caught(carry_out(survey_of(plan, data.train))) == set()
    monkeypatch.setattr(SeededNoise, "normals", normals)
    assert "noise: rounds" in caught(carry_out(survey_of(plan, data.train)))
