"""The fused engine: compiled kernels for linear softmax models and stacks of Linear and ReLU on the CPU."""

from __future__ import annotations

from upcycled.core.engine import Engine, EngineKind, Task
from upcycled.engines.fused.support import refuses


def _open(task: Task, threads: int | None) -> Engine:
    # Numba takes half a second to import: only who uses this engine waits for it.
    from upcycled.engines.fused.fused_engine import FusedEngine

    return FusedEngine(task, threads)


# It expects to be done at once: reading its kernels takes less than a second, and that is the most it can lose.
FUSED = EngineKind(name="fused", refuses=refuses, open=_open, runs_without_lock=True)
