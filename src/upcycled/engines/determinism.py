"""What makes a run give the same bits alone, in a worker process and beside other runs: one thread, aligned arrays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


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


@dataclass
class _Blas:
    """The BLAS libraries of this process, and how many runs count on their having one thread."""

    lock: Lock = field(default_factory=Lock)
    users: int = 0
    limit: Any = None


_BLAS = _Blas()  # one for the process, as the setting itself is


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let BLAS use one thread: sums split between threads round differently from machine to machine.

    The setting belongs to the whole process, so it is given back when the last of several runs leaves.
    """
    with _BLAS.lock:
        if not _BLAS.users:
            _BLAS.limit = _controller().limit(limits=1, user_api="blas")
        _BLAS.users += 1
    try:
        yield
    finally:
        with _BLAS.lock:
            _BLAS.users -= 1
            if not _BLAS.users:
                _BLAS.limit.restore_original_limits()


@cache
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def to_torch(array: NDArray[Any], device: torch.device | str = "cpu") -> torch.Tensor:
    """Copy an array into torch's own memory.

    Torch aligns what it allocates, NumPy does not, and a matrix product may round by where its operands begin: so the
    same numbers give the same bits in every process.

    >>> to_torch(np.arange(3))
    tensor([0, 1, 2])
    """
    kind = torch.from_numpy(np.empty(0, dtype=array.dtype)).dtype
    out = torch.empty(array.shape, dtype=kind)
    out.numpy()[...] = array
    return out.to(device)
