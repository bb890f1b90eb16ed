"""Server optimisers: FedAvgM, FedAdam and FedYogi.

FedAvgM (Hsu et al. 2019, arXiv:1909.06335): FedAvg with momentum at the server.

Client:  minimise F_i.
Server:  d = w - sum p_i r_i;  v <- b v + d;  w <- w - s (d + b v) with Nesterov, w - s v without.

Momentum stays as it is in an upcycled iteration. Unlike the official code the pseudo-gradient d comes from the
releases, so noise on them reaches it.

FedAdam (Reddi et al. 2021, arXiv:2003.00295): an adaptive server optimiser.

Client:  minimise F_i.
Server:  d = sum p_i r_i - w;  m <- beta1 m + (1 - beta1) d;  v <- beta2 v + (1 - beta2) d^2;
         w <- w + server_lr m / (sqrt(v) + tau), with the new m and v.

v starts at tau^2, no bias correction, as in the paper's algorithm 2. The moments stay as they are in an upcycled
iteration.

FedYogi (Reddi et al. 2021, arXiv:2003.00295): an adaptive server optimiser.

Client:  minimise F_i.
Server:  d = sum p_i r_i - w;  m <- beta1 m + (1 - beta1) d;  v <- v - (1 - beta2) d^2 sign(v - d^2);
         w <- w + server_lr m / (sqrt(v) + tau), with the new m and v.

v starts at tau^2, sign(0) = 0, no bias correction. The moments stay as they are in an upcycled iteration. The
official code averages un-noised deltas; here d comes from the releases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from upcycled.core.algorithm import RoundResult, Server, ServerLr, Vectors, keep_local, no_correction
from upcycled.core.errors import FRACTION, POSITIVE, check_fields
from upcycled.core.vectors import Vector


@dataclass(frozen=True)
class FedAvgM:
    """Average the releases and step with server momentum.

    Args:
        server_momentum: b, the part of the last step that is kept.
        server_lr: s, how far the server goes.
        nesterov: whether the step looks ahead along the new momentum.

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    >>> both = [
    ...     up.train(data, algorithm=one, iterations=2, progress=False).params
    ...     for one in (up.FedAvgM(server_momentum=0.0), up.FedAvg())
    ... ]
    >>> bool((both[0] - both[1]).abs().max() < 1e-6)
    True
    """

    server_momentum: Annotated[float, FRACTION] = 0.3
    server_lr: ServerLr = 1.0
    nesterov: bool = True

    name: ClassVar[str] = "fedavgm"
    sends: ClassVar[tuple[str, ...]] = ()
    moves: ClassVar[tuple[str, ...]] = ()
    remembers: ClassVar[tuple[str, ...]] = ()
    is_personal: ClassVar[bool] = False

    solver = keep_local
    problem = no_correction

    def __post_init__(self) -> None:
        check_fields(self)

    def start(self, model: Vector) -> Server:
        """v = 0."""
        return Server(model, {"v": np.zeros_like(model)})

    def server_step(self, server: Server, memory: Vectors, arrived: RoundResult) -> tuple[Server, Vectors]:
        """One momentum step along d = w - sum p_i r_i."""
        d = server.model - arrived.mean
        v = self.server_momentum * server.vectors["v"] + d
        step = d + self.server_momentum * v if self.nesterov else v
        return Server(server.model - self.server_lr * step, {"v": v}), memory


@dataclass(frozen=True)
class FedAdam:
    """Step the server with Adam on the mean client delta.

    Args:
        server_lr: how far the server goes.
        beta1: the part of m that is kept.
        beta2: the part of v that is kept.
        tau: what bounds the step of a coordinate that hardly moves.

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    >>> run = up.train(data, algorithm=up.FedAdam(server_lr=0.03), upcycle=0.5, iterations=4, progress=False)
    >>> len(run.history)
    4
    """

    server_lr: ServerLr = 0.1
    beta1: Annotated[float, FRACTION] = 0.9
    beta2: Annotated[float, FRACTION] = 0.99
    tau: Annotated[float, POSITIVE] = 1e-3

    name: ClassVar[str] = "fedadam"
    sends: ClassVar[tuple[str, ...]] = ()
    moves: ClassVar[tuple[str, ...]] = ()
    remembers: ClassVar[tuple[str, ...]] = ()
    is_personal: ClassVar[bool] = False

    solver = keep_local
    problem = no_correction

    def __post_init__(self) -> None:
        check_fields(self)

    def start(self, model: Vector) -> Server:
        """m = 0, v = tau^2."""
        return Server(model, {"m": np.zeros_like(model), "v": np.full_like(model, self.tau**2)})

    def server_step(self, server: Server, memory: Vectors, arrived: RoundResult) -> tuple[Server, Vectors]:
        """One Adam step along d = sum p_i r_i - w."""
        d = arrived.mean - server.model
        m = self.beta1 * server.vectors["m"] + (1 - self.beta1) * d
        v = self.beta2 * server.vectors["v"] + (1 - self.beta2) * d * d
        model = server.model + self.server_lr * m / (np.sqrt(v) + self.tau)
        return Server(model, {"m": m, "v": v}), memory


@dataclass(frozen=True)
class FedYogi:
    """Step the server with Yogi on the mean client delta.

    Args:
        server_lr: how far the server goes.
        beta1: the part of m that is kept.
        beta2: the part of v that is kept.
        tau: what bounds the step of a coordinate that hardly moves.

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    >>> run = up.train(data, algorithm=up.FedYogi(server_lr=0.03), upcycle=0.5, iterations=4, progress=False)
    >>> len(run.history)
    4
    """

    server_lr: ServerLr = 0.1
    beta1: Annotated[float, FRACTION] = 0.9
    beta2: Annotated[float, FRACTION] = 0.99
    tau: Annotated[float, POSITIVE] = 1e-3

    name: ClassVar[str] = "fedyogi"
    sends: ClassVar[tuple[str, ...]] = ()
    moves: ClassVar[tuple[str, ...]] = ()
    remembers: ClassVar[tuple[str, ...]] = ()
    is_personal: ClassVar[bool] = False

    solver = keep_local
    problem = no_correction

    def __post_init__(self) -> None:
        check_fields(self)

    def start(self, model: Vector) -> Server:
        """m = 0, v = tau^2."""
        return Server(model, {"m": np.zeros_like(model), "v": np.full_like(model, self.tau**2)})

    def server_step(self, server: Server, memory: Vectors, arrived: RoundResult) -> tuple[Server, Vectors]:
        """One Yogi step along d = sum p_i r_i - w."""
        d = arrived.mean - server.model
        squared = d * d
        m = self.beta1 * server.vectors["m"] + (1 - self.beta1) * d
        v = server.vectors["v"]
        v = v - (1 - self.beta2) * squared * np.sign(v - squared)
        model = server.model + self.server_lr * m / (np.sqrt(v) + self.tau)
        return Server(model, {"m": m, "v": v}), memory
