"""Seeded runs and commands give what they gave when they were recorded.

On a processor and libraries with a recording every bit is compared; elsewhere what rounding cannot change is compared
exactly and the rest closely. Test ids say which of the two was done. What was not recorded is not looked at: records,
ledgers and documents may gain fields.
"""

from __future__ import annotations

import json

import pytest

from tests.golden.cases import CASES
from tests.golden.facts import signature
from tests.golden.record import RECORDINGS, carried_out, recorded

HERE = signature()
ALL = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RECORDINGS.glob("*.json"))]
KEPT = next((recording for recording in ALL if recording["signature"] == HERE), ALL[0])
HOW = "bit_for_bit" if KEPT["signature"] == HERE else "closely_because_processor_or_libraries_differ"


def differences(kept, found, how):
    """Say part by part and column by column what differs, in the order of the recording."""
    said = []
    for part, then in kept.items():
        now = found.get(part)
        if now is None:
            said.append(f"{part}: missing")
            continue
        for name, digest in then["exact"].items():
            is_compared = how == "bit_for_bit" or name in then["same"]
            if name not in now["exact"]:
                said.append(f"{part}: {name} is missing")
            elif is_compared and now["exact"][name] != digest:
                said.append(f"{part}: {name} differs")
            elif not is_compared and not are_close(then["near"].get(name), now["near"].get(name)):
                said.append(f"{part}: {name} is {now['near'].get(name)}, was {then['near'][name]}")
    return said


def are_close(then, now):
    """Compare two lists that begin with a relative and an absolute tolerance; without a list there is nothing to do."""
    if then is None:
        return True
    relative, absolute, *numbers = then
    return now is not None and now[2:] == pytest.approx(numbers, rel=relative, abs=absolute)


@pytest.mark.parametrize("how", [HOW])
@pytest.mark.parametrize("name", KEPT["cases"])
def test_a_seeded_run_gives_what_it_gave(name, how):
    assert name in CASES, f"golden case {name}: it was recorded, but cases.py has it no more"
    said = differences(KEPT["cases"][name], recorded(carried_out(name)), how)
    assert not said, f"golden case {name} ({how}): first {said[0]}; {len(said)} in all: {'; '.join(said[:12])}"


def test_every_case_is_recorded():
    assert list(KEPT["cases"]) == list(CASES)
