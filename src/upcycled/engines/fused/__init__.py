"""The fused engine: compiled kernels for linear softmax models and stacks of Linear and ReLU on the CPU."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from upcycled.core.engine import Engine, EngineKind, Task
from upcycled.engines.fused.supported import refuses


def _open(task: Task, threads: int | None) -> Engine:
    # Numba takes half a second to import: only who uses this engine waits for it.
    with _no_garbage_collected():
        from upcycled.engines.fused.engine import FusedEngine

        return FusedEngine(task, threads)


@contextmanager
def _no_garbage_collected() -> Iterator[None]:
    """Make many objects that stay without Python's searching all of torch for garbage meanwhile: a tenth of a second.

    Of several threads in here the one that found the collector at work sets it to work again.
    """
    was_at_work = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_at_work:
            gc.enable()


FUSED = EngineKind(name="fused", refuses=refuses, open=_open, runs_without_lock=True)
