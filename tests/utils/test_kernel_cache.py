"""Cached kernels: never stale, never somebody else's code, and never the reason for a failed run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numba
import pytest

from upcycled._utils import compilation as cache
from upcycled._utils.lock import LOCK, locked
from upcycled.engines import fused

SMALL = f"""
import importlib.util, sys
# By its path: the package around it takes seconds to import.
spec = importlib.util.spec_from_file_location("cache", {cache.__file__!r})
cache = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cache)

@cache.kernel
def double(x):
    return 2 * x

def warm():
    assert double(21) == 42

cache.prepare(warm, "the fused kernels")
print(sum(double.stats.cache_hits.values()), sum(double.stats.cache_misses.values()))
"""

ENGINE = """
import numpy as np
from torch import nn
from upcycled.core.sampling import Cohort
from upcycled.core.layout import layout_of
from upcycled.core.vectors import Shards
from upcycled.core.solvers import LocalSGD, Problem
from upcycled.core.engine import Task
from upcycled.core.mechanism import Ask
from upcycled.engines.fused import FUSED
from upcycled.losses import CrossEntropy

module = nn.Linear(2, 2)
data = Shards(np.eye(2, dtype=np.float32), np.array([0, 1]), np.array([0, 2]))
engine = FUSED.open(Task(module, layout_of(module), 2, data, None, LocalSGD(0.1, 0.5, 2, 1), 0, CrossEntropy()), 1)
work = Ask(1, 1, 0, Cohort(np.array([0]), np.array([2])), np.zeros(6, np.float32), Problem())
print(engine.train(work).vectors.tobytes().hex())
"""


NOTICE = "upcycled: compiling the fused kernels (once per version) ...\n"


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.py"
    path.write_text(SMALL)
    return path


@pytest.fixture
def made(tmp_path):
    """A kernel with a cache of Numba's."""
    with cache._numba_caches_in(tmp_path):
        return numba.njit(cache=True)(lambda x: 2 * x)


def run(path, folder):
    environment = {**os.environ, "UPCYCLED_CACHE": str(folder)}
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def files(folder, ending):
    return sorted(Path(folder).rglob(f"*.{ending}"))


@pytest.mark.slow
def test_a_kernel_is_compiled_once_and_a_damaged_cache_only_costs_the_compilation(small, tmp_path):
    folder = tmp_path / "cache"
    assert run(small, folder) == ("0 1", NOTICE)
    assert run(small, folder) == ("1 0", "")
    for ending, length in (("nbc", 0), ("nbc", 1000), ("nbi", 50)):
        (path,) = files(folder, ending)
        whole = path.read_bytes()
        assert len(whole) > length
        path.write_bytes(whole[:length])
        out, err = run(small, folder)
        assert out == "0 1"
        assert "cached kernels" in err
        path.write_bytes(whole)
    assert run(small, folder) == ("1 0", "")


@pytest.mark.slow
def test_processes_that_start_together_compile_once(small, tmp_path):
    environment = {**os.environ, "UPCYCLED_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, str(small)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(4)]
    assert sorted(process.communicate()[0].strip() for process in started) == ["0 1", "1 0", "1 0", "1 0"]


def test_a_cache_that_cannot_be_used_is_left_alone(tmp_path, monkeypatch, made):
    """As with a full disk: loading or saving fails until the cache is disabled."""
    monkeypatch.setattr(cache, "cache_folder", lambda sources: tmp_path)
    monkeypatch.setattr(cache, "_kernels", [made])
    said, calls = [], []
    monkeypatch.setattr(cache, "say", said.append)

    def warm():
        calls.append(made._cache._enabled)
        if made._cache._enabled:
            raise OSError("no space left on device")

    cache.prepare(warm, "kernels")
    assert calls == [True, False]
    assert said == [f"upcycled: cannot use the cached kernels in {tmp_path}; delete that folder"]


def test_a_folder_that_cannot_be_written_means_no_cache_and_no_error(small, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    out, err = run(small, blocked / "cache")
    assert out == "0 1"
    assert err == NOTICE
    assert blocked.read_text() == ""


@pytest.mark.slow
def test_the_engine_says_that_it_compiles_and_the_next_process_need_not(tmp_path):
    script = tmp_path / "engine.py"
    script.write_text(ENGINE)
    vectors, err = run(script, tmp_path / "cache")
    assert err == NOTICE
    assert run(script, tmp_path / "cache") == (vectors, "")


def test_the_folder_is_named_after_every_source(tmp_path, monkeypatch):
    sources, shared = tmp_path / "fused", tmp_path / "shared"
    shutil.copytree(Path(fused.__file__).parent, sources)
    name = cache.fingerprint(sources)
    assert name == cache.fingerprint(Path(fused.__file__).parent)
    shared.mkdir()
    assert {path.name for path in cache._SHARED} == {"compiled_randomness.py", "randomness.py"}
    monkeypatch.setattr(cache, "_SHARED", tuple(Path(shutil.copy(path, shared)) for path in cache._SHARED))
    assert cache.fingerprint(sources) == name
    for path in sorted([*sources.glob("*.py"), *shared.glob("*.py")]):
        content = path.read_text()
        path.write_text(content + "\n")
        assert cache.fingerprint(sources) != name, path.name
        path.write_text(content)
    assert cache.fingerprint(sources) == name


@pytest.mark.skipif(os.name == "nt", reason="a profile's folder has access lists instead of modes")
def test_only_a_folder_of_this_user_that_nobody_else_can_write_is_used(tmp_path, monkeypatch):
    monkeypatch.setenv("UPCYCLED_CACHE", str(tmp_path))
    sources = Path(fused.__file__).parent
    folder = cache.cache_folder.__wrapped__(sources)
    assert folder is not None
    assert folder.stat().st_mode & 0o777 == 0o700
    for mode, is_safe in ((0o755, True), (0o775, False), (0o757, False)):
        folder.chmod(mode)
        assert (cache.cache_folder.__wrapped__(sources) == folder) is is_safe
    folder.chmod(0o700)
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    assert cache.cache_folder.__wrapped__(sources) is None


def test_numbas_own_setting_is_the_users_again_whatever_happened(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", "users")
    with pytest.raises(TypeError):
        cache.kernel("no function")
    assert numba.config.CACHE_DIR == "users"
    with cache._numba_caches_in(tmp_path):
        assert str(tmp_path) == numba.config.CACHE_DIR
    assert numba.config.CACHE_DIR == "users"


def test_threads_that_decorate_at_once_do_not_restore_each_others_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", "users")
    inside, second = threading.Event(), []

    def late():
        inside.wait()
        with cache._numba_caches_in(tmp_path / "second"):
            second.append(numba.config.CACHE_DIR)

    thread = threading.Thread(target=late)
    thread.start()
    with cache._numba_caches_in(tmp_path / "first"):
        inside.set()
        thread.join(0.2)
        assert thread.is_alive()
        assert str(tmp_path / "first") == numba.config.CACHE_DIR
    thread.join()
    assert second == [str(tmp_path / "second")]
    assert numba.config.CACHE_DIR == "users"


def test_kernels_wait_for_a_process_that_prepares_them(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "cache_folder", lambda sources: tmp_path)
    warmed = threading.Event()
    thread = threading.Thread(target=lambda: cache.prepare(lambda: warmed.set(), "kernels"))
    with locked(tmp_path):  # as another process would
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        assert not warmed.is_set()
    thread.join()
    assert warmed.is_set()


def test_kernels_are_prepared_where_no_lock_can_be_had(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "cache_folder", lambda sources: tmp_path)
    (tmp_path / LOCK).mkdir()
    warmed = threading.Event()
    cache.prepare(lambda: warmed.set(), "kernels")
    assert warmed.is_set()
