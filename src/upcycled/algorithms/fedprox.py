"""FedProx (Li et al. 2020, arXiv:1812.06127): the algorithm the paper's theory is about.

Client:  minimise F_i(x) + mu/2 ||x - w||^2, so a = mu.
Server:  w <- sum p_i r_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from upcycled.core.algorithm import RoundResult, Server, Vectors, keep_local, start_plain
from upcycled.core.errors import NOT_NEGATIVE, check_fields
from upcycled.core.solvers import Problem


@dataclass(frozen=True)
class FedProx:
    """Keep local models near the global one by a quadratic penalty of weight ``mu``.

    Args:
        mu: the weight; 0 is FedAvg.

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    >>> run = up.train(data, algorithm=up.FedProx(mu=0.5), upcycle=0.7, iterations=4, progress=False)
    >>> [record.kind for record in run.history]
    ['data', 'upcycled', 'data', 'upcycled']
    """

    mu: Annotated[float, NOT_NEGATIVE] = 0.5

    name: ClassVar[str] = "fedprox"
    sends: ClassVar[tuple[str, ...]] = ()
    moves: ClassVar[tuple[str, ...]] = ()
    remembers: ClassVar[tuple[str, ...]] = ()
    is_personal: ClassVar[bool] = False
    noise_gain: ClassVar[float] = 1.0
    noise_kept: ClassVar[float] = 1.0

    start = start_plain
    solver = keep_local

    def __post_init__(self) -> None:
        check_fields(self)

    def problem(self, server: Server, memory: Vectors) -> Problem:
        """a = mu."""
        return Problem(a=self.mu)

    def server_step(self, server: Server, memory: Vectors, arrived: RoundResult) -> tuple[Server, Vectors]:
        """w <- sum p_i r_i."""
        return Server(arrived.mean), memory
