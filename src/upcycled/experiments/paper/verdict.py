"""What the tables show, counted: where upcycling helps, where it does not, and what a server learning rate does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from upcycled.experiments.paper.choose import Cell, Place, Point, trials_of
from upcycled.experiments.paper.markdown import column_title, paired_words
from upcycled.experiments.paper.settings import Settings
from upcycled.experiments.paper.tables import Filled, Row, paired
from upcycled.runtime.paired import Paired, holm

STEP = 0.5
"""The rho of the list of learning rates."""

ABLATION, RIVAL = "fedavg_server_lr", "fedavg"


def gains(found: Filled) -> list[str]:
    """Count, in words, how often the interval of the gain excludes zero, and set the paper's gains beside."""
    rows = [row for row in found.rows if row.gain is not None]
    if not rows:
        return ["- No pair of method and data set is complete yet."]
    lines = [_counted("All data sets together", rows) + _extremes(found, rows)]
    for column in found.table.columns:
        mine = [row for row in rows if row.block.column is column]
        if mine and len(found.table.columns) > 1:
            lines.append(_counted(_title(found, column.name), mine))
    return lines


def by_method(found: Filled) -> list[str]:
    """Return each method's gains over all columns: both sides tuned, and at the same settings, so of rho alone."""
    views = [[row.gain for row in found.rows], [row.gain_of_rho for row in found.rows]]
    complete = [[one for one in view if one is not None] for view in views]
    if not complete[0] or any(len(view) < len(found.rows) for view in complete):
        return ["Not computed yet."]
    counted = [_kept(view) for view in complete]  # of each view all pairs together are one family
    lines = [
        "| method | both tuned: mean gain | better / worse | same settings: mean gain | better / worse | the paper |",
        "|---|---|---|---|---|---|",
    ]
    for method in [*found.table.methods, None]:
        at = [i for i, row in enumerate(found.rows) if method in (row.block.method.name, None)]
        words = [f"**all {len(at)} pairs**" if method is None else found.settings.methods[method].title]
        for view, is_sure in zip(complete, counted, strict=True):
            better = sum(is_sure[i] and view[i].mean > 0 for i in at)
            worse = sum(is_sure[i] and view[i].mean < 0 for i in at)
            words += [f"{fmean(view[i].mean for i in at):+.2f}", f"{better} / {worse} of {len(at)}"]
        printed = [found.rows[i].paper_gain for i in at]
        words.append(f"{fmean(gain for gain in printed if gain is not None):+.2f}" if None not in printed else "–")
        lines.append("| " + " | ".join(words) + " |")
    return lines


def against_server_lr(found: Filled) -> list[str]:
    """Compare upcycled FedAvg with FedAvg whose server learning rate was tuned over the same grid."""
    lines = []
    for column in found.table.columns:
        if ABLATION not in found.table.methods:
            break
        plain, tuned = found.row(column.name, RIVAL), found.row(column.name, ABLATION)
        assert plain.upcycled is not None
        over_tuned = paired(plain.upcycled, tuned.vanilla, plain.confidence)
        over_plain = paired(tuned.vanilla, plain.vanilla, plain.confidence)
        if over_tuned is None or over_plain is None:
            continue
        same = " (the same in every seed)" if not any(over_tuned.differences) else ""
        lines.append(
            f"| {_title(found, column.name)} | {plain.vanilla.mean:.2f} | {tuned.vanilla.mean:.2f} | "
            f"{plain.upcycled.mean:.2f} | {paired_words(over_plain)} | {paired_words(over_tuned)}{same} |"
        )
    if not lines:
        return ["Not computed yet."]
    return [
        "| data | FedAvg | with server lr tuned | Upcycled FedAvg | server lr - plain | upcycled - server lr |",
        "|---|---|---|---|---|---|",
        *lines,
    ]


def longer_steps(settings: Settings, cell: Cell) -> list[str]:
    """Return, from the grids, what a longer step is worth at each learning rate: FedAvg, on validation samples."""
    table = settings.tables["table1"]
    columns = [
        column for column in table.columns if settings.grids[settings.data[column.data].group].kind == "complete"
    ]
    lines = [
        "| learning rate | " + " | ".join(settings.data[column.data].title for column in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    grid = settings.grids[settings.data[columns[0].data].group]
    for lr in grid.lr:
        shown = []
        for column in columns:
            place = Place(settings.methods[RIVAL], column.data, column.stragglers)
            plain, upcycled = (_mean(settings, place, Point(lr, (), rho), cell) for rho in (None, STEP))
            shown.append("–" if plain is None or upcycled is None else f"{plain:.2f} {upcycled - plain:+.2f}")
        lines.append(f"| {lr:g} | " + " | ".join(shown) + " |")
    return lines


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
    better = sum(one.is_significant and one.mean > 0 for one in found)
    worse = sum(one.is_significant and one.mean < 0 for one in found)
    kept = [one.mean for one, is_kept in zip(found, _kept(found), strict=True) if is_kept]
    sure = [sum(sign * mean > 0 for mean in kept) for sign in (1, -1)]
    means = [one.mean for one in found]
    return (
        f"- **{title}** ({len(found)} pairs): gain on average {fmean(means):+.2f} points, median {median(means):+.2f}, "
        f"positive in {_of(means)}; significant gain in {better}, significant loss in {worse} (after Holm's correction "
        f"{sure[0]} and {sure[1]}){_papers(rows)}."
    )


def _kept(family: Sequence[Paired]) -> list[bool]:
    """Return which differences are significant after Holm's correction."""
    return [p < 1 - one.confidence for p, one in zip(holm([one.p_value for one in family]), family, strict=True)]


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
