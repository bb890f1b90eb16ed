"""The measured part of docs/coefficients.md and its plots, from kept cells."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from studies.coefficients import analysis, femnist, plots, private, syn
from studies.coefficients import settings as s
from studies.coefficients.analysis import Cell
from studies.coefficients.choices import key
from studies.common.data import ROOT
from studies.common.page import paired_words, signed, table, write_page
from studies.common.statistics import paired
from studies.common.store import Cells, write_cells
from upcycled.coefficients import Auto

PAGE = ROOT / "docs" / "coefficients.md"
RIVALS = (*s.RULES, s.CONSTANT, s.SERVER)
TO = "({} to {})"
"""How an interval looks on this page."""


def syn_cells(folder: Path, sets: tuple[str, ...], algorithms: tuple[str, ...], seeds: tuple[int, ...]) -> list[Cell]:
    chosen = s.opened("choices", folder)
    places = syn.all_places(chosen, sets, algorithms)
    return analysis.read_cells(
        s.opened("syn", folder), places, lambda place: list(syn.contestants(chosen, place)), seeds
    )


def all_cells() -> list[Cell]:
    return syn_cells(s.CELLS, s.SETS, tuple(s.ALGORITHMS), s.SEEDS)


def write() -> None:
    """Write page, plots and the summary of cells from all that is there."""
    cells = all_cells()
    plots.gains(cells, RIVALS)
    plots.ladder(cells, (s.AUTO, s.CONSTANT))
    write_cells(s.CELLS / "summary.parquet", summary_rows(cells))
    write_page(PAGE, blocks(cells))


def summary_rows(cells: list[Cell]) -> dict[str, dict[str, Any]]:
    """Return every cell's numbers, by place, reading and contestant."""
    return {where: row for cell in cells for where, row in cell.rows.items()}


def blocks(cells: list[Cell]) -> dict[str, list[str]]:
    """Return what stands between the page's marks."""
    found = [verdict(cells), criteria(cells), overview(cells), *breakdowns(cells), worst(cells)]
    found.append(fixed_constants(s.opened("choices")))
    there, kept = s.opened("femnist"), s.opened("private")
    found += ([femnist_table(there)] if len(there) else []) + ([private_table(kept)] if len(kept) else [])
    return {"measured": [line for block in found for line in (*block, "")][:-1]}


def show(folder: Path, sets: tuple[str, ...], algorithms: tuple[str, ...], seeds: tuple[int, ...]) -> None:
    """Print the overview of a small version."""
    print("\n".join(overview(syn_cells(folder, sets, algorithms, seeds))))


def verdict(cells: list[Cell]) -> list[str]:
    """Say which rule became the default, or why none did."""
    passed = [rule for rule in s.RULES if analysis.earned(cells, rule).all]
    if s.AUTO in passed:
        return [f'**`{s.AUTO}` meets every criterion, so `upcycle="auto"` is `up.coefficients.{s.AUTO}()`.**']
    return [
        "**No rule meets every criterion, so the constant stays the default:** "
        f'`upcycle="auto"` is rho = {Auto().rho(1, None):g}, the best single constant of those in "One constant" below.'
    ]


def fixed_constants(chosen: Cells) -> list[str]:
    """What one constant for everything is worth, on the validation cells that the grid's choices came from."""
    rows = []
    for rho in s.COEFFICIENTS:
        gains, lost = [], 0
        for where, cell in chosen.items():
            if f"|{s.constant(rho).name}|" not in where:
                continue
            _, data, algorithm, stragglers, lr, _, seed = where.split("|")
            vanilla = (chosen.get(key("lr", data, algorithm, stragglers, lr, seed)) or {}).get("accuracy")
            if vanilla is None:
                continue
            if "accuracy" not in cell:
                lost += 1
                continue
            gains.append(float(np.mean(np.subtract(cell["accuracy"], vanilla))))
        worse = 100 * float(np.mean(np.array(gains) < -analysis.TOLERANCE))
        rows.append([f"{rho:g}", str(len(gains) + lost), f"{np.mean(gains):+.2f}", f"{worse:.0f} %", str(lost)])
    head = [
        "rho",
        "runs",
        "mean gain over vanilla",
        "runs more than 0.5 points worse",
        "diverged where vanilla did not",
    ]
    return [
        "One constant for all cells, on validation data, with the three seeds that the grid was searched with, at the "
        "learning rates that vanilla was tried at with them (right and too large, seldom too small):",
        "",
        *table(head, rows),
    ]


def criteria(cells: list[Cell]) -> list[str]:
    """One row per rule and criterion."""
    rows = []
    for rule in (*s.RULES, s.CONSTANT):
        own, met = analysis.summary(cells, rule), analysis.earned(cells, rule)
        against = "" if rule == s.CONSTANT else _interval(analysis.summary(cells, rule, over=s.CONSTANT))
        all_met = "" if rule == s.CONSTANT else "yes" if met.all else "no"
        safe = f"{100 * own.safe:.1f} % of {own.cells}"
        rows.append([rule, safe, _interval(own), against, str(own.diverged), all_met])
    head = [
        "rule",
        f"cells whose interval reaches no lower than -{analysis.TOLERANCE:g} (needs {100 * analysis.MOST_CELLS:g} %)",
        "gain over vanilla, mean over cells (must exclude 0)",
        f"against the grid-searched constant (needs -{analysis.NEAR:g})",
        "diverged where vanilla did not",
        "all met",
    ]
    return table(head, rows)


def overview(cells: list[Cell]) -> list[str]:
    """Gain, and how many cells are significantly better or worse."""
    rows = []
    for name in RIVALS:
        if any(name in cell.found for cell in cells):
            own = analysis.summary(cells, name)
            rows.append([name, str(own.cells), _interval(own), str(own.better), str(own.worse)])
    return table(["contestant", "cells", "gain (95 %)", "significantly better", "significantly worse"], rows)


def breakdowns(cells: list[Cell]) -> list[list[str]]:
    """Mean gains by learning rate, set, algorithm, rounds and stragglers."""
    views: dict[str, Callable[[Cell], object]] = {
        "learning rate": lambda cell: cell.place.regime,
        "set": lambda cell: f"Syn({cell.place.data})",
        "algorithm": lambda cell: cell.place.algorithm,
        "data rounds": lambda cell: cell.rounds,
        "stragglers": lambda cell: f"{100 * cell.place.stragglers:g} %",
    }
    return [_breakdown(cells, title, of) for title, of in views.items()]


def _breakdown(cells: list[Cell], title: str, of: Callable[[Cell], object]) -> list[str]:
    rows = []
    for value in dict.fromkeys(of(cell) for cell in cells):
        part = [cell for cell in cells if of(cell) == value]
        base = np.mean([np.nan_to_num(cell.found["vanilla"]).mean() for cell in part])
        rows.append([str(value), f"{base:.2f}", *(_gain(part, name) for name in RIVALS)])
    return table([title, "vanilla", *RIVALS], rows)


def _gain(cells: list[Cell], name: str) -> str:
    if not all(name in cell.found for cell in cells):
        partly = [cell for cell in cells if name in cell.found]
        return f"({analysis.summary(partly, name).mean:+.2f})" if partly else "none"
    own = analysis.summary(cells, name)
    mark = "**" if own.low > 0 or own.high < 0 else ""
    return f"{mark}{own.mean:+.2f}{mark}"


def worst(cells: list[Cell], count: int = 8) -> list[str]:
    """Return where the rule loses most."""
    rows = []
    for cell in sorted(cells, key=lambda cell: cell.interval(s.AUTO)[0])[:count]:
        p, vanilla = cell.place, np.nan_to_num(cell.found["vanilla"]).mean()
        where = [f"Syn({p.data})", p.algorithm, f"{p.lr:g} ({p.regime})", f"{100 * p.stragglers:g} %", str(cell.rounds)]
        rows.append([*where, f"{vanilla:.2f}", signed(*cell.interval(s.AUTO), False, interval=TO)])
    head = ["set", "algorithm", "learning rate", "stragglers", "data rounds", "vanilla", "gain (95 %)"]
    return [f"Where `{s.AUTO}` loses most:", "", *table(head, rows)]


def femnist_table(cells: Cells) -> list[str]:
    """Accuracy after each reading, and the paired gain of each contestant."""
    rows = []
    for algorithm in femnist.ALGORITHMS:
        base = _runs(cells, ("test", algorithm, "vanilla"), femnist.SEEDS)
        title = f"{algorithm} (lr {femnist.best_lr(cells, algorithm):g})"
        rows.append([title, "vanilla", *(f"{x:.2f}" for x in base.mean(axis=0))])
        for name, way in femnist.contestants(cells, algorithm).items():
            if name != "vanilla":
                found = _runs(cells, ("test", algorithm, name), femnist.SEEDS)
                label = f"{name} ({way.name})" if name in (s.CONSTANT, s.SERVER) else name
                gains = [paired_words(paired(*both), TO) for both in zip(found.T, base.T, strict=True)]
                rows.append(["", label, *gains])
    head = ["algorithm", "contestant", *(f"{m} rounds" for m in s.READ)]
    return ["FEMNIST, network of 196 hidden units, 90 % stragglers:", "", *table(head, rows)]


def private_table(cells: Cells) -> list[str]:
    """Accuracy of vanilla, and the paired gain of each contestant."""
    rivals = [name for name in private.WAYS if name != "vanilla"]
    rows = []
    for name, algorithm, epsilon in itertools.product(s.SETS, private.ALGORITHMS, private.EPSILONS):
        base, *found = (
            _runs(cells, ("private", name, algorithm, epsilon, one), private.SEEDS)[:, -1]
            for one in ("vanilla", *rivals)
        )
        gains = [paired_words(paired(one, base), TO) for one in found]
        rows.append([f"Syn({name})", algorithm, f"{epsilon:g}", f"{base.mean():.2f}", *gains])
    return [
        f"ErmOutput, {private.ROUNDS} data rounds, everybody takes part, the same proven epsilon for all:",
        "",
        *table(["set", "algorithm", "epsilon", "vanilla", *rivals], rows),
    ]


def _runs(cells: Cells, where: tuple[object, ...], seeds: Iterable[int]) -> np.ndarray:
    return np.array([cells[key(*where, seed)].get("accuracy", [0.0, 0.0, 0.0]) for seed in seeds], dtype=np.float64)


def _interval(found: analysis.Summary) -> str:
    return signed(found.mean, found.low, found.high, False, interval=TO)
