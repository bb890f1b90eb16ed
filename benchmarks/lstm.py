"""A client step of the paper's bidirectional LSTM against the matrix products it is made of.

    python -m benchmarks.lstm

Embedding 300 (fixed), hidden 128 each way, length 25, batch 32, 15 clients at once. The limit is the time of the step's
products alone, one thread, divided by the number of cores.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

import numpy as np
import torch

import upcycled as up
from benchmarks.measure import explain_if_asked, keep
from upcycled.engines.determinism import one_thread

BATCH, LENGTH, EMBEDDING, HIDDEN = 32, 25, 300, 128
CLIENTS, SAMPLES, EPOCHS, VOCABULARY = 15, 128, 2, 5000


def federation() -> tuple[up.FederatedData, torch.nn.Module]:
    rng = np.random.default_rng(0)
    xs = [rng.integers(0, VOCABULARY, (SAMPLES, LENGTH)) for _ in range(CLIENTS)]
    ys = [rng.integers(0, 2, SAMPLES) for _ in range(CLIENTS)]
    vectors = 0.3 * rng.normal(size=(VOCABULARY, EMBEDDING))
    return up.FederatedData.from_arrays(xs, ys, num_classes=2), up.models.lstm(2, vectors=vectors, hidden=HIDDEN)


def products() -> float:
    """Seconds of one step's products on one thread: both directions, forward and backward."""
    x, w_x = torch.randn(LENGTH * BATCH, EMBEDDING), torch.randn(8 * HIDDEN, EMBEDDING)
    gates = torch.randn(LENGTH * BATCH, 8 * HIDDEN)
    w_h, h, dh = torch.randn(4 * HIDDEN, HIDDEN), torch.randn(BATCH, HIDDEN), torch.randn(BATCH, 4 * HIDDEN)
    all_h, all_d = torch.randn(LENGTH * BATCH, HIDDEN), torch.randn(LENGTH * BATCH, 4 * HIDDEN)
    began = time.perf_counter()
    for _ in range(10):
        x @ w_x.t()
        for _ in range(2):
            for _ in range(LENGTH):
                h @ w_h.t()
                dh @ w_h
            all_d.t() @ all_h
        gates.t() @ x
    return (time.perf_counter() - began) / 10


def main() -> None:
    data, module = federation()
    arguments: dict[str, Any] = {
        "algorithm": up.FedAvg(),
        "model": module,
        "local": up.LocalSGD(lr=0.05, momentum=0.5, epochs=EPOCHS, batch_size=BATCH),
        "engine": "vectorised",
        "progress": False,
    }
    steps, limits = [], []
    for _ in range(3):
        result = up.train(data, iterations=4, **arguments)
        warm = result.history.records[1:]
        steps.append(statistics.median((r.seconds or 0.0) / (r.gradient_steps or 1) for r in warm))
        with one_thread():
            products()
            limits.append(statistics.median(products() for _ in range(5)))
    cores = len(os.sched_getaffinity(0))
    step, limit = statistics.median(steps), statistics.median(limits) / cores
    keep("lstm", {"ms a client step": 1e3 * step, "ms of its products": 1e3 * limit, "step / GEMM limit": step / limit})


if __name__ == "__main__":
    explain_if_asked(__doc__)
    main()
