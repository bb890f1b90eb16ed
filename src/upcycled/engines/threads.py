"""One thread: what makes a run give the same bits alone, in a worker process and beside other runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread for each operation, and give the caller's setting back afterwards.

    Sums that are split between threads round differently, and two threads wait for each other on a busy machine.
    The setting belongs to the calling thread: an engine enters here in the thread that does its work.

    >>> with one_thread():
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_blas_thread() -> Any:
    """Let BLAS use one thread: sums split between threads round differently from machine to machine."""
    return _blas().limit(limits=1, user_api="blas")


@cache
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
