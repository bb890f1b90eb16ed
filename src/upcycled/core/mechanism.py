"""What local work gives, what leaves a client, and the contract of a privacy mechanism.

``Trained`` stays on the clients. A mechanism turns it into a ``Release``, the only type that server code takes:
one vector and the public integers n_i and K_i per client, for every algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from upcycled.core.sampler import Cohort
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
    """What left the clients of a data round, in the order of ``clients``: all that server code ever sees of them."""

    clients: Ints
    vectors: Vector
    """One vector each, shape (cohort, D): clipped, noisy or otherwise as the mechanism lets it go."""
    num_samples: Ints
    """n_i, which is public."""
    num_steps: Ints
    """K_i, a public constant in private runs."""


class NoiseSource(Protocol):
    """Random numbers for one data round, an independent stream per client and purpose."""

    @property
    def name(self) -> str:
        """``"seeded"`` or ``"system"``."""

    def uniforms(self, clients: Ints, count: int, purpose: Purpose = Purpose.NOISE, start: int = 0) -> Real:
        """Return uniforms in (0, 1), shape (clients, count); ``start`` says how many were taken before."""

    def normals(self, clients: Ints, count: int, purpose: Purpose = Purpose.NOISE, start: int = 0) -> Real:
        """Return standard normals, shape (clients, count); each pair of them takes two uniforms."""


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
    gradients_per_step: int
    """Minibatch gradients that one local step of the algorithm's own solver takes."""
    num_parameters: int
    is_linear_softmax: bool
    has_bias: bool
    has_batch_norm: bool
    """Whether a sample's gradient depends on the samples beside it."""
    num_classes: int
    """Logits the model gives, at least one for each class."""
    sizes: Ints
    """n_i of the clients that are known here: of all, or, where a client plans for itself, its own."""
    num_clients: int
    """N, all clients."""
    rounds: Ints
    """Data rounds each of the known clients takes part in, by the public schedule drawn in advance from the seed."""
    data_rounds: int
    """M, all data rounds."""
    stragglers: float
    sampling: str
    participation: float
    shared: Mapping[str, float] = field(default_factory=dict)
    """What a client that knows its own size only is told: see :attr:`Fitted.shared`."""


@dataclass(frozen=True)
class Charge:
    """What one data round costs its clients: a line of the ledger, with one number for each of ``clients``.

    Releases of one kind compose: Gaussian ones by (sensitivity / noise_std)^2, pure ones by epsilon, sampled ones by
    (q, noise_std / sensitivity, steps). A ledger holds one kind.
    """

    kind: str
    """``"gaussian"``, ``"pure"``, ``"sampled"`` or ``"none"`` (no guarantee is claimed)."""
    clients: Ints
    """Who pays: the cohort, or everybody where nobody can tell who took part."""
    sensitivity: Real
    noise_std: Real
    epsilon: Real | None = None
    """Of a pure release."""
    sampling_rate: Real | None = None
    """q_i of a sampled release."""
    steps: Ints | None = None
    """Noisy steps of a sampled release."""


@dataclass(frozen=True)
class Promise:
    """What a mechanism's epsilon means: facts that code may ask for, and sentences that only people read.

    A mechanism of your own returns one from its property ``promise``; ledgers, statements and reports repeat it.
    """

    released: str
    """What leaves, in words."""
    checked: tuple[str, ...]
    """Assumptions that the code checked or brought about, a sentence each."""
    trusted: tuple[str, ...] = ()
    """Assumptions that are the user's word, a sentence each."""
    unit: str = "record"
    """``"record"`` or ``"client"``: what is replaced between neighbours."""
    sees: str = "releases"
    """What the adversary sees: every client's ``"releases"``, or ``"aggregates"`` only (a trusted server)."""
    sampling_is_secret: bool = False
    """Whether epsilon relies on nobody learning who took part in a round."""
    is_claimed: bool = True
    """False where no epsilon is claimed at all."""
    delta: float | None = None
    """The delta that the user gave with an epsilon; None where the noise itself was given."""

    @property
    def adversary(self) -> str:
        """Against whom it holds, in words."""
        return ADVERSARIES[self.sees]


ADVERSARIES = {
    "releases": "whoever sees every release of every client, such as an honest-but-curious server",
    "aggregates": "whoever sees the aggregates only; the server is trusted",
}
"""What an adversary may see, and who that is."""


class Mechanism(Protocol):
    """What a user chooses: a frozen dataclass of hyper-parameters that fits itself to a run."""

    @property
    def name(self) -> str:
        """The name in the table of mechanisms."""

    def fit(self, setting: Setting) -> Fitted:
        """Raise InputError if the mechanism is not sound here; else return it with its noise calibrated."""


class Fitted(Protocol):
    """Pure hooks at the places of a data round where privacy is made."""

    @property
    def name(self) -> str:
        """The name in the table of mechanisms."""

    @property
    def promise(self) -> Promise:
        """What its epsilon means."""

    @property
    def is_central(self) -> bool:
        """Whether only the aggregate is perturbed: server steps then get it in place of each release."""

    @property
    def draws_secretly(self) -> bool:
        """Whether cohorts are secret Poisson draws from the noise source, empty ones included."""

    @property
    def shared(self) -> Mapping[str, float]:
        """Numbers that follow from the sizes of all clients, for those that know only their own."""

    def prepare(self, train: Shards) -> Shards:
        """Return the training data as the mechanism needs it (projected, say)."""

    def solver(self, solver: Solver) -> Solver:
        """Keep the algorithm's solver, or bring another."""

    def problem(self, problem: Problem, sent: Vector, cohort: Cohort, noise: NoiseSource) -> Problem:
        """Return the local objectives, perhaps with a larger a, perhaps with noise added to b."""

    def release(self, trained: Trained, sent: Vector, cohort: Cohort, num_samples: Ints, noise: NoiseSource) -> Release:
        """Return what leaves the clients."""

    def aggregate(self, release: Release, sent: Vector, noise: NoiseSource) -> Vector:
        """Return sum p_i r_i, or its noisy stand-in."""

    def charge(self, cohort: Cohort) -> Charge | None:
        """Return what a data round with this cohort costs; None without privacy."""

    def mean_noise_std(self, release: Release) -> float:
        """Return the known std per coordinate of the noise in the aggregate; zero if there is none."""


# The usual answers to the hooks. A mechanism takes them by assignment (`prepare = keep_data`), not by inheritance.


def keep_data(self: object, train: Shards) -> Shards:
    """Use the data as they are."""
    return train


def keep_solver(self: object, solver: Solver) -> Solver:
    """Use the algorithm's own solver."""
    return solver


def keep_problem(self: object, problem: Problem, sent: Vector, cohort: Cohort, noise: NoiseSource) -> Problem:
    """Use the algorithm's own objective."""
    return problem


def average(self: object, release: Release, sent: Vector, noise: NoiseSource) -> Vector:
    """Return the mean of the releases weighted by n_i."""
    return weighted_mean(release.num_samples.astype(np.float64), release.vectors)


@dataclass(frozen=True)
class NoPrivacy:
    """Releases are the trained models themselves."""

    name: ClassVar[str] = "none"
    is_central: ClassVar[bool] = False
    draws_secretly: ClassVar[bool] = False
    shared: ClassVar[Mapping[str, float]] = {}
    promise: ClassVar[Promise] = Promise("the trained models themselves", (), is_claimed=False)

    prepare = keep_data
    solver = keep_solver
    problem = keep_problem
    aggregate = average

    def fit(self, setting: Setting) -> NoPrivacy:
        """Nothing to check."""
        return self

    def charge(self, cohort: Cohort) -> None:
        """Nothing is claimed, nothing is charged."""

    def release(self, trained: Trained, sent: Vector, cohort: Cohort, num_samples: Ints, noise: NoiseSource) -> Release:
        """Pass the vectors on."""
        return Release(cohort.clients, trained.vectors, num_samples, trained.num_steps)

    def mean_noise_std(self, release: Release) -> float:
        """Zero."""
        return 0.0
