"""Plots as files: matplotlib figures without pyplot, so nothing global is touched and no display is needed."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from upcycled.core.vectors import Real
from upcycled.support.extras import needs
from upcycled.support.files import write_whole
from upcycled.support.plotting import COLOURS, INK, MUTED, TITLES, style


@dataclass(frozen=True)
class PlotCurve:
    """One line of a plot: runs of the same kind, one per seed."""

    group: str
    """Curves of one group share a colour."""
    is_upcycled: bool
    rounds: Real
    accuracy: Real
    """(seeds, rounds), in percent."""
    loss: Real

    @property
    def label(self) -> str:
        """The words of the legend."""
        return "upcycled" if self.is_upcycled else "vanilla"


def curve(group: str, is_upcycled: bool, histories: Sequence[Sequence[Mapping[str, Any]]]) -> PlotCurve:
    """Return the model after each data round (and its upcycled iteration) from the rows of every seed's history."""
    last = [{row["data_round"]: row for row in rows if row["accuracy"] is not None} for rows in histories]
    rounds = sorted(set(last[0]).intersection(*last[1:]))
    return PlotCurve(
        group,
        is_upcycled,
        np.array(rounds, dtype=np.float64),
        np.array([[100 * seed[m]["accuracy"] for m in rounds] for seed in last], dtype=np.float64),
        np.array([[seed[m]["loss"] for m in rounds] for seed in last], dtype=np.float64),
    )


def write_comparison(path: Path, curves: Sequence[PlotCurve], title: str, subtitle: str) -> None:
    """Write a PNG: accuracy and loss against data rounds, one column per algorithm, mean over seeds with a band.

    The band is one standard deviation; it may leave the picture where it is much wider than the curves move.
    """
    needs("a plot", "matplotlib")
    from matplotlib.figure import Figure

    groups = list(dict.fromkeys(c.group for c in curves))
    figure = Figure(figsize=(1.2 + 4.4 * len(groups), 6.8), dpi=150, facecolor="white")
    left = 0.75 / figure.get_figwidth()
    figure.subplots_adjust(left=left, right=0.98, top=0.82, bottom=0.09, wspace=0.08, hspace=0.22)
    figure.text(left, 0.945, title, fontsize=15, fontweight="bold", color=INK)
    figure.text(left, 0.905, subtitle, fontsize=9.5, color=MUTED)
    panels = figure.subplots(len(TITLES), len(groups), sharex=True, sharey="row", squeeze=False)
    for row, (metric, words) in zip(panels, TITLES.items(), strict=True):
        limits = _limits([getattr(c, metric).mean(axis=0) for c in curves])
        for axes, group, colour in zip(row, groups, COLOURS * len(groups), strict=False):
            axes.set_ylim(*limits)
            style(axes)
            for c in (c for c in curves if c.group == group):
                _draw(axes, c, getattr(c, metric), colour)
        row[0].set_title(words, loc="left", fontsize=10.5, color=MUTED)
    for axes, group in zip(panels[0], groups, strict=True):
        axes.set_title(group, loc="center", fontsize=12, fontweight="bold", color=INK)
        axes.legend(loc="lower right", frameon=False, fontsize=10, handlelength=2.6, labelcolor=INK)
    for axes in panels[-1]:
        axes.set_xlabel("data rounds", color=MUTED)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", backend="agg")
    write_whole(path, stream.getvalue())


def _limits(means: Sequence[Real]) -> tuple[float, float]:
    """Return a range that shows every mean curve and some of the bands."""
    low, high = min(float(m.min()) for m in means), max(float(m.max()) for m in means)
    margin = 0.25 * (high - low) or 0.5
    return low - margin, high + margin


def _draw(axes: Any, curve: PlotCurve, values: Real, colour: str) -> None:
    mean = values.mean(axis=0)
    shade = colour if curve.is_upcycled else MUTED
    if len(values) > 1:
        spread = values.std(axis=0, ddof=1)
        axes.fill_between(curve.rounds, mean - spread, mean + spread, color=shade, alpha=0.11, linewidth=0)
    line: Any = "-" if curve.is_upcycled else (0, (3.5, 1.8))
    marker = "o" if len(mean) == 1 else None
    axes.plot(curve.rounds, mean, color=colour, linestyle=line, linewidth=2, marker=marker, label=curve.label)
