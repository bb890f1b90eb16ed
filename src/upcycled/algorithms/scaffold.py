"""Scaffold (Karimireddy et al. 2020, arXiv:1910.06378).

Client:  gradient g - c_i + c, so b = c - c_i.
Server:  w <- w + server_lr (sum p_i r_i - w);  c_i' = c_i - c + (w_before - r_i) / D_i;
         c <- c + (1/N) sum_S (c_i' - c_i).

D_i is K_i lr for plain SGD, lr sum_{s<=K_i} (1 - m^s)/(1 - m) with local momentum m: then c_i' is exactly the
momentum-weighted average of the client's gradients, weight decay included. The official code divides by K_i lr in
both cases, and uploads a control variate computed from the un-noised model; here c_i comes from the release alone, and
the server can recompute it. In an upcycled iteration c moves with the model and the c_i do not, so c is then no longer
their mean. The mean over clients in c is unweighted: with unequal n_i Scaffold settles on the plain mean of the
objectives. With an aggregator of the run's, it is the aggregator that averages in c, too. server_lr is the paper's
eta_g: it scales the step of the model alone. c and the c_i estimate gradients at w, whatever step the server takes, so
they are updated as at server_lr = 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from upcycled.core.algorithm import OMIT_DEFAULT, RoundResult, Server, ServerLr, Vectors, move_model
from upcycled.core.errors import InputError, check_fields
from upcycled.core.solvers import Local, LocalSGD, Problem, Solver
from upcycled.core.vectors import Vector


@dataclass(frozen=True)
class Scaffold:
    """Correct client drift by control variates.

    Args:
        server_lr: how far the server goes: w + server_lr (w_new - w).

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    >>> run = up.train(data, algorithm=up.Scaffold(), upcycle=0.5, iterations=4, progress=False)
    >>> run.history[0].bytes_down == 2 * run.history[0].bytes_up  # the model, and c
    True
    """

    server_lr: ServerLr = field(default=1.0, metadata={OMIT_DEFAULT: True})

    name: ClassVar[str] = "scaffold"
    sends: ClassVar[tuple[str, ...]] = ("c",)
    moves: ClassVar[tuple[str, ...]] = ("c",)
    remembers: ClassVar[tuple[str, ...]] = ("c_i",)
    is_personal: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fields(self)

    def start(self, model: Vector) -> Server:
        """c = 0."""
        return Server(model, {"c": np.zeros_like(model)})

    def solver(self, local: Local) -> Solver:
        """Its divisor is known for SGD only."""
        if not isinstance(local, LocalSGD) or local.max_grad_norm is not None:
            must = "up.LocalSGD without max_grad_norm with Scaffold, whose c_i are averages of gradients"
            raise InputError(field="local", value=local, must=must)
        return local

    def problem(self, server: Server, memory: Vectors) -> Problem:
        """b = c - c_i."""
        return Problem(b=server.vectors["c"] - memory["c_i"])

    def server_step(self, server: Server, memory: Vectors, arrived: RoundResult) -> tuple[Server, Vectors]:
        """Average the models, and refresh the control variates from the releases."""
        c, c_i = server.vectors["c"], memory["c_i"]
        divisor = arrived.step_sums[..., None].astype(np.float32)
        c_i_new = c_i - c + (server.model - arrived.release.vectors) / divisor
        if arrived.average is None:
            c_new = c + (c_i_new - c_i).sum(axis=-2) / np.float32(arrived.num_clients)
        else:
            c_new = c + np.float32(c_i.shape[-2] / arrived.num_clients) * arrived.average(c_i_new - c_i)
        return Server(move_model(self.server_lr, server.model, arrived.mean), {"c": c_new}), {"c_i": c_i_new}
