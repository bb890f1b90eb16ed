"""W1's settings and data for the peers: NumPy only, since our package is not in their environments."""

from __future__ import annotations

import itertools
import json
import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(os.environ.get("UPCYCLED_DATA", Path(__file__).parents[3] / "shared" / "data"))

ROUNDS = 80
CLIENTS = 30
FEATURES, CLASSES = 20, 2
EPOCHS, BATCH, LR, MOMENTUM = 10, 32, 0.1, 0.5
CLIP, NOISE = 10.0, 1.0

# The first round pays for imports, processes and caches, so it is run and not counted.
WARM_UP = 1
MEASURED = 16

Part = tuple[np.ndarray, np.ndarray]


def load() -> tuple[list[Part], Part]:
    """Return every client's training samples, and all clients' test samples in one."""
    with np.load(FOLDER / "upcycled_synthetic.npz") as file:
        x, y, client, test_x, test_y = (
            file[f"syn_iid_{name}"] for name in ("train_x", "train_y", "train_client", "test_x", "test_y")
        )
    mine = [np.flatnonzero(client == i) for i in range(CLIENTS)]
    parts = [(x[rows].astype(np.float32), y[rows].astype(np.int64)) for rows in mine]
    return parts, (test_x.astype(np.float32), test_y.astype(np.int64))


def report(peer: str, stamps: list[float], accuracies: list[float], **more: Any) -> None:
    """Print the one line that is read back; ``stamps`` are the clock at the end of every round, warm-up included."""
    seconds = [after - before for before, after in itertools.pairwise(stamps)][WARM_UP - 1 :]
    found = {
        "peer": peer,
        "seconds_w1": statistics.median(seconds) * ROUNDS,
        "seconds_w1_least": min(seconds) * ROUNDS,
        "rounds_measured": len(seconds),
        "accuracy": statistics.fmean(accuracies[WARM_UP:]),
        **more,
    }
    print(json.dumps(found), flush=True)
