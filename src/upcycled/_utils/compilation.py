"""Kernels compiled by Numba, and the folder in which Numba caches them.

Numba recompiles a kernel if the kernel's own file changed, not if a file it calls changed. So the folder's name is a
hash of every source beside the kernel, of the shared sources, of the versions and of the processor.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import platform
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import llvmlite  # type: ignore[import-untyped]
import numba
import numpy as np
from llvmlite import binding
from numba.core import event

from upcycled._utils import files
from upcycled._utils.lock import locked
from upcycled._utils.messages import say
from upcycled.core import randomness

Compiled: TypeAlias = Callable[..., Any]
"""A function of compiled code. Numba infers its types; the annotations in the sources are for the reader."""

_SHARED = (Path(__file__).with_name("compiled_randomness.py"), Path(randomness.__file__))
"""Sources that kernels of several folders call."""
_kernels: list[Any] = []
# Two threads that import kernels at once would each restore the setting of the other.
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
    """Compile a function that Python calls: it releases the interpreter's lock and is cached if the folder is safe."""
    folder = cache_folder(Path(inspect.getfile(function)).parent)
    with nullcontext() if folder is None else _numba_caches_in(folder):
        made: Compiled = numba.njit(nogil=True, error_model="numpy", cache=folder is not None)(function)
    _kernels.append(made)
    return made


@contextmanager
def _numba_caches_in(folder: Path) -> Iterator[None]:
    """Let Numba cache the functions that are decorated meanwhile in a folder.

    Numba has one setting for the whole process and reads it when a function is decorated, so the setting is changed
    only for that long.
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
    """Return the cache folder for the kernels in a source folder, or None if there is no safe one.

    Numba executes the code that it loads. So the folder must belong to this user, and nobody else may write it.
    """
    root = files.cache_folder()
    if root is None:
        return None
    folder = root / f"{sources.name}-{fingerprint(sources)}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Numba would cache in __pycache__ beside the sources if it could not write here.
        tempfile.TemporaryFile(dir=folder).close()
        found = folder.stat()
    except OSError:
        return None
    is_safe = os.name == "nt" or (found.st_uid == os.getuid() and not found.st_mode & 0o022)
    return folder if is_safe else None


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
    """Load or compile kernels: ``warm``, which is defined beside them, calls each once.

    A compilation of ``what`` is announced on stderr. Processes that start together take turns, so the first one
    compiles and the others load; without turns two of them could also give the code of different signatures the same
    file name. If the cache cannot be read or written, the kernels are compiled without it.
    """
    folder = cache_folder(Path(inspect.getfile(warm)).parent)
    with event.install_listener("numba:compile", _Notice(what)):
        try:
            with nullcontext() if folder is None else locked(folder, waits=True):
                warm()
        except Exception:
            if folder is None:
                raise
            say(f"upcycled: cannot use the cached kernels in {folder}; delete that folder")
            for made in _kernels:
                made._cache.disable()
            warm()


class _Notice(event.Listener):  # type: ignore[misc]
    """Says once that kernels are compiled; loading them is silent."""

    def __init__(self, what: str) -> None:
        self._texts = [f"upcycled: compiling {what} (once per version) ..."]

    def on_start(self, event: object) -> None:
        while self._texts:
            say(self._texts.pop())

    def on_end(self, event: object) -> None:
        pass
