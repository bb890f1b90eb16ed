"""The demonstration: vanilla against upcycled at equal data rounds, on generated data, in under a minute."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from upcycled.config.experiment import Experiment, parse
from upcycled.core.errors import InputError, UpcycledError, check_number
from upcycled.experiments.batch import Options, Outcome, prepare_batch
from upcycled.experiments.plots import curve, write_comparison
from upcycled.experiments.results import read_history
from upcycled.report import NAME as PAGE
from upcycled.report import write_report
from upcycled.support.extras import missing
from upcycled.support.files import write_json, write_whole
from upcycled.support.lock import locked

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
    plot: Path | None
    repeat: str
    report: Path | None = None
    """The page; None, like the plot, where the extra ``report`` is not there."""

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
        plot, page = (None if path is None else str(path) for path in (self.plot, self.report))
        return {"runs": runs, "plot": plot, "report": page, "repeat": self.repeat, "note": self.note}


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


def run_demo(runs: Sequence[Contestant], repeat: str, options: Options | None = None) -> Demo:
    """Run all contestants; write results, a summary and, if the extra is there, a plot and a page into one folder."""
    output = Path(runs[0].experiment.results)
    _check_ours(output)
    with locked(output):
        # An earlier demonstration makes room.
        write_whole(output / MARK, b"{}\n")
        for c in runs:
            shutil.rmtree(output / c.experiment.name, ignore_errors=True)
        for name in (PLOT, PAGE):
            (output / name).unlink(missing_ok=True)
        found = prepare_batch([c.experiment for c in runs], "demo").run(options)
        return _demonstrated(runs, found, output, repeat)


def _demonstrated(runs: Sequence[Contestant], found: Sequence[Outcome], output: Path, repeat: str) -> Demo:
    """Draw the plot and write the documents."""
    for outcome in found:
        for seed in outcome.seeds:
            if seed.error is not None:
                raise UpcycledError(f"{outcome.experiment.name}, seed {seed.seed}: {seed.error}")
    curves = [
        curve(c.group, c.is_upcycled, [read_history(seed.folder) for seed in outcome.seeds])
        for c, outcome in zip(runs, found, strict=True)
    ]
    about = found[0].seeds[0].summary or {}
    subtitle = (
        f"Syn(0.5, 0.5), {about['data']['clients']} clients, 30 % a round, 90 % stragglers, "
        f"mean of {len(found[0].seeds)} seeds, band: one standard deviation"
    )
    plot = None if missing("matplotlib") else output / PLOT
    demo = Demo(tuple(zip(runs, found, strict=True)), plot, repeat)
    if plot is not None:
        write_comparison(plot, curves, "Vanilla against upcycled at equal data rounds", subtitle)
    write_json(output / MARK, demo.as_json())
    return replace(demo, report=None if missing("jinja2") else write_report(output))


def _check_ours(output: Path) -> None:
    """Refuse a folder that holds anything but an earlier demonstration."""
    held = [path for path in output.iterdir() if not path.name.startswith(".")] if output.is_dir() else []
    if held and not (output / MARK).exists():
        raise InputError(
            f"--output is '{output}', which holds other things, but it must be a new or empty folder, "
            f"or that of an earlier demo"
        )
