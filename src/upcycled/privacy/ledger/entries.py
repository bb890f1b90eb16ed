"""One line of the ledger, and how it stands in the file.

The paper's own claims for a run: numbers that are printed beside the proven epsilon, and never relied on.

What a file says of each client, where it is first charged: its size, and the paper's number of it.

The header has the largest size, which delta is held against, and a hash of all sizes, by which a run knows its own
file; the rest stands under ``"first"`` in the line that first charges a client. Whoever was never charged has spent
nothing, so that nobody needs its size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled.core.errors import NOT_NEGATIVE, InputError, shown
from upcycled.core.mechanism import Charge
from upcycled.core.vectors import Ints, Real
from upcycled.privacy.accounting import paper_epsilon, paper_objective_epsilon
from upcycled.privacy.charge_kinds import Gaussian, charge_from_json, integers, kind_of

U1, U2 = 1.0, 0.11
"""The paper's own constants, which reproduce its numbers; u1 = 1 is not a bound for its models."""


@dataclass(frozen=True, eq=False)
class PaperOutput:
    """Output perturbation: it takes clip_norm / n for what one record moves, which is not proven."""

    clip_norm: float
    noise_std: Real
    """Of each client."""

    def epsilon(self, rounds: Ints, sizes: Ints, delta: float) -> Real:
        """Return the number for each client; infinite without noise."""
        found: Real = np.where(rounds > 0, np.inf, 0.0)
        ok = self.noise_std > 0
        found[ok] = paper_epsilon(
            rounds=rounds[ok], clip_norm=self.clip_norm, noise_std=self.noise_std[ok], n=sizes[ok], delta=delta
        )
        return found

    @property
    def numbers(self) -> Real:
        """What it rests on that each client has its own of."""
        return self.noise_std

    def of(self, numbers: Real) -> PaperOutput:
        """Return the claim with other such numbers."""
        return replace(self, noise_std=numbers)

    def to_json(self) -> dict[str, Any]:
        """Return the claim as plain values, without what each client has its own of."""
        return {"theorem": "output", "clip_norm": float(self.clip_norm)}


@dataclass(frozen=True, eq=False)
class PaperTilt:
    """Objective perturbation: a plain sum over data rounds, whatever delta is."""

    alpha: Real
    """Of each client."""
    a: float

    def epsilon(self, rounds: Ints, sizes: Ints, delta: float) -> Real:
        """Return the number for each client; infinite where the theorem's condition u2 <= 0.5 n mu fails."""
        found: Real = np.where(rounds > 0, np.inf, 0.0)
        ok = 0.5 * sizes * self.a >= U2
        if ok.any():
            found[ok] = paper_objective_epsilon(
                alpha=self.alpha[ok], u1=U1, u2=U2, n=sizes[ok], mu=self.a, rounds=rounds[ok]
            )
        return found

    @property
    def numbers(self) -> Real:
        """What it rests on that each client has its own of."""
        return self.alpha

    def of(self, numbers: Real) -> PaperTilt:
        """Return the claim with other such numbers."""
        return replace(self, alpha=numbers)

    def to_json(self) -> dict[str, Any]:
        """Return the claim as plain values, without what each client has its own of."""
        return {"theorem": "objective", "a": float(self.a)}


def paper_from_json(value: Mapping[str, Any] | None) -> PaperOutput | PaperTilt | None:
    """Return the claim of a header, about no client yet; KeyError, TypeError or ValueError if it is none."""
    if value is None:
        return None
    if value["theorem"] == "output":
        return PaperOutput(_number(value["clip_norm"]), np.zeros(0))
    if value["theorem"] == "objective":
        return PaperTilt(np.zeros(0), _number(value["a"]))
    raise ValueError(f"the paper has no theorem {shown(value['theorem'])}")


def _number(value: object) -> float:
    return float(NOT_NEGATIVE.check("the paper's number", value))


def numbers_of(values: Iterable[object]) -> Real:
    """Return the numbers that a file has; InputError for what is none, or is below zero."""
    return np.array([_number(value) for value in values], dtype=np.float64)


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
    return line | kind_of(charge).to_json()


def from_line(line: Mapping[str, Any], num_clients: int, data_rounds: int) -> Entry:
    """Return the entry that :func:`to_line` was given; ValueError, in words, for anything that no ledger writes."""
    try:
        kind, clients = line["kind"], integers(line, "clients")
        iteration, round, attempt = (_integer(line, name) for name in ("iteration", "round", "attempt"))
        charge = charge_from_json(line, clients) if kind in CHARGED else None
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
        kind_of(entry.charge).check()
        if entry.kind == "scores" and (entry.charge.kind != Gaussian.kind or entry.attempt or not clients.size):
            raise ValueError(f"its scores are a charge '{entry.charge.kind}' of {clients.size} clients")
    elif clients.size != 0 if entry.kind in FREE else clients.size == 0:
        raise ValueError(f"it is '{entry.kind}' with {clients.size} clients")


def _integer(line: Mapping[str, Any], name: str) -> int:
    value = line[name]
    if type(value) is not int:
        raise ValueError(f"its {name} is {shown(value)}, and must be an integer")
    return value


LISTED = 10_000
"""The most clients of whom a header says which planned charges are theirs; more have one row that bounds them all."""
FIRST = "first"
_PART = 2**20


@dataclass(frozen=True)
class Seal:
    """The sizes of all clients in short."""

    largest: int
    """n of the largest client."""
    sha256: str
    """Of all sizes in order, each as eight bytes, the lowest first."""


def seal_of(sizes: Ints) -> Seal:
    """Return the sizes in short; parts at a time, for they may be those of millions.

    >>> seal_of(np.array([3, 5])).largest
    5
    """
    found = hashlib.sha256()
    for start in range(0, sizes.size, _PART):
        found.update(sizes[start : start + _PART].astype("<i8").tobytes())
    return Seal(int(sizes.max()), found.hexdigest())


def seal_from_json(value: object) -> Seal:
    """Return the seal that ``vars`` was asked of; ValueError, in words, if it was none."""
    if not isinstance(value, Mapping) or set(value) != {"largest", "sha256"}:
        raise ValueError("its sizes are not the largest of them and a hash of all")
    largest, sha256 = value["largest"], value["sha256"]
    if type(largest) is not int or largest < 1 or not isinstance(sha256, str):
        raise ValueError(f"the largest of its sizes is {shown(largest)}, and must be an integer >= 1")
    return Seal(largest, sha256)


@dataclass(frozen=True)
class First:
    """The clients that a line is the first to charge, in its order, and what it says of them."""

    clients: Ints
    sizes: Ints
    paper: Real | None
    """What the paper's claim rests on, where it claims anything."""

    def to_json(self) -> dict[str, Any]:
        """Return what the line has of it: nothing where nobody is new."""
        if not self.clients.size:
            return {}
        paper = {} if self.paper is None else {"paper": self.paper.tolist()}
        return {FIRST: {"sizes": self.sizes.tolist(), **paper}}


def first_from_json(value: object, clients: Ints, seal: Seal, has_paper: bool) -> First:
    """Return what a line says of the clients that it is the first to charge; ValueError, in words, if it is not that.

    Names that no ledger writes are found by whoever compares the line with the one that ``to_json`` gives.
    """
    given = {} if value is None else value
    if not isinstance(given, Mapping):
        raise ValueError(f"what it says of clients that are new is {shown(value)}, and must be a table")
    sizes, paper = given.get("sizes", []), given.get("paper", [] if has_paper else None)
    if not isinstance(sizes, list) or not all(type(n) is int and 1 <= n <= seal.largest for n in sizes):
        raise ValueError(f"its sizes of clients that are new are not from 1 to {seal.largest}")
    if len(sizes) != clients.size or (len(paper) if isinstance(paper, list) else 0) != clients.size * has_paper:
        raise ValueError(f"it is the first to charge {clients.size} clients, and does not say as much of them")
    return First(clients, np.array(sizes, dtype=np.int64), numbers_of(paper) if has_paper else None)


class ChargedClients:
    """Who was charged by the lines so far."""

    def __init__(self, num_clients: int) -> None:
        # Zeros take memory only where they are written.
        self._is_in: NDArray[np.bool_] = np.zeros(num_clients, dtype=bool)

    def new(self, clients: Ints) -> Ints:
        """Return those who were not, in the order given."""
        found: Ints = clients[~self._is_in[clients]]
        return found

    def add(self, clients: Ints) -> None:
        """Count them in."""
        self._is_in[clients] = True


def spread(num_clients: int, firsts: Iterable[First]) -> tuple[Ints, Real]:
    """Return sizes and the paper's numbers of all clients; zero where no line has them."""
    sizes, paper = np.zeros(num_clients, dtype=np.int64), np.zeros(num_clients)
    for first in firsts:
        sizes[first.clients] = first.sizes
        if first.paper is not None:
            paper[first.clients] = first.paper
    return sizes, paper
