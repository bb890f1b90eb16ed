"""Shared fixtures (a small federation, the real data where they are, known entropy), and how hypothesis searches."""

from __future__ import annotations

import hashlib
import itertools
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import upcycled as up
from upcycled.privacy.noise import SystemNoise

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


@pytest.fixture(scope="session", autouse=True)
def compiled():
    """Have kernels loaded or compiled before any test looks at what is printed: on a new machine that is said once."""
    data = up.data.synthetic(0.5, 0.5, clients=2, dim=2, seed=0)
    private = up.privacy.ErmOutput(1.0, noise_std=0.01)
    for algorithm, privacy in ((up.FedAvg(), None), (up.PFedMe(), None), (up.FedProx(mu=1.0), private)):
        up.train(data, algorithm=algorithm, privacy=privacy, engine="fused", iterations=1, progress=False)
    one, scale = np.zeros(1, dtype=np.int64), np.full(1, 2.0**20)
    for draw in (SystemNoise().gaussian_steps, SystemNoise().laplace_steps):
        draw(one, 1, scale)


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
    monkeypatch.setattr("upcycled.privacy.noise.os", stand_in)
