"""Upcycled federated learning: half of all iterations without data, messages or privacy cost.

>>> import upcycled as up
>>> data = up.data.synthetic(0.5, 0.5, clients=10, seed=0)
>>> result = up.train(data, algorithm=up.FedProx(mu=0.5), upcycle=0.7, iterations=20, progress=False)
>>> len(result.history)
20
"""

from __future__ import annotations

from upcycled import data, models, privacy
from upcycled.algorithms import FedAvg, FedAvgM, FedDyn, FedProx, FedYogi, PFedMe, Scaffold
from upcycled.core import coefficients
from upcycled.core.errors import DivergedError, InputError, UpcycledError
from upcycled.core.solvers import LocalSGD
from upcycled.data import FederatedData
from upcycled.runtime import Failed, History, Record, Result, train, train_many

__version__ = "0.1.0"

__all__ = [
    "DivergedError",
    "Failed",
    "FedAvg",
    "FedAvgM",
    "FedDyn",
    "FedProx",
    "FedYogi",
    "FederatedData",
    "History",
    "InputError",
    "LocalSGD",
    "PFedMe",
    "Record",
    "Result",
    "Scaffold",
    "UpcycledError",
    "coefficients",
    "data",
    "models",
    "privacy",
    "train",
    "train_many",
]
