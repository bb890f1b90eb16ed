"""What a file says of each client, where it is first charged: its size, and the paper's number of it.

The header has the largest size, which delta is held against, and a hash of all sizes, by which a run knows its own
file; the rest stands under ``"first"`` in the line that first charges a client. Whoever was never charged has spent
nothing, so that nobody needs its size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled.core.errors import shown
from upcycled.core.vectors import Ints, Real
from upcycled.privacy.ledger.paper_claim import numbers_of

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


class Charged:
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
