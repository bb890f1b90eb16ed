"""Shared fixtures: a small ragged federation, and the folder of the real data (skipped where it is absent)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import upcycled as up


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
