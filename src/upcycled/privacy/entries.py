"""One line of the ledger, and how it stands in the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from upcycled.core.release import Charge
from upcycled.core.vectors import Ints


@dataclass(frozen=True)
class Entry:
    """One line of the ledger: a round's charge, clients left out of it, or an upcycled iteration (nobody, nothing)."""

    iteration: int
    kind: str
    """``"data"``, ``"left out"`` or ``"upcycled"``."""
    round: int
    attempt: int
    clients: Ints
    charge: Charge | None

    @property
    def key(self) -> tuple[Any, ...]:
        """What a simulation's repeat has in common with it: a charge's round and attempt; the others' iteration too."""
        return self.kind, self.round, self.attempt, *(() if self.kind == "data" else (self.iteration,))


def to_line(entry: Entry) -> dict[str, Any]:
    """Return the entry as plain values, without any data of anybody."""
    line: dict[str, Any] = {
        "kind": entry.kind,
        "iteration": entry.iteration,
        "round": entry.round,
        "attempt": entry.attempt,
        "clients": entry.clients.tolist(),
    }
    charge = entry.charge
    if charge is None:
        return line | {"cost": 0}
    line |= {
        "charge": charge.kind,
        "sensitivity": charge.sensitivity.tolist(),
        "noise_std": charge.noise_std.tolist(),
    }
    others = {"epsilon": charge.epsilon, "sampling_rate": charge.sampling_rate, "steps": charge.steps}
    return line | {name: value.tolist() for name, value in others.items() if value is not None}


def from_line(line: Mapping[str, Any]) -> Entry:
    """Return the entry that :func:`to_line` was given; KeyError, TypeError or ValueError if it was none."""
    clients = np.array(line["clients"], dtype=np.int64)
    charge = None
    if line["kind"] == "data":
        numbers = {
            name: np.array(line[name], dtype=np.int64 if name == "steps" else np.float64)
            for name in ("sensitivity", "noise_std", "epsilon", "sampling_rate", "steps")
            if name in line
        }
        if any(array.shape != clients.shape for array in numbers.values()):
            raise ValueError("a charge needs one number for each client")
        charge = Charge(line["charge"], clients, **numbers)  # type: ignore[arg-type]
    return Entry(line["iteration"], line["kind"], line["round"], line["attempt"], clients, charge)
