"""How plots look, in files as in notebooks."""

from __future__ import annotations

from typing import Any

from upcycled._utils.extras import needs

# Okabe and Ito's colours, told apart by colour-blind readers too.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444")
TITLES = {"accuracy": "test accuracy (%)", "loss": "test loss"}
INK, MUTED, GRID = "#222222", "#666666", "#e4e4e4"


def axes_or_new(ax: Any = None) -> Any:
    """Return the axes given, or those of a new figure of pyplot's, which a notebook shows by itself."""
    needs("a plot", "matplotlib")
    if ax is None:
        from matplotlib import pyplot

        _, ax = pyplot.subplots(figsize=(6.4, 4.0))
    return ax


def style(axes: Any) -> None:
    """Take away what is no data: the frame, the ticks, all but a light grid."""
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.02)
    axes.tick_params(colors=MUTED, length=0)
    axes.locator_params(axis="x", integer=True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(GRID)
