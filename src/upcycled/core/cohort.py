"""The clients of a data round, and for how many epochs each of them trains."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np

from upcycled.core.errors import PROBABILITY, InputError, check_fields, plain_number
from upcycled.core.sampler import Sampler, as_sampler, expected_cohort
from upcycled.core.streams import Purpose, client_keys, uniforms
from upcycled.core.vectors import Ints

MOST_EMPTY_COHORTS = 10_000


@dataclass(frozen=True)
class Cohort:
    """Who trains: ids and rows are two things, though in a simulation of all clients they are the same numbers."""

    clients: Ints
    """Their numbers in the federation: these key random streams, memories and ledgers."""
    epochs: Ints
    rows: Ints = None  # type: ignore[assignment]
    """Where each one's data and its own numbers lie here, where there may be those of one client only."""

    def __post_init__(self) -> None:
        if self.rows is None:
            object.__setattr__(self, "rows", self.clients)

    def __getitem__(self, places: Ints) -> Cohort:
        """Return some of its members, by their places or by a mask."""
        return Cohort(self.clients[places], self.epochs[places], self.rows[places])


def everybody(num_clients: int) -> Cohort:
    """Return all clients as a cohort, for questions about what a round would cost them."""
    return Cohort(np.arange(num_clients, dtype=np.int64), np.ones(num_clients, dtype=np.int64))


@dataclass(frozen=True)
class Participation:
    """How cohorts are drawn: a function of (seed, round, attempt) and of nothing else.

    >>> Participation(0.5).draw(seed=0, round=1, num_clients=4, epochs=1).clients.size
    2
    """

    fraction: float | Sampler = 1.0
    """A share of the clients, drawn as ``sampling`` says, or a sampler of one's own."""
    sampling: str = "fixed"
    stragglers: Annotated[float, PROBABILITY] = 0.0

    def __post_init__(self) -> None:
        check_fields(self, of="")
        object.__setattr__(self, "fraction", plain_number(self.fraction))
        assert self.sampler  # made, and so checked, at once

    @cached_property
    def sampler(self) -> Sampler:
        """What draws the clients."""
        return as_sampler(self.fraction, self.sampling)

    def expected(self, num_clients: int) -> int:
        """Return the cohort's size, or its mean under Poisson sampling; at least one."""
        return expected_cohort(self.sampler, num_clients)

    def draw(self, seed: int, round: int, num_clients: int, epochs: int, attempt: int = 0) -> Cohort:
        """Return the cohort of the ``round``-th data round; with Poisson sampling it can be empty."""
        return self.cohort_of(self.sampler.draw(seed, round, num_clients, attempt), seed, round, epochs, attempt)

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

    def _epochs(self, seed: int, round: int, clients: Ints, epochs: int, attempt: int) -> Ints:
        full = np.full(clients.size, epochs, dtype=np.int64)
        if self.stragglers == 0:
            return full
        u = uniforms(client_keys(seed, Purpose.STRAGGLER, round, clients, attempt), 2)
        early = 1 + np.floor(u[:, 1] * (epochs - 1)).astype(np.int64)
        return np.where(u[:, 0] < self.stragglers, early, full)
