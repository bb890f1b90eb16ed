"""What clients are asked, what local work gives, what leaves a client, and the contract of a privacy mechanism.

``Trained`` stays on the clients. A mechanism turns it into a ``Release``, the only type that server code takes:
one vector and the public integers n_i and K_i per client, for every algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np

from upcycled.core.errors import InputError
from upcycled.core.facts import Facts
from upcycled.core.objective import GeneralisedLinear
from upcycled.core.randomness import Purpose
from upcycled.core.sampling import Cohort, Participation
from upcycled.core.solvers import LocalSGD, Problem, Solver
from upcycled.core.vectors import Ints, Real, Shards, Vector, weighted_mean


@dataclass(frozen=True)
class Ask:
    """What the server asks of a cohort in one attempt at a data round, as it is sent to sites and given to engines.

    The local work is to minimise F_i + a/2 ||x - w||^2 + <b_i, x>, starting at w = model.
    """

    iteration: int
    round: int
    attempt: int
    cohort: Cohort
    model: Vector
    problem: Problem
    """a, and a row of b for each client: the algorithm's part, to which a mechanism adds its own before local work."""
    statistics: Vector | None = None
    """The model's running statistics of batch norm, where it has some."""
    clip_scale: float = 1.0
    """See :attr:`State.clip_scale`."""

    def __getitem__(self, places: Ints) -> Ask:
        """Return what is asked of some of the cohort, by their places."""
        b = self.problem.b
        problem = replace(self.problem, b=None if b is None else b[places])
        return replace(self, cohort=self.cohort[places], problem=problem)

    def of(self, client: int) -> Ask:
        """Return the part that one client is sent.

        Raises:
            InputError: if it is not asked in this round.
        """
        places = np.flatnonzero(self.cohort.clients == client)
        if not places.size:
            raise InputError(f"client {client} is not in the cohort of data round {self.round}")
        return self[places]


@dataclass(frozen=True)
class Trained:
    """What a cohort's local work gave; never reaches server code."""

    vectors: Vector
    """The models w_i, shape (cohort, D)."""
    num_steps: Ints
    """K_i, the local steps really taken."""
    private: Vector | None = None
    """Kept by the clients for ever: pFedMe's personal models."""
    statistics: Vector | None = None
    """Each client's running statistics of batch norm after training, where the model has some."""


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
    statistics: Vector | None = None
    """Each client's running statistics of batch norm; only without privacy."""


class NoiseSource(Protocol):
    """Random numbers for one data round, an independent stream per client and purpose.

    Noise is a whole number of grid steps (see ``core.vectors.on_grid``); ``scale`` is in grid steps too, one a client.
    """

    @property
    def name(self) -> str:
        """``"seeded"`` or ``"system"``."""

    def round_key(self, purpose: Purpose) -> int | None:
        """Return the key of the clients' streams, for engines that compute the same numbers themselves.

        None where numbers come from elsewhere: they must then be asked for.
        """

    def uniforms(self, clients: Ints, count: int, purpose: Purpose = Purpose.NOISE, start: int = 0) -> Real:
        """Return uniforms in (0, 1), shape (clients, count); ``start`` says how many were taken before."""

    def gaussian_steps(
        self, clients: Ints, count: int, scale: Real, purpose: Purpose = Purpose.NOISE, start: int = 0
    ) -> Real:
        """Return Gaussian noise of std ``scale``, shape (clients, count); each pair of numbers takes two uniforms."""

    def laplace_steps(
        self, clients: Ints, count: int, scale: Real, purpose: Purpose = Purpose.NOISE, start: int = 0
    ) -> Real:
        """Return noise of density ~ exp(-|k| / scale), shape (clients, count); each number takes one uniform."""

    def exponentials(self, clients: Ints, count: int, purpose: Purpose, start: int = 0) -> Real:
        """Return standard exponentials, shape (clients, count); each takes one uniform."""

    def normals(self, clients: Ints, count: int, purpose: Purpose, start: int = 0) -> Real:
        """Return standard normals, shape (clients, count); each pair of them takes two uniforms."""


@dataclass(frozen=True)
class Setting:
    """What a mechanism may look at to decide whether it is sound here, and to calibrate itself: public facts only."""

    facts: Facts
    """Of the data: ``facts.sizes`` are n_i of all clients, or, where a client plans for itself, its own."""
    participation: Participation
    """How cohorts are drawn, and the share of stragglers."""
    algorithm: str
    """Its name."""
    penalty: float
    """The algorithm's own a: FedProx's mu, FedDyn's alpha, zero for the others."""
    is_personal: bool
    remembers: tuple[str, ...]
    """What the algorithm keeps per client, computed from releases."""
    local: LocalSGD
    """Epochs and batches; and the steps, where they are SGD's own."""
    is_plain_sgd: bool
    """Whether local steps are SGD at one rate, perhaps with momentum, and no more."""
    is_local_given: bool
    """Whether the user asked for these SGD settings, or they are the defaults."""
    gradients_per_step: int
    """Minibatch gradients that one local step of the algorithm's own solver takes."""
    num_parameters: int
    convex: GeneralisedLinear | None
    """What is proven of the loss, where the model is linear and the loss has a proof; None elsewhere."""
    has_bias: bool
    has_batch_norm: bool
    """Whether a sample's gradient depends on the samples beside it."""
    rounds: Ints
    """Data rounds each of the known clients takes part in, by the public schedule drawn in advance from the seed."""
    data_rounds: int
    """M, all data rounds."""
    noise: str = "seeded"
    """``"seeded"``, or ``"system"`` where the noise is real and its sampler's error is to be paid for."""
    score_squares: float = 0.0
    """What charged scores add to a client's sum of (sensitivity / noise_std)^2 over the run."""
    score_draws: int = 0
    """Numbers of real noise in all of a client's charged scores."""
    score_times: int = 0
    """The number of times that scores are charged."""
    uses_releases: bool = False
    """Whether the algorithm's server step looks at each release and its K_i, and not at their mean alone."""

    @property
    def draws(self) -> int | None:
        """Numbers of real noise that one noisy vector takes; None where noise is simulated."""
        return self.num_parameters if self.noise == "system" else None


@dataclass(frozen=True)
class Charge:
    """What one data round costs its clients: a line of the ledger, with one number for each of ``clients``.

    Every field but ``kind`` is a column: an array with one number for each client, or None. Slicing and joining take
    all of them, so a new column cannot be lost on the way to an account. The class of the kind
    (``privacy/charge_kinds.py``) says which columns it has and how its charges add up; the ledger rejects an unknown
    kind, other columns and numbers out of range before anything is released.

    >>> both = Charge("pure", np.array([3, 5]), np.zeros(2), np.zeros(2), epsilon=np.array([0.1, 0.2]))
    >>> both[np.array([1])].epsilon
    array([0.2])

    Releases of one kind compose: Gaussian ones by (sensitivity / noise_std)^2, pure ones by epsilon, sampled ones by
    (q, noise_std / sensitivity, steps). A ledger holds one kind.
    """

    kind: str
    """``"gaussian"``, ``"pure"``, ``"sampled"``, ``"none"`` (no guarantee is claimed), or a registered kind."""
    clients: Ints
    """Who pays: the cohort, or everybody where nobody can tell who took part."""
    sensitivity: Real
    """The most that one record, or one client, moves the release, in L2 norm."""
    noise_std: Real
    """The noise's standard deviation per coordinate."""
    epsilon: Real | None = None
    """Of a pure release."""
    sampling_rate: Real | None = None
    """q_i of a sampled release."""
    steps: Ints | None = None
    """Noisy steps of a sampled release."""
    draws: Ints | None = None
    """Numbers of real Gaussian noise in it, each sampled with a known error; None where noise is simulated."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """The columns that only a registered kind has, by name."""

    def __post_init__(self) -> None:
        # Whoever reads the field would miss such a column, and whoever reads the columns would miss the field.
        if wrong := sorted({*self.more}.intersection(_CHARGE_FIELDS)):
            raise InputError(f"Charge: 'more' has the column '{wrong[0]}'; expected it as the field '{wrong[0]}'")

    @property
    def columns(self) -> dict[str, Any]:
        """The arrays by name, ``clients`` first, without columns that are None."""
        arrays = {name: getattr(self, name) for name in _CHARGE_FIELDS}
        return {name: values for name, values in arrays.items() if values is not None} | dict(self.more)

    def __getitem__(self, places: Ints) -> Charge:
        """Return the charge of the clients at these places of the columns."""
        return charge_of(self.kind, {name: values[places] for name, values in self.columns.items()})

    @classmethod
    def joined(cls, charges: Sequence[Charge]) -> Charge:
        """Return several charges as one.

        Args:
            charges: one or more, of one kind and with the same columns.

        Returns:
            The charge of all their clients, in the order given.

        Raises:
            InputError: if kinds or columns differ.

        >>> ones = np.ones(1)
        >>> Charge.joined([Charge("gaussian", np.array([i]), ones, 2 * ones) for i in (5, 3)]).clients
        array([5, 3])
        """
        shapes = {(one.kind, *sorted(one.columns)) for one in charges}
        if len(shapes) != 1:
            raise InputError(f"Charge.joined: {len(shapes)} different kinds or sets of columns; expected one")
        columns = [one.columns for one in charges]
        return charge_of(charges[0].kind, {name: np.concatenate([one[name] for one in columns]) for name in columns[0]})


_CHARGE_FIELDS = tuple(column.name for column in fields(Charge) if column.name not in ("kind", "more"))


def charge_of(kind: str, columns: Mapping[str, Any]) -> Charge:
    """Return the charge with these columns, ``clients`` among them."""
    more = {name: values for name, values in columns.items() if name not in _CHARGE_FIELDS}
    return Charge(kind, **{name: values for name, values in columns.items() if name not in more}, more=more)


@dataclass(frozen=True)
class Promise:
    """What a mechanism's epsilon means: facts that code may ask for, and sentences that only people read.

    A fitted mechanism holds one (see :class:`Fitted`); ledgers, statements and reports repeat it.
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


class PaperClaim(Protocol):
    """The paper's own number for a mechanism: printed beside the proven epsilon, and never relied on."""

    def epsilon(self, rounds: Ints, sizes: Ints, delta: float) -> Real:
        """Return the number for each client."""

    def to_json(self) -> dict[str, Any]:
        """Return the claim as plain values."""


# The usual answers to the hooks.


def keep_data(train: Shards) -> Shards:
    """Use the data as they are."""
    return train


def keep_solver(solver: Solver) -> Solver:
    """Use the algorithm's own solver."""
    return solver


def bring(made: Solver, solver: Solver) -> Solver:
    """Use ``made`` in the place of the algorithm's own solver: ``solver=partial(bring, made)``."""
    return made


def keep_problem(problem: Problem, sent: Vector, cohort: Cohort, noise: NoiseSource) -> Problem:
    """Use the algorithm's own objective."""
    return problem


def average(release: Release, sent: Vector, noise: NoiseSource) -> Vector:
    """Return the mean of the releases weighted by n_i."""
    return weighted_mean(release.num_samples.astype(np.float64), release.vectors)


def no_claim(cohort: Cohort) -> Charge:
    """Charge the cohort with an infinite epsilon: no guarantee is claimed."""
    return Charge("none", cohort.clients, np.zeros(cohort.clients.size), np.zeros(cohort.clients.size))


def no_known_noise(release: Release) -> float:
    """Zero: there is none in the aggregate, or its std is not known."""
    return 0.0


class Adaptive(Protocol):
    """A bound that follows what was released: a round at ``scale`` is one at the first bound, of updates over scale.

    What the mechanism then makes of them is multiplied by scale, so bound and noise are scale times the first ones' and
    a round costs the same at every scale. Both methods are pure.
    """

    def at(self, fitted: Fitted, scale: float) -> Fitted:
        """Return the mechanism of a round at this scale, which is public."""

    def after(self, scale: float, release: Release, sent: Vector, noise: NoiseSource) -> float:
        """Return the next round's scale, from releases or from what the charge covers."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Fitted:
    """A mechanism at work: pure hooks at the places of a data round where privacy is made, and what they promise.

    Hooks index their numbers per client by ``cohort.rows`` and key random streams by ``cohort.clients``. Functions of
    a module, bound methods of frozen dataclasses and ``functools.partial`` of either all travel to worker processes.
    """

    name: str
    """The name in the table of mechanisms."""
    promise: Promise
    release: Callable[[Trained, Vector, Cohort, Ints, NoiseSource], Release]
    """(trained, sent, cohort, num_samples, noise) -> what leaves the clients."""
    charge: Callable[[Cohort], Charge | None]
    """What a data round with this cohort costs. None claims nothing: ledgers then state an infinite epsilon."""
    norm_bound: float | None = None
    """Features are scaled down to this norm by ``prepare``, and so by the model ever after; None without such a map."""
    prepare: Callable[[Shards], Shards] = keep_data
    """The data as the mechanism needs them (projected, say): training data, and what the model is scored on."""
    solver: Callable[[Solver], Solver] = keep_solver
    """The algorithm's solver, or another in its place."""
    problem: Callable[[Problem, Vector, Cohort, NoiseSource], Problem] = keep_problem
    """(problem, sent, cohort, noise) -> the local objectives, perhaps with a larger a, or with noise added to b."""
    aggregate: Callable[[Release, Vector, NoiseSource], Vector] = average
    """(release, sent, noise) -> sum p_i r_i, or its noisy stand-in."""
    mean_noise_std: Callable[[Release], float] = no_known_noise
    """The known std per coordinate of the noise in the aggregate; zero if there is none."""
    release_noise_std: Callable[[Release], Real] | None = None
    """The std per coordinate of the noise in each release, public, or a bound on it; None where nobody knows it."""
    is_central: bool = False
    """Whether only the aggregate is perturbed: server steps then get it in place of each release."""
    draws_secretly: bool = False
    """Whether cohorts are secret Poisson draws from the noise source, empty ones included."""
    shared: Mapping[str, float] = field(default_factory=dict)
    """Numbers that follow from the sizes of all clients, for those that know only their own."""
    prox_mu: float = 0.0
    """What ``problem`` adds to a."""
    alpha: Real | None = None
    """The rate of each client's noise, where it is inside the objective; None elsewhere."""
    paper: PaperClaim | None = None
    """What the paper claims; None where it has nothing to say."""
    adaptive: Adaptive | None = None
    """How its bound moves from round to round; None where it is fixed. Hooks and charge are those at scale 1."""

    def at(self, scale: float) -> Fitted:
        """Return the mechanism of a round at this scale of its bound."""
        return self if self.adaptive is None else self.adaptive.at(self, scale)


class Mechanism(Protocol):
    """What a user chooses: a frozen dataclass of hyper-parameters that fits itself to a run.

    One's own is passed as ``privacy=`` and needs no more than ``name`` and ``fit``:

    >>> from dataclasses import dataclass
    >>> import upcycled as up
    >>> from upcycled.privacy.mechanisms.gaussian_noise import GaussianNoise, gaussian_noise
    >>> @dataclass(frozen=True)
    ... class Signs:
    ...     step: float
    ...     epsilon: float
    ...     delta: float
    ...     name = "signs"
    ...
    ...     def fit(self, setting):
    ...         # Each of the D numbers is + step or - step, so a record moves them by 2 step sqrt(D) at most.
    ...         moves = np.full(setting.facts.sizes.size, 2 * self.step * setting.num_parameters**0.5)
    ...         noise = gaussian_noise(setting, moves, None, self.epsilon, self.delta, per_client=True)
    ...         what = "a step by the signs of the update, with Gaussian noise"
    ...         promise = up.Promise(what, ("two values",), delta=self.delta)
    ...         release = SignsRelease(self.step, noise).release
    ...         return up.Fitted(name="signs", promise=promise, release=release, charge=noise.charge)
    >>> @dataclass(frozen=True)
    ... class SignsRelease:
    ...     step: float
    ...     noise: GaussianNoise
    ...
    ...     def release(self, trained, sent, cohort, num_samples, noise):
    ...         steps = np.where(trained.vectors > sent, self.step, -self.step)
    ...         vectors = self.noise.rounded(sent, cohort) + self.noise.add(steps, cohort, noise)
    ...         return up.Release(cohort.clients, vectors.astype(np.float32), num_samples, trained.num_steps)
    >>> privacy = Signs(step=0.01, epsilon=2.0, delta=1e-4)
    >>> data = up.data.synthetic("iid", clients=4, seed=0)
    >>> run = up.train(data, algorithm=up.FedAvg(), privacy=privacy, iterations=4, progress=False)
    >>> run.privacy.max_epsilon(1e-4)
    2.0

    A mechanism that can be given what it is to spend, in place of its noise, has the members ``epsilon`` and ``delta``:
    None where the noise itself was given.
    """

    @property
    def name(self) -> str:
        """What records, ledgers and reports call it."""

    def fit(self, setting: Setting) -> Fitted:
        """Raise InputError if the mechanism is not sound here; else return it with its noise calibrated."""


def asked_epsilon(mechanism: object) -> float | None:
    """Return what every client may spend in all, of a mechanism as the user wrote it; None if given its noise."""
    epsilon: float | None = getattr(mechanism, "epsilon", None)
    return epsilon


def _pass_on(trained: Trained, sent: Vector, cohort: Cohort, num_samples: Ints, noise: NoiseSource) -> Release:
    return Release(cohort.clients, trained.vectors, num_samples, trained.num_steps, trained.statistics)


def _no_noise(release: Release) -> Real:
    return np.zeros(release.clients.size)


def _no_charge(cohort: Cohort) -> None:
    return None


NO_PRIVACY = Fitted(
    name="none",
    promise=Promise("the trained models themselves", (), is_claimed=False),
    release=_pass_on,
    charge=_no_charge,
    release_noise_std=_no_noise,
)
"""Releases are the trained models themselves; nothing is claimed, nothing is charged."""
