"""Lines on standard error: what cannot be said there must not end a run that has gone on for an hour."""

from __future__ import annotations

import sys
from contextlib import suppress


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
