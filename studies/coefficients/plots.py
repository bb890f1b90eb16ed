"""Two pictures: what each contestant gains, and how the gain is spread over cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from studies.coefficients import analysis
from studies.coefficients import settings as s
from studies.coefficients.analysis import Cell
from studies.common.data import ROOT
from studies.common.pictures import write_picture

IMAGES = ROOT / "docs" / "images"
MAIN, OTHER, MUTED = "#0072B2", "#D55E00", "#666666"


def gains(cells: list[Cell], names: Sequence[str]) -> None:
    """Draw the mean gain of each contestant with its interval, a panel per learning rate."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6), dpi=110, layout="constrained")
    panels = figure.subplots(1, len(s.REGIMES), sharey=True, sharex=True)
    for panel, regime in zip(panels, s.REGIMES, strict=True):
        part = [cell for cell in cells if cell.place.regime == regime]
        panel.axvline(0, color="#999999", linewidth=1)
        for row, name in enumerate(names):
            own = analysis.summary(part, name)
            colour = MAIN if name == s.AUTO else OTHER if name in (s.CONSTANT, s.SERVER) else MUTED
            panel.plot([own.low, own.high], [row, row], color=colour, linewidth=2)
            panel.plot(own.mean, row, "o", color=colour)
        _plain(panel)
        panel.set_title(f"learning rate {regime}")
        panel.set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    figure.supxlabel("points of accuracy gained over vanilla, mean over cells (95 % over seeds)", fontsize=10)
    write_picture(figure, IMAGES / "coefficients-gains.png")


def ladder(cells: list[Cell], names: Sequence[str]) -> None:
    """Draw every cell's gain with its interval, sorted, a panel per contestant."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.8), dpi=110, layout="constrained")
    panels = figure.subplots(1, len(names), sharey=True)
    for panel, name in zip(panels, names, strict=True):
        found = np.array(sorted(cell.interval(name) for cell in cells))
        place = np.arange(len(found))
        safe = found[:, 1] > -analysis.TOLERANCE
        for part, colour in ((safe, MAIN), (~safe, OTHER)):
            panel.vlines(place[part], found[part, 1], found[part, 2], color=colour, alpha=0.35, linewidth=1)
            panel.plot(place[part], found[part, 0], ".", color=colour, markersize=3)
        panel.axhline(-analysis.TOLERANCE, color="#999999", linestyle="--", linewidth=1)
        panel.axhline(0, color="#999999", linewidth=1)
        panel.set_ylim(-6, 8)
        panel.set_title(f"{name}: {100 * safe.mean():.1f} % of cells above the dashed line")
        panel.set_xlabel("cells, sorted by gain")
        _plain(panel)
    panels[0].set_ylabel("gain over vanilla, points (95 %)")
    write_picture(figure, IMAGES / "coefficients-cells.png")


def _plain(panel: Any) -> None:
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(color="#eeeeee")
    panel.set_axisbelow(True)
