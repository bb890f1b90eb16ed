"""What clients remember between rounds: rows allocated when a client is first used."""

from __future__ import annotations

import numpy as np

from upcycled.core.algorithm import Vectors
from upcycled.core.vectors import Ints, Vector


class ClientMemory:
    """Named vectors per client, zero until written; keyed by client id, never by place in a cohort.

    A gather copies rows out and a put copies them in, so a round that fails half-way has changed nothing.
    """

    def __init__(self, names: tuple[str, ...], num_clients: int, size: int) -> None:
        self.names = names
        self._size = size
        self._slot = np.full(num_clients if names else 0, -1, dtype=np.int64)
        self._rows: dict[str, Vector] = {name: np.zeros((0, size), dtype=np.float32) for name in names}
        self._used = 0
        self._before: tuple[int, int, Ints, Ints, Vectors] | None = None

    @property
    def clients(self) -> Ints:
        """The clients that have rows, in ascending order."""
        return np.flatnonzero(self._slot >= 0).astype(np.int64)

    def gather(self, clients: Ints) -> Vectors:
        """Return copies of the clients' rows, (cohort, D) under each name."""
        if not self.names:
            return {}
        slots = self._slot[clients]
        known = slots >= 0
        found = {}
        for name, rows in self._rows.items():
            out = np.zeros((clients.size, self._size), dtype=np.float32)
            out[known] = rows[slots[known]]
            found[name] = out
        return found

    def put(self, clients: Ints, vectors: Vectors, iteration: int | None = None) -> None:
        """Store the clients' new rows; given the iteration that brought them, :meth:`back_to` can undo it."""
        if not self.names:
            return
        slots = self._slot[clients]
        fresh, known = clients[slots < 0], clients[slots >= 0]
        self._before = None if iteration is None else (iteration, self._used, fresh, known, self.gather(known))
        self._reserve(self._used + fresh.size)
        self._slot[fresh] = np.arange(self._used, self._used + fresh.size)
        self._used += fresh.size
        for name in self.names:
            self._rows[name][self._slot[clients]] = vectors[name]

    def back_to(self, iteration: int) -> None:
        """Undo the last put if a later iteration made it, even one that was broken off half-way."""
        if self._before is None or self._before[0] <= iteration:
            return
        _, used, fresh, known, rows = self._before
        self._slot[fresh] = -1
        self._used = used
        for name in self.names:
            self._rows[name][self._slot[known]] = rows[name]
        self._before = None

    def content(self) -> tuple[Ints, Vectors]:
        """Return the clients in the order of their rows, and the rows: a put of these into an empty memory restores it.

        Views, to be read before the next put.
        """
        known = self.clients
        order = np.empty_like(known)
        order[self._slot[known]] = known
        return order, {name: rows[: self._used] for name, rows in self._rows.items()}

    def _reserve(self, needed: int) -> None:
        for name, rows in self._rows.items():
            if needed > rows.shape[0]:
                grown = np.zeros((max(needed, 2 * rows.shape[0]), self._size), dtype=np.float32)
                grown[: self._used] = rows[: self._used]
                self._rows[name] = grown
