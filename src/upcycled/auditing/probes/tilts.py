"""The noise inside an objective, recovered from its minimiser: n = -(grad F(x) + a (x - w) + b), by plain torch."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.func import functional_call, grad

from upcycled.auditing.worlds import World
from upcycled.core.objective import mean_loss
from upcycled.core.vectors import Real, Vector

if TYPE_CHECKING:
    from upcycled.auditing.probes.rehearsal import Seen


def tilts_in(world: World, seen: Seen) -> Real:
    """Return each client's tilt, as its release shows it to whoever has its records."""
    plan = world.heard
    a, b = seen.problem.a + plan.mechanism.prox_mu, seen.problem.b
    sent = seen.sent.astype(np.float64)
    rows = []
    for i, client in enumerate(seen.clients.tolist()):
        x = seen.released[i]
        pull = a * (x - sent) + (0.0 if b is None else b[i].astype(np.float64))
        rows.append(-(gradient_at(world, client, x) + pull))
    return np.stack(rows)


def gradient_at(world: World, client: int, point: Vector) -> Real:
    """Return the gradient of a client's mean loss, in float64."""
    task = world.heard.task
    module = copy.deepcopy(world.heard.module).double()
    x, y = task.train.client(client)
    features, targets = torch.from_numpy(np.array(x, dtype=np.float64)), torch.from_numpy(np.array(y))

    def loss(flat: torch.Tensor) -> torch.Tensor:
        outputs = functional_call(module, task.layout.split(flat), (features,))
        return mean_loss(task.objective, outputs, targets)

    with torch.enable_grad():
        found: Real = grad(loss)(torch.from_numpy(np.array(point, dtype=np.float64))).numpy()
    return found
