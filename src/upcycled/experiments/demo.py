"""The demonstration: vanilla against upcycled at equal data rounds, on generated data, in under a minute."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from upcycled.core.errors import InputError, check_number
from upcycled.core.files import check_writable, write_whole
from upcycled.experiments.config import Experiment, parse
from upcycled.experiments.plots import curve, write_comparison
from upcycled.experiments.results import describe_data, plain, seed_folder, write_seed
from upcycled.experiments.run import Outcome, SeedOutcome, train_seeds
from upcycled.runtime import Observer

ROUNDS = 80
SEEDS = 4
COEFFICIENT = 0.7
BASE: dict[str, Any] = {
    "data": {"source": "synthetic", "alpha": 0.5, "beta": 0.5, "clients": 30, "seed": 0},
    "model": {"kind": "logistic"},
    "local": {"lr": 0.005, "momentum": 0.5, "epochs": 10, "batch_size": 32},
    "clients": {"participation": 0.3, "stragglers": 0.9},
}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "FedAvg": {"name": "fedavg"},
    "FedProx": {"name": "fedprox", "mu": 0.5},
}
MARK = "demo.json"
PLOT = "demo.png"

Watch: TypeAlias = Callable[[Experiment, int], Sequence[Observer]]
Tell: TypeAlias = Callable[[Experiment, SeedOutcome], None]


@dataclass(frozen=True)
class Contestant:
    """One row of the comparison."""

    group: str
    is_upcycled: bool
    experiment: Experiment


@dataclass(frozen=True)
class Demo:
    """What the demonstration found and wrote."""

    rows: tuple[tuple[Contestant, Outcome], ...]
    plot: Path
    repeat: str

    @property
    def note(self) -> str:
        """The one sentence that keeps the table honest."""
        seeds = len(self.rows[0][1].seeds)
        return (
            f"All runs used the same data rounds, clients and minibatches; upcycled FedAvg equals FedAvg with a "
            f"server learning rate of {1 + COEFFICIENT:g} (1 + rho), and {seeds} seeds on one data set show a "
            f"tendency, not a proof."
        )

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        runs = [
            {
                "algorithm": c.group,
                "upcycled": c.is_upcycled,
                "folder": str(Path(c.experiment.results) / c.experiment.name),
                "summary": outcome.summary(),
                "seeds": [seed.as_json() for seed in outcome.seeds],
            }
            for c, outcome in self.rows
        ]
        return {"runs": runs, "plot": str(self.plot), "repeat": self.repeat, "note": self.note}


def contestants(rounds: int, seeds: int, output: str) -> list[Contestant]:
    """Return the four experiments: an upcycled run has twice the iterations, and so the same data rounds."""
    check_number("--rounds", rounds, at_least=1, integer=True)
    check_number("--seeds", seeds, at_least=2, integer=True)
    if not output:
        raise InputError("--output is '', but it must be the path of a folder")
    found = []
    for group, algorithm in ALGORITHMS.items():
        for is_upcycled in (False, True):
            raw = {
                **BASE,
                "name": f"{algorithm['name']}-{'upcycled' if is_upcycled else 'vanilla'}",
                "iterations": 2 * rounds if is_upcycled else rounds,
                "seeds": list(range(seeds)),
                "results": output,
                "algorithm": algorithm,
                **({"upcycle": {"kind": "constant", "coefficient": COEFFICIENT}} if is_upcycled else {}),
            }
            found.append(Contestant(group, is_upcycled, parse(raw)))
    return found


def run_demo(
    runs: Sequence[Contestant],
    repeat: str,
    watch: Watch = lambda experiment, seed: (),
    tell: Tell = lambda experiment, outcome: None,
) -> Demo:
    """Run all contestants, write their results, a plot and a summary into their common folder."""
    output = Path(runs[0].experiment.results)
    _make_room(output, runs)
    data = runs[0].experiment.build_data()
    about = describe_data(data)
    rows, curves = [], []
    for c in runs:
        seeds, histories = [], []
        for seed, result in train_seeds(c.experiment, data, c.experiment.seeds, _watching(watch, c.experiment)):
            if isinstance(result, Exception):
                raise result
            folder = seed_folder(c.experiment, seed)
            summary = write_seed(folder, c.experiment, seed, about, result)
            seeds.append(SeedOutcome(seed, "finished", folder, summary))
            histories.append(plain(result.history.rows()))
            tell(c.experiment, seeds[-1])
        rows.append((c, Outcome(c.experiment, tuple(seeds))))
        curves.append(curve(c.group, c.is_upcycled, histories))
    demo = Demo(tuple(rows), output / PLOT, repeat)
    subtitle = (
        f"Syn(0.5, 0.5), {data.num_clients} clients, 30 % a round, 90 % stragglers, "
        f"mean of {len(histories)} seeds, band: one standard deviation"
    )
    write_comparison(demo.plot, curves, "Vanilla against upcycled at equal data rounds", subtitle)
    write_whole(output / MARK, (json.dumps(demo.as_json(), indent=2, allow_nan=False) + "\n").encode())
    return demo


def _watching(watch: Watch, experiment: Experiment) -> Callable[[int], Sequence[Observer]]:
    return lambda seed: watch(experiment, seed)


def _make_room(output: Path, runs: Sequence[Contestant]) -> None:
    """Clear an earlier demonstration away; anything else in the folder is not ours to touch."""
    held = [path for path in output.iterdir() if not path.name.startswith(".")] if output.is_dir() else []
    if held and not (output / MARK).exists():
        raise InputError(
            f"--output is '{output}', which holds other things, but it must be a new or empty folder, "
            f"or that of an earlier demo"
        )
    check_writable(output)
    write_whole(output / MARK, b"{}\n")
    for c in runs:
        shutil.rmtree(output / c.experiment.name, ignore_errors=True)
