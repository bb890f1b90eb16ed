"""Plots of runs: what their records and their ledgers hold, and so nothing that these keep back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from upcycled._utils.formats import general
from upcycled._utils.plotting import COLOURS, INK, MUTED, TITLES, axes_or_new, style
from upcycled.core.errors import InputError, unknown
from upcycled.privacy.ledger.ledger import Ledger
from upcycled.privacy.mechanisms import epsilon_called

if TYPE_CHECKING:
    from upcycled.training.history import History


EPSILON = "epsilon"
AGAINST = {"data_round": "data rounds", "iteration": "iterations"}
SCORES = ("accuracy", "loss", "global_accuracy", "global_loss")
HOLDERS = "; the other scores are the data holder's own, and stand in result.private.history"
Points = tuple[list[int], list[float]]


def measured(history: History) -> list[str]:
    """Return the names of what was measured in some iteration, accuracy and loss first."""
    names = dict.fromkeys((*SCORES, *(name for record in history for name in record.metrics)))
    return [name for name in names if any(value is not None for value in history.column(name))]


def points(history: History, metric: str, against: str = "data_round") -> Points:
    """Return where a metric was measured, and what it was; of several in one data round the last.

    >>> from upcycled.training.history import History
    >>> points(History(()), "loss")
    ([], [])
    """
    if against not in AGAINST:
        raise unknown("against", against, AGAINST)
    pairs = zip(history.column(against), history.column(metric), strict=True)
    last = {x: value for x, value in pairs if value is not None}
    scale = 100.0 if metric in ("accuracy", "global_accuracy") else 1.0
    return list(last), [scale * value for value in last.values()]


def spent(ledger: Ledger, against: str = "data_round") -> Points:
    """Return the worst client's epsilon as a run went on, where it is finite."""
    if against not in AGAINST:
        raise unknown("against", against, AGAINST)
    known = ledger.epsilon_over_rounds(ledger.default_delta)
    where = known.rounds if against == "data_round" else known.iterations
    found = {x: value for x, value in zip(where, known.worst, strict=True) if math.isfinite(value)}
    return list(found), list(found.values())


def chosen(
    metric: str | None, histories: Sequence[History], ledgers: Sequence[Ledger | None], is_restricted: bool = False
) -> str:
    """Return what is plotted: what was asked for, or the first that all runs have."""
    common = [name for name in measured(histories[0]) if all(name in measured(other) for other in histories[1:])]
    if all(ledger is not None and ledger.promise.is_claimed for ledger in ledgers):
        common.append(EPSILON)
    if not common:
        raise InputError("there is nothing to plot: no iteration was scored, and no epsilon is claimed")
    if metric is None:
        return common[0]
    if metric not in common:
        raise InputError(
            field="metric", value=metric, must=f"one of {', '.join(common)}", hint=HOLDERS if is_restricted else ""
        )
    return metric


def titled(metric: str, ledger: Ledger | None) -> str:
    """Return the words over a plot."""
    if metric != EPSILON or ledger is None:
        return TITLES.get(metric, metric)
    simulated = ", simulation: not private" if ledger.is_simulation else ""
    return f"worst client's {epsilon_called(ledger.claim)}, at delta {general(ledger.default_delta)}{simulated}"


def draw(ax: Any, title: str, against: str, lines: Sequence[tuple[str | None, Sequence[Points]]]) -> Any:
    """Draw a line for each kind of run, the mean over its seeds with a band of one standard deviation.

    Args:
        ax: matplotlib's axes, or None for new ones.
        title: what is drawn.
        against: over what.
        lines: (words of the legend or None, the points of every seed); the points all seeds have are drawn.

    Returns:
        The axes.
    """
    axes = axes_or_new(ax)
    style(axes)
    for (label, seeds), colour in zip(lines, COLOURS, strict=False):
        values = [dict(zip(*seed, strict=True)) for seed in seeds]
        where = sorted(set(values[0]).intersection(*values[1:]))
        table = np.array([[seed[x] for x in where] for seed in values], dtype=np.float64)
        mean = table.mean(axis=0)
        if len(table) > 1:
            spread = table.std(axis=0, ddof=1)
            axes.fill_between(where, mean - spread, mean + spread, color=colour, alpha=0.12, linewidth=0)
        axes.plot(where, mean, color=colour, linewidth=2, marker="o" if len(where) == 1 else None, label=label)
    axes.set_title(title, loc="left", fontsize=10.5, color=INK)
    axes.set_xlabel(AGAINST[against], color=MUTED)
    if any(label for label, _ in lines):
        axes.legend(frameon=False, labelcolor=INK)
    return axes
