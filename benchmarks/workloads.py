"""The workloads that everything is measured on, from the real data sets (UPCYCLED_DATA, else ../shared/data)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import upcycled as up

FOLDER = Path(os.environ.get("UPCYCLED_DATA", Path(__file__).parents[2] / "shared" / "data"))


@dataclass(frozen=True)
class Workload:
    """A federation and the settings to train it with; ``arguments`` are those of ``up.train``."""

    name: str
    data: up.FederatedData
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        return int(self.arguments["iterations"])


def _local(lr: float) -> up.LocalSGD:
    return up.LocalSGD(lr=lr, momentum=0.5, epochs=10, batch_size=32)


def w1(private: bool = True) -> Workload:
    """Syn(iid), softmax regression, FedAvg, 80 rounds, all clients, output perturbation, scored every round."""
    privacy = up.privacy.ModelClipping(clip_norm=10.0, noise_std=1.0) if private else None
    arguments = {"algorithm": up.FedAvg(), "iterations": 80, "local": _local(0.1), "privacy": privacy}
    return Workload("W1", up.data.load(FOLDER / "upcycled_synthetic.npz", name="syn_iid"), arguments)


def w2() -> Workload:
    """The same with 30 % of the clients, 90 % stragglers, no privacy."""
    base = w1(private=False)
    return Workload("W2", base.data, base.arguments | {"participation": 0.3, "stragglers": 0.9})


def w3(rounds: int = 20) -> Workload:
    """FEMNIST, MLP 784-196-10, 30 % of the clients, 20 rounds, training only."""
    data = up.data.load(FOLDER / "femnist10_50dev_wrap.npz")
    arguments = {
        "algorithm": up.FedAvg(),
        "model": "mlp",
        "iterations": rounds,
        "local": _local(0.05),
        "participation": 0.3,
        "eval_every": rounds,
    }
    return Workload("W3", data, arguments)
