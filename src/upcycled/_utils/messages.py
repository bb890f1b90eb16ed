"""Lines on standard error, and warnings as values.

Lines on standard error: what cannot be said there must not end a run that has gone on for an hour.

Warnings as values, for the place where they are shown.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def is_terminal() -> bool:
    """Say whether somebody looks at standard error, which a program without a window may not have at all."""
    try:
        return sys.stderr.isatty()
    except (ValueError, AttributeError):
        return False


def say(text: str) -> None:
    """Print a line on standard error; a full disk, a reader that has gone or a closed stream only leave it unsaid."""
    # OSError: full or broken. ValueError: closed. AttributeError: there is none.
    with suppress(OSError, ValueError, AttributeError):
        print(text, file=sys.stderr, flush=True)


@contextmanager
def collected_warnings(kind: type[Warning] = UserWarning) -> Iterator[list[str]]:
    """Collect warnings, once each; the list is filled at the end.

    >>> with collected_warnings() as texts:
    ...     warnings.warn("mind the gap", stacklevel=1)
    >>> texts
    ['mind the gap']
    """
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", kind)
        yield texts
    texts.extend(dict.fromkeys(str(one.message) for one in caught))
