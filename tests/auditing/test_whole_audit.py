"""The whole audit finds each fault that it must, by the probe that is made for it, and passes what is sound."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import upcycled as up
from tests.auditing import faults
from tests.auditing.test_audit import SOUND, experiment
from upcycled.auditing.whole import ATTACK_LEVEL, LEVEL, carry_out, level_of, survey, survey_of
from upcycled.config.experiment import load_config
from upcycled.core.errors import InputError
from upcycled.core.streams import Purpose
from upcycled.privacy.noise import SeededNoise
from upcycled.runtime.plan import make_plan

EXAMPLES = Path(__file__).parents[2] / "examples"
SCAFFOLD = {"algorithm": {"name": "scaffold"}}
LOCAL = {"local": {"batch_size": 8, "epochs": 1, "lr": 0.1}}
NOISY = SOUND | {"dpsgd": SOUND["dpsgd"] | {"noise_multiplier": 4.0}}

MATRIX = {
    "no_noise_at_the_last_client": ("model", "noise: scale"),
    "std_is_sigma_squared": ("update", "noise: scale"),
    "noise_four_times_too_small": ("erm", "noise: scale"),
    "no_projection_at_the_last_client": ("erm", "projection"),
    "no_clipping_at_the_last_client": ("update", "clipping"),
    "noise_reused_between_rounds": ("erm", "noise: rounds"),
    "noise_reused_between_runs": ("bolt-on", "noise: runs"),
    "noise_reused_between_clients": ("model", "noise: clients"),
    "clip_after_noise": ("model", "noise: scale"),
    "calibrated_by_the_n_of_all": ("erm", "canaries"),
    "memory_of_unreleased_models": ("update", "replay"),
    "charges_stop_after_round_2": ("erm", "charges"),
    "charges_are_nothing_after_round_2": ("model", "charges"),
}
"""Fault -> (mechanism, the probe that finds it)."""
OFTEN = ("no_noise_at_the_last_client", "no_projection_at_the_last_client", "noise_reused_between_rounds",
         "clip_after_noise", "memory_of_unreleased_models", "charges_stop_after_round_2")  # fmt: skip

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
    "coins_from_the_public_seed": (PROVEN, SMALL_DPSGD, "coins"),
    "std_is_sigma_squared": (CLIPPED, (), "noise: scale"),
    "noise_four_times_too_small": (PROVEN, (), "noise: scale"),
}


def small(name, seed=0, **changes):
    return experiment(NOISY[name], seed, iterations=8, **(LOCAL if name == "dpsgd" else {}), **changes)


def audited(file, replays=None):
    scope = survey(file, "small.toml")
    return carry_out(scope if replays is None else replace(scope, replays=replays))


def caught(found):
    return {one.probe for one in found.findings if one.wrong is not None}


@pytest.mark.parametrize("fault", [pytest.param(one, marks=() if one in OFTEN else pytest.mark.slow) for one in MATRIX])
def test_a_fault_is_found_by_the_probe_that_is_made_for_it(fault, monkeypatch):
    name, probe = MATRIX[fault]
    file = small(name, **(SCAFFOLD if "memory" in fault else {}))
    getattr(faults, fault)(monkeypatch, last=3)
    found = audited(file, replays=20)
    assert probe in caught(found)
    assert found.is_broken
    assert any(line.startswith(f"BROKEN ({probe})") for line in found.sentences)
    assert found.sentences[-1].endswith("is BROKEN")


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
    "name", [pytest.param(one, marks=() if one in ("model", "erm", "central") else pytest.mark.slow) for one in NOISY]
)
def test_a_sound_mechanism_passes_all_probes(name):
    found = audited(small(name), replays=20)
    assert caught(found) == set()
    assert found.sentences[-1].endswith("is not refuted by this audit")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model", "update", "erm", "bolt-on", "objective", "central"])
def test_a_sound_mechanism_passes_with_at_least_19_of_20_seeds(name):
    replays = 20 if name == "objective" else 200  # each of its replays trains
    broken = [seed for seed in range(20) if audited(small(name, 100 * seed), replays=replays).is_broken]
    assert len(broken) <= 1


@pytest.mark.parametrize(
    "changes",
    [
        {"local": {"batch_size": 8, "epochs": 2, "lr": 0.1, "momentum": 0.5}, "engine": "fused"},
        pytest.param(
            LOCAL | {"engine": "fused", "algorithm": {"name": "feddyn", "alpha": 0.5}}, marks=pytest.mark.slow
        ),
        pytest.param(LOCAL | {"engine": "fused", "algorithm": {"name": "pfedme"}}, marks=pytest.mark.slow),
    ],
)
def test_noise_inside_of_steps_has_the_scale_that_its_own_recursion_gives(changes):
    """Momentum, a quadratic term and inner steps each weigh a step's noise in another way."""
    found = audited(experiment(NOISY["dpsgd"], iterations=8, **changes), replays=20)
    assert caught(found) == set()
    assert {"noise: scale", "coins"} <= {one.probe for one in found.findings}


def test_real_noise_that_repeats_is_found(known_entropy, monkeypatch):
    file = experiment(SOUND["erm"] | {"noise": "system"}, iterations=8, engine="fused")
    assert caught(audited(file, replays=20)) == set()
    faults.system_noise_that_repeats(monkeypatch, last=3)
    assert {"noise: rounds", "noise: runs"} <= caught(audited(file, replays=20))


def test_secret_cohorts_are_looked_at_as_coins():
    secret = up.privacy.CentralDPFedAvg(1.0, noise_multiplier=3.0, secret_sampling=True)
    data = up.data.synthetic("iid", clients=8, sizes=40, seed=0)
    spec = up.RunSpec(algorithm=up.FedAvg(), privacy=secret, participation=0.5, sampling="poisson", iterations=3)
    found = carry_out(replace(survey_of(make_plan(data, spec), data.train), replays=20))
    assert caught(found) == set()
    assert "coins" in {one.probe for one in found.findings}


def test_numbers_as_targets_have_canaries_too():
    rng = np.random.default_rng(0)
    xs, ys = [rng.normal(size=(30, 3)).astype(np.float32) for _ in range(3)], [rng.normal(size=30) for _ in range(3)]
    data = up.FederatedData.from_arrays(xs, [y.astype(np.float32) for y in ys], targets="numbers")
    spec = up.RunSpec(algorithm=up.FedProx(mu=0.5), loss="huber", privacy=up.privacy.ErmOutput(1.0, noise_std=0.5),
                      iterations=3, engine="sequential")  # fmt: skip
    scope = survey_of(make_plan(data, spec), data.train)
    assert (scope.moved.ratios >= 1).all()
    assert scope.moved.ratios.min() < 2  # Huber's gradient is at its bound on both sides
    assert caught(carry_out(replace(scope, replays=20))) == set()


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
    audited(file, replays=20)
    assert {path: path.read_bytes() for path in sorted((tmp_path / "account").rglob("*")) if path.is_file()} == before


def test_sound_runs_are_called_broken_in_less_than_one_of_a_hundred():
    assert level_of() == LEVEL + ATTACK_LEVEL < 0.01


def test_a_claim_of_nothing_is_refused():
    with pytest.raises(InputError, match="claims no finite epsilon"):
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

    assert caught(carry_out(replace(survey_of(plan, data.train), replays=20))) == set()
    monkeypatch.setattr(SeededNoise, "normals", normals)
    assert "noise: rounds" in caught(carry_out(replace(survey_of(plan, data.train), replays=20)))
