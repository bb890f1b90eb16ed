"""Charts without a script: a still picture of the learning curves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from upcycled.core.vectors import Real
from upcycled.experiments.report.charts import Drawn
from upcycled.experiments.report.figures import short
from upcycled.experiments.report.markup import Html, join, tag, text

WIDTH, HEIGHT = 520, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 512, 10, 262


def still(every: Sequence[Drawn], score: str, words: str) -> Html:
    """Return a score against data rounds as SVG; only what is finite is drawn."""
    lines = [(one, *_points(one, score)) for one in every]
    lines = [(one, xs, ys) for one, xs, ys in lines if xs.size]
    if not lines:
        return tag("p", text(f"No run has a {words}."), class_="about")
    x_to, low = max(float(xs.max()) for _, xs, _ in lines), min(float(ys.min()) for _, _, ys in lines)
    high = max(float(ys.max()) for _, _, ys in lines)
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)

    def place(x: Real, y: Real) -> str:
        across = LEFT + (RIGHT - LEFT) * x / max(x_to, 1.0)
        up = BOTTOM - (BOTTOM - TOP) * (y - low) / (high - low)
        return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(across, up, strict=True))

    drawn = [
        tag("g", tag("path", d=place(xs, ys), class_=_style(one)), class_=f"c{one.colour}") for one, xs, ys in lines
    ]
    return tag(
        "svg",
        _axes(low, high, x_to),
        *drawn,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        width=WIDTH,
        height=HEIGHT,
        role="img",
        aria_label=f"{words} against data rounds",
    )


def _points(one: Drawn, score: str) -> tuple[Real, Real]:
    """Return the model after each data round, and what followed it."""
    ys = one.curve.mean[score]
    last = np.append(np.diff(one.curve.data_round) > 0, True) if len(one.curve) else np.zeros(0, dtype=bool)
    kept = last & np.isfinite(ys)
    return one.curve.data_round[kept], ys[kept]


def _style(one: Drawn) -> str:
    return "line dashed" if one.is_dashed else "line"


def _axes(low: float, high: float, x_to: float) -> Html:
    marks = []
    for part in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = round(BOTTOM - (BOTTOM - TOP) * part, 1)
        marks.append(tag("line", x1=LEFT, x2=RIGHT, y1=y, y2=y, class_="grid"))
        marks.append(tag("text", text(short(low + part * (high - low), 3)), x=LEFT - 6, y=y + 4, class_="end"))
    for part in (0.5, 1.0):
        x = round(LEFT + (RIGHT - LEFT) * part, 1)
        marks.append(tag("text", text(short(part * x_to)), x=x, y=BOTTOM + 17, class_="end"))
    marks.append(tag("text", text("data rounds"), x=RIGHT, y=HEIGHT - 4, class_="end"))
    return join(marks)
