"""FedProx (Li et al. 2020, arXiv:1812.06127): the algorithm the paper's theory is about.

Client:  minimise F_i(x) + mu/2 ||x - w||^2, so a = mu.
Server:  w <- w + server_lr (sum p_i r_i - w), which is sum p_i r_i at server_lr = 1, as published.

An upcycled FedProx over m data rounds is FedProx(server_lr = 1 + rho) over the same m rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from upcycled.core.algorithm import (
    OMIT_DEFAULT,
    RoundResult,
    Server,
    ServerLr,
    Vectors,
    keep_local,
    move_model,
    start_plain,
)
from upcycled.core.errors import NOT_NEGATIVE, check_fields
from upcycled.core.solvers import Problem


@dataclass(frozen=True)
class FedProx:
    """Keep local models near the global one by a quadratic penalty of weight ``mu``.

    Args:
        mu: the weight; 0 is FedAvg.
        server_lr: how far the server goes: w + server_lr (w_new - w).

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    >>> run = up.train(data, algorithm=up.FedProx(mu=0.5), upcycle=0.7, iterations=4, progress=False)
    >>> [record.kind for record in run.history]
    ['data', 'upcycled', 'data', 'upcycled']
    """

    mu: Annotated[float, NOT_NEGATIVE] = 0.5
    server_lr: ServerLr = field(default=1.0, metadata={OMIT_DEFAULT: True})

    name: ClassVar[str] = "fedprox"
    sends: ClassVar[tuple[str, ...]] = ()
    moves: ClassVar[tuple[str, ...]] = ()
    remembers: ClassVar[tuple[str, ...]] = ()
    is_personal: ClassVar[bool] = False
    noise_kept: ClassVar[float] = 1.0

    start = start_plain
    solver = keep_local

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def noise_gain(self) -> float | None:
        """1 at server_lr = 1."""
        return 1.0 if self.server_lr == 1.0 else None

    def problem(self, server: Server, memory: Vectors) -> Problem:
        """a = mu."""
        return Problem(a=self.mu)

    def server_step(self, server: Server, memory: Vectors, arrived: RoundResult) -> tuple[Server, Vectors]:
        """w_new = sum p_i r_i."""
        return Server(move_model(self.server_lr, server.model, arrived.mean)), memory
