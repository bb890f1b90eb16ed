"""Accuracy at equal proven epsilon: vanilla against upcycled on the four official synthetic sets.

    python -m studies.private_accuracy            computes what is missing, then writes the table and the plot
    python -m studies.private_accuracy --quick    one set, two epsilons, two seeds; writes nothing

Cells are kept one by one in docs/privacy/accuracy.json, so that a stopped command goes on where it was.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import upcycled as up

ROOT = Path(__file__).parents[1]
FOLDER = Path(os.environ.get("UPCYCLED_DATA", ROOT.parent / "shared" / "data"))
CELLS = ROOT / "docs" / "privacy" / "accuracy.json"
PAGE, PLOT = ROOT / "docs" / "privacy.md", ROOT / "docs" / "images" / "private-accuracy.png"
BEGIN, END = "<!-- accuracy: begin -->", "<!-- accuracy: end -->"

SETS = {"iid": "syn_iid", "0,0": "syn_0_0", "0.5,0.5": "syn_0p5_0p5", "1,1": "syn_1_1"}
EPSILONS = (1.0, 2.0, 4.0, 8.0)
DELTA = 1e-5
SEEDS = (0, 1, 2, 3)
ITERATIONS = 80
RHO = 0.5
# Upcycled at 80 iterations has 40 data rounds: the first rival has as many iterations, the second as many data rounds.
RIVALS = {"upcycled": (ITERATIONS, RHO), "vanilla, equal iterations": (ITERATIONS, None)} | {
    "vanilla, equal data rounds": (ITERATIONS // 2, None)
}


def erm(epsilon: float) -> Any:
    return up.privacy.ErmOutput(norm_bound=1.0, epsilon=epsilon, delta=DELTA)


def objective(epsilon: float) -> Any:
    return up.privacy.ObjectivePerturbation(norm_bound=1.0, epsilon=epsilon, delta=DELTA)


METHODS = {
    "FedProx, ErmOutput": (up.FedProx(mu=0.5), erm),
    "FedDyn, ErmOutput": (up.FedDyn(alpha=0.5), erm),
    # With mu = 0.5 the smallest client (n = 45) cannot reach epsilon 1 over 80 rounds however large the noise: the
    # determinant term alone costs ln(1 + 2 / (2 n mu)) a round.
    "FedProx (mu 1), ObjectivePerturbation": (up.FedProx(mu=1.0), objective),
}


@dataclass(frozen=True)
class Cell:
    """One number of the table: a set, a method, an epsilon, a rival and a seed."""

    data: str
    method: str
    epsilon: float
    rival: str
    seed: int

    @property
    def key(self) -> str:
        return f"{self.data}|{self.method}|{self.epsilon:g}|{self.rival}|{self.seed}"

    def arguments(self, data: up.FederatedData) -> dict[str, Any]:
        algorithm, mechanism = METHODS[self.method]
        iterations, upcycle = RIVALS[self.rival]
        return {
            "data": data,
            "algorithm": algorithm,
            "privacy": mechanism(self.epsilon),
            "iterations": iterations,
            "upcycle": upcycle,
            "seed": self.seed,
            "eval_every": iterations,
        }


def cells(quick: bool) -> Iterator[Cell]:
    sets, epsilons = (["iid"], (1.0, 8.0)) if quick else (list(SETS), EPSILONS)
    for found in itertools.product(sets, METHODS, epsilons, RIVALS, SEEDS[:2] if quick else SEEDS):
        yield Cell(*found)


def compute(wanted: list[Cell], kept: dict[str, Any], write: bool) -> None:
    """Run what is missing, a set at a time, and keep each cell."""
    for name in SETS:
        missing = [cell for cell in wanted if cell.data == name and cell.key not in kept]
        if not missing:
            continue
        data = up.data.load(FOLDER / "upcycled_synthetic.npz", name=SETS[name])
        for start in range(0, len(missing), 24):
            batch = missing[start : start + 24]
            print(f"Syn({name}): {start} of {len(missing)} runs done", file=sys.stderr, flush=True)
            for cell, result in zip(batch, up.train_many([c.arguments(data) for c in batch]), strict=True):
                if result.error is not None:
                    raise result.error
                spent = result.privacy.epsilon(DELTA)
                kept[cell.key] = {
                    "accuracy": result.accuracy,
                    "loss": result.loss,
                    "epsilon": [float(spent.min()), float(np.median(spent)), float(spent.max())],
                }
            if write:
                CELLS.parent.mkdir(parents=True, exist_ok=True)
                CELLS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def accuracies(kept: dict[str, Any], data: str, method: str, epsilon: float, rival: str) -> np.ndarray:
    found = [kept[Cell(data, method, epsilon, rival, seed).key]["accuracy"] for seed in SEEDS]
    return 100 * np.array(found)


def difference(kept: dict[str, Any], *where: Any, rival: str) -> tuple[float, float]:
    """Mean paired difference upcycled minus rival over seeds, and the half-width of its 95 % interval (t, 3 df)."""
    gain = accuracies(kept, *where, "upcycled") - accuracies(kept, *where, rival)
    return float(gain.mean()), float(3.182 * gain.std(ddof=1) / np.sqrt(len(gain)))


def table(kept: dict[str, Any]) -> list[str]:
    lines = [
        "| Syn | method | epsilon | upcycled | vanilla, equal iterations | vanilla, equal data rounds | gain over the "
        "first (95 %) | gain over the second (95 %) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for where in itertools.product(SETS, METHODS, EPSILONS):
        shown = []
        for rival in RIVALS:
            found = accuracies(kept, *where, rival)
            shown.append(f"{found.mean():.2f} ± {found.std(ddof=1):.2f}")
        for rival in list(RIVALS)[1:]:
            mean, half = difference(kept, *where, rival=rival)
            mark = "**" if abs(mean) > half else ""
            shown.append(f"{mark}{mean:+.2f} ± {half:.2f}{mark}")
        data, method, epsilon = where
        lines.append(f"| {data} | {method} | {epsilon:g} | " + " | ".join(shown) + " |")
    return lines


def verdict(kept: dict[str, Any]) -> list[str]:
    """Count, in words, how often the interval excludes zero on either side."""
    lines = []
    for rival in list(RIVALS)[1:]:
        better = worse = 0
        gains = []
        for where in itertools.product(SETS, METHODS, EPSILONS):
            mean, half = difference(kept, *where, rival=rival)
            gains.append(mean)
            better += mean > half
            worse += mean < -half
        total = len(gains)
        lines.append(
            f"- Against {rival}: significantly better in {better} of {total} cells, significantly worse in {worse}, "
            f"no significant difference in {total - better - worse}; mean gain over cells {np.mean(gains):+.2f} points."
        )
    return lines


def plot(kept: dict[str, Any]) -> None:
    from matplotlib.figure import Figure

    colours = {"upcycled": "#0072B2", "vanilla, equal iterations": "#D55E00", "vanilla, equal data rounds": "#666666"}
    figure = Figure(figsize=(13, 8.5), dpi=110, layout="constrained")
    axes = figure.subplots(len(METHODS), len(SETS), sharex=True, sharey="col", squeeze=False)
    for row, method in enumerate(METHODS):
        for column, data in enumerate(SETS):
            ax = axes[row][column]
            for rival, colour in colours.items():
                found = np.array([accuracies(kept, data, method, e, rival) for e in EPSILONS])
                mean, sd = found.mean(axis=1), found.std(axis=1, ddof=1)
                ax.plot(EPSILONS, mean, color=colour, marker="o", markersize=4, label=rival)
                ax.fill_between(EPSILONS, mean - sd, mean + sd, color=colour, alpha=0.12, linewidth=0)
            ax.set_xscale("log", base=2)
            ax.set_xticks(EPSILONS, [f"{e:g}" for e in EPSILONS])
            ax.grid(axis="y", color="#e5e5e5")
            ax.spines[["top", "right"]].set_visible(False)
            if row == 0:
                ax.set_title(f"Syn({data})")
            if column == 0:
                ax.set_ylabel(f"{method}\ntest accuracy (%)")
            if row == len(METHODS) - 1:
                ax.set_xlabel("proven epsilon of every client")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    PLOT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PLOT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    kept: dict[str, Any] = json.loads(CELLS.read_text()) if CELLS.exists() and not quick else {}
    wanted = list(cells(quick))
    print(f"{sum(c.key not in kept for c in wanted)} runs to do", file=sys.stderr)
    compute(wanted, kept, write=not quick)
    if quick:
        for cell in wanted:
            print(cell.key, kept[cell.key])
        return
    plot(kept)
    text = PAGE.read_text()
    block = [BEGIN, "", *verdict(kept), "", *table(kept), "", END]
    PAGE.write_text(text.split(BEGIN)[0] + "\n".join(block) + text.split(END)[1])


if __name__ == "__main__":
    main()
