"""Whether ``engine="auto"`` takes the right engine: small and large cases, each engine against auto, cold processes.

    python -m benchmarks.auto [repeats]

A case is timed from the start of its process to its end, imports and the start of worker processes included, as
somebody who types a command waits for it. Engines take turns. Kernels of the fused engine are compiled before, and so
are Python's own sources, whatever the environment says about keeping them: as they are where it is installed.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from benchmarks.measure import explain_if_asked

if TYPE_CHECKING:
    import upcycled as up

REPEATS = 3
ENGINES = ("fused", "vectorised", "sequential")
NOT_FOR_IT = 3
"""What a process ends with whose engine refuses the case."""

Case: TypeAlias = "Callable[[], tuple[up.FederatedData, dict[str, Any]]]"


def _images(clients: int, samples: int, side: int, channels: int = 1) -> up.FederatedData:
    """Make clients with random pictures of 10 classes; learning them is not the point."""
    import numpy as np

    import upcycled as up

    rng = np.random.default_rng(0)
    x = rng.standard_normal((clients * samples, channels, side, side), dtype=np.float32)
    y = rng.integers(0, 10, len(x))
    return up.FederatedData.from_flat(x, y, np.arange(0, len(y) + 1, samples), num_classes=10)


def _rows(clients: int, samples: int, features: int, classes: int) -> up.FederatedData:
    import upcycled as up

    return up.data.synthetic("iid", clients=clients, dim=features, num_classes=classes, sizes=samples, seed=0)


def _tokens(clients: int, samples: int, length: int) -> up.FederatedData:
    import numpy as np

    import upcycled as up

    rng = np.random.default_rng(0)
    x = rng.integers(0, 200, (clients * samples, length))
    y = (x.sum(axis=1) % 2).astype(np.int64)
    offsets = np.arange(0, len(y) + 1, samples)
    return up.FederatedData.from_flat(x, y, offsets, num_classes=2, vocabulary=200)


def _run(rounds: int, epochs: int, batch: int, **more: Any) -> dict[str, Any]:
    import upcycled as up

    local = up.LocalSGD(lr=0.01, epochs=epochs, batch_size=batch)
    return {"algorithm": up.FedAvg(), "iterations": rounds, "local": local, "eval_every": rounds, **more}


def _tanh(features: int, hidden: int, classes: int) -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, classes))


def small_cnn() -> Any:
    from torch import nn

    first = [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(8 * 7 * 7, 10))


def large_cnn() -> Any:
    """Two 5x5 convolutions, 114,314 parameters."""
    from torch import nn

    first = [nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(32 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, 10))


def transformer(width: int, length: int, layers: int = 2) -> Any:
    import torch
    from torch import nn

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(200, width)
            self.places = nn.Parameter(0.02 * torch.randn(length, width))
            layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
            self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
            self.head = nn.Linear(width, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.head(self.layers(self.tokens(x) + self.places).mean(1))
            return out

    return Encoder()


CASES: dict[str, Case] = {
    "softmax regression, 6 rounds": lambda: (_rows(6, 40, 5, 3), _run(6, 2, 8)),
    "softmax regression, 20 rounds": lambda: (_rows(30, 200, 20, 2), _run(20, 10, 32)),
    "MLP 784-196-10 with ReLU, 5 rounds": lambda: (_images(15, 300, 28), _run(5, 5, 32, model="mlp")),
    "MLP 20-8-2 with tanh, 6 clients, 3 rounds": lambda: (
        _rows(6, 40, 20, 2),
        _run(3, 2, 8, model=_tanh(20, 8, 2)),
    ),
    "MLP 20-8-2 with tanh, 100 clients, 10 rounds": lambda: (
        _rows(100, 40, 20, 2),
        _run(10, 5, 8, model=_tanh(20, 8, 2)),
    ),
    "MLP 64-256-10 with tanh, 20 clients, 20 rounds": lambda: (
        _rows(20, 200, 64, 10),
        _run(20, 5, 32, model=_tanh(64, 256, 10)),
    ),
    "small CNN, 10 rounds": lambda: (_images(20, 60, 28), _run(10, 2, 10, model=small_cnn())),
    "small CNN, 50 rounds": lambda: (_images(20, 60, 28), _run(50, 2, 10, model=small_cnn())),
    "CNN of 114,314 parameters, 1 round": lambda: (_images(5, 100, 28), _run(1, 1, 20, model=large_cnn())),
    "CNN of 114,314 parameters, 3 rounds": lambda: (_images(15, 200, 28), _run(3, 2, 20, model=large_cnn())),
    "LSTM, 5 rounds": lambda: (_tokens(10, 40, 16), _run(5, 2, 10, model="lstm")),
    "transformer of width 64, 10 rounds": lambda: (
        _tokens(10, 60, 32),
        _run(10, 2, 10, model=transformer(64, 32)),
    ),
}


def child(name: str, engine: str) -> None:
    """Train one case in this process; ends with NOT_FOR_IT if the engine refuses it."""
    import torch

    import upcycled as up

    torch.manual_seed(0)
    data, arguments = CASES[name]()
    try:
        result = up.train(data, engine=engine, progress=False, **arguments)
    except up.InputError as error:
        if f"engine '{engine}' cannot run this" in str(error):
            raise SystemExit(NOT_FOR_IT) from error
        raise
    print(result.settings["engine"], result.settings["way"])


def cold(name: str, engine: str) -> tuple[float, str] | None:
    """Return the wall seconds of a case in a new process and the engine that did it; None if it refuses."""
    code = f"from benchmarks.auto import child; child({name!r}, {engine!r})"
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=kept)
    seconds = time.perf_counter() - began
    if done.returncode == NOT_FOR_IT:
        return None
    if done.returncode:
        raise SystemExit(f"{name}, {engine}: {done.stderr}")
    return seconds, done.stdout.strip()


def measured(name: str, repeats: int) -> dict[str, Any]:
    """Time a case with each engine and with auto, in turns."""
    engines = [engine for engine in ENGINES if cold(name, engine) is not None]
    seconds: dict[str, list[float]] = {engine: [] for engine in (*engines, "auto")}
    taken = ""
    for _ in range(repeats):
        for engine, found in seconds.items():
            timed = cold(name, engine)
            assert timed is not None
            found.append(timed[0])
            taken = timed[1] if engine == "auto" else taken
    medians = {engine: statistics.median(found) for engine, found in seconds.items()}
    best = min(medians[engine] for engine in engines)
    return {"seconds": medians, "auto takes": taken, "auto over the best": medians["auto"] / best}


def main(repeats: int = REPEATS) -> None:
    from benchmarks.measure import keep

    found = {}
    for name in CASES:
        found[name] = measured(name, repeats)
        told = ", ".join(f"{engine} {seconds:.2f} s" for engine, seconds in found[name]["seconds"].items())
        print(f"{name}: {found[name]['auto over the best']:.2f}x ({found[name]['auto takes']}; {told})", flush=True)
    keep("auto", {"cases": found, "worst": max(case["auto over the best"] for case in found.values())})


if __name__ == "__main__":
    explain_if_asked(__doc__)
    main(*map(int, sys.argv[1:2]))
