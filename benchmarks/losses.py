"""What the fused engine's other losses cost: seconds of a run over those with cross-entropy, interleaved.

python -m benchmarks.losses

The same features, clients and steps; cross-entropy has two outputs for two classes, the others have one.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
from torch import nn

import upcycled as up
from benchmarks.measure import explain_if_asked, keep

CLIENTS, SAMPLES, FEATURES, HIDDEN, REPEATS = 50, 200, 60, 64, 11
LOSSES = ("cross_entropy", "binary_cross_entropy", "mse", "huber")


def federation(loss: str) -> up.FederatedData:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((CLIENTS * SAMPLES, FEATURES)).astype(np.float32)
    score = x @ rng.standard_normal(FEATURES).astype(np.float32)
    y = (score > 0).astype(np.int64) if "entropy" in loss else score
    xs, ys = np.split(x, CLIENTS), np.split(y, CLIENTS)
    return up.FederatedData.from_arrays(xs, ys, targets="classes" if "entropy" in loss else "numbers")


def model(kind: str, loss: str) -> nn.Module:
    outputs = 2 if loss == "cross_entropy" else 1
    if kind == "linear":
        return nn.Linear(FEATURES, outputs)
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, outputs))


def seconds(data: up.FederatedData, kind: str, loss: str) -> float:
    arguments: dict[str, Any] = {"algorithm": up.FedAvg(), "iterations": 20, "loss": loss, "eval_every": 20, "seed": 0}
    local = up.LocalSGD(lr=0.01, momentum=0.5, epochs=10, batch_size=32)
    began = time.perf_counter()
    up.train(data, model=model(kind, loss), local=local, engine="fused", progress=False, **arguments)
    return time.perf_counter() - began


def main() -> None:
    found = {}
    for kind in ("linear", "mlp"):
        data = {loss: federation(loss) for loss in LOSSES}
        for loss in LOSSES:
            seconds(data[loss], kind, loss)
        times = [{loss: seconds(data[loss], kind, loss) for loss in LOSSES} for _ in range(REPEATS)]
        for loss in LOSSES[1:]:
            found[f"{kind}, {loss}"] = statistics.median(t[loss] / t[LOSSES[0]] for t in times)
    keep("losses", {"seconds over cross-entropy's": found})


if __name__ == "__main__":
    explain_if_asked(__doc__)
    main()
