"""Accuracy at equal proven epsilon: vanilla against upcycled on the four official synthetic sets.

    python -m studies.private_accuracy            computes what is missing, then writes the table and the plot
    python -m studies.private_accuracy --quick    one set, two epsilons, two seeds; writes nothing

Cells are kept one by one, so that a stopped command goes on where it was.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import upcycled as up
from studies.common.data import ROOT, SYN, syn
from studies.common.page import table, write_page
from studies.common.pictures import write_picture
from studies.common.statistics import Paired, better_and_worse, paired
from studies.common.store import Cells, compute_cells

CELLS = Path(__file__).parent / "results" / "cells.parquet"
PAGE, PLOT = ROOT / "docs" / "privacy.md", ROOT / "docs" / "images" / "private-accuracy.png"

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

    def arguments(self) -> dict[str, Any]:
        algorithm, mechanism = METHODS[self.method]
        iterations, upcycle = RIVALS[self.rival]
        return {
            "data": syn(self.data),
            "algorithm": algorithm,
            "privacy": mechanism(self.epsilon),
            "iterations": iterations,
            "upcycle": upcycle,
            "seed": self.seed,
            "eval_every": iterations,
        }


def cells(quick: bool) -> Iterator[Cell]:
    sets, epsilons = (["iid"], (1.0, 8.0)) if quick else (list(SYN), EPSILONS)
    for found in itertools.product(sets, METHODS, epsilons, RIVALS, SEEDS[:2] if quick else SEEDS):
        yield Cell(*found)


def value_of(result: up.Result) -> dict[str, Any]:
    assert result.privacy is not None
    spent = result.privacy.epsilon(DELTA)
    return {
        "accuracy": result.accuracy,
        "loss": result.loss,
        "epsilon": [float(spent.min()), float(np.median(spent)), float(spent.max())],
    }


Where = tuple[str, str, float]
"""A set, a method and an epsilon."""

PLACES: list[Where] = list(itertools.product(SYN, METHODS, EPSILONS))


def accuracies(kept: Cells, where: Where, rival: str) -> np.ndarray:
    found = [kept[Cell(*where, rival, seed).key]["accuracy"] for seed in SEEDS]
    return 100 * np.array(found)


def gain(kept: Cells, where: Where, rival: str) -> Paired:
    """Upcycled minus rival, seed by seed."""
    return paired(accuracies(kept, where, "upcycled"), accuracies(kept, where, rival))


def accuracy_table(kept: Cells) -> list[str]:
    rows = []
    for where in PLACES:
        found = [accuracies(kept, where, rival) for rival in RIVALS]
        shown = [f"{one.mean():.2f} ± {one.std(ddof=1):.2f}" for one in found]
        for rival in list(RIVALS)[1:]:
            one = gain(kept, where, rival)
            mark = "**" if one.is_significant else ""
            shown.append(f"{mark}{one.mean:+.2f} ± {one.interval[1] - one.mean:.2f}{mark}")
        data, method, epsilon = where
        rows.append([data, method, f"{epsilon:g}", *shown])
    gains = ["gain over the first (95 %)", "gain over the second (95 %)"]
    return table(["Syn", "method", "epsilon", *RIVALS, *gains], rows)


def verdict(kept: Cells) -> list[str]:
    """Count, in words, how often the interval excludes zero on either side."""
    lines = []
    for rival in list(RIVALS)[1:]:
        gains = [gain(kept, where, rival) for where in PLACES]
        total, (better, worse) = len(gains), better_and_worse(gains)
        lines.append(
            f"- Against {rival}: significantly better in {better} of {total} cells, significantly worse in {worse}, "
            f"no significant difference in {total - better - worse}; mean gain over cells "
            f"{np.mean([one.mean for one in gains]):+.2f} points."
        )
    return lines


def blocks(kept: Cells) -> dict[str, list[str]]:
    """Return what stands between the page's marks."""
    return {"accuracy": [*verdict(kept), "", *accuracy_table(kept)]}


def plot(kept: Cells) -> None:
    from matplotlib.figure import Figure

    colours = {"upcycled": "#0072B2", "vanilla, equal iterations": "#D55E00", "vanilla, equal data rounds": "#666666"}
    figure = Figure(figsize=(13, 8.5), dpi=110, layout="constrained")
    axes = figure.subplots(len(METHODS), len(SYN), sharex=True, sharey="col", squeeze=False)
    for row, method in enumerate(METHODS):
        for column, data in enumerate(SYN):
            ax = axes[row][column]
            for rival, colour in colours.items():
                found = np.array([accuracies(kept, (data, method, e), rival) for e in EPSILONS])
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
    write_picture(figure, PLOT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as folder:
        kept = Cells(Path(folder) / CELLS.name if quick else CELLS)
        wanted = list(cells(quick))
        print(f"{sum(cell.key not in kept for cell in wanted)} runs to do", file=sys.stderr)
        compute_cells(kept, {cell.key: cell.arguments for cell in wanted}, value_of, may_fail=False)
        kept.fold()
    if quick:
        for cell in wanted:
            print(cell.key, kept[cell.key])
        return
    plot(kept)
    write_page(PAGE, blocks(kept))
