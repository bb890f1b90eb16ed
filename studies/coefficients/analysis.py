"""From kept cells to what may be said: paired differences over seeds, cell by cell and over all cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from studies.coefficients import settings as s
from studies.coefficients.choices import key
from studies.coefficients.syn import Place
from studies.common.statistics import CONFIDENCE, Paired, paired
from studies.common.store import Cells
from upcycled.core.vectors import Real

TOLERANCE = 0.5
"""Points by which a cell's interval may reach below vanilla."""
NEAR = 0.3
"""Points by which the mean may stay behind the grid-searched constant."""
MOST_CELLS = 0.95


@dataclass(frozen=True)
class Cell:
    """A place and a reading: accuracy of every contestant, seed by seed, in points. NaN where a run diverged."""

    place: Place
    rounds: int
    found: dict[str, Real]

    def gain(self, contestant: str, over: str = "vanilla") -> Real:
        """Return the differences seed by seed; a run that diverged is worth nothing."""
        return np.nan_to_num(self.found[contestant]) - np.nan_to_num(self.found[over])

    def interval(self, contestant: str, over: str = "vanilla") -> tuple[float, float, float]:
        """Return (mean, low, high) of the difference at 95 %."""
        found = paired(np.nan_to_num(self.found[contestant]), np.nan_to_num(self.found[over]))
        return (found.mean, *found.interval)

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """Return the cell as plain values, a row for each contestant."""
        p = self.place
        where = {"set": p.data, "algorithm": p.algorithm, "stragglers": p.stragglers, "regime": p.regime, "lr": p.lr}
        return {
            key(p.data, p.algorithm, p.stragglers, p.regime, self.rounds, name): where
            | {
                "data_rounds": self.rounds,
                "contestant": name,
                "accuracy": round(float(np.nanmean(found)), 3) if np.isfinite(found).any() else None,
                "sd": round(float(np.nanstd(found, ddof=1)), 3) if np.isfinite(found).sum() > 1 else None,
                "diverged": int(np.isnan(found).sum()),
                "gain": [round(x, 3) for x in self.interval(name)],
            }
            for name, found in self.found.items()
        }


def read_cells(cells: Cells, places: Iterator[Place], names: Callable[[Place], list[str]], seeds: Any) -> list[Cell]:
    """Return all cells, places in order, each at every reading."""
    found = []
    for place in places:
        runs = {name: [_accuracies(cells[place.key(name, seed)]) for seed in seeds] for name in names(place)}
        for i, rounds in enumerate(s.READ):
            found.append(Cell(place, rounds, {name: np.array([r[i] for r in all_]) for name, all_ in runs.items()}))
    return found


def _accuracies(value: dict[str, Any]) -> list[float]:
    return value["accuracy"] if "accuracy" in value else [np.nan] * len(s.READ)


@dataclass(frozen=True)
class Summary:
    """What a contestant did over cells."""

    cells: int
    mean: float
    low: float
    high: float
    """Gain over vanilla on the mean over cells, and its interval over seeds."""
    safe: float
    """Part of the cells whose interval's lower end is above -TOLERANCE."""
    better: int
    worse: int
    """Cells whose interval excludes zero."""
    diverged: int
    """Runs that diverged where vanilla, with the same seed, did not."""


def summary(cells: list[Cell], contestant: str, over: str = "vanilla") -> Summary:
    """Sum a contestant up over the cells it took part in."""
    own = [cell for cell in cells if contestant in cell.found]
    by_seed = np.mean([cell.gain(contestant, over) for cell in own], axis=0)
    found = Paired(tuple(by_seed.tolist()), CONFIDENCE)
    intervals = np.array([cell.interval(contestant, over) for cell in own])
    lost = [np.isnan(cell.found[contestant]) & ~np.isnan(cell.found[over]) for cell in own if cell.rounds == s.READ[-1]]
    spread = intervals[:, 2] > intervals[:, 1]
    return Summary(
        len(own),
        found.mean,
        *found.interval,
        float((intervals[:, 1] > -TOLERANCE).mean()),
        int(((intervals[:, 1] > 0) & spread).sum()),
        int(((intervals[:, 2] < 0) & spread).sum()),
        int(np.sum(lost)),
    )


@dataclass(frozen=True)
class Earned:
    """The criteria for a rule to become the default, one by one."""

    everywhere: bool
    better: bool
    near: bool
    finite: bool

    @property
    def all(self) -> bool:
        return self.everywhere and self.better and self.near and self.finite


def earned(cells: list[Cell], rule: str) -> Earned:
    """Hold a rule to the criteria."""
    own, constant = summary(cells, rule), summary(cells, rule, over=s.CONSTANT)
    return Earned(own.safe >= MOST_CELLS, own.low > 0, constant.mean >= -NEAR, own.diverged == 0)
