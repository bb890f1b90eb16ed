"""Engines carry out a cohort's local work; they differ in speed, never in what they compute.

To add one: write its file and add a line to ``ENGINES``; of those that expect the same, the first is taken.
"""

from __future__ import annotations

import torch

from upcycled.core.engine import Engine, EngineKind, Task
from upcycled.core.errors import InputError, reason_of, unknown
from upcycled.engines.fused import FUSED
from upcycled.engines.sequential import SEQUENTIAL
from upcycled.engines.vectorised import VECTORISED

ENGINES: dict[str, EngineKind] = {kind.name: kind for kind in (FUSED, VECTORISED, SEQUENTIAL)}


def choose_engine(name: str, task: Task) -> EngineKind:
    """Return the engine asked for, or for ``"auto"`` the one that expects to be done first and takes the task.

    What it expects is a fixed function of the task: bits do not depend on the machine. An engine that cannot do the
    task says why in one sentence.
    """
    _check_device(task.device)
    if name == "auto":
        return _soonest(task)
    if name not in ENGINES:
        raise unknown("engine", name, ["auto", *ENGINES])
    reason = ENGINES[name].refuses(task)
    if reason is not None:
        raise InputError(f"engine '{name}' cannot run this: {reason}")
    return ENGINES[name]


def _soonest(task: Task) -> EngineKind:
    """Return the engine that expects to be done first, of those that take the task."""
    # Whether the fused engine takes it costs nothing to ask, and it is never the slower one by much.
    if FUSED.refuses(task) is None:
        return FUSED
    others = [kind for kind in ENGINES.values() if kind is not FUSED]
    for kind in sorted(others, key=lambda kind: kind.expects(task)):
        if kind.refuses(task) is None:
            return kind
    raise InputError(f"no engine can run this: {SEQUENTIAL.refuses(task)}")  # it takes most


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
