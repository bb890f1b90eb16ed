"""FedAvgM (Hsu et al. 2019, arXiv:1909.06335): FedAvg with momentum at the server.

Client:  minimise F_i.
Server:  d = w - sum p_i r_i;  v <- b v + d;  w <- w - s (d + b v) with Nesterov, w - s v without.

Momentum stays as it is in an upcycled iteration. Unlike the official code the pseudo-gradient d comes from the
releases, so noise on them reaches it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from upcycled.core.algorithm import RoundResult, Server, Vectors, keep_local, no_correction, zeros_like
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
    server_lr: Annotated[float, POSITIVE] = 1.0
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
        return Server(model, {"v": zeros_like(model)})

    def server_step(self, server: Server, memory: Vectors, arrived: RoundResult) -> tuple[Server, Vectors]:
        """One momentum step along d = w - sum p_i r_i."""
        d = server.model - arrived.mean
        v = self.server_momentum * server.vectors["v"] + d
        step = d + self.server_momentum * v if self.nesterov else v
        return Server(server.model - self.server_lr * step, {"v": v}), memory
