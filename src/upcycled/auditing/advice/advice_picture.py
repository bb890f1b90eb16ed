"""The picture of an advice: the noise under each choice, and what candidates reached on generated federations."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from upcycled.auditing.advice.advising import Advice
from upcycled.auditing.advice.candidates import ERM
from upcycled.support.extras import needs
from upcycled.support.files import write_whole

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
INK, MUTED, GRID = "#222222", "#666666", "#e4e4e4"


def write_picture(path: Path, advice: Advice) -> None:
    """Write a PNG."""
    needs("a picture", "matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), dpi=130, facecolor="white", layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_noise(left, advice)
    _draw_tried(right, advice)
    for axes in (left, right):
        axes.tick_params(colors=MUTED, length=0)
        axes.set_axisbelow(True)
        for side, spine in axes.spines.items():
            spine.set_visible(side == "bottom")
            spine.set_color(GRID)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", backend="agg")
    write_whole(path, stream.getvalue())


def _draw_noise(axes: Any, advice: Advice) -> None:
    known = [row for row in reversed(advice.noise) if row.by_samples is not None]
    places = range(len(known))
    axes.plot([row.by_samples for row in known], places, "o", color=COLOURS[1], label="weights n_i")
    least = [(row.least, place) for row, place in zip(known, places, strict=True) if row.least]
    if least:
        axes.plot(*zip(*least, strict=True), "D", color=COLOURS[2], label="precision weights, clients agreeing")
    axes.set_yticks(range(len(known)), [f"{row.choice}\n{row.rounds} data rounds" for row in known], fontsize=8)
    axes.set_xscale("log")
    axes.grid(color=GRID)
    axes.set_title("Noise of the mean (std per coordinate), one data round", loc="left", fontsize=10, color=INK)
    if known:
        axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2)


def _draw_tried(axes: Any, advice: Advice) -> None:
    first = {one.candidate: one.scores[0] for one in advice.tried if len(one.scores) != 0}
    # What was tried again with other weights began on other federations: the main candidates are drawn.
    full = advice.tried[-1].candidate.reuse if advice.tried else None
    drawn = [one for one in first if one.reuse == full]
    for colour, a in zip(COLOURS, sorted({one.a for one in drawn if one.mechanism == ERM}), strict=False):
        rounds = sorted({one.rounds for one in drawn if one.a == a and one.mechanism == ERM})
        best = [max(100 * first[o] for o in drawn if (o.a, o.rounds, o.mechanism) == (a, m, ERM)) for m in rounds]
        axes.plot(rounds, best, color=colour, marker="o", linewidth=2, label=f"erm_output, a = {a:g}")
    others = [one for one in drawn if one.mechanism != ERM]
    for colour, a in zip(COLOURS, sorted({one.a for one in others}), strict=False):
        mine = sorted((one for one in others if one.a == a), key=lambda one: one.rounds)
        scores = [100 * first[one] for one in mine]
        label = f"{mine[0].mechanism}, a = {a:g}"
        axes.plot([one.rounds for one in mine], scores, color=colour, marker="s", linestyle="--", label=label)
    axes.set_title("Test accuracy (%), first generated federation", loc="left", fontsize=10, color=INK)
    axes.set_xlabel("data rounds, at equal epsilon (best number of steps)", color=MUTED)
    axes.grid(axis="y", color=GRID)
    if drawn:
        axes.set_xscale("log", base=2)
        ticks = sorted({one.rounds for one in drawn})
        axes.set_xticks(ticks, [str(m) for m in ticks])
        axes.legend(frameon=False, fontsize=8)
    else:
        axes.text(0.5, 0.5, "nothing was tried", transform=axes.transAxes, ha="center", color=MUTED)
