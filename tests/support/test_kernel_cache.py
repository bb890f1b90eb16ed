"""Compiled kernels on disk: named after their sources, checked before use, and never in the way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numba
import pytest

from upcycled.engines import fused
from upcycled.support import kernel_cache as cache
from upcycled.support.lock import LOCK, locked

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
from upcycled.core.sampler import Cohort
from upcycled.core.layout import layout_of
from upcycled.core.shards import Shards
from upcycled.core.solvers import LocalSGD, Problem
from upcycled.core.engine import Task, Work
from upcycled.engines.fused import FUSED
from upcycled.losses import CrossEntropy

module = nn.Linear(2, 2)
data = Shards(np.eye(2, dtype=np.float32), np.array([0, 1]), np.array([0, 2]))
engine = FUSED.open(Task(module, layout_of(module), 2, data, None, LocalSGD(0.1, 0.5, 2, 1), 0, CrossEntropy()), 1)
work = Work(1, 0, Cohort(np.array([0]), np.array([2])), np.zeros(6, np.float32), Problem())
print(engine.train(work).vectors.tobytes().hex())
"""


NOTICE = "upcycled: compiling the fused kernels (once per version) ...\n"


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.py"
    path.write_text(SMALL)
    return path


def run(path, folder):
    environment = {**os.environ, "UPCYCLED_CACHE": str(folder)}
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def files(folder, ending):
    return sorted(Path(folder).rglob(f"*.{ending}"))


def damage(path, how):
    content = bytearray(path.read_bytes())
    if how == "cut":
        content = content[: len(content) // 2]
    elif how == "emptied":
        content = bytearray()
    else:
        content[len(content) // 2] ^= 0x10
    path.write_bytes(bytes(content))


@pytest.mark.slow
def test_a_kernel_is_compiled_once_and_a_damaged_file_is_compiled_anew(small, tmp_path):
    folder = tmp_path / "cache"
    assert run(small, folder)[0] == "0 1"
    assert run(small, folder)[0] == "1 0"
    for ending, how in (("nbi", "cut"), ("nbc", "flipped"), ("nbc", "emptied")):
        (path,) = files(folder, ending)
        damage(path, how)
        out, err = run(small, folder)
        assert out == "0 1"
        assert err in ("", NOTICE)  # on a busy machine even the small kernel takes over a second
    (sums,) = files(folder, "json")
    sums.write_text("{")
    assert run(small, folder)[0] == "0 1"
    assert run(small, folder)[0] == "1 0"


@pytest.mark.slow
def test_damage_that_has_its_checksum_is_still_survived(small, tmp_path):
    # As if the file had been damaged before it was sealed: Numba itself meets it.
    folder = tmp_path / "cache"
    run(small, folder)
    for path in files(folder, "nbi"):
        damage(path, "cut")
    (home,) = folder.iterdir()
    cache.seal(home)
    out, err = run(small, folder)
    assert out.split()[1] == "1"
    assert "Traceback" not in err


def test_a_folder_that_cannot_be_written_means_no_cache_and_no_error(small, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    out, err = run(small, blocked / "cache")
    assert out == "0 1"
    assert err in ("", NOTICE)
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
    assert {path.name for path in cache._SHARED} == {"compiled_streams.py", "streams.py"}
    monkeypatch.setattr(cache, "_SHARED", tuple(Path(shutil.copy(path, shared)) for path in cache._SHARED))
    assert cache.fingerprint(sources) == name
    for path in sorted([*sources.glob("*.py"), *shared.glob("*.py")]):
        content = path.read_text()
        path.write_text(content + "\n")
        assert cache.fingerprint(sources) != name, path.name
        path.write_text(content)
    assert cache.fingerprint(sources) == name


def test_only_what_was_sealed_stays(tmp_path):
    (tmp_path / "a.nbi").write_bytes(b"a")
    (tmp_path / "b.nbc").write_bytes(b"b")
    cache.seal(tmp_path)
    (tmp_path / "b.nbc").write_bytes(b"c")
    (tmp_path / "new.nbc").write_bytes(b"d")
    cache.drop_damaged(tmp_path)
    assert [path.name for path in files(tmp_path, "nb*")] == ["a.nbi"]
    cache.seal(tmp_path)
    assert list(json.loads((tmp_path / "sums.json").read_text())) == ["a.nbi"]


def test_folders_of_other_versions_go_when_nobody_has_used_them_for_long(tmp_path):
    old, recent, foreign = tmp_path / "fused-old", tmp_path / "fused-recent", tmp_path / "other"
    for folder in (old, recent, foreign):
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "a.nbi").write_bytes(b"a")
        cache.seal(folder)
    long_ago = time.time() - 100 * 86400
    os.utime(old / "sums.json", (long_ago, long_ago))
    os.utime(foreign / "sums.json", (long_ago, long_ago))
    cache._drop_unused(tmp_path, tmp_path / "fused-current")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fused-recent", "other"]


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
