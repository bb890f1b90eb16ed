"""FedDyn (Acar et al. 2021, arXiv:2111.04263).

Client:  minimise F_i(x) - <h_i, x> + alpha/2 ||x - w||^2, so a = alpha and b = -h_i.
Server:  h_i <- h_i - alpha (r_i - w);  h <- h - alpha (1/N) sum_S (r_i - w);  w_new = mean_S(r_i) - h / alpha;
         w <- w + server_lr (w_new - w).

The mean over S is unweighted, as published: with unequal n_i FedDyn settles on the plain mean of the clients'
objectives. ``weights="samples"`` puts p_i = n_i/n in the place of 1/N and of the mean over S. Any other weights, or an
aggregator's A:  h <- A(h_i) where everybody took part, h + s A(h_i' - h_i) for a cohort that is the part s of the
federation;  w_new = A(r_i) - h / alpha. h and the h_i stay as they are in an upcycled iteration. server_lr,
which the paper does not have, scales the step of the model alone: h and the h_i estimate gradients where the local
models are, whatever step the server takes, so they are updated as at server_lr = 1, and the fixed point is the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, ClassVar

import numpy as np

from upcycled.core.algorithm import (
    OMIT_DEFAULT,
    RoundResult,
    Server,
    ServerLr,
    Vectors,
    keep_local,
    move_model,
)
from upcycled.core.errors import POSITIVE, check_fields, unknown
from upcycled.core.solvers import Problem
from upcycled.core.vectors import Ints, Real, Vector, plain_mean, weighted_mean

WEIGHTS = ("equal", "samples")


@dataclass(frozen=True)
class FedDyn:
    """Align local and global optima by a linear term that each client accumulates.

    Args:
        alpha: the weight of the quadratic term; the smaller, the faster h moves.
        weights: ``"equal"``, as published, or ``"samples"``, by n_i: which mean of the objectives is minimised.
        server_lr: how far the server goes: w + server_lr (w_new - w).

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    >>> run = up.train(data, algorithm=up.FedDyn(alpha=0.1), upcycle=0.5, iterations=4, progress=False)
    >>> run.accuracy > 0.5
    True
    """

    alpha: Annotated[float, POSITIVE] = 0.01
    weights: str = "equal"
    server_lr: ServerLr = field(default=1.0, metadata={OMIT_DEFAULT: True})

    name: ClassVar[str] = "feddyn"
    sends: ClassVar[tuple[str, ...]] = ()
    moves: ClassVar[tuple[str, ...]] = ()
    remembers: ClassVar[tuple[str, ...]] = ("h_i",)
    is_personal: ClassVar[bool] = False
    noise_kept: ClassVar[float] = 1.0
    """xi in r_i is -alpha xi in h_i': the next r_i, which h_i'/alpha moves, takes one of the two off again."""

    solver = keep_local

    def __post_init__(self) -> None:
        check_fields(self)
        if self.weights not in WEIGHTS:
            raise unknown("weights", self.weights, WEIGHTS)

    @property
    def noise_gain(self) -> float | None:
        """2 at server_lr = 1: r_i enters the model once by itself, and once more by h."""
        return 2.0 if self.server_lr == 1.0 else None

    def start(self, model: Vector) -> Server:
        """h = 0."""
        return Server(model, {"h": np.zeros_like(model)})

    def problem(self, server: Server, memory: Vectors) -> Problem:
        """a = alpha, b = -h_i."""
        return Problem(a=self.alpha, b=-memory["h_i"])

    def server_step(self, server: Server, memory: Vectors, arrived: RoundResult) -> tuple[Server, Vectors]:
        """Move h and the h_i by the releases, then the model."""
        h, releases = server.vectors["h"], arrived.release
        drift = releases.vectors - server.model
        h_i = memory["h_i"] - self.alpha * drift
        average = arrived.average
        if average is None and self.weights == "samples":
            average = partial(weighted_mean, self.shares(releases.num_samples))
        if average is None:
            h = h - self.alpha * drift.sum(axis=-2) / np.float32(arrived.num_clients)
            mean = plain_mean(releases.vectors)
        else:
            mean = arrived.mean
            h = average(h_i) if arrived.is_everybody else h + self._part(arrived) * average(h_i - memory["h_i"])
        return Server(move_model(self.server_lr, server.model, mean - h / self.alpha), {"h": h}), {"h_i": h_i}

    def shares(self, num_samples: Ints) -> Real:
        """What each release weighs in the mean: the same, or n_i / n."""
        counted = num_samples if self.weights == "samples" else np.ones(num_samples.shape)
        shares: Real = counted / counted.sum(axis=-1, keepdims=True)
        return shares

    def _part(self, arrived: RoundResult) -> np.float32:
        """Return how much of the federation the cohort is."""
        if self.weights == "equal":
            return np.float32(arrived.release.clients.size / arrived.num_clients)
        return np.float32(arrived.release.num_samples.sum() / arrived.all_samples)
