"""What the tables show, counted: where upcycling helps, where it does not, and what a server learning rate does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from studies.common.page import MISSING, paired_words, table
from studies.common.statistics import better_and_worse, sure
from studies.paper.choose import Cell, Place, Point, trials_of
from studies.paper.markdown import column_title
from studies.paper.settings import Settings
from studies.paper.tables import Filled, Row, entries_paired

STEP = 0.5
"""The rho of the list of learning rates."""

ABLATION, RIVAL = "fedavg_server_lr", "fedavg"


def gains(found: Filled) -> list[str]:
    """Count, in words, how often the interval of the gain excludes zero, and set the paper's gains beside."""
    rows = _complete(found)
    if not rows:
        return ["- No pair of method and data set is complete yet."]
    lines = [all_gains(found, "All data sets together")]
    for column in found.table.columns:
        mine = [row for row in rows if row.block.column is column]
        if mine and len(found.table.columns) > 1:
            lines.append(_counted(_title(found, column.name), mine))
    return lines


def all_gains(found: Filled, title: str) -> str:
    """Count over all columns together."""
    rows = _complete(found)
    if not rows:
        return f"- **{title}**: no pair of method and data set is complete yet."
    return _counted(title, rows) + _extremes(found, rows)


def _complete(found: Filled) -> list[Row]:
    return [row for row in found.rows if row.gain is not None]


def by_method(found: Filled) -> list[str]:
    """Return each method's gains over all columns: both sides tuned, and at the same settings, so of rho alone."""
    views = [[row.gain for row in found.rows], [row.gain_of_rho for row in found.rows]]
    complete = [[one for one in view if one is not None] for view in views]
    if not complete[0] or any(len(view) < len(found.rows) for view in complete):
        return ["Not computed yet."]
    claimed = [sure(view) for view in complete]  # of each view all pairs together are one family
    lines = []
    for method in [*found.table.methods, None]:
        at = [i for i, row in enumerate(found.rows) if method in (row.block.method.name, None)]
        words = [f"**all {len(at)} pairs**" if method is None else found.settings.methods[method].title]
        for view, is_sure in zip(complete, claimed, strict=True):
            better, worse = better_and_worse([view[i] for i in at], [is_sure[i] for i in at])
            words += [f"{fmean(view[i].mean for i in at):+.2f}", f"{better} / {worse} of {len(at)}"]
        printed = [found.rows[i].paper_gain for i in at]
        words.append(f"{fmean(gain for gain in printed if gain is not None):+.2f}" if None not in printed else MISSING)
        lines.append(words)
    titles = ["both tuned: mean gain", "better / worse", "same settings: mean gain", "better / worse"]
    return table(["method", *titles, "the paper"], lines)


def against_server_lr(found: Filled) -> list[str]:
    """Compare upcycled FedAvg with FedAvg whose server learning rate was tuned over the same grid."""
    lines = []
    for column in found.table.columns if ABLATION in found.table.methods else ():
        plain, tuned = found.row(column.name, RIVAL), found.row(column.name, ABLATION)
        assert plain.upcycled is not None
        over_tuned = entries_paired(plain.upcycled, tuned.vanilla, plain.confidence)
        over_plain = entries_paired(tuned.vanilla, plain.vanilla, plain.confidence)
        if over_tuned is None or over_plain is None:
            continue
        same = " (the same in every seed)" if not any(over_tuned.differences) else ""
        means = [f"{one.mean:.2f}" for one in (plain.vanilla, tuned.vanilla, plain.upcycled)]
        lines.append([_title(found, column.name), *means, paired_words(over_plain), paired_words(over_tuned) + same])
    if not lines:
        return ["Not computed yet."]
    sides = ["FedAvg", "with server lr tuned", "Upcycled FedAvg"]
    return table(["data", *sides, "server lr - plain", "upcycled - server lr"], lines)


def longer_steps(settings: Settings, cell: Cell) -> list[str]:
    """Return, from the grids, what a longer step is worth at each learning rate: FedAvg, on validation samples."""
    columns = [
        column
        for column in settings.tables["table1"].columns
        if settings.grids[settings.data[column.data].group].kind == "complete"
    ]
    lines = []
    for lr in settings.grids[settings.data[columns[0].data].group].lr:
        shown = []
        for column in columns:
            place = Place(settings.methods[RIVAL], column.data, column.stragglers)
            plain, upcycled = (_mean(settings, place, Point(lr, (), rho), cell) for rho in (None, STEP))
            shown.append(MISSING if plain is None or upcycled is None else f"{plain:.2f} {upcycled - plain:+.2f}")
        lines.append([f"{lr:g}", *shown])
    return table(["learning rate", *(settings.data[column.data].title for column in columns)], lines)


def _mean(settings: Settings, place: Place, point: Point, cell: Cell) -> float | None:
    found = [cell(spec) for spec in trials_of(settings, place)(point)]
    known = [one["accuracy"] for one in found if one is not None and one.get("accuracy") is not None]
    return 100 * fmean(known) if len(known) == len(found) else None


def private_gains(title: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Count the panels of a private figure in which upcycling ended with a lower loss, and with a higher one."""
    found = [row["gain"] for row in rows if row["gain"] is not None]
    if not found:
        return [f"- **{title}**: nothing is complete yet."]
    better = sum(one["is_significant"] and one["mean"] > 0 for one in found)
    worse = sum(one["is_significant"] and one["mean"] < 0 for one in found)
    lower = _of([one["mean"] for one in found])
    return [
        f"- **{title}** ({len(found)} of {len(rows)} panels): final loss lower in {lower}; significantly lower in "
        f"{better}, significantly higher in {worse}."
    ]


def _counted(title: str, rows: Sequence[Row]) -> str:
    found = [row.gain for row in rows if row.gain is not None]
    better, worse = better_and_worse(found)
    surely_better, surely_worse = better_and_worse(found, sure(found))
    means = [one.mean for one in found]
    return (
        f"- **{title}** ({len(found)} pairs): gain on average {fmean(means):+.2f} points, median {median(means):+.2f}, "
        f"positive in {_of(means)}; significant gain in {better}, significant loss in {worse} (after Holm's correction "
        f"{surely_better} and {surely_worse}){_papers(rows)}."
    )


def _papers(rows: Sequence[Row]) -> str:
    """Return the paper's gains of the same pairs, in words."""
    printed = [row.paper_gain for row in rows if row.paper_gain is not None and row.gain is not None]
    if not printed:
        return ""
    unlike = sum(row.is_unlike_paper is True for row in rows)
    words = f"{fmean(printed):+.2f} on average, positive in {_of(printed)}"
    return f". The paper: {words}; significantly unlike ours in {unlike}"


def _of(gains: Sequence[float]) -> str:
    return f"{sum(one > 0 for one in gains)} of {len(gains)}"


def _extremes(found: Filled, rows: Sequence[Row]) -> str:
    """Return the smallest and the largest gain with their names: one pair can make a mean."""
    named = [
        (row.gain.mean, f"{row.block.method.title} on {column_title(found, row.block.column.name)}")
        for row in rows
        if row.gain is not None
    ]
    (low, worst), (high, best) = min(named), max(named)
    return f" Smallest {low:+.2f} ({worst}), largest {high:+.2f} ({best})." if len(named) > 1 else ""


def _title(found: Filled, name: str) -> str:
    column = next(one for one in found.table.columns if one.name == name)
    return f"{found.settings.data[column.data].title}, {100 * column.stragglers:g} % stragglers"
