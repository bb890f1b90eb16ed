"""The page as a whole: one document with everything in it, which asks nothing of any network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.resources import files

from upcycled.experiments.report.chart_sections import clients_section, curves_section
from upcycled.experiments.report.charts import Drawn, chart_data, drawn, scored_on
from upcycled.experiments.report.collect import Results
from upcycled.experiments.report.curves import number
from upcycled.experiments.report.figures import cost
from upcycled.experiments.report.markup import EMPTY, Html, embedded, fingerprint, tag, text
from upcycled.experiments.report.privacy_section import is_simulation, privacy_section
from upcycled.experiments.report.settings import algorithm_of, data_words
from upcycled.experiments.report.settings_section import footer, repeat_section, settings_section
from upcycled.experiments.report.summary_section import notice, seeds_table, summary_table, worst_epsilon
from upcycled.experiments.report.theory_section import record_of, theory_charts, theory_section
from upcycled.experiments.report.verdict_section import comparison, notes, ranking
from upcycled.privacy.header import SIMULATION

SCRIPTS = ("scale.js", "readout.js", "lines.js", "rows.js", "main.js")
TITLES = {"compare": "vanilla against upcycled", "sweep": "sweep"}
SECTIONS = {
    "results": "Results",
    "curves": "Learning curves",
    "clients": "Clients",
    "privacy": "Privacy",
    "theory": "Convergence",
    "settings": "What was run",
    "repeat": "Repeat it",
}


def render(results: Results, title: str | None = None) -> str:
    """Return the page; the same results give the same page."""
    every = drawn(results)
    scored = scored_on(every)
    charts = chart_data(every, scored)
    records = [record_of(one.part, one.curve) for one in every]
    charts["theory"] = theory_charts(records)
    for part, record in zip(charts["parts"], records, strict=True):
        part["theory"] = record
    name = title or _name(results)
    sections = {
        "results": _results(results, every, scored),
        "curves": curves_section(every, scored),
        "clients": clients_section(every, charts["clients"]),
        "privacy": privacy_section(every),
        "theory": theory_section(every, charts["theory"]),
        "settings": settings_section(every),
        "repeat": repeat_section(results, every),
    }
    there = {key: section for key, section in sections.items() if section}
    links = tag("nav", *(tag("a", text(SECTIONS[key]), href=f"#{key}") for key in there), class_="contents")
    unfinished = [place for part in results.parts for place in part.unfinished]
    body = tag(
        "main",
        _head(every, name),
        notice(results.problems, unfinished),
        links,
        *there.values(),
        footer(),
        class_="page",
    )
    return _document(name, body, embedded(charts))


def _name(results: Results) -> str:
    """Return a title: what the command called it, the experiment's name, or the folder's."""
    for kind, words in TITLES.items():
        own = results.documents.get(kind, {}).get("name")
        if isinstance(own, str):
            return f"{own}: {words}"
    return results.parts[0].name if len(results.parts) == 1 else results.name


def _head(every: Sequence[Drawn], name: str) -> Html:
    button = tag("button", type="button", id="theme", class_="quiet needs-script screen-only")
    facts = tag("dl", *(tag("div", tag("dt", text(k)), tag("dd", text(v))) for k, v in _facts(every)), class_="facts")
    bar = tag("div", tag("span", text("upcycled · results"), class_="brand"), button, class_="bar")
    return tag("header", bar, tag("h1", text(name)), tag("p", text(_lede(every)), class_="lede"), facts)


def _lede(every: Sequence[Drawn]) -> str:
    """Return what was run in one sentence."""
    names = list(dict.fromkeys(algorithm_of(one.part) or one.label for one in every))
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    kinds = {one.part.is_upcycled for one in every}
    words = "vanilla and upcycled" if len(kinds) == 2 else "upcycled" if True in kinds else "vanilla"
    sources = list(dict.fromkeys(dict(data_words(one.part)).get("source", "") for one in every))
    where = f", on {' and '.join(filter(None, sources))}" if any(sources) and len(sources) <= 3 else ""
    return f"{listed}, {words}{where}."


def _facts(every: Sequence[Drawn]) -> list[tuple[str, str]]:
    """Return the few numbers to know before reading on."""
    seeds = [seed for one in every for seed in one.part.seeds]
    facts = [("Experiments", str(len(every))), ("Runs", str(len(seeds)))]
    for name, title in (("data_rounds", "Data rounds"), ("iterations", "Iterations")):
        values = sorted({number(seed.summary.get(name)) for seed in seeds} - {math.nan})
        if values and not any(map(math.isnan, values)):
            few = [f"{value:,.0f}" for value in values]
            facts.append((title, " / ".join(few) if len(few) <= 2 else f"{few[0]} to {few[-1]}"))
    clients = list(dict.fromkeys(filter(None, (dict(data_words(one.part)).get("clients") for one in every))))
    facts += [("Clients", " / ".join(clients))] if 0 < len(clients) <= 2 else []
    worst = [epsilon for seed in seeds if not math.isnan(epsilon := worst_epsilon(seed))]
    facts += [("Worst ε of a run", cost(max(worst)))] if worst else [("Privacy", "none")]
    return facts


def _results(results: Results, every: Sequence[Drawn], scored: str) -> Html:
    counts = sorted({len(one.part.seeds) for one in every})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    words = f"The last iteration's {scored} scores; seconds are training only."
    if counts[-1] > 1:
        words = f"Mean ± standard deviation over {seeds} seeds. {words}"
    private = [seed for one in every for seed in one.part.seeds if seed.privacy is not None]
    simulated = any(map(is_simulation, private))
    note = tag("p", text("ε: "), tag("span", text(SIMULATION), class_="tag"), class_="small") if simulated else EMPTY
    return tag(
        "section",
        tag("h2", text("Results")),
        comparison(results.documents.get("compare", {})),
        ranking(results.documents.get("sweep", {})),
        tag("h3", text("All experiments")),
        tag("p", text(words), class_="about"),
        summary_table(every),
        note,
        notes(results.documents.get("demo", {})),
        seeds_table(every),
        id="results",
    )


def _document(title: str, body: Html, data: Html) -> str:
    own = files("upcycled.experiments.report") / "assets"
    style = own.joinpath("report.css").read_text(encoding="utf-8")
    sources = (own.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS)
    script = '(() => {\n"use strict";\n' + "".join(sources) + "})();\n"
    policy = (
        f"default-src 'none'; style-src {fingerprint(style)}; script-src {fingerprint(script)}; img-src data:; "
        f"base-uri 'none'; form-action 'none'"
    )
    head = (
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", text(title)),
        Html(f"<style>{style}</style>"),
    )
    block = Html(f'<script type="application/json" id="report-data">{data}</script>\n<script>{script}</script>')
    return f"<!doctype html>\n{tag('html', tag('head', *head), tag('body', body, block), lang='en')}\n"
