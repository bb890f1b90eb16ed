"""The tables of ``docs/reproduction.md``, as lines of Markdown."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from studies.common.page import MISSING, duration, paired_words, signed, table
from studies.paper.settings import STRATEGIES, Settings
from studies.paper.tables import Entry, Filled, Row

COMMAND = "python -m studies.paper"
HOPELESS = "no setting works"
"""Where every try of the grid diverged: then there is nothing to compute."""


def accuracy_table(found: Filled) -> list[str]:
    """Return ours with the paper's in brackets, laid out as the paper does."""
    lines = []
    for method in found.table.methods:
        rows = [found.row(column.name, method) for column in found.table.columns]
        title = found.settings.methods[method].title
        lines.append([title, *(_accuracy(row.vanilla) for row in rows)])
        if rows[0].upcycled is not None:
            lines.append([f"**Upcycled** {title}", *(_accuracy(row.upcycled) for row in rows)])
    return table(["method", *_columns(found)], lines)


def gain_table(found: Filled, of_rho: bool = False) -> list[str]:
    """Return upcycled minus vanilla with its interval, the paper's difference in brackets.

    With ``of_rho`` vanilla has upcycled's settings, which is not what the paper's difference is about.
    """
    show = _gain_of_rho if of_rho else _gain
    methods = [found.settings.methods[name] for name in found.table.methods]
    lines = [
        [method.title, *(show(found.row(column.name, method.name)) for column in found.table.columns)]
        for method in methods
        if not method.is_ablation
    ]
    return table(["gain of rho" if of_rho else "gain of upcycling", *_columns(found)], lines)


def choice_table(found: Filled) -> list[str]:
    """Return the chosen settings; a value at the edge of its grid is marked."""
    lines = []
    for method in found.table.methods:
        rows = [found.row(column.name, method) for column in found.table.columns]
        for strategy in found.settings.methods[method].strategies:
            entries = [row.vanilla if strategy == "vanilla" else row.upcycled for row in rows]
            lines.append([f"{found.settings.methods[method].title}, {strategy}", *map(_choice, entries)])
    chosen = [entry.choice for row in found.rows for entry in row.entries if entry.choice is not None]
    at_edge = sum(bool(choice.at_edge) for choice in chosen)
    counted = f"{at_edge} of these {len(chosen)} choices have a value at an edge."
    return [*table(["chosen", *_columns(found)], lines), "", counted]


def status_line(found: Filled) -> str:
    seconds = sum(entry.seconds for row in found.rows for entry in row.entries)
    took = f"{found.total - found.missing} of {found.total} runs are there ({duration(seconds)} of training)"
    if found.failed:
        took += f", of which {found.failed} diverged ({MISSING})"
    if not found.missing:
        return f"Complete: {took}."
    return (
        f"**Not computed yet: {found.missing} of {found.total} runs** ({MISSING}); `{COMMAND} "
        f"{found.table.name}` goes on with them. {took}."
    )


def time_table(rows: Sequence[Mapping[str, Any]], settings: Settings) -> list[str]:
    """Return Table 4: seconds and the ratio of times, ours with the paper's in brackets."""
    lines = []
    for row in rows:
        means = {strategy: mean_of(row["seconds"][strategy]) for strategy in STRATEGIES}
        shown = [
            f"{MISSING if mean is None else f'{mean:.3f}'} ({row['paper_seconds'][strategy][0]:.1f})"
            for strategy, mean in means.items()
        ]
        sd = "" if row["ratio_sd"] is None else f" ± {row['ratio_sd']:.2f}"
        ratio = MISSING if row["ratio"] is None else f"{row['ratio']:.2f}{sd}"
        lines.append([settings.methods[row["method"]].title, *shown, f"{ratio} ({row['paper_ratio']:.2f})"])
    return table(["method", "vanilla, s", "upcycled, s", "ratio"], lines)


def private_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the ends of the private runs: loss and accuracy, and what both claims of epsilon come to."""
    lines = []
    for row in rows:
        sides = [row["vanilla"], row["upcycled"]]
        ends = [MISSING if one["loss"] is None else f"{one['loss']:.3f} ({one['accuracy']:.1f} %)" for one in sides]
        # The paper states means over clients; a guarantee is the worst client's.
        epsilons = [
            " / ".join(MISSING if one["loss"] is None else _epsilon(one[name], place) for one in sides)
            for name, place in (("paper_epsilon", 0), ("epsilon", 1))
        ]
        chosen = "; ".join(_private_choice(one) for one in sides)
        title = f"{row['title']}, {row['method_title']}"
        lines.append([title, *ends, _gain_in_loss(row["gain"]), *epsilons, chosen])
    claims = ["paper's formula, mean", "proven epsilon, worst client"]
    return table(["data, method", "vanilla", "upcycled", "gain in loss", *claims, "chosen"], lines)


def _columns(found: Filled) -> list[str]:
    return [column_title(found, column.name) for column in found.table.columns]


def column_title(found: Filled, name: str) -> str:
    """Return what a column is called: its data, and the share of stragglers where columns differ in it."""
    column = next(one for one in found.table.columns if one.name == name)
    title = found.settings.data[column.data].title
    several = len({one.stragglers for one in found.table.columns}) > 1
    return f"{title}, {100 * column.stragglers:g} % stragglers" if several else title


def _accuracy(entry: Entry | None) -> str:
    if entry is None:
        return ""
    paper = "" if entry.paper is None else f" ({entry.paper[0]:.2f})"
    if entry.mean is None:
        return (MISSING if entry.by_seed else HOPELESS) + paper
    return f"{entry.mean:.2f}" + ("" if entry.sd is None else f" ± {entry.sd:.2f}") + paper


def _gain(row: Row) -> str:
    paper = "" if row.paper_gain is None else f" ({row.paper_gain:+.2f})"
    return (MISSING if row.gain is None else paired_words(row.gain)) + paper


def _gain_of_rho(row: Row) -> str:
    return MISSING if row.gain_of_rho is None else paired_words(row.gain_of_rho)


def _choice(entry: Entry | None) -> str:
    if entry is None or entry.choice is None:
        return MISSING if entry is None or entry.by_seed else HOPELESS
    point, edges = entry.choice.point, entry.choice.at_edge
    named = {"lr": point.lr, **dict(point.own)} | ({} if point.rho is None else {"rho": point.rho})
    return _marked(named, edges)


def _private_choice(side: Mapping[str, Any]) -> str:
    """Return what a search chose of learning rate and rho; one that was fixed in advance has no edge."""
    if side["settings"] is None:
        return MISSING if side["missing"] else HOPELESS
    named = {name: side["settings"][name] for name in ("lr", "rho") if side["settings"][name] is not None}
    return _marked(named, side["at_edge"]) or "nothing"


def _marked(named: Mapping[str, float | None], edges: Collection[str]) -> str:
    return ", ".join(f"{name} {value:g}{'!' if name in edges else ''}" for name, value in named.items())


def _gain_in_loss(gain: Mapping[str, Any] | None) -> str:
    if gain is None:
        return MISSING
    return signed(gain["mean"], gain["low"], gain["high"], gain["is_significant"], digits=3)


def _epsilon(values: Sequence[float | None] | None, place: int) -> str:
    if values is None:
        return "none"
    value = values[place]
    return "∞" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean; None while a value is missing."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
