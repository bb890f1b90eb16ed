"""What a reader may do with a hostile input: take it, or refuse it in one short sentence, in time and little memory."""

from __future__ import annotations

import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from upcycled.core.errors import UpcycledError

SECONDS = 10
LONGEST = 4000


class TooLong(BaseException):
    """A reader took more than its time; no reader catches this."""


@contextmanager
def in_time(seconds: int = SECONDS) -> Iterator[None]:
    def ring(number: int, frame: object) -> None:
        raise TooLong(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def bound_memory(megabytes: int) -> None:
    """Let this process have so much more than it has now."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    limit = now + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def verdict(read: Callable[[], object]) -> str | None:
    """Return None where a reader did what it may, and else what it did."""
    try:
        with in_time(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read()
    except UpcycledError as error:
        words = str(error)
        if "\n" in words or not words.isprintable():
            return f"a sentence of several lines or with controls: {words!r}"
        return f"a sentence of {len(words)} characters" if len(words) > LONGEST else None
    except MemoryError:
        return None  # the command has a sentence for it
    except (Exception, TooLong) as error:
        where = [frame for frame in traceback.extract_tb(error.__traceback__) if "upcycled" in frame.filename]
        place = f"{where[-1].filename.split('upcycled/', 1)[-1]}:{where[-1].lineno}" if where else "?"
        return f"{type(error).__name__} at {place}: {str(error)[:200]}"
    return None


def peak_megabytes() -> float:
    """Return the most memory that this process had at once."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
