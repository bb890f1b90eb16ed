"""Compiled kernels kept on disk, in a folder of our own whose name says exactly what they were compiled from.

Numba's cache looks at a kernel's own file only, so a change in a file it calls into would give stale answers; and it
trusts what it reads. Here the folder's name is a hash of every source beside the kernel, of what rooms share, of the
versions and the processor, and a list of checksums tells damaged files before Numba meets them: they are deleted and
compiled anew.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import llvmlite  # type: ignore[import-untyped]
import numba
import numpy as np
from llvmlite import binding
from numba.core import event

from upcycled.core import streams
from upcycled.support import cache_folder as folders
from upcycled.support.files import WriteError
from upcycled.support.lock import locked
from upcycled.support.said import say

Compiled: TypeAlias = Callable[..., Any]
"""A function of compiled code. Numba infers its types; the annotations in the sources are for the reader."""

_SUMS = "sums.json"
_SHARED = (Path(__file__).with_name("compiled_streams.py"), Path(streams.__file__))
"""What kernels of several rooms call into."""
_UNUSED_DAYS = 30
# Opening engines in several threads at once must not check the folder while another thread fills it.
_opening = threading.Lock()
# Two threads that import kernels at once would each restore what the other had set.
_setting = threading.Lock()


def inlined(function: Compiled) -> Compiled:
    """Compile a helper into every function that calls it, before LLVM: calls cost more than most of them do."""
    made: Compiled = numba.njit(error_model="numpy", inline="always")(function)
    return made


def compiled(function: Compiled) -> Compiled:
    """Compile a helper by itself: for large ones that are called from several places."""
    made: Compiled = numba.njit(error_model="numpy")(function)
    return made


def kernel(function: Compiled) -> Compiled:
    """Compile a function that Python calls: without the interpreter's lock, and kept on disk where that is possible."""
    folder = cache_folder(Path(inspect.getfile(function)).parent)
    with nullcontext() if folder is None else _numba_caches_in(folder):
        made: Compiled = numba.njit(nogil=True, error_model="numpy", cache=folder is not None)(function)
    return made


@contextmanager
def _numba_caches_in(folder: Path) -> Iterator[None]:
    """Have Numba keep the functions decorated meanwhile in a folder.

    Numba has one setting for the whole process, and no public way to name a folder for a single function: so it is
    ours only while a kernel is decorated (Numba reads it there, compiling comes later), then the user's again.
    """
    with _setting:
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = str(folder)
        try:
            yield
        finally:
            numba.config.CACHE_DIR = before


@cache
def cache_folder(sources: Path) -> Path | None:
    """Return the folder for the kernels in these sources on this machine, or None where nothing can be written."""
    root = folders.cache_folder()
    if root is None:
        return None
    folder = root / f"{sources.name}-{fingerprint(sources)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return None
    _drop_unused(root, folder)
    return folder


def fingerprint(sources: Path) -> str:
    """Return a hash of all Python files of a folder and of everything else that compiled code depends on."""
    digest = hashlib.sha256()
    for path in (Path(__file__), *_SHARED, *sorted(sources.glob("*.py"))):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    features = binding.get_host_cpu_features().flatten()
    versions = (platform.python_version(), numba.__version__, llvmlite.__version__, np.__version__)
    digest.update(repr((versions, platform.machine(), binding.get_host_cpu_name(), features)).encode())
    return digest.hexdigest()[:20]


def prepare(warm: Callable[[], None], what: str) -> None:
    """Have kernels ready: ``warm``, which stands beside them, calls each once; that loads or compiles it.

    A compilation that goes on for over a second says so on stderr, and ``what`` is compiled. Another process that wants
    kernels meanwhile waits, and finds these: it would compile the same, and take files that are not yet sealed for
    damaged ones.
    """
    folder = cache_folder(Path(inspect.getfile(warm)).parent)
    with _opening, _alone_in(folder), _notice(what):
        if folder is None:
            warm()
            return
        drop_damaged(folder)
        _retry(warm, folder)
        seal(folder)


@contextmanager
def _alone_in(folder: Path | None) -> Iterator[None]:
    """Wait until no other process prepares kernels; where a lock cannot be had, they get into each other's way."""
    with ExitStack() as held:
        if folder is not None:
            with suppress(WriteError):
                held.enter_context(locked(folder, waits=True))
        yield


def drop_damaged(folder: Path) -> None:
    """Delete the files that are not what was sealed; only files, because another process may be writing here."""
    sealed = _sealed(folder)
    for name, path in _files(folder).items():
        if _sum(path) != sealed.get(name, ""):
            with suppress(OSError):
                path.unlink()


def seal(folder: Path) -> None:
    """Write down what the files are; that this cannot be done costs the next process a compilation, no more."""
    sums = {name: _sum(path) for name, path in _files(folder).items()}
    with suppress(OSError):
        if sums == _sealed(folder):
            os.utime(folder / _SUMS)
            return
        fresh = folder / f"{_SUMS}.{os.getpid()}"
        fresh.write_text(json.dumps(sums))
        fresh.replace(folder / _SUMS)


def _retry(warm: Callable[[], None], folder: Path) -> None:
    """Call ``warm``, with an emptied cache if it fails.

    Each attempt leaves one more kernel ready in memory, even where the disk is full and none can be saved.
    """
    for _ in range(8):
        try:
            warm()
        except Exception:
            for path in _files(folder).values():
                with suppress(OSError):
                    path.unlink()
        else:
            return
    warm()


def _files(folder: Path) -> dict[str, Path]:
    found = (path for path in folder.rglob("*.nb*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path for path in found}


def _sum(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return "unreadable"


def _sealed(folder: Path) -> dict[str, Any]:
    try:
        sums = json.loads((folder / _SUMS).read_text())
    except (OSError, ValueError):
        return {}
    return sums if isinstance(sums, dict) else {}


def _drop_unused(root: Path, current: Path) -> None:
    """Remove the folders of other versions that nobody has opened for a month."""
    for folder in root.glob(current.name.split("-")[0] + "-*"):
        with suppress(OSError):
            if folder != current and (folder / _SUMS).stat().st_mtime < time.time() - _UNUSED_DAYS * 86400:
                _remove(folder)


def _remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
    folder.rmdir()


@contextmanager
def _notice(what: str) -> Iterator[None]:
    """Say so when compiling (not loading) has gone on for a second."""
    over = threading.Event()
    with event.install_recorder("numba:compile") as seen:

        def watch() -> None:
            while not over.wait(0.1):
                if seen.buffer and time.time() - seen.buffer[0][0] > 1.0:
                    say(f"upcycled: compiling {what} (once per version) ...")
                    return

        threading.Thread(target=watch, daemon=True).start()
        try:
            yield
        finally:
            over.set()
