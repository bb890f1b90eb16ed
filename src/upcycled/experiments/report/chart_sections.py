"""Where the script draws: learning curves, clients, the convergence record; each with its words and its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from upcycled.experiments.report.charts import AXES, MOST_SHOWN, Drawn
from upcycled.experiments.report.clients import Client
from upcycled.experiments.report.figures import NONE, cost, count, fixed
from upcycled.experiments.report.markup import EMPTY, Html, join, table, tag, text
from upcycled.experiments.report.still import still
from upcycled.experiments.report.summary_section import key

AXIS_WORDS = dict(zip(AXES, ("Iterations", "Data rounds", "Megabytes", "Seconds", "Epsilon"), strict=True))
MOST_CLIENT_ROWS = 3000
"""Lines of the table of clients, all experiments together; beyond, only the worst of each are shown."""
WORST = 40


def _chart(kind: str, caption: Html, more: Mapping[str, str] | None = None) -> Html:
    host = tag("div", class_="chart", data_chart=kind, **(more or {}))
    return tag("figure", tag("figcaption", caption), host)


def legend(every: Sequence[Drawn]) -> Html:
    """Return the place of the switches; without a script, the keys of the lines."""
    keys = join(tag("span", key(one), text(f"{one.label}  ")) for one in every)
    return tag("div", tag("noscript", keys), class_="legend screen-only", role="group", aria_label="Experiments shown")


def curves_section(every: Sequence[Drawn], scored_on: str) -> Html:
    """Return accuracy and loss side by side, against whatever is chosen; on paper against everything."""
    words_of = {"accuracy": f"{scored_on.capitalize()} accuracy (%)", "loss": f"{scored_on.capitalize()} loss"}
    known = {name: any(np.isfinite(getattr(one.curve, name)).any() for one in every) for name in AXES}
    choices = [
        tag(
            "label",
            tag("input", type="radio", name="axis", value=name, checked=name == AXES[0], disabled=not known[name]),
            text(AXIS_WORDS[name]),
            title=None if known[name] else "no run here is private",
        )
        for name in AXES
    ]
    chosen = tag("fieldset", tag("legend", text("Against")), tag("div", *choices, class_="choices"))
    charts = [
        _chart(f"score:{score}", join((text(words), Html(" <span data-axis-words></span>"))))
        for score, words in words_of.items()
    ]
    on_paper = [
        _chart(f"score:{score}", text(f"{words} against {AXIS_WORDS[name].lower()}"), {"data_axis": name})
        for name in AXES
        if known[name]
        for score, words in words_of.items()
    ]
    stills = tag("div", *(tag("div", still(every, s, w), class_="still") for s, w in words_of.items()), class_="charts")
    hidden = len(every) - MOST_SHOWN
    return tag(
        "section",
        tag("h2", text("Learning curves")),
        tag("p", text(_curve_words(every)), class_="about"),
        tag("div", chosen, class_="controls needs-script screen-only"),
        legend(every),
        tag("p", text(f"{hidden} more can be switched on."), class_="small screen-only") if hidden > 0 else EMPTY,
        tag("div", *charts, class_="charts screen-only needs-grid"),
        tag("noscript", stills),
        tag("div", tag("div", *on_paper, class_="charts"), class_="print-only"),
        id="curves",
    )


def _curve_words(every: Sequence[Drawn]) -> str:
    seeds = max(len(one.part.seeds) for one in every)
    words = (
        "Mean over seeds, with a band of one standard deviation (up to eight at a time)."
        if seeds > 1
        else "One run each."
    )
    if any(one.part.is_upcycled for one in every):
        words += (
            " Dots are upcycled iterations: the server alone, no data, no messages, no privacy cost. They move nothing"
            " along data rounds, megabytes or epsilon, so there a line shows the model after them."
        )
    return words


def clients_section(every: Sequence[Drawn], charts: Mapping[str, Any]) -> Html:
    """Return how accuracy and epsilon are spread over clients, and every client's numbers."""
    if not any(one.clients for one in every):
        return EMPTY
    words = "Each client counts once; accuracy is a client's mean over the seeds, epsilon its largest."
    figures = [
        _chart(f"clients:{name}", text(title))
        for name, title in (("accuracy", "Accuracy over clients"), ("epsilon", "Proven epsilon over clients"))
        if name in charts
    ]
    missing = [] if "accuracy" in charts else [tag("p", text("These runs did not record the accuracy of each client."))]
    return tag(
        "section",
        tag("h2", text("Clients")),
        tag("p", text(f"{words} A triangle marks the median."), class_="about"),
        *missing,
        tag("div", *figures, class_="charts" if len(figures) > 1 else "charts one"),
        _clients_table(every),
        id="clients",
    )


CLIENT_COLUMNS = (
    ("train_samples", "training samples", count),
    ("test_samples", "test samples", count),
    ("data_rounds", "data rounds", count),
    ("gradient_steps", "gradient steps", count),
    ("accuracy", "accuracy %", fixed),
    ("loss", "loss", lambda value: fixed(value, 3)),
    ("epsilon", "epsilon", cost),
)


def _clients_table(every: Sequence[Drawn]) -> Html:
    there = {name for one in every for client in one.clients for name in client.numbers}
    columns = [column for column in CLIENT_COLUMNS if column[0] in there]
    is_cut = sum(len(one.clients) for one in every) > MOST_CLIENT_ROWS
    head = ["experiment", "client", *(title for _, title, _ in columns)]
    rows = []
    for one in every:
        for client in _worst(one.clients) if is_cut else one.clients:
            cells = [show(client.numbers[name]) if name in client.numbers else NONE for name, _, show in columns]
            words = [tag("th", text(one.label), scope="row"), tag("td", text(client.name))]
            rows.append([*words, *(tag("td", text(cell)) for cell in cells)])
    title = f"The {WORST} worst clients of each experiment" if is_cut else f"Every client ({len(rows)} lines)"
    more = tag("span", text(" the others are in clients.jsonl")) if is_cut else EMPTY
    whole = table([tag("th", text(words), scope="col") for words in head], rows, "Clients")
    return tag("details", tag("summary", text(title), more), whole)


def _worst(clients: Sequence[Client]) -> list[Client]:
    """Return those with the largest epsilon, and among equals the least accuracy."""

    def order(client: Client) -> tuple[float, float]:
        epsilon, accuracy = client.numbers.get("epsilon", 0.0), client.numbers.get("accuracy", 0.0)
        return (-np.inf if np.isnan(epsilon) else -epsilon, accuracy)

    return sorted(clients, key=order)[:WORST]
