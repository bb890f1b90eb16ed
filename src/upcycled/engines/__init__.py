"""Engines carry out a cohort's local work; they differ in speed, never in what they compute.

To add one: write its file and add a line to ``ENGINES``, fastest first.
"""

from __future__ import annotations

from upcycled.core.engine import Engine, EngineKind, Task
from upcycled.core.errors import InputError, unknown
from upcycled.engines.fused import FUSED
from upcycled.engines.sequential import SEQUENTIAL
from upcycled.engines.vectorised import VECTORISED

ENGINES: dict[str, EngineKind] = {kind.name: kind for kind in (FUSED, VECTORISED, SEQUENTIAL)}


def choose_engine(name: str, task: Task) -> EngineKind:
    """Return the engine asked for, or for ``"auto"`` the first in the table that takes the task.

    An engine that cannot do the task says why in one sentence.
    """
    if name == "auto":
        for kind in ENGINES.values():
            if (reason := kind.refuses(task)) is None:
                return kind
        raise InputError(f"no engine can run this: {reason}")  # as the last says, which takes most
    if name not in ENGINES:
        raise unknown("engine", name, ["auto", *ENGINES])
    reason = ENGINES[name].refuses(task)
    if reason is not None:
        raise InputError(f"engine '{name}' cannot run this: {reason}")
    return ENGINES[name]


__all__ = ["ENGINES", "Engine", "choose_engine"]
