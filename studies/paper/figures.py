"""The figures: loss over the course of training, mean and band over seeds, vanilla against upcycled."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from studies.common.pictures import write_picture
from studies.paper.choose import Cell
from studies.paper.plan import Block, blocks
from studies.paper.private import Panel
from studies.paper.settings import STRATEGIES, Settings, Table
from studies.paper.spec import Spec
from upcycled._utils.plotting import COLOURS, GRID, INK, MUTED
from upcycled.core.vectors import Real

STYLES: dict[str, tuple[str, Any]] = {"vanilla": (COLOURS[1], (0, (3.5, 1.8))), "upcycled": (COLOURS[0], "-")}
INCHES = 0.125
"""A title's letter, at most, on average."""
START = 0.1
"""The share of a curve, from its start, that may leave the picture at the top."""


@dataclass(frozen=True)
class Line:
    """A strategy's losses over seeds."""

    strategy: str
    x: Real
    losses: Real
    """(seeds, points)."""


@dataclass(frozen=True)
class Plot:
    """One small plot: a method on a data set."""

    row: str
    column: str
    lines: tuple[Line, ...]
    """Empty while runs are missing."""


@dataclass(frozen=True)
class Picture:
    """A figure: a row of plots for each data set, a column for each method."""

    title: str
    xlabel: str
    plots: tuple[Plot, ...]

    @property
    def is_drawable(self) -> bool:
        return any(plot.lines for plot in self.plots)


def line(strategy: str, specs: Sequence[Spec], cell: Cell, by_iteration: bool = False) -> Line | None:
    """Return the curve of some runs; None while one is missing or has no finite loss everywhere."""
    found = [cell(spec) for spec in specs]
    kept = [one for one in found if one is not None and one.get("losses") and None not in one["losses"]]
    if not specs or len(kept) < len(specs):
        return None
    x = np.array(kept[0]["rounds"], dtype=np.float64)
    factor = 2 if by_iteration and specs[0].rho is not None else 1
    return Line(strategy, factor * x, np.array([one["losses"] for one in kept], dtype=np.float64))


def convergence(settings: Settings, table: Table, cell: Cell) -> list[Plot]:
    """Return the plots of a table's runs: loss against data rounds, so at equal client work."""
    found = [block for block in blocks(settings, table) if not block.method.is_ablation]
    order = {name: i for i, name in enumerate(settings.methods)}
    found.sort(key=lambda block: order[block.method.name])
    return [_of_block(settings, block, cell) for block in found]


def private(panels: Sequence[Panel], cell: Cell) -> list[Plot]:
    """Return the plots of private runs: loss against iterations, of which upcycled runs have as many."""
    plots = []
    for panel in panels:
        lines = [line(strategy, panel.runs(strategy, cell), cell, by_iteration=True) for strategy in STRATEGIES]
        plots.append(Plot(panel.settings.data[panel.data].title, panel.method.title, _all_or_none(lines)))
    return plots


def draw(path: Path, picture: Picture) -> None:
    """Write a PNG; data sets of which nothing is there are left out."""
    from matplotlib.figure import Figure

    plots = picture.plots
    drawn = {plot.row for plot in plots if plot.lines}
    rows = [row for row in dict.fromkeys(plot.row for plot in plots) if row in drawn]
    columns = list(dict.fromkeys(plot.column for plot in plots))
    subtitle = f"Test loss against {picture.xlabel}; mean over seeds, band of one standard deviation."
    width = max(6.0, 1.0 + 2.1 * len(columns))
    title = textwrap.wrap(picture.title, int(width / INCHES))
    head = 1.25 + 0.24 * (len(title) - 1)
    height = head + 0.3 + 1.75 * len(rows)
    figure = Figure(figsize=(width, height), dpi=90, facecolor="white")
    figure.subplots_adjust(
        left=0.9 / width, right=0.99, top=1 - head / height, bottom=0.5 / height, wspace=0.28, hspace=0.28
    )
    for at, words in enumerate(title):
        down = 0.34 + 0.24 * at
        figure.text(0.15 / width, 1 - down / height, words, fontsize=13, fontweight="bold", color=INK)
    figure.text(0.15 / width, 1 - (head - 0.65) / height, subtitle, fontsize=9, color=MUTED)
    grid = figure.subplots(len(rows), len(columns), squeeze=False)
    by_place = {(plot.row, plot.column): plot for plot in plots}
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            axes = grid[i][j]
            _draw_plot(axes, by_place.get((row, column)))
            if i == 0:
                axes.set_title(column, fontsize=10, color=INK)
            if j == 0:
                axes.set_ylabel(f"{row}\ntest loss", fontsize=9, color=MUTED)
            if i == len(rows) - 1:
                axes.set_xlabel(picture.xlabel, fontsize=8.5, color=MUTED)
    handles = [
        figure.axes[0].plot([], [], color=colour, linestyle=style, linewidth=1.8, label=name)[0]
        for name, (colour, style) in STYLES.items()
    ]
    place = (0.06 / width, 1 - (head - 0.68) / height)
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=place, ncols=2, frameon=False, fontsize=9.5)
    write_picture(figure, path)


def _of_block(settings: Settings, block: Block, cell: Cell) -> Plot:
    lines = [line(strategy, block.runs(strategy, cell), cell) for strategy in STRATEGIES]
    return Plot(settings.data[block.column.data].title, block.method.title, _all_or_none(lines))


def _all_or_none(lines: Sequence[Line | None]) -> tuple[Line, ...]:
    found = [one for one in lines if one is not None]
    return tuple(found) if len(found) == len(lines) else ()


def _draw_plot(axes: Any, plot: Plot | None) -> None:
    axes.tick_params(colors=MUTED, length=0, labelsize=7.5)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(GRID)
    if plot is None or not plot.lines:
        axes.set_xticks([])
        axes.set_yticks([])
        words = "not in the figure" if plot is None else "not computed yet"
        axes.text(0.5, 0.5, words, ha="center", va="center", color=MUTED, fontsize=8, transform=axes.transAxes)
        return
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    for one in plot.lines:
        colour, style = STYLES[one.strategy]
        mean = one.losses.mean(axis=0)
        if len(one.losses) > 1:
            spread = one.losses.std(axis=0, ddof=1)
            axes.fill_between(one.x, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)
        axes.plot(one.x, mean, color=colour, linestyle=style, linewidth=1.5)
    later = [one.losses.mean(axis=0)[int(START * one.x.size) :] for one in plot.lines]
    low, high = min(float(m.min()) for m in later), max(float(m.max()) for m in later)
    margin = 0.15 * (high - low) or 0.05
    axes.set_ylim(low - margin, high + margin)
