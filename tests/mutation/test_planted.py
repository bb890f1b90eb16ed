"""Each hand-written fault is caught: by the audit, in the probe that is made for it, or by the test that is named."""

from __future__ import annotations

import pytest

from tests.mutation import faults
from tests.mutation.planted import PLANTED, audited, fails

OFTEN = (
    "no_noise_at_the_last_client",
    "noise_without_a_tail",
    "noise_reused_between_rounds",
    "seeded_noise_under_system",
    "clip_after_noise",
    "projection_lets_a_fifth_pass",
    "secret_rate_doubled",
    "charges_stop_after_round_2",
    "memory_of_unreleased_models",
)
"""Faults whose audit takes about a second."""
BY_AUDIT = [fault for fault, entry in PLANTED.items() if entry.probe is not None]


@pytest.mark.usefixtures("known_entropy")
@pytest.mark.parametrize(
    "fault", [pytest.param(one, marks=() if one in OFTEN else pytest.mark.slow) for one in BY_AUDIT]
)
def test_a_fault_is_found_by_the_probe_that_is_made_for_it(fault):
    found = audited(fault)
    assert any(line.startswith(f"BROKEN ({PLANTED[fault].probe})") for line in found.sentences)
    assert found.is_broken
    assert found.sentences[-1].endswith("is BROKEN")


@pytest.mark.slow
@pytest.mark.parametrize("fault", [fault for fault in PLANTED if fault not in BY_AUDIT])
def test_a_fault_that_no_audit_sees_fails_its_test(fault):
    assert fails(fault)


def test_every_fault_is_in_the_table():
    names = {name for name, made in vars(faults).items() if getattr(made, "__module__", "") == faults.__name__}
    # The mean of all n is larger than the least only where sizes differ: an example's do.
    assert {name for name in names if name[0] != "_"} == set(PLANTED) | {"calibrated_by_the_mean_n"}
