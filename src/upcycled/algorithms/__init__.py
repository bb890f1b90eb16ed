"""The algorithms, one file each, and the table of their names.

To add one: write its file and add a line to ``ALGORITHMS``; the contract tests find it there.
"""

from __future__ import annotations

from upcycled.algorithms.fedavg import FedAvg
from upcycled.algorithms.feddyn import FedDyn
from upcycled.algorithms.fednova import FedNova
from upcycled.algorithms.fedopt import FedAdam, FedAvgM, FedYogi
from upcycled.algorithms.fedprox import FedProx
from upcycled.algorithms.pfedme import PFedMe
from upcycled.algorithms.scaffold import Scaffold
from upcycled.core.algorithm import Algorithm

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedavgm": FedAvgM,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "feddyn": FedDyn,
    "pfedme": PFedMe,
    "fedyogi": FedYogi,
    "fedadam": FedAdam,
    "fednova": FedNova,
}

__all__ = [
    "ALGORITHMS",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedDyn",
    "FedNova",
    "FedProx",
    "FedYogi",
    "PFedMe",
    "Scaffold",
]
