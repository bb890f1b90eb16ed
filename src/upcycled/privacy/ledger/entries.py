"""One line of the ledger, and how it stands in the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from upcycled.core.mechanism import Charge
from upcycled.core.vectors import Ints, Real


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
    others = {
        "epsilon": charge.epsilon,
        "sampling_rate": charge.sampling_rate,
        "steps": charge.steps,
        "draws": charge.draws,
    }
    return line | {name: value.tolist() for name, value in others.items() if value is not None}


NEEDS: dict[str, tuple[str, ...]] = {
    "gaussian": (),
    "pure": ("epsilon",),
    "sampled": ("sampling_rate", "steps"),
    "none": (),
}
"""The kinds of charges, and what each has beside sensitivity and noise_std."""
MOST = {"sensitivity": np.inf, "noise_std": 1e300, "epsilon": 1e300, "sampling_rate": 1.0}
"""No number of a charge is below zero or above this."""


def from_line(line: Any, num_clients: int) -> Entry:
    """Return the entry that :func:`to_line` was given; ValueError, in words, for anything that no ledger writes."""
    if not isinstance(line, dict):
        raise ValueError("it is no table of names and values")
    try:
        kind, clients = line["kind"], _integers(line, "clients")
        iteration, round, attempt = (_integer(line, name) for name in ("iteration", "round", "attempt"))
        if kind not in ("data", "left out", "upcycled"):
            raise ValueError(f"its kind is {kind!r}, which no ledger has")
        if clients.size and (clients.min() < 0 or clients.max() >= num_clients):
            wrong = clients[(clients < 0) | (clients >= num_clients)][0]
            raise ValueError(f"client {wrong} is not one of 0 to {num_clients - 1}")
        if np.unique(clients).size < clients.size:
            raise ValueError("it names a client twice")
        charge = _charge(line, clients) if kind == "data" else None
    except KeyError as error:
        raise ValueError(f"it has no {error}") from None
    return Entry(iteration, kind, round, attempt, clients, charge)


def _charge(line: Mapping[str, Any], clients: Ints) -> Charge:
    kind = line["charge"]
    if not isinstance(kind, str) or kind not in NEEDS:
        raise ValueError(f"its charge is {kind!r}, which is none of {', '.join(NEEDS)}")
    numbers = {name: _numbers(line, name) for name in ("sensitivity", "noise_std", *NEEDS[kind]) if name != "steps"}
    steps = _integers(line, "steps") if "steps" in NEEDS[kind] else None
    draws = _integers(line, "draws") if "draws" in line else None  # where noise is real
    for values in (*numbers.values(), *(count for count in (steps, draws) if count is not None)):
        if values.shape != clients.shape:
            raise ValueError("a charge needs one number for each client")
    for name, count in (("steps", steps), ("draws", draws)):
        if count is not None and (count < 0).any():
            raise ValueError(f"its {name} are below zero")
    if kind == "sampled" and (numbers["sensitivity"] <= 0).any():
        raise ValueError("its sensitivity is not above zero")
    return Charge(kind, clients, steps=steps, draws=draws, **numbers)


def _integer(line: Mapping[str, Any], name: str) -> int:
    value = line[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"its {name} is {value!r}, and must be an integer >= 0")
    return value


def _integers(line: Mapping[str, Any], name: str) -> Ints:
    values = _array(line, name)
    if values.size and values.dtype.kind != "i":
        raise ValueError(f"its {name} are no integers")
    found: Ints = values.astype(np.int64)
    return found


def _numbers(line: Mapping[str, Any], name: str) -> Real:
    values = _array(line, name)
    if values.dtype.kind not in "if":
        raise ValueError(f"its {name} is no list of numbers")
    found: Real = values.astype(np.float64)
    if not ((found >= 0) & (found <= MOST[name])).all():
        wrong = found[~((found >= 0) & (found <= MOST[name]))][0]
        raise ValueError(f"its {name} is {wrong:g}, and must be from 0 to {MOST[name]:g}")
    return found


def _array(line: Mapping[str, Any], name: str) -> Any:
    value = line[name]
    try:
        found = np.array(value) if isinstance(value, list) else None
    except (ValueError, OverflowError):  # ragged lists
        found = None
    if found is None or found.ndim != 1:
        raise ValueError(f"its {name} is no list of numbers")
    return found
