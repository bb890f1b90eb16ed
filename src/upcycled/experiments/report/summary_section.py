"""The first tables of the page: every experiment in a line, then every seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from upcycled.experiments.report.charts import Drawn, scored_on
from upcycled.experiments.report.collect import Seed
from upcycled.experiments.report.curves import number
from upcycled.experiments.report.figures import cost, count, fixed, megabytes, spread
from upcycled.experiments.report.markup import EMPTY, Html, join, table, tag, text
from upcycled.experiments.report.settings import shown, split_settings
from upcycled.experiments.results import mean_and_sd

Cell = Mapping[str, float | None]
MOST_UNDER = 4
"""Settings that stand under an experiment's name."""
COLUMNS: tuple[tuple[str, str, Callable[[Cell], Html]], ...] = (
    ("loss", "loss", lambda cell: spread(cell, 3)),
    ("data_rounds", "data rounds", lambda cell: text(count(cell["mean"]))),
    ("iterations", "iterations", lambda cell: text(count(cell["mean"]))),
    ("messages", "messages", lambda cell: text(count(cell["mean"]))),
    ("bytes", "MB", lambda cell: text(megabytes(cell["mean"]))),
    ("gradient_steps", "gradient steps", lambda cell: text(count(cell["mean"]))),
    ("seconds", "seconds", lambda cell: text(fixed(cell["mean"], 2))),
)


def worst_epsilon(seed: Seed) -> float:
    """Return a run's worst proven epsilon: NaN without privacy, infinite where none is proven."""
    if seed.privacy is None:
        return math.nan
    table = seed.privacy.get("epsilon")
    found = number(table.get("max")) if isinstance(table, dict) else math.nan
    return math.inf if math.isnan(found) else found


def key(one: Drawn) -> Html:
    """Return the line that marks an experiment in the charts."""
    line = tag("line", x1=0, y1=5, x2=26, y2=5, class_="line dashed" if one.is_dashed else "line")
    dot = tag("circle", cx=13, cy=5, r=3, class_="dot") if one.part.is_upcycled else EMPTY
    return tag("svg", line, dot, class_=f"key c{one.colour}", viewBox="0 0 26 10", aria_hidden="true")


def summary_table(every: Sequence[Drawn]) -> Html:
    """Return mean and standard deviation over seeds, an experiment in each line."""
    columns = _columns(every)
    _, differing = split_settings([one.part for one in every])
    rows = []
    for k, one in enumerate(every):
        under = [f"{name} {shown(values[k])}" for name, values in differing.items() if values[k] is not None]
        words = tag("span", text(" · ".join(under)), class_="under") if _needs_words(every, under) else EMPTY
        name = tag("th", key(one), text(one.label), words, scope="row")
        rows.append([name, *(tag("td", show(one)) for _, show in columns)])
    head = [tag("th", text(title), scope="col") for title in ("experiment", *(title for title, _ in columns))]
    return table(head, rows, "Summary of all experiments")


def _columns(every: Sequence[Drawn]) -> list[tuple[str, Callable[[Drawn], Html]]]:
    """Return the columns that tell something here."""

    def mean(name: str, show: Callable[[Cell], Html]) -> Callable[[Drawn], Html]:
        return lambda one: show(_over_seeds(one, name))

    def worst(one: Drawn) -> Html:
        return text(cost(max((worst_epsilon(seed) for seed in one.part.seeds if seed.privacy), default=None)))

    found: list[tuple[str, Callable[[Drawn], Html]]] = []
    if len({len(one.part.seeds) for one in every}) > 1:
        found.append(("seeds", lambda one: text(len(one.part.seeds))))
    if len({scored_on([one]) for one in every}) > 1:
        found.append(("scored on", lambda one: text(scored_on([one]))))
    found.append(("accuracy %", _accuracy))
    found += [(title, mean(name, show)) for name, title, show in COLUMNS]
    if any(seed.privacy is not None for one in every for seed in one.part.seeds):
        found.append(("worst ε", worst))
    return found


def _accuracy(one: Drawn) -> Html:
    """Return the accuracy; of personal models, where there are some, with the global model's under it."""
    main, other = _over_seeds(one, "accuracy"), _over_seeds(one, "global_accuracy")
    if other["mean"] in (None, main["mean"]):
        return spread(main, 2, 100)
    under = tag("span", text("global model "), spread(other, 2, 100), class_="under")
    return join((spread(main, 2, 100), under))


def _over_seeds(one: Drawn, name: str) -> Cell:
    return mean_and_sd(_known(seed.summary, name) for seed in one.part.seeds)


def _needs_words(every: Sequence[Drawn], under: Sequence[str]) -> bool:
    """Whether names alone do not tell the experiments apart."""
    return len(every) > 1 and 0 < len(under) <= MOST_UNDER and any(one.label == one.part.name for one in every)


def _known(summary: Mapping[str, Any], name: str) -> float | None:
    value = number(summary.get(name))
    return None if math.isnan(value) else value


def seeds_table(every: Sequence[Drawn]) -> Html:
    """Return every finished run in a line of its own."""
    is_private = any(seed.privacy is not None for one in every for seed in one.part.seeds)
    head = ["experiment", "seed", "accuracy %", "loss", "data rounds", "iterations", "MB", "seconds", "worst ε"]
    rows = []
    for one in every:
        for seed in one.part.seeds:
            s = {name: _known(seed.summary, name) for name in ("accuracy", *(name for name, _, _ in COLUMNS))}
            numbers = (
                str(seed.seed),
                fixed(s["accuracy"], 2, 100),
                fixed(s["loss"], 4),
                count(s["data_rounds"]),
                count(s["iterations"]),
                megabytes(s["bytes"]),
                fixed(s["seconds"], 3),
                *([cost(worst_epsilon(seed))] if is_private else []),
            )
            rows.append([tag("th", text(one.label), scope="row"), *(tag("td", text(words)) for words in numbers)])
    named = head if is_private else head[:-1]
    whole = table([tag("th", text(title), scope="col") for title in named], rows, "Every run")
    return tag("details", tag("summary", text(f"Every run ({len(rows)})")), whole)


def notice(problems: Sequence[str], unfinished: Sequence[str]) -> Html:
    """Return what is missing or damaged, in words; nothing where all is well."""
    boxes = []
    if unfinished:
        boxes.append(_box("Not finished, and not in any number of this page:", unfinished))
    if problems:
        boxes.append(_box("To know about these files:", problems))
    return join(boxes)


def _box(words: str, items: Sequence[str]) -> Html:
    return tag("div", tag("p", text(words)), tag("ul", *(tag("li", text(item)) for item in items)), class_="notice")
