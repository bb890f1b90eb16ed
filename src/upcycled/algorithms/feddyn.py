"""FedDyn (Acar et al. 2021, arXiv:2111.04263).

Client:  minimise F_i(x) - <h_i, x> + alpha/2 ||x - w||^2, so a = alpha and b = -h_i.
Server:  h_i <- h_i - alpha (r_i - w);  h <- h - alpha (1/N) sum_S (r_i - w);  w <- mean_S(r_i) - h / alpha.

The mean over S is unweighted, as published: with unequal n_i FedDyn settles on the plain mean of the clients'
objectives. h and the h_i stay as they are in an upcycled iteration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from upcycled.core.algorithm import RoundResult, Server, Vectors, keep_local, zeros_like
from upcycled.core.errors import POSITIVE, check_fields
from upcycled.core.solvers import Problem
from upcycled.core.vectors import Vector, plain_mean


@dataclass(frozen=True)
class FedDyn:
    """Align local and global optima by a linear term that each client accumulates.

    Args:
        alpha: the weight of the quadratic term; the smaller, the faster h moves.

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    >>> run = up.train(data, algorithm=up.FedDyn(alpha=0.1), upcycle=0.5, iterations=4, progress=False)
    >>> run.accuracy > 0.5
    True
    """

    alpha: Annotated[float, POSITIVE] = 0.01

    name: ClassVar[str] = "feddyn"
    sends: ClassVar[tuple[str, ...]] = ()
    moves: ClassVar[tuple[str, ...]] = ()
    remembers: ClassVar[tuple[str, ...]] = ("h_i",)
    is_personal: ClassVar[bool] = False

    solver = keep_local

    def __post_init__(self) -> None:
        check_fields(self)

    def start(self, model: Vector) -> Server:
        """h = 0."""
        return Server(model, {"h": zeros_like(model)})

    def problem(self, server: Server, memory: Vectors) -> Problem:
        """a = alpha, b = -h_i."""
        return Problem(a=self.alpha, b=-memory["h_i"])

    def server_step(self, server: Server, memory: Vectors, arrived: RoundResult) -> tuple[Server, Vectors]:
        """Move h and the h_i by the releases, then the model."""
        drift = arrived.release.vectors - server.model
        h_i = memory["h_i"] - self.alpha * drift
        h = server.vectors["h"] - self.alpha * drift.sum(axis=-2) / np.float32(arrived.num_clients)
        model = plain_mean(arrived.release.vectors) - h / self.alpha
        return Server(model, {"h": h}), {"h_i": h_i}
