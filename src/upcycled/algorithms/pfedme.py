"""pFedMe (Dinh et al. 2020, arXiv:2006.08848): a personal model per client around a shared one.

Client:  each local step on one minibatch: ``inner_steps`` times theta <- theta - inner_lr (g(theta) + lam (theta - x)),
         then x <- x - lr lam (x - theta). theta starts at w in every data round and goes on from step to step.
Server:  w <- (1 - beta) w + beta sum p_i r_i, with r_i from x after the last step.

theta_i stays on the client: it is the personal model. No momentum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from upcycled.core.algorithm import RoundResult, Server, Vectors, no_correction, start_plain
from upcycled.core.errors import COUNT, POSITIVE, InputError, check_fields
from upcycled.core.solvers import Local, LocalSGD, MoreauSGD, Solver


@dataclass(frozen=True)
class PFedMe:
    """Minimise the clients' Moreau envelopes; ``inner_lr=None`` means the local learning rate.

    Args:
        lam: what holds a personal model near the shared one.
        inner_steps: steps of the personal model for each local step.
        inner_lr: their learning rate; None is the local one.
        beta: how far the server goes towards the mean of the releases.

    >>> import upcycled as up
    >>> data = up.data.synthetic("iid", clients=4, sizes=40, seed=0)
    >>> run = up.train(data, algorithm=up.PFedMe(lam=15.0), upcycle=0.5, iterations=4, progress=False)
    >>> sorted(run.personal_models)
    [0, 1, 2, 3]
    """

    lam: Annotated[float, POSITIVE] = 15.0
    inner_steps: Annotated[int, COUNT] = 5
    inner_lr: Annotated[float, POSITIVE] | None = None
    beta: Annotated[float, POSITIVE] = 1.0

    name: ClassVar[str] = "pfedme"
    sends: ClassVar[tuple[str, ...]] = ()
    moves: ClassVar[tuple[str, ...]] = ()
    remembers: ClassVar[tuple[str, ...]] = ()
    is_personal: ClassVar[bool] = True

    start = start_plain
    problem = no_correction

    def __post_init__(self) -> None:
        check_fields(self)

    def solver(self, local: Local) -> Solver:
        """Solve the Moreau envelope instead of the plain objective."""
        if not isinstance(local, LocalSGD) or local.has_extras:
            must = (
                "up.LocalSGD without weight_decay, nesterov and max_grad_norm with PFedMe, which has steps of its own"
            )
            raise InputError(field="local", value=local, must=must)
        if local.momentum != 0:
            raise InputError(
                field="local.momentum", value=local.momentum, but="pFedMe uses no momentum: it must be 0 with PFedMe"
            )
        inner_lr = local.lr if self.inner_lr is None else self.inner_lr
        return MoreauSGD(local, self.lam, self.inner_steps, None if callable(inner_lr) else inner_lr)

    def server_step(self, server: Server, memory: Vectors, arrived: RoundResult) -> tuple[Server, Vectors]:
        """w <- (1 - beta) w + beta sum p_i r_i."""
        if self.beta == 1.0:
            return Server(arrived.mean), memory
        return Server((1 - self.beta) * server.model + self.beta * arrived.mean), memory
