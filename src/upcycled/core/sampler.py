"""Who trains in a data round: a pure function of (seed, round, attempt), so that everybody can know it in advance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Protocol

import numpy as np

from upcycled.core.errors import SHARE, InputError, check_fields, unknown
from upcycled.core.lookup import looked_up, names_code
from upcycled.core.streams import Purpose, choose, client_keys, round_key, uniforms
from upcycled.core.vectors import Ints


class Sampler(Protocol):
    """Draws the clients of a data round. One's own is passed as ``participation=`` and needs these three.

    A draw must follow from its arguments alone: a client's cost is computed from the draws of all rounds before the
    first of them. An empty draw did not happen; it is drawn again with the next ``attempt``.
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
    """Each client by its own coin, so that cohorts vary in size."""

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
