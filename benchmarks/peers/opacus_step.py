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

BATCH, WORDS = 32, 5000


class Sentences(nn.Module):
    """The paper's bidirectional LSTM on fixed vectors of 300 numbers, 25 words a sentence."""

    def __init__(self, recurrent: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 300).requires_grad_(False)
        self.lstm, self.output = recurrent(300, 128, batch_first=True, bidirectional=True), nn.Linear(256, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        _, (last, _) = self.lstm(self.embedding(tokens))
        logits: torch.Tensor = self.output(torch.cat([last[0], last[1]], dim=1))
        return logits


def model_of(name: str, recurrent: Any = nn.LSTM) -> tuple[nn.Module, tuple[int, ...], int]:
    """Return the model, the shape of a sample and the number of classes."""
    if name == "linear":
        return nn.Linear(20, 2), (20,), 2
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 196), nn.ReLU(), nn.Linear(196, 10)), (1, 28, 28), 10
    if name == "cnn":
        layers = [nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Flatten(), nn.Linear(1568, 64), nn.ReLU(), nn.Linear(64, 10)]
        return nn.Sequential(*layers), (1, 28, 28), 10
    if name == "lstm":
        return Sentences(recurrent), (25,), 2
    raise SystemExit(f"no model {name}")


def main(name: str, steps: int) -> None:
    from opacus import GradSampleModule  # type: ignore[import-not-found]
    from opacus.layers import DPLSTM  # type: ignore[import-not-found]
    from opacus.optimizers import DPOptimizer  # type: ignore[import-not-found]

    module, shape, classes = model_of(name, DPLSTM)
    wrapped: Any = GradSampleModule(module)
    plain = torch.optim.SGD([p for p in wrapped.parameters() if p.requires_grad], lr=0.01, momentum=0.5)
    optimiser: Any = DPOptimizer(plain, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=BATCH)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20 * BATCH, *shape, generator=generator)
    if name == "lstm":
        x = torch.randint(0, WORDS, (20 * BATCH, *shape), generator=generator)
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
