"""Who trains in a data round, and for how many epochs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from upcycled.core.errors import PROBABILITY, SHARE, InputError, check_fields, unknown
from upcycled.core.streams import Purpose, choose, client_keys, round_key, uniforms
from upcycled.core.vectors import Ints

SAMPLINGS = ("fixed", "poisson")
MOST_EMPTY_COHORTS = 10_000


@dataclass(frozen=True)
class Cohort:
    """The clients of a data round and the epochs each of them trains."""

    clients: Ints
    epochs: Ints


@dataclass(frozen=True)
class Participation:
    """How cohorts are drawn: a function of (seed, round, attempt) and of nothing else.

    >>> Participation(fraction=0.5).draw(seed=0, round=1, num_clients=4, epochs=1).clients.size
    2
    """

    fraction: Annotated[float, SHARE] = 1.0
    sampling: str = "fixed"
    stragglers: Annotated[float, PROBABILITY] = 0.0

    def __post_init__(self) -> None:
        check_fields(self, of="", fraction="participation")
        if self.sampling not in SAMPLINGS:
            raise unknown("sampling", self.sampling, SAMPLINGS)

    def expected(self, num_clients: int) -> int:
        """Return the cohort's size, or its mean under Poisson sampling; at least one."""
        # The tiny addition keeps 0.29 * 100 = 28.999... from losing a client.
        return max(1, int(np.floor(self.fraction * num_clients + 1e-9)))

    def draw(self, seed: int, round: int, num_clients: int, epochs: int, attempt: int = 0) -> Cohort:
        """Return the cohort of the ``round``-th data round; with Poisson sampling it can be empty."""
        clients = self._clients(seed, round, num_clients, attempt)
        return self.cohort_of(clients, seed, round, epochs, attempt)

    def cohort_of(self, clients: Ints, seed: int, round: int, epochs: int, attempt: int = 0) -> Cohort:
        """Return these clients with the epochs each of them trains."""
        return Cohort(clients, self._epochs(seed, round, clients, epochs, attempt))

    def rounds_of_clients(self, seed: int, num_clients: int, rounds: int) -> Ints:
        """Return how many of the first ``rounds`` data rounds each client takes part in: public, known in advance."""
        if self.fraction == 1.0:
            return np.full(num_clients, rounds, dtype=np.int64)
        counts = np.zeros(num_clients, dtype=np.int64)
        for m in range(1, rounds + 1):
            counts[self.draw_nonempty(seed, m, num_clients, 1)[0].clients] += 1
        return counts

    def draw_nonempty(
        self, seed: int, round: int, num_clients: int, epochs: int, attempt: int = 0
    ) -> tuple[Cohort, int]:
        """Return the first cohort with anybody in it, and its attempt: a round that nobody came to did not happen."""
        for trial in range(attempt, attempt + MOST_EMPTY_COHORTS):
            cohort = self.draw(seed, round, num_clients, epochs, trial)
            if cohort.clients.size:
                return cohort, trial
        raise InputError(
            f"is {self.fraction!r} of {num_clients} clients, but {MOST_EMPTY_COHORTS} Poisson draws in a row were "
            "empty: it must be larger",
            field="participation",
        )

    def _clients(self, seed: int, round: int, num_clients: int, attempt: int) -> Ints:
        if self.fraction == 1.0:
            return np.arange(num_clients, dtype=np.int64)
        if self.sampling == "fixed":
            return choose(round_key(seed, Purpose.COHORT, round, attempt), num_clients, self.expected(num_clients))
        keys = client_keys(seed, Purpose.COHORT, round, np.arange(num_clients), attempt)
        return np.flatnonzero(uniforms(keys, 1)[:, 0] < self.fraction).astype(np.int64)

    def _epochs(self, seed: int, round: int, clients: Ints, epochs: int, attempt: int) -> Ints:
        full = np.full(clients.size, epochs, dtype=np.int64)
        if self.stragglers == 0:
            return full
        u = uniforms(client_keys(seed, Purpose.STRAGGLER, round, clients, attempt), 2)
        early = 1 + np.floor(u[:, 1] * (epochs - 1)).astype(np.int64)
        return np.where(u[:, 0] < self.stragglers, early, full)
