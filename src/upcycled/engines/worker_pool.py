"""The worker processes: one pool for all runs and engines of this process, set up in one way.

A worker has one thread, and ends by itself: when it was idle for a while, or at once when its parent is gone.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

import torch

from upcycled.engines.scratch import drop_abandoned

IDLE_SECONDS = 60
"""How long workers wait for the next round, or the next run, before they end by themselves."""
ORPHAN_SECONDS = 0.2


def worker_pool(processes: int) -> Any:
    """Return loky's pool with this many workers, started when they are needed; those that died are replaced."""
    from loky import get_reusable_executor

    return get_reusable_executor(
        max_workers=processes, timeout=IDLE_SECONDS, initializer=_set_up, initargs=(os.getpid(),)
    )


def are_warm(processes: int) -> bool:
    """Say whether so many workers live already: nothing waits for them to begin."""
    if "loky" not in sys.modules:  # nobody has asked for any: no pool is made to find that out
        return False
    living = [worker for worker in worker_pool(processes)._processes.values() if worker.is_alive()]
    return len(living) >= processes


# In a worker.


def _set_up(parent: int) -> None:
    """Make this process a worker, before its first job."""
    torch.set_num_threads(1)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """Leave at once when the parent is gone, however it went: nobody waits for the result, and its folders are free."""
    while os.getppid() == parent:
        time.sleep(ORPHAN_SECONDS)
    drop_abandoned()
    os._exit(1)
