"""Private runs at equal proven epsilon: a rule costs nothing more, since it sees releases only."""

from __future__ import annotations

from functools import partial
from typing import Any

import upcycled as up
from studies.coefficients import settings as s
from studies.coefficients.choices import Wanted, key

ALGORITHMS: dict[str, Any] = {"FedProx": up.FedProx(mu=0.5), "FedDyn": up.FedDyn(alpha=0.5)}
EPSILONS = (2.0, 8.0)
DELTA = 1e-5
ROUNDS = 40
SEEDS = s.SEEDS
WAYS = {
    "vanilla": s.VANILLA,
    "Trend": s.Way("Trend", upcycle=s.RULES["Trend"]),
    "Hypergradient": s.Way("Hypergradient", upcycle=s.RULES["Hypergradient"]),
    # A constant cannot be chosen on private data without paying for it: one number for all.
    "constant 0.5": s.constant(0.5),
}


def arguments(name: str, algorithm: str, epsilon: float, way: s.Way, seed: int) -> dict[str, Any]:
    iterations = (1 + way.per_round) * ROUNDS
    return {
        "data": s.syn(name),
        "algorithm": ALGORITHMS[algorithm],
        "privacy": up.privacy.ErmOutput(norm_bound=1.0, epsilon=epsilon, delta=DELTA),
        "upcycle": way.upcycle,
        "iterations": iterations,
        "eval_every": iterations,
        "seed": seed,
    }


def runs(sets: tuple[str, ...], seeds: tuple[int, ...]) -> Wanted:
    return {
        key("private", name, algorithm, epsilon, contestant, seed): partial(
            arguments, name, algorithm, epsilon, way, seed
        )
        for name in sets
        for algorithm in ALGORITHMS
        for epsilon in EPSILONS
        for contestant, way in WAYS.items()
        for seed in seeds
    }
