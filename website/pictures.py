"""``python -m website.pictures`` draws the pictures of docs/concepts.md; the numbers in them come from the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from upcycled._utils.plotting import COLOURS, GRID, INK, MUTED, style

IMAGES = Path(__file__).parents[1] / "docs" / "images"
BLUE, ORANGE, GREEN = COLOURS[:3]


def rounds() -> Any:
    """Draw six iterations of a real run: what each sends, and where the server's model goes."""
    import upcycled as up

    data = up.data.synthetic(0.5, 0.5, clients=10, seed=0)
    result = up.train(data, algorithm=up.FedAvg(), upcycle=0.7, iterations=6, progress=False)
    figure, axes = _figure(8.4, 2.9)
    for record in result.history:
        is_data = record.kind == "data"
        colour = BLUE if is_data else GREEN
        axes.barh(0, 0.9, left=record.iteration - 0.45, height=0.55, color=colour, alpha=0.16, linewidth=0)
        title = "data round" if is_data else "upcycled"
        axes.text(record.iteration, 0.16, f"{record.iteration}: {title}", ha="center", fontsize=9, color=INK)
        said = f"{record.messages} messages" if record.messages else "no message"
        axes.text(record.iteration, 0.0, said, ha="center", va="center", fontsize=8.5, color=MUTED)
        cost = "charged" if is_data else "free"
        axes.text(record.iteration, -0.18, cost, ha="center", va="center", fontsize=8.5, color=colour)
        if is_data:
            for x, y0, y1 in ((-0.12, -0.95, -0.34), (0.12, -0.34, -0.95)):
                arrow = {"arrowstyle": "-|>", "color": BLUE, "linewidth": 1.2}
                axes.annotate("", (record.iteration + x, y1), (record.iteration + x, y0), arrowprops=arrow)
    axes.text(0.45, 0.62, "server", fontsize=10, fontweight="bold", color=INK)
    axes.text(0.45, -1.15, "clients, each with its own records", fontsize=10, fontweight="bold", color=INK)
    axes.set_xlim(0.4, 6.6)
    axes.set_ylim(-1.35, 0.85)
    axes.axis("off")
    return figure


def flow() -> Any:
    """Draw what stays with a client, what is released, and what is free from there on."""
    figure, axes = _figure(8.4, 2.6)
    boxes = [
        (0.0, "records", "stay at the site", COLOURS[1]),
        (2.1, "trained model", "stays at the site", COLOURS[1]),
        (4.2, "release", "noise added, charged first", BLUE),
        (6.3, "server's model", "upcycled steps, rho: free", GREEN),
    ]
    for x, title, words, colour in boxes:
        axes.barh(0, 1.75, left=x, height=0.8, color=colour, alpha=0.15, linewidth=0)
        axes.text(x + 0.87, 0.12, title, ha="center", fontsize=10.5, fontweight="bold", color=INK)
        axes.text(x + 0.87, -0.18, words, ha="center", fontsize=8, color=MUTED)
    for x, words in ((1.75, "training"), (3.85, "mechanism"), (5.95, "aggregation")):
        arrow = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.2}
        axes.annotate("", (x + 0.35, 0), (x, 0), arrowprops=arrow)
        axes.text(x + 0.17, 0.55, words, ha="center", fontsize=8.5, color=MUTED)
    axes.axvline(3.98, ymin=0.08, ymax=0.92, color=GRID, linewidth=2)
    axes.text(3.9, -0.75, "what is private", ha="right", fontsize=9, color=MUTED)
    axes.text(4.06, -0.75, "what everybody may see", fontsize=9, color=MUTED)
    axes.set_xlim(-0.1, 8.2)
    axes.set_ylim(-0.95, 0.85)
    axes.axis("off")
    return figure


def noise() -> Any:
    """Draw the noise that an epsilon of 2 at delta 1e-5 needs, for data rounds of sensitivity 1."""
    from scipy.optimize import brentq

    from upcycled.privacy import gdp_epsilon

    mu = float(brentq(lambda value: gdp_epsilon(mu=value, delta=1e-5) - 2.0, 0.05, 5.0))
    figure, axes = _figure(6.4, 3.4)
    figure.subplots_adjust(left=0.1, right=0.97, top=0.86, bottom=0.16)
    count = np.arange(1, 101)
    axes.plot(count, np.sqrt(count) / mu, color=BLUE, linewidth=2)
    for at, words in ((80, "80 data rounds"), (40, "40: as many iterations, upcycled")):
        value = at**0.5 / mu
        axes.plot([at], [value], "o", color=ORANGE if at == 80 else GREEN)
        axes.annotate(f"{words}\nnoise {value:.1f}", (at, value), (at + 2, value - 3.2), fontsize=8.5, color=INK)
    style(axes)
    axes.set_ylim(0, None)
    axes.set_xlabel("data rounds", color=MUTED)
    title = "noise (standard deviation over sensitivity) for epsilon 2 at delta 1e-5"
    axes.set_title(title, loc="left", fontsize=10, color=MUTED)
    return figure


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, facecolor="white")
    axes = figure.subplots()
    figure.subplots_adjust(left=0.01, right=0.99, top=0.98, bottom=0.02)
    return figure, axes


def main() -> None:
    for name, draw in {"rounds": rounds, "flow": flow, "noise": noise}.items():
        # No date and no version in the file: the same code draws the same bytes.
        draw().savefig(IMAGES / f"concept-{name}.png", metadata={"Software": None})


if __name__ == "__main__":
    main()
