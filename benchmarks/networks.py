"""Networks that people bring, without privacy, against the best plain torch loop and against their own products.

    python -m benchmarks.networks [REPEATS]

W4: a CNN of two 5x5 convolutions (114,314 parameters) on 28 x 28 images of FEMNIST's sizes. W5: a transformer of two
layers, width 64, on 32 tokens. W6: ResNet-8 with group norm on 32 x 32 x 3 images. 50 clients, 15 a round, batches of
32, SGD with momentum. A data round of a warm run, ours by ``engine="auto"``; the plain loop trains one client after the
other with torch's own SGD, on one thread and on two. The limit is the time of a step's matrix products and convolutions
alone, forward and backward, on one thread, divided by the number of cores.
"""

from __future__ import annotations

import copy
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import upcycled as up
from benchmarks.auto import large_cnn
from benchmarks.measure import explain_if_asked, keep
from upcycled.engines.determinism import one_thread

CLIENTS, COHORT, BATCH, EPOCHS, LR, MOMENTUM = 50, 15, 32, 1, 0.02, 0.5
LARGEST = 8
"""Operations beside the products that are named."""


class Transformer(nn.Module):
    """Two encoder layers over an embedding, and the mean of their tokens."""

    def __init__(self, words: int = 1000, width: int = 64, length: int = 32, classes: int = 10) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.zeros(length, width))
        layers = [nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True) for _ in range(2)]
        self.layers, self.out = nn.ModuleList(layers), nn.Linear(width, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.out(x.mean(dim=1))
        return logits


class Block(nn.Module):
    """Two convolutions with group norm beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm_one, self.norm_two = nn.GroupNorm(8, outputs), nn.GroupNorm(8, outputs)
        self.short = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.norm_two(self.two(functional.relu(self.norm_one(self.one(x)))))
        return functional.relu(inner + self.short(x))


def resnet8() -> nn.Module:
    """ResNet-8: one convolution, three blocks of 16, 32 and 64 channels, one layer."""
    blocks = [Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2)]
    first = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.GroupNorm(8, 16), nn.ReLU()]
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


@dataclass(frozen=True)
class Network:
    """A model, and how a client's inputs look."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    samples: int
    words: int = 0

    def federation(self) -> up.FederatedData:
        rng = np.random.default_rng(0)
        sizes = rng.integers(self.samples // 2, 2 * self.samples, CLIENTS)
        xs: list[Any] = [
            rng.integers(0, self.words, (n, *self.shape))
            if self.words
            else rng.normal(size=(n, *self.shape)).astype(np.float32)
            for n in sizes
        ]
        return up.FederatedData.from_arrays(xs, [rng.integers(0, 10, n) for n in sizes], num_classes=10)


NETWORKS = {
    "W4": Network(large_cnn, (1, 28, 28), 128),
    "W5": Network(Transformer, (32,), 128, words=1000),
    "W6": Network(resnet8, (3, 32, 32), 64),
}


def plain_round(module: nn.Module, clients: list[tuple[torch.Tensor, torch.Tensor]]) -> int:
    """One round as anybody would write it; returns the steps it made."""
    total = [torch.zeros_like(p) for p in module.parameters()]
    steps, samples = 0, sum(len(y) for _, y in clients)
    for x, y in clients:
        local = copy.deepcopy(module)
        optimiser = torch.optim.SGD(local.parameters(), lr=LR, momentum=MOMENTUM)
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(y)).split(BATCH):  # type: ignore[no-untyped-call]
                optimiser.zero_grad()
                functional.cross_entropy(local(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                steps += 1
        for mean, p in zip(total, local.parameters(), strict=True):
            mean += p.detach() * (len(y) / samples)
    with torch.no_grad():
        for p, mean in zip(module.parameters(), total, strict=True):
            p.copy_(mean)
    return steps


def plain(network: Network, data: up.FederatedData, threads: int, rounds: int) -> float:
    """Milliseconds a step of the plain loop, the first round not counted."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        module = network.make()
        shards = [data.train.client(i) for i in range(COHORT)]
        clients = [(torch.from_numpy(np.array(x)), torch.from_numpy(np.array(y))) for x, y in shards]
        plain_round(module, clients)
        began = time.perf_counter()
        steps = sum(plain_round(module, clients) for _ in range(rounds))
        return 1e3 * (time.perf_counter() - began) / steps
    finally:
        torch.set_num_threads(before)


def ours(network: Network, data: up.FederatedData, rounds: int) -> tuple[float, str]:
    """Milliseconds a step of a long run's later rounds, and the engine that does it."""
    run = up.train(
        data,
        algorithm=up.FedAvg(),
        model=network.make(),
        local=up.LocalSGD(lr=LR, momentum=MOMENTUM, epochs=EPOCHS, batch_size=BATCH),
        participation=COHORT / CLIENTS,
        iterations=rounds + 2,
        eval_every=rounds + 2,
        engine="vectorised",
        progress=False,
    )
    warm = run.history.records[2:-1]
    each = [1e3 * (record.seconds or 0.0) / (record.gradient_steps or 1) for record in warm]
    return statistics.median(each), str(run.settings["engine"])


def spent(network: Network) -> tuple[float, dict[str, float]]:
    """Milliseconds of a step on one thread, by torch's profiler: products, and the largest others.

    Forward and backward. Products are matrix products and convolutions; the others go by torch's names.
    """
    module, rng = network.make(), np.random.default_rng(0)
    made = rng.integers(0, network.words, (BATCH, *network.shape)) if network.words else None
    x = torch.from_numpy(rng.normal(size=(BATCH, *network.shape)).astype(np.float32) if made is None else made)
    y = torch.from_numpy(rng.integers(0, 10, BATCH))
    heavy = ("conv", "mm", "matmul", "linear", "attention", "mkldnn")
    for _ in range(5):
        functional.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(10):
            functional.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
    each = {event.key: float(event.self_cpu_time_total) / 1e3 / 10 for event in profile.key_averages()}
    products = sum(ms for key, ms in each.items() if any(word in key for word in heavy))
    others = {key: ms for key, ms in each.items() if not any(word in key for word in heavy)}
    return products, dict(sorted(others.items(), key=lambda pair: -pair[1])[:LARGEST])


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    cores, found = len(os.sched_getaffinity(0)), {}
    for name, network in NETWORKS.items():
        data = network.federation()
        times: dict[str, list[float]] = {"ours": [], "plain, 1 thread": [], "plain, 2 threads": [], "products": []}
        engine, others = "", dict[str, float]()
        for _ in range(repeats):
            one, engine = ours(network, data, 4)
            times["ours"].append(one)
            for threads in (1, 2):
                times[f"plain, {threads} thread{'s' if threads > 1 else ''}"].append(plain(network, data, threads, 2))
            with one_thread():
                on_one, others = spent(network)
            times["products"].append(on_one / cores)
        ms = {key: statistics.median(values) for key, values in times.items()}
        best = min(ms["plain, 1 thread"], ms["plain, 2 threads"])
        found[name] = {
            "ms a step": ms,
            "engine": engine,
            "plain / ours": best / ms["ours"],
            "ours / products": ms["ours"] / ms["products"],
            "beside the products, ms on one thread": others,
        }
        print(name, found[name], flush=True)
    keep("networks", found)


if __name__ == "__main__":
    explain_if_asked(__doc__)
    main()
