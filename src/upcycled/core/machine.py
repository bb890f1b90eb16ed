"""What this machine allows: estimated memory is checked before it is allocated, and forked processes are known.

Whether what is asked for fits into memory: estimated and said in one sentence before anything is allocated.

Processes made by a fork: they have the memory of their parent's threads and workers, and none of these.

Torch waits forever there for the threads that its parent had, and loky for the workers. So a forked process computes by
itself, on one thread: no engine's results depend on how many there are.
"""

from __future__ import annotations

import multiprocessing
import os
from contextlib import suppress
from pathlib import Path

from upcycled.core.errors import Absent, InputError

GROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Where Linux says what a container may use."""


def memory_limit() -> int | None:
    """Return how many bytes this process may ever have: the machine's, the container's or its own limit.

    None where the system does not say.

    >>> limit = memory_limit()
    >>> limit is None or limit > 2**20
    True
    """
    limits = []
    with suppress(AttributeError, OSError, ValueError):  # not every system has these names
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for file in GROUPS:
        try:
            limits.append(int(file.read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    with suppress(ImportError, OSError):
        import resource

        limits.append(resource.getrlimit(resource.RLIMIT_AS)[0])
    known = [limit for limit in limits if 0 < limit < 2**62]  # what is unlimited is -1, or next to 2^63
    return min(known, default=None)


def check_fits(what: str, num_bytes: int, *, field: str = "", value: object = Absent.MISSING) -> None:
    """Refuse what needs more memory than there is.

    Args:
        what: what needs it, for the sentence.
        num_bytes: the least it needs, a Python integer, which cannot overflow.
        field: which number asks for it, where one does.
        value: what that number is.

    Raises:
        InputError: in one sentence.

    >>> check_fits("the samples", 10**18, field="sizes", value=10**17)
    Traceback (most recent call last):
    ...
    upcycled.core.errors.InputError: sizes is 100000000000000000, but the samples would need 1000000000 GB of memory...
    """
    limit = memory_limit()
    if limit is None or num_bytes <= limit:
        return
    reason = f"{what} would need {-(-num_bytes // 10**9)} GB of memory or more, and there are {limit // 10**9} GB"
    if field:
        raise InputError(field=field, value=value, but=reason)
    raise InputError(reason)


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
