"""What is promised, against whom, at what epsilon: the statement of every private run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from upcycled.experiments.report.charts import Drawn
from upcycled.experiments.report.collect import Seed
from upcycled.experiments.report.curves import number
from upcycled.experiments.report.figures import NONE, cost, short
from upcycled.experiments.report.markup import EMPTY, Html, join, pairs, table, tag, text
from upcycled.experiments.report.summary_section import key, worst_epsilon
from upcycled.privacy.header import SIMULATION


def privacy_section(every: Sequence[Drawn]) -> Html:
    """Return the costs, epsilon over data rounds and the statements; one sentence where nothing is private."""
    private = [(one, [seed for seed in one.part.seeds if seed.privacy is not None]) for one in every]
    private = [(one, seeds) for one, seeds in private if seeds]
    if not private:
        words = "No run here uses a privacy mechanism: the server sees what clients trained, and no epsilon is claimed."
        return tag("section", tag("h2", text("Privacy")), tag("p", text(words), class_="about"), id="privacy")
    is_simulated = any(is_simulation(seed) for _, seeds in private for seed in seeds)
    has_chart = any(seed.spent is not None and min(seed.spent.worst) < math.inf for _, s in private for seed in s)
    chart = tag(
        "div",
        tag(
            "figure",
            tag("figcaption", text("Proven epsilon of the worst client "), tag("span", text("over data rounds"))),
            tag("div", class_="chart", data_chart="spent"),
        ),
        class_="charts one",
    )
    return tag(
        "section",
        tag("h2", text("Privacy")),
        _simulated() if is_simulated else EMPTY,
        tag("p", text(_words()), class_="about"),
        _costs(private),
        chart if has_chart else EMPTY,
        *(_statement(one, seeds, k == 0) for k, (one, seeds) in enumerate(private)),
        id="privacy",
    )


def is_simulation(seed: Seed) -> bool:
    """Whether a private run's noise follows from its seed."""
    said = seed.privacy or {}
    # Summaries of earlier versions have the words alone.
    return bool(said.get("is_simulation", said.get("noise") == SIMULATION))


def _simulated() -> Html:
    words = " The noise follows from the seed, so whoever knows it can take it off again. With system noise the same"
    more = " settings would cost what is stated here."
    return tag("p", tag("span", text(SIMULATION), class_="tag"), text(words + more))


def _words() -> str:
    return (
        "Epsilon is proven for what the code did, of one run alone: seeds, sweeps and repeats on the same data add up. "
        "Upcycled iterations cost nothing."
    )


def _costs(private: Sequence[tuple[Drawn, Sequence[Seed]]]) -> Html:
    head = ["experiment", "δ", "worst client's ε", "median ε", "the paper's formula*", "noise"]
    has_paper = any(not math.isnan(_paper(seed)) for _, seeds in private for seed in seeds)
    rows = []
    for one, seeds in private:
        worst = max(seeds, key=worst_epsilon)
        assert worst.privacy is not None
        epsilon = worst.privacy.get("epsilon")
        median = number(epsilon.get("median")) if isinstance(epsilon, dict) else math.nan
        cells = [
            short(number(worst.privacy.get("delta"))),
            cost(worst_epsilon(worst)),
            cost(median),
            cost(_paper(worst)),
            str(worst.privacy.get("noise", NONE)),
        ]
        row = [tag("th", key(one), text(one.label), scope="row"), *(tag("td", text(cell)) for cell in cells)]
        rows.append(row if has_paper else [*row[:4], *row[5:]])
    names = head if has_paper else [*head[:4], *head[5:]]
    note = (
        "* Rests on an assumption that clipping a trained model does not meet: not a guarantee, shown for comparison."
    )
    whole = table([tag("th", text(name), scope="col") for name in names], rows, "What the private runs cost")
    return join((whole, tag("p", text(note), class_="small") if has_paper else EMPTY))


def _paper(seed: Seed) -> float:
    """Return the largest number that the paper's formula prints for a client; NaN if it has none for the mechanism."""
    found: Any = (seed.privacy or {}).get("paper_epsilon")
    if isinstance(found, dict):
        found = found.get("max")
    if isinstance(found, list):
        found = max((number(value) for value in found), default=math.nan)
    return number(found)


def _statement(one: Drawn, seeds: Sequence[Seed], is_open: bool) -> Html:
    worst = max(seeds, key=worst_epsilon)
    lines = (worst.privacy or {}).get("statement")
    items = []
    for line in lines if isinstance(lines, list) else []:
        name, colon, rest = str(line).partition(": ")
        items.append((name, text(rest)) if colon else ("note", text(line)))
    if isinstance(own := (worst.privacy or {}).get("not_covered"), str):
        items.append(("scores", text(own)))
    which = "" if len(one.part.seeds) == 1 else f", seed {worst.seed} (the costliest)"
    title = tag("summary", text(f"Statement: {one.label}"), tag("span", text(which)))
    return tag("details", title, pairs(items), open=is_open)
