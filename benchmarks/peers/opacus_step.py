"""A step of DP-SGD by Opacus: milliseconds, batch 32. Run by ``benchmarks.dpsgd`` in an environment of its own.

python -m benchmarks.peers.opacus_step MODEL STEPS
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import torch
from torch import nn

BATCH = 32


def model_of(name: str) -> tuple[nn.Module, tuple[int, ...], int]:
    """Return the model, the shape of a sample and the number of classes."""
    if name == "linear":
        return nn.Linear(20, 2), (20,), 2
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 196), nn.ReLU(), nn.Linear(196, 10)), (1, 28, 28), 10
    raise SystemExit(f"no model {name}")


def main(name: str, steps: int) -> None:
    from opacus import GradSampleModule  # type: ignore[import-not-found]
    from opacus.optimizers import DPOptimizer  # type: ignore[import-not-found]

    module, shape, classes = model_of(name)
    wrapped: Any = GradSampleModule(module)
    plain = torch.optim.SGD(wrapped.parameters(), lr=0.01, momentum=0.5)
    optimiser: Any = DPOptimizer(plain, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=BATCH)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20 * BATCH, *shape, generator=generator)
    y = torch.randint(0, classes, (20 * BATCH,), generator=generator)
    times = []
    for _ in range(steps):
        began = time.perf_counter()
        rows = torch.nonzero(torch.rand(20 * BATCH) < 1 / 20)[:, 0]
        optimiser.zero_grad()
        loss: Any = nn.functional.cross_entropy(wrapped(x[rows]), y[rows])
        loss.backward()
        optimiser.step()
        times.append(time.perf_counter() - began)
    warm = times[len(times) // 5 :]
    print(json.dumps({"ms": 1e3 * statistics.median(warm), "least ms": 1e3 * min(warm)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
