"""Who trains in a data round, and for how long: a function of (seed, round, attempt), known to all in advance."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, ClassVar, Protocol

import numpy as np

from upcycled.core.errors import PROBABILITY, SHARE, InputError, check_fields, plain_number, unknown
from upcycled.core.randomness import (
    Purpose,
    Words,
    choose,
    choose_each,
    client_keys,
    keys_within,
    round_key,
    round_keys,
    uniforms,
)
from upcycled.core.user_code import looked_up, names_code
from upcycled.core.vectors import Ints


class Sampler(Protocol):
    """Draws the clients of a data round. One's own is passed as ``participation=`` and needs these three.

    A draw must follow from its arguments alone: a client's cost is computed from the draws of all rounds before the
    first of them. An empty draw did not happen; it is drawn again with the next ``attempt``.

    >>> import upcycled as up
    >>> @dataclass(frozen=True)
    ... class Turns:
    ...     name = "turns"
    ...     fraction = 0.5
    ...     def draw(self, seed, round, num_clients, attempt):
    ...         return np.arange(round % 2, num_clients, 2)
    >>> data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    >>> run = up.train(data, algorithm=up.FedAvg(), participation=Turns(), iterations=2, progress=False)
    >>> [record.clients.tolist() for record in run.history]
    [[1, 3], [0, 2]]
    """

    @property
    def name(self) -> str:
        """What records and mechanisms call it."""

    @property
    def fraction(self) -> float:
        """The share of all clients that a round has on average."""

    def draw(self, seed: int, round: int, num_clients: int, attempt: int) -> Ints:
        """Return the numbers of the clients, each once, of 0 .. num_clients - 1."""


def expected_cohort(sampler: Sampler, num_clients: int) -> int:
    """Return the cohort's size, or its mean where it varies; at least one."""
    # The tiny addition keeps 0.29 * 100 = 28.999... from losing a client.
    return max(1, int(np.floor(sampler.fraction * num_clients + 1e-9)))


@dataclass(frozen=True)
class FixedSampler:
    """The same number of clients every round, without replacement.

    Args:
        fraction: the share of the clients.

    >>> FixedSampler(0.5).draw(seed=0, round=1, num_clients=4, attempt=0).size
    2
    """

    fraction: Annotated[float, SHARE] = 1.0
    name: ClassVar[str] = "fixed"

    def __post_init__(self) -> None:
        check_fields(self, of="", fraction="participation")

    def draw(self, seed: int, round: int, num_clients: int, attempt: int) -> Ints:
        if self.fraction == 1.0:
            return np.arange(num_clients, dtype=np.int64)
        return choose(round_key(seed, Purpose.COHORT, round, attempt), num_clients, expected_cohort(self, num_clients))


@dataclass(frozen=True)
class PoissonSampler:
    """Each client by its own coin, so that cohorts vary in size.

    Args:
        fraction: the chance of each client.

    >>> PoissonSampler(0.5).draw(seed=0, round=1, num_clients=1000, attempt=0).size
    506
    """

    fraction: Annotated[float, SHARE] = 1.0
    name: ClassVar[str] = "poisson"

    def __post_init__(self) -> None:
        check_fields(self, of="", fraction="participation")

    def draw(self, seed: int, round: int, num_clients: int, attempt: int) -> Ints:
        if self.fraction == 1.0:
            return np.arange(num_clients, dtype=np.int64)
        keys = client_keys(seed, Purpose.COHORT, round, np.arange(num_clients), attempt)
        return np.flatnonzero(uniforms(keys, 1)[:, 0] < self.fraction).astype(np.int64)


SAMPLERS = {made.name: made for made in (FixedSampler, PoissonSampler)}


@dataclass(frozen=True)
class _Checked:
    """Somebody's own sampler, whose draws are looked at before anything is indexed by them."""

    own: Sampler

    @property
    def name(self) -> str:
        return self.own.name

    @property
    def fraction(self) -> float:
        return float(self.own.fraction)

    def draw(self, seed: int, round: int, num_clients: int, attempt: int) -> Ints:
        drawn = np.asarray(self.own.draw(seed, round, num_clients, attempt))
        whole = drawn.ndim == 1 and (np.issubdtype(drawn.dtype, np.integer) or not drawn.size)
        if not whole or np.unique(drawn).size != drawn.size or (drawn < 0).any() or (drawn >= num_clients).any():
            raise InputError(
                f"the sampler {self.name!r} drew {drawn!r} in data round {round}, but it must draw different whole "
                f"numbers from 0 to {num_clients - 1}"
            )
        return drawn.astype(np.int64)


def as_sampler(participation: object, sampling: str = "fixed") -> Sampler:
    """Turn what a user passes as ``participation=`` and ``sampling=`` into a sampler.

    ``sampling`` may name a class of one's own, ``"package.module:Name"``, which is called with ``fraction``.
    """
    if isinstance(participation, FixedSampler | PoissonSampler):
        return participation
    if not isinstance(participation, type) and hasattr(participation, "draw") and hasattr(participation, "fraction"):
        own: Sampler = participation  # type: ignore[assignment]
        SHARE.check("fraction", own.fraction, of=f"sampler {own.name!r}")
        return _Checked(own)
    if names_code(sampling):
        return as_sampler(looked_up(sampling, "sampling")(fraction=participation))
    if sampling not in SAMPLERS:
        raise unknown("sampling", sampling, SAMPLERS)
    return SAMPLERS[sampling](participation)  # type: ignore[arg-type]


DRAWN_AT_ONCE = 512
"""Clients of small cohorts that are drawn at once, of many rounds: one by one, NumPy's calls cost more than a round."""
MOST_EMPTY_COHORTS = 10_000
MOST_ROUNDS = 2**53
MOST_ROUNDS_DRAWN = 1_000_000
"""Data rounds whose cohorts are drawn before a private run begins; a million take some seconds."""


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
        return as_sampler(self.fraction, self.sampling)

    def expected(self, num_clients: int) -> int:
        """Return the cohort's size, or its mean under Poisson sampling; at least one."""
        return expected_cohort(self.sampler, num_clients)

    def draw(self, seed: int, round: int, num_clients: int, epochs: int, attempt: int = 0) -> Cohort:
        """Return the cohort of the ``round``-th data round; with Poisson sampling it can be empty."""
        if attempt == 0 and isinstance(self.sampler, FixedSampler):
            at_once = DRAWN_AT_ONCE // self.expected(num_clients)
            if at_once > 1:
                block, place = divmod(round - 1, at_once)
                rounds = (block * at_once + 1, at_once)
                clients, of_each = _cohorts(self.sampler, self.stragglers, seed, rounds, num_clients, epochs)
                return Cohort(clients[place].copy(), of_each[place].copy())  # nobody's change reaches another run
        return self.cohort_of(self.sampler.draw(seed, round, num_clients, attempt), seed, round, epochs, attempt)

    def cohort_of(self, clients: Ints, seed: int, round: int, epochs: int, attempt: int = 0) -> Cohort:
        """Return these clients with the epochs each of them trains."""
        return Cohort(clients, self._epochs(seed, round, clients, epochs, attempt))

    def rounds_of_clients(self, seed: int, num_clients: int, rounds: int) -> Ints:
        """Return how many of the first ``rounds`` data rounds each client takes part in: public, known in advance."""
        most = MOST_ROUNDS if self.fraction == 1.0 else MOST_ROUNDS_DRAWN
        if rounds > most:
            raise InputError(
                f"make {rounds} data rounds, but a private run must have at most {most}: who takes part in which is "
                "known in advance",
                field="iterations",
            )
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
        if self.stragglers == 0:
            return np.full(clients.size, epochs, dtype=np.int64)
        return _with_stragglers(client_keys(seed, Purpose.STRAGGLER, round, clients, attempt), self.stragglers, epochs)


def _with_stragglers(keys: Words, stragglers: float, epochs: int) -> Ints:
    """Return the epochs of clients with these keys."""
    u = uniforms(keys, 2)
    early = 1 + np.floor(u[..., 1] * (epochs - 1)).astype(np.int64)
    return np.where(u[..., 0] < stragglers, early, np.int64(epochs))


@lru_cache(maxsize=32)
def _cohorts(
    sampler: FixedSampler, stragglers: float, seed: int, rounds: tuple[int, int], num_clients: int, epochs: int
) -> tuple[Ints, Ints]:
    """Return the clients of some rounds (first, how many) and the epochs of each, one row a round."""
    numbers = np.arange(rounds[0], rounds[0] + rounds[1], dtype=np.int64)
    if sampler.fraction == 1.0:
        clients = np.tile(np.arange(num_clients, dtype=np.int64), (rounds[1], 1))
    else:
        keys = round_keys(seed, Purpose.COHORT, numbers)
        clients = choose_each(keys, num_clients, expected_cohort(sampler, num_clients))
    if stragglers == 0:
        return clients, np.full(clients.shape, epochs, dtype=np.int64)
    keys = keys_within(round_keys(seed, Purpose.STRAGGLER, numbers)[:, None], clients)
    return clients, _with_stragglers(keys, stragglers, epochs)
