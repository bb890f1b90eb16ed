"""What a federated algorithm is: hyper-parameters and pure functions on flat vectors.

The client side is not code but a :class:`~upcycled.core.solvers.Problem`: every algorithm's local objective is
F_i(x) + a/2 ||x - w||^2 + <b, x>. The server side sees releases only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Protocol, TypeAlias

import numpy as np

from upcycled.core.errors import NOT_NEGATIVE, POSITIVE, InputError, suggest
from upcycled.core.mechanism import Release
from upcycled.core.solvers import Local, Problem, Solver
from upcycled.core.vectors import Ints, Real, Vector

Vectors: TypeAlias = Mapping[str, Vector]
"""Named vectors: what the server keeps beside the model (D,), or what a cohort remembers (cohort, D)."""


ServerLr: TypeAlias = Annotated[float, POSITIVE]
"""The server learning rate: the server goes from w to w + server_lr (w_new - w)."""
OMIT_DEFAULT = "omit_default"
"""Metadata of a dataclass field: fingerprints omit its default, so that those of older runs stay valid."""


@dataclass(frozen=True)
class Server:
    """The global model and whatever else the algorithm keeps at the server."""

    model: Vector
    vectors: Vectors = field(default_factory=dict)


@dataclass(frozen=True)
class RoundResult:
    """All that a server step may use of a data round."""

    release: Release
    mean: Vector
    """sum p_i r_i, as the mechanism or the run's aggregator has it."""
    step_sums: Real
    """The solver's D_i for each release (K_i lr for plain SGD), a function of the public K_i."""
    num_clients: int
    """N, all clients, not only the cohort."""
    all_samples: int
    """n, the samples of all clients."""
    average: Callable[[Vector], Vector] | None = None
    """The run's aggregator, for any vectors of the cohort; None where the algorithm's own means are meant."""

    @property
    def is_everybody(self) -> bool:
        """Whether all clients took part."""
        return self.release.clients.size == self.num_clients


class Algorithm(Protocol):
    """A frozen dataclass of hyper-parameters with these pure methods.

    One of your own, as ``train``'s ``algorithm=`` takes it; a file names it ``"my_module:HalfWay"``:

    >>> import upcycled as up
    >>> @dataclass(frozen=True)
    ... class HalfWay:
    ...     part: float = 0.5
    ...     name = "half_way"
    ...     sends = moves = remembers = ()
    ...     is_personal = False
    ...     def start(self, model):
    ...         return up.Server(model)
    ...     def solver(self, local):
    ...         return local
    ...     def problem(self, server, memory):
    ...         return up.Problem(a=0.0, b=None)
    ...     def server_step(self, server, memory, arrived):
    ...         step = np.float32(self.part) * (arrived.mean - server.model)
    ...         return up.Server(server.model + step), memory
    >>> data = up.data.synthetic("iid", clients=4, seed=0)
    >>> len(up.train(data, algorithm=HalfWay(), upcycle=0.5, iterations=4, progress=False).history)
    4

    An algorithm may have these members besides:

    - ``shares(num_samples)``: what each release of a cohort weighs in its mean; n_i over their sum if left out.
    - ``uses_releases``: whether the server step looks at each release and its K_i, though the algorithm remembers
      none; False if left out. Such an algorithm is not for a central mechanism.
    - ``noise_gain`` and ``noise_kept``, if the server step is a mean of the releases: how much larger the noise of the
      mean is in the new model (None where these options make it no such step), and how much of it is in the models
      of later rounds, where nothing pulls it back; 1 if left out.
    """

    @property
    def name(self) -> str:
        """The name in the table of algorithms."""

    @property
    def sends(self) -> tuple[str, ...]:
        """Server vectors that go to the clients beside the model."""

    @property
    def moves(self) -> tuple[str, ...]:
        """Server vectors that an upcycled iteration moves as it moves the model."""

    @property
    def remembers(self) -> tuple[str, ...]:
        """Vectors kept for each client between rounds; all start at zero."""

    @property
    def is_personal(self) -> bool:
        """Whether clients keep a personal model."""

    def start(self, model: Vector) -> Server:
        """Return the server's state before the first round."""

    def solver(self, local: Local) -> Solver:
        """Return the local solver, usually as given; refuse one that the algorithm is not made for."""

    def problem(self, server: Server, memory: Vectors) -> Problem:
        """Return a and b for the clients whose memory is given."""

    def server_step(self, server: Server, memory: Vectors, arrived: RoundResult) -> tuple[Server, Vectors]:
        """Return the new server state and the new memory of the cohort."""


NAMES = ("sends", "moves", "remembers")
"""Members of an algorithm that are lists of names."""
METHODS = {
    "start": ("model",),
    "solver": ("local",),
    "problem": ("server", "memory"),
    "server_step": ("server", "memory", "arrived"),
}
"""Its methods, and what each is called with."""


def own_shares(algorithm: Algorithm, num_samples: Ints) -> Real:
    """Return what each release of a cohort weighs in the algorithm's own mean, for their n_i; the numbers sum to 1."""
    shares: Callable[[Ints], Real] | None = getattr(algorithm, "shares", None)
    return num_samples / num_samples.sum() if shares is None else shares(num_samples)


def noise_gain(algorithm: Algorithm) -> float | None:
    """Return how much larger the noise of the mean is in the new model; None where the server step is no such mean.

    Raises:
        InputError: for a value that is no number above 0.
    """
    gain: float | None = getattr(algorithm, "noise_gain", None)
    return None if gain is None else POSITIVE.check("noise_gain", gain, algorithm.name)


def noise_kept(algorithm: Algorithm) -> float:
    """Return how much of that noise is in the models of later rounds, where nothing pulls it back; 1 if left out.

    Raises:
        InputError: for a value that is no number of 0 or more.
    """
    kept: float = NOT_NEGATIVE.check("noise_kept", getattr(algorithm, "noise_kept", 1.0), algorithm.name)
    return kept


def started(algorithm: Algorithm, model: Vector) -> Server:
    """Return the server's state before the first round, with every vector that the algorithm names.

    Raises:
        InputError: in one sentence, if what ``start`` returns is no such state.
    """
    server = algorithm.start(model)
    if not isinstance(server, Server):
        raise InputError(field="algorithm.start(model)", value=server, must="up.Server(model, ...)")
    if np.shape(server.model) != model.shape:
        raise InputError(
            f"gives a model of shape {np.shape(server.model)}, but it must be {model.shape}",
            field="algorithm.start(model)",
        )
    for member in ("sends", "moves"):
        for name in getattr(algorithm, member):
            if name not in server.vectors:
                raise InputError(
                    field=f"algorithm.{member}",
                    value=name,
                    must="a vector that start gives the server",
                    hint=suggest(name, server.vectors) if server.vectors else " (it gives none)",
                )
    return server


# The usual answers; an algorithm takes them by assignment.


def start_plain(self: object, model: Vector) -> Server:
    """Keep nothing beside the model."""
    return Server(model)


def keep_local(self: object, local: Local) -> Solver:
    """Train as the user asked."""
    return local


def no_correction(self: object, server: Server, memory: Vectors) -> Problem:
    """Minimise F_i itself."""
    return Problem()


def move_model(server_lr: float, before: Vector, after: Vector) -> Vector:
    """Return w + server_lr (w_new - w), which is w_new itself, with its bits, at server_lr = 1."""
    return after if server_lr == 1.0 else before + server_lr * (after - before)
