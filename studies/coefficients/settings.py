"""What is compared, on what, and how it is trained. The rules' own constants were settled on generated federations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import upcycled as up
from studies.common import data as sets
from studies.common.store import Cells

CELLS = Path(__file__).parent / "results"
SETS = tuple(sets.SYN)
ROUNDS = 80
READ = (20, 40, 80)
"""Data rounds after which accuracy is read, all from one run."""
ALGORITHMS: dict[str, Any] = {
    "FedAvg": up.FedAvg(),
    "FedAvgM": up.FedAvgM(),
    "FedProx": up.FedProx(mu=0.5),
    "Scaffold": up.Scaffold(),
    "FedDyn": up.FedDyn(alpha=0.5),
    "pFedMe": up.PFedMe(),
    "FedYogi": up.FedYogi(),
}
SERVER_STEP = {"FedAvg": "server_lr", "FedAvgM": "server_lr", "pFedMe": "beta", "FedYogi": "server_lr"}
"""Where an algorithm has a server learning rate, what it is called."""
STRAGGLERS = (0.9, 0.3)
REGIMES = ("too small", "right", "too large")
SEEDS = tuple(range(8))
CHOICE_SEEDS = (100, 101, 102)
"""Other ones than those of the comparison."""
LRS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
LARGER = (5.0, 3.0, 2.0, 1.3)
"""Too large is the first of these multiples of the best at which vanilla stays finite."""
SMALLER = 5.0
COEFFICIENTS = (0.1, 0.3, 0.5, 0.7, 0.9)
AUTO = "Trend"
RULES: dict[str, Any] = {
    "Trend": up.coefficients.Trend(),
    "Hypergradient": up.coefficients.Hypergradient(),
    "FedExP": up.coefficients.FedExP(),
    "Anderson": up.coefficients.Anderson(),
    "Trend, k = 2": up.coefficients.Repeated(up.coefficients.Trend(), times=2),
}
CONSTANT, SERVER = "constant, grid", "server step, grid"


def opened(name: str, folder: Path = CELLS) -> Cells:
    """Return a file of cells of the study."""
    return Cells(folder / f"{name}.parquet")


@cache
def syn(name: str, choosing: bool = False) -> up.FederatedData:
    """Return an official set, or what is chosen on."""
    return sets.validated(sets.syn(name)) if choosing else sets.syn(name)


@cache
def femnist(choosing: bool = False) -> up.FederatedData:
    """Return the real FEMNIST federation likewise."""
    data = up.data.load(sets.data_folder() / "femnist10_50dev_wrap.npz")
    return sets.validated(data) if choosing else data


@dataclass(frozen=True)
class Way:
    """How data rounds are used: a rule or number for ``upcycle``, or another server step."""

    name: str
    upcycle: Any = None
    server: float | None = None

    @property
    def per_round(self) -> int:
        return 0 if self.upcycle is None else up.coefficients.as_rule(self.upcycle).per_round

    def algorithm(self, name: str) -> Any:
        base = ALGORITHMS[name]
        if self.server is None:
            return base
        field = SERVER_STEP[name]
        return replace(base, **{field: self.server * getattr(base, field)})


VANILLA = Way("vanilla")


def constant(rho: float) -> Way:
    return Way(f"rho={rho:g}", upcycle=rho)


def server(factor: float) -> Way:
    return Way(f"server={factor:g}", server=factor)


def arguments(
    data: up.FederatedData, algorithm: str, lr: float, stragglers: float, way: Way, seed: int, rounds: int = ROUNDS
) -> dict[str, Any]:
    """Return what ``train`` is given: the paper's settings, scored where accuracy is read."""
    momentum = 0.0 if algorithm == "pFedMe" else 0.5
    each = 1 + way.per_round
    return {
        "data": data,
        "algorithm": way.algorithm(algorithm),
        "upcycle": way.upcycle,
        "iterations": each * rounds,
        "eval_every": each * min(20, rounds),
        "local": up.LocalSGD(lr=lr, momentum=momentum, epochs=10, batch_size=32),
        "participation": 0.3,
        "stragglers": stragglers,
        "seed": seed,
    }


def value_of(result: up.Result) -> dict[str, Any]:
    """Return what is kept of a run: accuracy at each reading, in per cent to three places."""
    scored = {r.data_round: round(100 * r.accuracy, 3) for r in result.history if r.accuracy is not None}
    moved = [r.coefficient for r in result.history if r.kind == "upcycled" and r.coefficient is not None]
    kept: dict[str, Any] = {"accuracy": [scored[m] for m in sorted(scored) if m in READ or m == max(scored)]}
    if moved:
        kept["rho"] = round(sum(moved) / len(moved), 3)
    return kept
