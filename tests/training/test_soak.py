"""Ten thousand iterations: what a run keeps grows with its records, and with nothing else."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

import upcycled as up

PER_RECORD = 6000
"""Bytes that a record of a small run may take: its numbers and its cohort."""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["fused", "sequential"])
@pytest.mark.parametrize("kept", [False, True], ids=["alone", "kept"])
def test_memory_is_flat_over_ten_thousand_iterations(engine, kept, tmp_path):
    sizes = []

    def watch(record):
        if record.iteration in (2000, 6000, 10_000):
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])

    tracemalloc.start()
    try:
        up.train(
            up.data.synthetic("iid", clients=4, dim=2, sizes=8, seed=0),
            algorithm=up.Scaffold(),
            upcycle=0.5,
            iterations=10_000,
            local=up.LocalSGD(lr=0.01, epochs=1, batch_size=None),
            eval_every=100,
            engine=engine,
            progress=False,
            checkpoint=tmp_path / "kept" if kept else None,
            checkpoint_every=500,
            callbacks=[watch],
        )
    finally:
        tracemalloc.stop()
    first, second = sizes[1] - sizes[0], sizes[2] - sizes[1]
    assert second <= 1.25 * first + 100_000, "memory grows faster than records"
    assert second <= 4000 * PER_RECORD
