"""Shared fixtures (a small federation, the real data where they are, known entropy), and how hypothesis searches."""

from __future__ import annotations

import gc
import hashlib
import itertools
import os
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import upcycled as up

# Nothing is timed, and the same sources try the same examples: what passed once passes on every machine.
usual = settings.get_profile("default")
settings.register_profile("explore", usual, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("gate", settings.get_profile("explore"), derandomize=True)
settings.load_profile("gate")


def pytest_configure(config):
    """Let loky say that it replaces an idle worker: as an error this ends its own thread, and breaks the pool."""
    # Read when torch is loaded, which no plugin does: its threads give the cores away while they wait for one another,
    # to the tests of other processes. The same threads do the same work.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    config.addinivalue_line("filterwarnings", "ignore:A worker .* while some jobs:UserWarning")
    config.addinivalue_line("filterwarnings", "ignore:Trying to resize an executor with running jobs:UserWarning")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Let no test draw from where another left off: a model without a seed of its own is the same in every order."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    import torch  # not above: see pytest_configure

    torch.manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keep the collector of garbage from walking, again and again, through modules and tests that all stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def silent_compilation():
    """Let no test that looks at what is printed see that a kernel is compiled: on a new machine that is said once.

    Kernels are compiled when a test first needs them, so that no process waits for those that it does not need yet.
    What is said has its own tests, in processes of their own.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("upcycled._utils.compilation.say", lambda text: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk():
    """Flush nothing to the disk: only a power cut could tell. Tests of durability replace or watch os.fsync themselves.

    A descriptor that is not open is still an error, and processes that tests start and kill flush as they always do.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: os.fstat(handle) and None)
        yield


@pytest.fixture(scope="session", autouse=True)
def cold_workers():
    """Let no batch go by whether an earlier test has left workers: tests are to be the same in every order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("upcycled.training.executor.are_warm", lambda processes: False)
        yield


def ragged(sizes=(23, 7, 41, 12), features=5, classes=3, seed=0):
    """Clients of different sizes and distributions; returns lists of arrays."""
    rng = np.random.default_rng(seed)
    xs = [rng.normal(0.3 * i, 1.0, (n, features)).astype(np.float32) for i, n in enumerate(sizes)]
    ys = [rng.integers(0, classes, n) for n in sizes]
    return xs, ys


@pytest.fixture
def federation():
    xs, ys = ragged()
    txs, tys = ragged(sizes=(9, 4, 6, 5), seed=1)
    return up.FederatedData.from_arrays(xs, ys, test=(txs, tys), num_classes=3)


@pytest.fixture(scope="session")
def shared_data():
    folder = Path(os.environ.get("UPCYCLED_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not (folder / "upcycled_synthetic.npz").exists():
        pytest.skip(f"the real data sets are not at {folder.name}/ (set UPCYCLED_DATA to their folder)")
    return folder


@pytest.fixture
def known_entropy(monkeypatch):
    """Real noise from bytes that are the same in every run of the tests: a p-value is then small never, or always."""
    calls = itertools.count()
    stand_in = SimpleNamespace(urandom=lambda size: hashlib.shake_256(b"%d" % next(calls)).digest(size))
    monkeypatch.setattr("upcycled.privacy.noise.sources.os", stand_in)
