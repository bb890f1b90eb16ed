"""FEMNIST without privacy: a network instead of a linear model."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from studies.coefficients import settings as s
from studies.coefficients.choices import Wanted, key
from studies.common.store import Cells

ALGORITHMS = ("FedAvg", "FedProx", "FedDyn", "FedYogi")
LRS = (0.01, 0.03, 0.1)
LR_ROUNDS, RHO_ROUNDS = 20, 30
COEFFICIENTS = (0.3, 0.6, 0.9)
SEEDS = (0, 1, 2, 3)
STRAGGLERS = 0.9
RULES = ("Trend", "Hypergradient")
SERVER = ("FedAvg", "FedYogi")
CHOICE_SEED = 100


def arguments(choosing: bool, algorithm: str, lr: float, way: s.Way, seed: int, rounds: int) -> dict[str, Any]:
    found = s.arguments(s.femnist(choosing), algorithm, lr, STRAGGLERS, way, seed, rounds)
    return found | {"model": "mlp", "model_options": {"hidden": [196]}}


def lr_runs(algorithms: tuple[str, ...]) -> Wanted:
    return {
        key("lr", a, lr): partial(arguments, True, a, lr, s.VANILLA, CHOICE_SEED, LR_ROUNDS)
        for a in algorithms
        for lr in LRS
    }


def way_runs(cells: Cells, algorithms: tuple[str, ...]) -> Wanted:
    wanted: Wanted = {}
    for a in algorithms:
        for way in _ways(a):
            wanted[key("way", a, way.name)] = partial(
                arguments, True, a, best_lr(cells, a), way, CHOICE_SEED, RHO_ROUNDS
            )
    return wanted


def test_runs(cells: Cells, algorithms: tuple[str, ...], seeds: tuple[int, ...]) -> Wanted:
    wanted: Wanted = {}
    for a in algorithms:
        for name, way in contestants(cells, a).items():
            for seed in seeds:
                made = partial(arguments, False, a, best_lr(cells, a), way, seed, s.ROUNDS)
                wanted[key("test", a, name, seed)] = made
    return wanted


def contestants(cells: Cells, algorithm: str) -> dict[str, s.Way]:
    found = {"vanilla": s.VANILLA} | {name: s.Way(name, upcycle=s.RULES[name]) for name in RULES}
    found[s.CONSTANT] = _best(cells, algorithm, "rho")
    return found | ({s.SERVER: _best(cells, algorithm, "server")} if algorithm in SERVER else {})


def best_lr(cells: Cells, algorithm: str) -> float:
    return max(LRS, key=lambda lr: _accuracy(cells, key("lr", algorithm, lr)))


def _ways(algorithm: str) -> list[s.Way]:
    steps = [s.server(1 + rho) for rho in COEFFICIENTS] if algorithm in SERVER else []
    return [s.constant(rho) for rho in COEFFICIENTS] + steps


def _best(cells: Cells, algorithm: str, kind: str) -> s.Way:
    asked = [way for way in _ways(algorithm) if way.name.startswith(kind)]
    return max(asked, key=lambda way: _accuracy(cells, key("way", algorithm, way.name)))


def _accuracy(cells: Cells, where: str) -> float:
    return float(cells[where].get("accuracy", [-np.inf])[-1])
