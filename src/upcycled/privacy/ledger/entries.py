"""One line of the ledger, and how it stands in the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from upcycled.core.errors import InputError, shown
from upcycled.core.mechanism import CHARGE_COLUMNS, Charge
from upcycled.core.vectors import Ints, Real


@dataclass(frozen=True)
class Entry:
    """One line of the ledger: a charge of a round or of scores, clients left out, an upcycled iteration (nobody).

    Or, of kind "ended", that the run ended as planned.
    """

    iteration: int
    kind: str
    """``"data"``, ``"scores"``, ``"left out"``, ``"upcycled"`` or ``"ended"``."""
    round: int
    attempt: int
    clients: Ints
    charge: Charge | None

    def __post_init__(self) -> None:
        if self.charge is not None and not np.array_equal(self.charge.clients, self.clients):
            raise InputError("Entry: the charge is about other clients than the entry; expected the same, in order")

    @property
    def key(self) -> tuple[Any, ...]:
        """What a simulation's repeat has in common with it: a round's number and attempt; the others' iteration too."""
        return self.kind, self.round, self.attempt, *(() if self.kind == "data" else (self.iteration,))

    @property
    def rounds(self) -> int:
        """How many data rounds it is a charge for."""
        return 1 if self.kind == "data" else 0


CHARGED = ("data", "scores")
"""The kinds of entries that have a charge."""
ENDED = "ended"
FREE = ("upcycled", ENDED)
"""The kinds that are about nobody."""
MOST = {
    "sensitivity": np.inf,
    "noise_std": 1e300,
    "epsilon": 1e300,
    "sampling_rate": 1.0,
    "steps": 2**53,
    "draws": 2**53,
}
"""No number of a charge is below zero or above this."""
COUNTS = ("steps", "draws")
"""Whole numbers; draws only where noise is real."""
MOST_ITERATIONS = 2**53


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
    return line | charge_to_json(charge)


def charge_to_json(charge: Charge) -> dict[str, Any]:
    """Return a charge as plain values, without its clients."""
    return {"charge": charge.kind} | {name: values.tolist() for name, values in _columns(charge).items()}


def charge_from_json(line: Mapping[str, Any], clients: Ints) -> Charge:
    """Return the charge that :func:`charge_to_json` was given; ValueError for a column that no ledger writes."""
    charge = _charge(line, clients)
    _check_charge(charge)
    return charge


def _columns(charge: Charge) -> dict[str, Any]:
    """Return a charge's numbers, one for each client: whole ones as integers, all others as floats."""
    return {
        name: np.asarray(values, dtype=np.int64 if name in COUNTS else np.float64)
        for name, values in charge.columns.items()
        if name != "clients"
    }


def from_line(line: Mapping[str, Any], num_clients: int, data_rounds: int) -> Entry:
    """Return the entry that :func:`to_line` was given; ValueError, in words, for anything that no ledger writes."""
    try:
        kind, clients = line["kind"], _integers(line, "clients")
        iteration, round, attempt = (_integer(line, name) for name in ("iteration", "round", "attempt"))
        charge = _charge(line, clients) if kind in CHARGED else None
    except KeyError as error:
        raise ValueError(f"it has no {error}") from None
    entry = Entry(iteration, kind, round, attempt, clients, charge)
    check_entry(entry, num_clients, data_rounds)
    # What is the same again has no names that a ledger does not write, and lacks none.
    if to_line(entry) != line:
        raise ValueError("it is not written as a ledger writes it")
    return entry


def check_entry(entry: Entry, num_clients: int, data_rounds: int) -> None:
    """Refuse, with a ValueError in words, an entry that no run of so many data rounds has."""
    if entry.kind not in (*CHARGED, "left out", *FREE):
        raise ValueError(f"its kind is {shown(entry.kind)}, which no ledger has")
    for name, least in (("iteration", 1), ("round", 1), ("attempt", 0)):
        if not least <= (value := getattr(entry, name)) <= MOST_ITERATIONS:
            raise ValueError(f"its {name} is {shown(value)}, and must be an integer >= {least}")
    if entry.round > data_rounds:
        raise ValueError(f"its round is {entry.round}, and the run has {data_rounds}")
    if entry.round > entry.iteration:
        raise ValueError(f"its round is {entry.round}, which iteration {entry.iteration} cannot have reached")
    clients = entry.clients
    if clients.size and (clients.min() < 0 or clients.max() >= num_clients):
        wrong = clients[(clients < 0) | (clients >= num_clients)][0]
        raise ValueError(f"client {wrong} is not one of 0 to {num_clients - 1}")
    if np.unique(clients).size < clients.size:
        raise ValueError("it names a client twice")
    if entry.charge is not None:
        _check_charge(entry.charge)
        if entry.kind == "scores" and (entry.charge.kind != "gaussian" or entry.attempt or not clients.size):
            raise ValueError(f"its scores are a charge '{entry.charge.kind}' of {clients.size} clients")
    elif clients.size != 0 if entry.kind in FREE else clients.size == 0:
        raise ValueError(f"it is '{entry.kind}' with {clients.size} clients")


def _check_charge(charge: Charge) -> None:
    columns = _columns(charge)
    for name, values in columns.items():
        if values.shape != charge.clients.shape:
            raise ValueError("a charge needs one number for each client")
        wrong = ~((values >= 0) & (values <= MOST[name]))
        if wrong.any():
            raise ValueError(f"its {name} is {values[wrong][0]:g}, and must be from 0 to {MOST[name]:g}")
    if charge.kind == "sampled" and (columns["sensitivity"] <= 0).any():
        raise ValueError("its sensitivity is not above zero")


def _charge(line: Mapping[str, Any], clients: Ints) -> Charge:
    kind = line["charge"]
    if not isinstance(kind, str) or kind not in CHARGE_COLUMNS:
        raise ValueError(f"its charge is {shown(kind)}, which is none of {', '.join(CHARGE_COLUMNS)}")
    needs = CHARGE_COLUMNS[kind]
    numbers: dict[str, Any] = {name: _numbers(line, name) for name in needs if name not in COUNTS}
    # Draws are there where noise is real.
    numbers |= {name: _integers(line, name) for name in COUNTS if name in (line if name == "draws" else needs)}
    return Charge(kind, clients, **numbers)


def _integer(line: Mapping[str, Any], name: str) -> int:
    value = line[name]
    if type(value) is not int:
        raise ValueError(f"its {name} is {shown(value)}, and must be an integer")
    return value


def _integers(line: Mapping[str, Any], name: str) -> Ints:
    values = _list(line, name)
    try:
        if all(type(value) is int for value in values):
            return np.array(values, dtype=np.int64)
    except OverflowError:
        pass
    raise ValueError(f"its {name} are no integers")


def _numbers(line: Mapping[str, Any], name: str) -> Real:
    values = _list(line, name)
    if not all(type(value) is float or type(value) is int for value in values):
        raise ValueError(f"its {name} is no list of numbers")
    try:
        return np.array(values, dtype=np.float64)
    except OverflowError:
        raise ValueError(f"its {name} is no list of numbers") from None


def _list(line: Mapping[str, Any], name: str) -> list[Any]:
    value = line[name]
    if not isinstance(value, list):
        raise ValueError(f"its {name} is no list of numbers")
    return value
