"""``python -m tests.mutation.planted [NAME ...]``: plant hand-written faults, and say what catches each.

Seeded mutants change one expression. These are faults as a reviewer would plant them, in mechanisms, sampling, charges,
projection, clipping, noise and ledger. Each must be caught: by the audit of a small file, in the probe that is made for
it, or by a named test. ``--test NAME`` runs that test with the fault in place; exit code 1 says that it fails.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.audit.false_alarms import small
from tests.mutation import faults
from upcycled.audit.full_audit import WholeAudit, carry_out, survey

ROOT = Path(__file__).parents[2]
SYSTEM = {"noise": "system"}


@dataclass(frozen=True)
class Planted:
    """What must catch a fault: a probe of the audit of a small file, or a test."""

    mechanism: str = ""
    """Of the file: what ``small`` is given."""
    probe: str | None = None
    privacy: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    test: str | None = None


UNEQUAL = {"data": {"source": "synthetic", "alpha": 0.5, "beta": 0.5, "clients": 4, "sizes": [12, 20, 28, 40]}}
IN_PRIVACY = "tests/privacy/test_"
PLANTED = {
    # The noise.
    "no_noise_at_the_last_client": Planted("model", "noise: scale"),
    "std_is_sigma_squared": Planted("update", "noise: scale"),
    "noise_four_times_too_small": Planted("erm", "noise: scale"),
    "noise_a_tenth_too_small": Planted("update", "noise: scale"),
    "noise_without_a_tail": Planted("update", "noise: tail"),
    "central_noise_divided_twice": Planted("central", "noise: scale"),
    "cover_noise_without_the_root_of_d": Planted(
        test=f"{IN_PRIVACY}objective_cover.py::test_the_cover_arrives_with_its_stated_scale_whatever_it_covers"
    ),
    "noise_reused_between_rounds": Planted("erm", "noise: rounds"),
    "noise_reused_between_runs": Planted("bolt-on", "noise: runs"),
    "noise_reused_between_clients": Planted("model", "noise: clients"),
    "noise_reused_between_steps": Planted("dpsgd", "noise: scale"),
    "system_noise_that_repeats": Planted("erm", "noise: rounds", SYSTEM, {"engine": "fused"}),
    "seeded_noise_under_system": Planted("erm", "noise: runs", SYSTEM, {"engine": "fused"}),
    "values_are_not_on_the_grid": Planted(
        test=f"{IN_PRIVACY}mechanism_noise.py::test_every_release_lies_on_its_grid_under_both_neighbours"
    ),
    # Clipping, projection and solvers.
    "clip_after_noise": Planted("model", "noise: scale"),
    "release_is_not_clipped": Planted("model", "clipping"),
    "no_clipping_at_the_last_client": Planted("update", "clipping"),
    "clipping_lets_a_fifth_pass": Planted("update", "clipping"),
    "gradients_of_records_are_not_clipped": Planted("dpsgd", "clipping"),
    "gradients_of_records_let_a_fifth_pass": Planted("dpsgd", "clipping"),
    "no_projection_at_the_last_client": Planted("erm", "projection"),
    "projection_lets_a_fifth_pass": Planted("erm", "projection"),
    "solver_stops_half_way": Planted(
        test=f"{IN_PRIVACY}objective_cover.py::"
        "test_for_every_tilt_what_leaves_is_within_its_promise_of_the_exact_minimiser"
    ),
    # Coins.
    "secret_rate_doubled": Planted("secret", "rate"),
    "half_the_secret_rate_is_charged": Planted("secret", "rate"),
    "coins_that_lie_low": Planted(test=f"{IN_PRIVACY}mechanism_noise.py::test_coins_are_uniform_whatever_they_decide"),
    "batches_at_twice_the_rate": Planted("dpsgd", "rate"),
    "batches_of_a_fixed_size": Planted("dpsgd", "rate"),
    "one_coin_for_all_records": Planted("dpsgd", "rate"),
    "coins_from_the_public_seed": Planted("dpsgd", "rate"),
    # Calibration, charges and the ledger.
    "calibrated_by_the_n_of_all": Planted("erm", "canaries"),
    "calibrated_by_the_least_need": Planted("erm", "charges", {"per_client": False}, UNEQUAL),
    "charges_stop_after_round_2": Planted("erm", "charges"),
    "charges_are_nothing_after_round_2": Planted("model", "charges"),
    "half_of_the_steps_are_charged": Planted("dpsgd", "charges"),
    "inner_steps_are_not_charged": Planted("dpsgd", "charges", changes={"algorithm": {"name": "pfedme"}}),
    "draws_of_real_noise_are_not_charged": Planted("erm", "charges", SYSTEM),
    "memory_of_unreleased_models": Planted("update", "replay", changes={"algorithm": {"name": "scaffold"}}),
    "ledger_adds_up_every_other_charge": Planted(
        test=f"{IN_PRIVACY}ledger.py::test_epsilon_is_the_exact_gaussian_one_of_twice_the_clip_norm"
    ),
}


def audited(fault: str) -> WholeAudit:
    """Audit the fault's file with the fault in place."""
    entry = PLANTED[fault]
    file = small(entry.mechanism, privacy=entry.privacy, **entry.changes)
    with pytest.MonkeyPatch.context() as patch:
        getattr(faults, fault)(patch, 3)  # the last of four clients
        return carry_out(survey(file, "planted.toml"))


def fails(fault: str) -> bool:
    """Return whether the fault's test fails in a process of its own, where the fault is in place."""
    command = [sys.executable, "-m", "tests.mutation.planted", "--test", fault]
    return (
        subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == pytest.ExitCode.TESTS_FAILED
    )


def is_caught(fault: str) -> bool:
    probe = PLANTED[fault].probe
    if probe is None:
        return fails(fault)
    return any(one.probe == probe and one.wrong is not None for one in audited(fault).findings)


def main(given: list[str]) -> int:
    if given[:1] == ["--test"]:
        getattr(faults, given[1])(pytest.MonkeyPatch(), 3)
        return int(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(PLANTED[given[1]].test)]))
    escaped = 0
    for fault in given or PLANTED:
        entry, caught = PLANTED[fault], is_caught(fault)
        escaped += not caught
        print(f"{'caught' if caught else 'ESCAPED':8s} {fault:42s} {entry.probe or entry.test}", flush=True)
    return 1 if escaped else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
