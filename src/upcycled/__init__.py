"""Upcycled federated learning: half of all iterations without data, messages or privacy cost.

>>> import upcycled as up
>>> data = up.data.synthetic(0.5, 0.5, clients=10, seed=0)
>>> result = up.train(data, algorithm=up.FedProx(mu=0.5), upcycle=0.7, iterations=20, progress=False)
>>> len(result.history)
20
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from upcycled import aggregators, coefficients, data, losses, metrics, models, privacy, schedules, theory
    from upcycled.algorithms import FedAdam, FedAvg, FedAvgM, FedDyn, FedNova, FedProx, FedYogi, PFedMe, Scaffold
    from upcycled.coefficients import Coefficient, Move, Observed, Rule
    from upcycled.core.aggregator import Aggregator, Combination, Received
    from upcycled.core.algorithm import Algorithm, RoundResult, Server
    from upcycled.core.errors import BudgetSpentError, DivergedError, InputError, UpcycledError
    from upcycled.core.facts import Facts
    from upcycled.core.mechanism import Charge, Fitted, Mechanism, NoiseSource, Promise, Release, Setting, Trained
    from upcycled.core.sampling import Cohort, FixedSampler, PoissonSampler, Sampler
    from upcycled.core.solvers import LocalAdam, LocalAdamW, LocalOptimizer, LocalSGD, Problem
    from upcycled.data import FederatedData
    from upcycled.experiments.train import train
    from upcycled.privacy.ledger.budget import Budget
    from upcycled.serving import Predictor, load
    from upcycled.training import (
        STOP,
        Callback,
        Comparison,
        Failed,
        History,
        Plan,
        Probe,
        Record,
        Result,
        Run,
        RunSpec,
        Step,
        compare,
        train_many,
    )

__version__ = "0.1.0"

# Where each name lives. They are imported when first used: torch alone takes over a second, `--help` should not.
_HOMES = {
    "upcycled": (
        *("aggregators", "coefficients", "data", "losses", "metrics"),
        *("models", "privacy", "schedules", "theory"),
    ),
    "upcycled.algorithms": (
        *("FedAdam", "FedAvg", "FedAvgM", "FedDyn", "FedNova", "FedProx", "FedYogi", "PFedMe", "Scaffold"),
    ),
    "upcycled.core.aggregator": ("Aggregator", "Combination", "Received"),
    "upcycled.core.algorithm": ("Algorithm", "RoundResult", "Server"),
    "upcycled.coefficients": ("Coefficient", "Move", "Rule", "Observed"),
    "upcycled.core.errors": ("BudgetSpentError", "DivergedError", "InputError", "UpcycledError"),
    "upcycled.core.facts": ("Facts",),
    "upcycled.core.mechanism": (
        *("Charge", "Fitted", "Mechanism", "NoiseSource", "Promise", "Release", "Setting", "Trained"),
    ),
    "upcycled.core.sampling": ("Cohort", "FixedSampler", "PoissonSampler", "Sampler"),
    "upcycled.core.solvers": ("LocalAdam", "LocalAdamW", "LocalOptimizer", "LocalSGD", "Problem"),
    "upcycled.data": ("FederatedData",),
    "upcycled.experiments.train": ("train",),
    "upcycled.privacy.ledger.budget": ("Budget",),
    "upcycled.training": (
        *("STOP", "Callback", "Comparison", "Failed", "History", "Plan", "Probe", "Record", "Result", "Run", "RunSpec"),
        *("Step", "compare", "train_many"),
    ),
    "upcycled.serving": ("Predictor", "load"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "STOP",
    "Aggregator",
    "Algorithm",
    "Budget",
    "BudgetSpentError",
    "Callback",
    "Charge",
    "Coefficient",
    "Cohort",
    "Combination",
    "Comparison",
    "DivergedError",
    "Facts",
    "Failed",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedDyn",
    "FedNova",
    "FedProx",
    "FedYogi",
    "FederatedData",
    "Fitted",
    "FixedSampler",
    "History",
    "InputError",
    "LocalAdam",
    "LocalAdamW",
    "LocalOptimizer",
    "LocalSGD",
    "Mechanism",
    "Move",
    "NoiseSource",
    "Observed",
    "PFedMe",
    "Plan",
    "PoissonSampler",
    "Predictor",
    "Probe",
    "Problem",
    "Promise",
    "Received",
    "Record",
    "Release",
    "Result",
    "RoundResult",
    "Rule",
    "Run",
    "RunSpec",
    "Sampler",
    "Scaffold",
    "Server",
    "Setting",
    "Step",
    "Trained",
    "UpcycledError",
    "aggregators",
    "coefficients",
    "compare",
    "data",
    "load",
    "losses",
    "metrics",
    "models",
    "privacy",
    "schedules",
    "theory",
    "train",
    "train_many",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        near = _nearest(name)
        hint = f". Did you mean: {near!r}?" if near else ""
        raise AttributeError(f"module 'upcycled' has no attribute {name!r}{hint}")
    home = _HOME_OF[name]
    if home == "upcycled":
        return importlib.import_module(f"{home}.{name}")
    found = getattr(importlib.import_module(home), name)
    globals()[name] = found
    return found


def _nearest(name: str) -> str | None:
    """Return the name that was meant, whatever its capitals."""
    import difflib

    known = {one.lower(): one for one in _HOME_OF}
    found = [] if name.startswith("_") else difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.7)
    return known[found[0]] if found else None


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
