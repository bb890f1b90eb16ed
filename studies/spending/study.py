"""The same proven epsilon, spent in two ways, on the four official synthetic sets.

    python -m studies.spending                  computes what is missing, then writes the table of docs/privacy.md
    python -m studies.spending --seeds 4        so many seeds in place of 16
    python -m studies.spending --page           writes the table from the cells that are there
    python -m studies.spending --quick          one set, one epsilon, two seeds; writes nothing

Is noise inside a local objective (Gamma) better than noise on its solution (ErmOutput)?
Cells are kept one by one, so that a stopped command goes on where it was. Those in ``results`` were computed at commit
feb37b3, which had a third mechanism, ``gaussian_objective``, and the command ``upcycled privacy advise``: their cells
("Gaussian", "the file", "as advised", "advice|...") cannot be computed by this version.
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
from studies.common.page import MISSING, paired_words, table, write_page
from studies.common.statistics import Paired, better_and_worse, paired
from studies.common.store import Cells, compute_cells

CELLS = Path(__file__).parent / "results" / "cells.parquet"
PAGE = ROOT / "docs" / "privacy.md"
DELTA = 1e-5
FIRST_SEED = 3000
ROUNDS = 40
EPSILONS = (1.0, 2.0, 4.0, 8.0)
REUSE = {"iterations": 2 * ROUNDS, "upcycle": up.coefficients.Signal(), "aggregation": "precision"}
# With mu = 0.5 the smallest client (n = 45) reaches no epsilon of 1 by noise inside its objective, however large.
NOISES = {
    "Gamma": up.privacy.ObjectivePerturbation,
    "ErmOutput": up.privacy.ErmOutput,
}


@dataclass(frozen=True)
class Cell:
    """One number: a set, an epsilon, a rival and a seed."""

    data: str
    epsilon: float
    rival: str
    seed: int

    @property
    def key(self) -> str:
        return f"{self.data}|{self.epsilon:g}|{self.rival}|{self.seed}"

    def arguments(self) -> dict[str, Any]:
        privacy = NOISES[self.rival](norm_bound=1.0, epsilon=self.epsilon, delta=DELTA)
        asked = {"algorithm": up.FedProx(mu=1.0), "privacy": privacy, **REUSE}
        return {"data": syn(self.data), "seed": self.seed, "eval_every": REUSE["iterations"], **asked}


def cells(seeds: int, quick: bool = False) -> Iterator[Cell]:
    """Return all cells, seed after seed, so that whatever is there is balanced."""
    sets, epsilons = (["iid"], (4.0,)) if quick else (list(SYN), EPSILONS)
    for number in range(seeds):
        for data, epsilon, rival in itertools.product(sets, epsilons, NOISES):
            yield Cell(data, epsilon, rival, FIRST_SEED + number)


def value_of(result: up.Result) -> dict[str, Any]:
    assert result.privacy is not None
    return {"accuracy": result.accuracy, "epsilon": result.privacy.max_epsilon(DELTA)}


def accuracies(kept: Cells, data: str, epsilon: float, rivals: tuple[str, ...]) -> dict[str, np.ndarray] | None:
    """Return the accuracies of rivals over the seeds that all of them have."""
    seeds = range(FIRST_SEED, FIRST_SEED + 64)
    shared = [s for s in seeds if all(Cell(data, epsilon, rival, s).key in kept for rival in rivals)]
    if len(shared) < 2:
        return None
    return {
        rival: 100 * np.array([kept[Cell(data, epsilon, rival, s).key]["accuracy"] for s in shared]) for rival in rivals
    }


def compared(kept: Cells, rivals: tuple[str, ...], epsilons: tuple[float, ...]) -> tuple[list[str], list[Paired]]:
    """Return a table, the second rival minus the first in its last column, and these differences."""
    rows, gains = [], []
    for data, epsilon in itertools.product(SYN, epsilons):
        found = accuracies(kept, data, epsilon, rivals)
        if found is None:
            rows.append([data, f"{epsilon:g}", *[MISSING] * (len(rivals) + 1)])
            continue
        gain = paired(found[rivals[1]], found[rivals[0]])
        gains.append(gain)
        means = [f"{values.mean():.2f}" for values in found.values()]
        rows.append([data, f"{epsilon:g}", *means, f"{paired_words(gain)} ({len(gain.differences)})"])
    head = ["Syn", "epsilon", *rivals, f"{rivals[1]} minus {rivals[0]} (95 %; seeds)"]
    return table(head, rows), gains


def summary(gains: list[Paired], what: str) -> str:
    if not gains:
        return "- Not computed yet."
    better, worse = better_and_worse(gains)
    mean = np.mean([one.mean for one in gains])
    return (
        f"- {what}: {mean:+.2f} points on average over {len(gains)} cells; significantly better in {better}, "
        f"significantly worse in {worse}."
    )


def blocks(kept: Cells) -> dict[str, list[str]]:
    """Return what stands between the page's marks."""
    noise, by_noise = compared(kept, tuple(NOISES), EPSILONS)
    return {"objective-noise": [summary(by_noise, "ErmOutput in the place of Gamma noise"), "", *noise]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--seeds", type=int, default=16)
    asked = parser.parse_args()
    if asked.quick:
        with tempfile.TemporaryDirectory() as folder:
            _compute(Cells(Path(folder) / CELLS.name), list(cells(2, quick=True)), is_told=True)
        return
    kept = Cells(CELLS)
    if not asked.page:
        _compute(kept, list(cells(asked.seeds)))
        kept.fold()
    write_page(PAGE, blocks(kept))


def _compute(kept: Cells, wanted: list[Cell], is_told: bool = False) -> None:
    print(f"{sum(cell.key not in kept for cell in wanted)} runs to do", file=sys.stderr)
    compute_cells(kept, {cell.key: cell.arguments for cell in wanted}, value_of, may_fail=False)
    for cell in wanted if is_told else ():
        print(cell.key, kept[cell.key])
