"""FedAvg (McMahan et al. 2017, arXiv:1602.05629).

Client:  minimise F_i.
Server:  w <- w + server_lr (sum p_i r_i - w), which is sum p_i r_i at server_lr = 1.

An upcycled FedAvg over m data rounds is FedAvg(server_lr = 1 + rho) over the same m rounds. The official code has
no server learning rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from upcycled.core.algorithm import (
    RoundResult,
    Server,
    ServerLr,
    Vectors,
    keep_local,
    move_model,
    no_correction,
    start_plain,
)
from upcycled.core.errors import check_fields


@dataclass(frozen=True)
class FedAvg:
    """Average the released models, weighted by their sample counts.

    Args:
        server_lr: how far the server goes: w + server_lr (w_new - w).

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    >>> vanilla = up.train(data, algorithm=up.FedAvg(server_lr=1.5), iterations=2, progress=False)
    >>> upcycled = up.train(data, algorithm=up.FedAvg(), upcycle=0.5, iterations=4, progress=False)
    >>> bool((vanilla.params - upcycled.params).abs().max() < 1e-6)
    True
    """

    server_lr: ServerLr = 1.0

    name: ClassVar[str] = "fedavg"
    sends: ClassVar[tuple[str, ...]] = ()
    moves: ClassVar[tuple[str, ...]] = ()
    remembers: ClassVar[tuple[str, ...]] = ()
    is_personal: ClassVar[bool] = False
    noise_kept: ClassVar[float] = 1.0

    start = start_plain
    solver = keep_local
    problem = no_correction

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def noise_gain(self) -> float | None:
        """1 at server_lr = 1."""
        return 1.0 if self.server_lr == 1.0 else None

    def server_step(self, server: Server, memory: Vectors, arrived: RoundResult) -> tuple[Server, Vectors]:
        """w_new = sum p_i r_i."""
        return Server(move_model(self.server_lr, server.model, arrived.mean)), memory
