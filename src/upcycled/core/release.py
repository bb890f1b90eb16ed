"""What local work gives, what leaves a client, and the contract of a privacy mechanism.

``Trained`` stays on the clients. A mechanism turns it into a ``Release``, the only type that server code takes:
one vector and the public integers n_i and K_i per client, for every algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from upcycled.core.shards import Shards
from upcycled.core.solvers import LocalSGD, Problem, Solver
from upcycled.core.streams import Purpose
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
    """Random numbers for one data round, an independent stream per client and purpose."""

    @property
    def name(self) -> str:
        """``"seeded"`` or ``"system"``."""

    def uniforms(self, clients: Ints, count: int, purpose: Purpose = Purpose.NOISE) -> Real:
        """Return uniforms in (0, 1), shape (clients, count)."""

    def normals(self, clients: Ints, count: int, purpose: Purpose = Purpose.NOISE) -> Real:
        """Return standard normals, shape (clients, count)."""


@dataclass(frozen=True)
class Setting:
    """What a mechanism may look at to decide whether it is sound here, and to calibrate itself: public facts only."""

    algorithm: str
    penalty: float
    """The algorithm's own a: FedProx's mu, FedDyn's alpha, zero for the others."""
    is_personal: bool
    remembers: tuple[str, ...]
    """What the algorithm keeps per client, computed from releases."""
    local: LocalSGD
    is_local_given: bool
    """Whether the user asked for these SGD settings, or they are the defaults."""
    num_parameters: int
    is_linear_softmax: bool
    has_bias: bool
    num_classes: int
    sizes: Ints
    """n_i of every client."""
    rounds: Ints
    """Data rounds each client takes part in, by the public schedule drawn in advance from the seed."""
    data_rounds: int
    """M, all data rounds."""
    stragglers: float
    sampling: str
    participation: float


@dataclass(frozen=True)
class Charge:
    """What one data round costs the clients of a cohort: the rows of the ledger.

    Exactly one of three kinds composes: Gaussian releases by (sensitivity / noise_std)^2, pure ones by epsilon,
    sampled ones by (q, noise multiplier, steps).
    """

    kind: str
    """``"gaussian"``, ``"pure"``, ``"sampled"`` or ``"none"`` (no guarantee is claimed)."""
    sensitivity: Real
    noise_std: Real
    epsilon: Real
    """Of a pure release; zero otherwise."""
    sampling_rate: Real
    """q_i of a sampled release; one otherwise."""
    steps: int = 1
    """Noisy steps of a sampled release; one otherwise."""


class Mechanism(Protocol):
    """Pure hooks at the places of a data round where privacy is made."""

    @property
    def name(self) -> str:
        """The name in the table of mechanisms."""

    @property
    def is_private(self) -> bool:
        """Whether releases are perturbed."""

    def fit(self, setting: Setting) -> Mechanism:
        """Raise InputError if the mechanism is not sound here; else return it with its noise calibrated."""

    def prepare(self, train: Shards) -> Shards:
        """Return the training data as the mechanism needs it (projected, say)."""

    def solver(self, solver: Solver) -> Solver:
        """Keep the algorithm's solver, or bring another."""

    def problem(self, problem: Problem, clients: Ints, size: int, noise: NoiseSource) -> Problem:
        """Return the local objectives, perhaps with a larger a, perhaps with noise added to b."""

    def release(self, trained: Trained, sent: Vector, clients: Ints, num_samples: Ints, noise: NoiseSource) -> Release:
        """Return what leaves the clients."""

    def aggregate(self, release: Release, noise: NoiseSource) -> Vector:
        """Return sum p_i r_i, or its noisy stand-in."""

    def charge(self, clients: Ints) -> Charge | None:
        """Return what a data round costs these clients; None without privacy."""

    def mean_noise_std(self, release: Release) -> float:
        """Return the known std per coordinate of the noise in the aggregate; zero if there is none."""


# The usual answers to the hooks. A mechanism takes them by assignment (`prepare = keep_data`), not by inheritance.


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

    name: ClassVar[str] = "none"

    prepare = keep_data
    solver = keep_solver
    problem = keep_problem
    aggregate = average

    @property
    def is_private(self) -> bool:
        """False."""
        return False

    def fit(self, setting: Setting) -> NoPrivacy:
        """Nothing to check."""
        return self

    def charge(self, clients: Ints) -> None:
        """Nothing is claimed, nothing is charged."""

    def release(self, trained: Trained, sent: Vector, clients: Ints, num_samples: Ints, noise: NoiseSource) -> Release:
        """Pass the vectors on."""
        return Release(clients, trained.vectors, num_samples, trained.num_steps)

    def mean_noise_std(self, release: Release) -> float:
        """Zero."""
        return 0.0
