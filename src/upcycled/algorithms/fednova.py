"""FedNova (Wang et al. 2020, arXiv:2007.07481): normalised averaging.

Client:  minimise F_i.
Server:  w <- w + server_lr tau_eff sum p_i (r_i - w) / |a_i|,  tau_eff = sum p_i |a_i|.

|a_i| is the L1 norm of the weights with which client i's steps enter its update: K_i for plain SGD,
sum_{s<=K_i} (1 - m^s)/(1 - m) with local momentum m (the paper's section 4). The solver's D_i is lr |a_i|, and lr
cancels. With equal K_i this is FedAvg; with unequal ones FedAvg minimises a sum of the F_i with other weights than p_i,
towards the clients that do more steps. K_i is public, so everything here is a function of releases. An aggregator of
the run's averages the normalised updates; the server's own momentum of the paper's appendix is FedAvgM's business.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np

from upcycled.core.algorithm import (
    OMIT_DEFAULT,
    RoundResult,
    Server,
    ServerLr,
    Vectors,
    move_model,
    no_correction,
    start_plain,
)
from upcycled.core.errors import InputError, check_fields
from upcycled.core.solvers import Local, LocalSGD, Solver
from upcycled.core.vectors import weighted_mean


@dataclass(frozen=True)
class FedNova:
    """Average updates per unit of local work, so that clients with more steps do not pull the model their way.

    Args:
        server_lr: how far the server goes: w + server_lr (w_new - w).

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=4, sizes=[20, 40, 80, 160], seed=0)
    >>> run = up.train(data, algorithm=up.FedNova(), upcycle=0.5, iterations=4, progress=False)
    >>> len(run.history)
    4
    """

    server_lr: ServerLr = field(default=1.0, metadata={OMIT_DEFAULT: True})

    name: ClassVar[str] = "fednova"
    sends: ClassVar[tuple[str, ...]] = ()
    moves: ClassVar[tuple[str, ...]] = ()
    remembers: ClassVar[tuple[str, ...]] = ()
    is_personal: ClassVar[bool] = False
    uses_releases: ClassVar[bool] = True
    """The server step needs each client's own release and K_i, and not only their mean."""

    start = start_plain
    problem = no_correction

    def __post_init__(self) -> None:
        check_fields(self)

    def solver(self, local: Local) -> Solver:
        """Its |a_i| is known for SGD only."""
        if not isinstance(local, LocalSGD) or local.max_grad_norm is not None:
            must = "up.LocalSGD without max_grad_norm with FedNova, which divides by how much each step moved"
            raise InputError(field="local", value=local, must=must)
        return local

    def server_step(self, server: Server, memory: Vectors, arrived: RoundResult) -> tuple[Server, Vectors]:
        """Average the normalised updates, and go as far as the cohort did on average."""
        samples, work = arrived.release.num_samples.astype(np.float64), arrived.step_sums
        effective = (samples * work).sum(axis=-1, keepdims=True) / samples.sum(axis=-1, keepdims=True)
        # Divided by work relative to the average, which is 1 where all do the same.
        relative = (work / effective)[..., None].astype(np.float32)
        average = partial(weighted_mean, samples) if arrived.average is None else arrived.average
        model = server.model + average((arrived.release.vectors - server.model) / relative)
        return Server(move_model(self.server_lr, server.model, model)), memory
