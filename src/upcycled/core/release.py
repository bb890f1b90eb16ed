"""What local work gives, what leaves a client, and the contract of a privacy mechanism.

``Trained`` stays on the clients. A mechanism turns it into a ``Release``, the only type that server code takes:
one vector and the public integers n_i and K_i per client, for every algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from upcycled.core.layout import Layout
from upcycled.core.shards import Shards
from upcycled.core.solvers import Problem, Solver
from upcycled.core.vectors import Ints, Real, Vector, weighted_mean


@dataclass(frozen=True)
class Trained:
    """What a cohort's local work gave; never reaches server code."""

    vectors: Vector
    """The models w_i, shape (cohort, D)."""
    num_steps: Ints
    """K_i, the local steps really taken."""
    private: Vector | None = None
    """Kept by the clients for ever: pFedMe's personal models."""


@dataclass(frozen=True)
class Release:
    """What left the clients of a data round, in the order of ``clients``."""

    clients: Ints
    vectors: Vector
    num_samples: Ints
    num_steps: Ints


class NoiseSource(Protocol):
    """Random numbers for one data round's releases, one independent stream per client."""

    @property
    def name(self) -> str:
        """``"seeded"`` or ``"system"``."""

    def normals(self, clients: Ints, count: int) -> Real:
        """Return standard normals, shape (clients, count)."""


@dataclass(frozen=True)
class Setting:
    """What a mechanism may look at to decide whether it is sound here."""

    algorithm: str
    problem_a: float
    solver: Solver
    layout: Layout
    is_linear_softmax: bool
    num_classes: int
    sizes: Ints
    data_rounds: int
    stragglers: float
    sampling: str
    participation: float


class Mechanism(Protocol):
    """Pure hooks at the places of a data round where privacy is made."""

    @property
    def is_private(self) -> bool:
        """Whether releases are perturbed."""

    def check(self, setting: Setting) -> None:
        """Raise InputError if the mechanism is not sound for this setting."""

    def prepare(self, train: Shards) -> Shards:
        """Return the training data as the mechanism needs it (projected, say)."""

    def solver(self, solver: Solver) -> Solver:
        """Keep the solver, or bring another."""

    def problem(self, problem: Problem, clients: Ints, size: int, noise: NoiseSource) -> Problem:
        """Return the local objectives, perhaps with noise added to b."""

    def release(self, trained: Trained, sent: Vector, clients: Ints, num_samples: Ints, noise: NoiseSource) -> Release:
        """Return what leaves the clients."""

    def aggregate(self, release: Release, noise: NoiseSource) -> Vector:
        """Return sum p_i r_i, or its noisy stand-in."""

    def mean_noise_std(self, release: Release) -> float:
        """Return the known std per coordinate of the noise in the aggregate; zero if there is none."""


# The usual answers to the hooks. A mechanism takes them by assignment (`prepare = keep_data`), not by inheritance.


def allow(self: object, setting: Setting) -> None:
    """Check nothing."""


def keep_data(self: object, train: Shards) -> Shards:
    """Use the data as they are."""
    return train


def keep_solver(self: object, solver: Solver) -> Solver:
    """Use the algorithm's own solver."""
    return solver


def keep_problem(self: object, problem: Problem, clients: Ints, size: int, noise: NoiseSource) -> Problem:
    """Use the algorithm's own objective."""
    return problem


def average(self: object, release: Release, noise: NoiseSource) -> Vector:
    """Return the mean of the releases weighted by n_i."""
    return weighted_mean(release.num_samples.astype(np.float64), release.vectors)


@dataclass(frozen=True)
class NoPrivacy:
    """Releases are the trained models themselves."""

    check = allow
    prepare = keep_data
    solver = keep_solver
    problem = keep_problem
    aggregate = average

    @property
    def is_private(self) -> bool:
        """False."""
        return False

    def release(self, trained: Trained, sent: Vector, clients: Ints, num_samples: Ints, noise: NoiseSource) -> Release:
        """Pass the vectors on."""
        return Release(clients, trained.vectors, num_samples, trained.num_steps)

    def mean_noise_std(self, release: Release) -> float:
        """Zero."""
        return 0.0
