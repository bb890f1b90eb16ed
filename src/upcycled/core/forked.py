"""Processes made by a fork: they have the memory of their parent's threads and workers, and none of these.

Torch waits forever there for the threads that its parent had, and loky for the workers. So a forked process computes by
itself, on one thread: no engine's results depend on how many there are.
"""

from __future__ import annotations

import multiprocessing
import os

IMPORTED_IN = os.getpid()
"""The process that loaded this package: in a copy of it the number is another one."""


def is_forked() -> bool:
    """Say whether this process is a copy of one that had loaded the package.

    >>> is_forked()
    False
    """
    return os.getpid() != IMPORTED_IN


def may_have_workers() -> bool:
    """Say whether this process can start worker processes: a copy cannot, nor can a daemon of ``multiprocessing``.

    >>> may_have_workers()
    True
    """
    return not is_forked() and not multiprocessing.current_process().daemon


def settle() -> None:
    """Make torch safe to compute with in this process; called before it computes for the first time."""
    if is_forked():
        import torch

        torch.set_num_threads(1)
