"""Engines carry out a cohort's local work; they differ in speed, never in what they compute.

To add one: write its file and add a line to ``ENGINES``.
"""

from __future__ import annotations

import numpy as np
import torch

from upcycled.core.engine import Engine, EngineKind, Task
from upcycled.core.errors import InputError, reason_of, unknown
from upcycled.engines.fused import FUSED
from upcycled.engines.sequential import SEQUENTIAL
from upcycled.engines.vectorised import VECTORISED, products_of

LONG_RUN = 15_000
"""Steps of small models that take as long as the vectorised engine needs to start (``python -m benchmarks.auto``)."""
PRODUCTS_OF_A_STEP = 1e7
"""Products that take as long as the rest of a step."""
ENGINES: dict[str, EngineKind] = {kind.name: kind for kind in (FUSED, VECTORISED, SEQUENTIAL)}


def choose_engine(name: str, task: Task) -> EngineKind:
    """Return the engine asked for, or for ``"auto"`` one that suits the task.

    The choice is a fixed function of the task, so bits do not depend on the machine. An engine that cannot do the task
    says why in one sentence.
    """
    _check_device(task.device)
    if name == "auto":
        return _automatic(task)
    if name not in ENGINES:
        raise unknown("engine", name, ["auto", *ENGINES])
    reason = ENGINES[name].refuses(task)
    if reason is not None:
        raise InputError(f"engine '{name}' cannot run this: {reason}")
    return ENGINES[name]


def _automatic(task: Task) -> EngineKind:
    """Return the fused engine where it takes the task, the vectorised one for long runs, else the sequential one."""
    for kind in (FUSED, VECTORISED, SEQUENTIAL):
        if (kind is not VECTORISED or _is_long(task)) and kind.refuses(task) is None:
            return kind
    raise InputError(f"no engine can run this: {SEQUENTIAL.refuses(task)}")


def _is_long(task: Task) -> bool:
    """Say whether a run has so many steps that the vectorised engine makes up for its start."""
    local, sizes = task.solver.local, task.train.sizes
    each = local.num_steps(sizes, np.full(sizes.size, local.epochs)).mean() * task.solver.gradients_per_step
    return bool(task.rounds * task.cohort_size * each * (1 + products_of(task) / PRODUCTS_OF_A_STEP) > LONG_RUN)


def _check_device(name: str) -> None:
    """Refuse a device that torch has no name for, or that this machine has not."""
    if name == "cpu":  # before torch is asked: it is the usual one
        return
    must = "'cpu', or a device of this machine that torch can compute on"
    try:
        device = torch.device(name)
        # Nothing says what a machine has but trying: a number must come back from there.
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        raise InputError(field="device", value=name, must=f"{must} ({reason_of(error)})") from error


__all__ = ["ENGINES", "Engine", "choose_engine"]
