"""The whole audit finds each fault that it must, by the probe that is made for it, and passes what is sound."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.auditing import faults
from tests.auditing.test_audit import SOUND, experiment
from upcycled.auditing.whole import carry_out, survey

EXAMPLES = Path(__file__).parents[2] / "examples"
SCAFFOLD = {"algorithm": {"name": "scaffold"}}
DPSGD = SOUND["dpsgd"] | {"noise_multiplier": 4.0}
SECRET = {"clients": {"participation": 0.5, "sampling": "poisson"}, "data": None}

MATRIX = {
    "no_noise_at_the_last_client": ("model", "noise: scale"),
    "std_is_sigma_squared": ("update", "noise: scale"),
    "noise_four_times_too_small": ("erm", "noise: scale"),
    "no_projection_at_the_last_client": ("erm", "projection"),
    "no_clipping_at_the_last_client": ("update", "clipping"),
    "noise_reused_between_rounds": ("erm", "noise: rounds"),
    "noise_reused_between_runs": ("bolt-on", "noise: runs"),
    "noise_reused_between_clients": ("model", "noise: clients"),
    "noise_reused_between_steps": ("dpsgd", "noise: scale"),
    "clip_after_noise": ("model", "noise: scale"),
    "calibrated_by_the_n_of_all": ("erm", "canaries"),
    "memory_of_unreleased_models": ("update", "replay"),
    "charges_stop_after_round_2": ("erm", "charges"),
    "charges_are_nothing_after_round_2": ("model", "charges"),
    "coins_from_the_public_seed": ("dpsgd", "coins"),
}


def small(name, seed=0, **changes):
    privacy = DPSGD if name == "dpsgd" else SOUND[name]
    options = {"local": {"batch_size": 8, "epochs": 1, "lr": 0.1}} if name == "dpsgd" else {}
    return experiment(privacy, seed, iterations=8, **options, **changes)


def audited(file):
    return carry_out(survey(file, "small.toml"))


def caught(found):
    return {one.probe for one in found.findings if one.wrong is not None}


@pytest.mark.parametrize("fault", MATRIX)
def test_a_fault_is_found_by_the_probe_that_is_made_for_it(fault, monkeypatch):
    name, probe = MATRIX[fault]
    file = small(name, **(SCAFFOLD if "memory" in fault else {}))
    getattr(faults, fault)(monkeypatch, last=3)
    found = audited(file)
    assert probe in caught(found)
    assert found.is_broken
    assert any(line.startswith(f"BROKEN ({probe})") for line in found.sentences)
    assert found.sentences[-1].endswith("is BROKEN")


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_mechanism_passes_all_probes(name):
    found = audited(small(name))
    assert caught(found) == set()
    assert found.sentences[-1].endswith("is not refuted by this audit")
