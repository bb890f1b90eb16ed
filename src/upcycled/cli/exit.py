"""How a command leaves, whatever happens: signals, streams that cannot be written, and errors that nobody foresaw."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TextIO

from upcycled import __version__

UNFORESEEN = 70
"""The exit code of an error that nobody foresaw, as sysexits.h has it for faults of a program."""
CANNOT_BE_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF, errno.EPIPE)
TERMINATING = ("SIGTERM", "SIGHUP")
"""What ends a program politely: a scheduler, a container that stops, a terminal that is closed."""


class Terminated(KeyboardInterrupt):
    """A signal that ends the command as Ctrl-C does: runs keep their last whole iteration."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def ended_by(stop: BaseException) -> tuple[str, int]:
    """Return what stopped a command, for its sentence, and its exit code: 128 and the signal's number.

    >>> ended_by(KeyboardInterrupt()), ended_by(Terminated(15))
    (('Ctrl-C', 130), ('SIGTERM', 143))
    """
    found: BaseException | None = stop
    while found is not None:
        if isinstance(found, Terminated):
            return signal.Signals(found.number).name, 128 + found.number
        found = found.__cause__ or found.__context__
    return "Ctrl-C", 130


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """Let signals that ask a program to end do what Ctrl-C does, while the block runs."""
    if threading.current_thread() is not threading.main_thread():  # only that one hears of signals
        yield
        return
    before: dict[int, Any] = {}
    for name in TERMINATING:
        number = getattr(signal, name, None)
        # Who ignores a signal (nohup), or has a handler, goes on as before.
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            before[number] = signal.signal(number, _stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)


def is_about_output(error: OSError) -> bool:
    """Say whether an error is that of a stream that cannot be written to: those of files have the file's name."""
    return error.filename is None and error.errno in CANNOT_BE_WRITTEN


def silence(stream: TextIO) -> None:
    """Send what is left to be written nowhere: Python would try again at exit, and say so."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def unforeseen(error: BaseException, words: Sequence[str]) -> str:
    """Write an error that nobody foresaw to a file of its own, and return the sentence about it.

    The sentence does not repeat what the error says, which may quote a record; the file is its owner's alone.
    """
    import platform
    import tempfile
    import traceback

    kind = type(error).__name__
    said = (
        f"something happened that nobody foresaw ({kind}), which is a fault of upcycled, or of code that the file names"
    )
    try:
        handle, path = tempfile.mkstemp(prefix="upcycled-error-", suffix=".log")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as log:
            log.write(f"upcycled {__version__}, Python {platform.python_version()}, {platform.platform()}\n")
            log.write(f"{shlex.join(['upcycled', *words])}\n\n")
            log.write("".join(traceback.format_exception(error)))
    except OSError:
        return f"{said}; no log of it could be written either"
    return f"{said}; its traceback is in {path}: please report it (look first whether it quotes your data)"
