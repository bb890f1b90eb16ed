"""What a command concluded from a folder of experiments: paired differences of a comparison, the ranking of a sweep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from upcycled.experiments.report.collect import Row
from upcycled.experiments.report.curves import number
from upcycled.experiments.report.figures import NONE, count, fixed, signed, spread
from upcycled.experiments.report.markup import EMPTY, Html, join, table, tag, text
from upcycled.experiments.report.settings import algorithm_title, shown

WIDTH, HEIGHT, MARGIN = 220, 24, 10


@dataclass(frozen=True)
class Difference:
    """Upcycled minus vanilla accuracy of one algorithm, in points."""

    name: str
    vanilla: Row
    upcycled: Row
    gain: float
    low: float
    high: float
    verdict: str
    corrected: str | None
    """The verdict after a correction for there being several."""


def differences(document: Row) -> list[Difference]:
    """Read the rows of ``compare.json``; a row without a test has NaN for its numbers."""
    rows = document.get("rows")
    found = []
    for row in rows if isinstance(rows, list) else []:
        if not isinstance(row, dict):
            continue
        name, ends = str(row.get("algorithm", "")), row.get("interval")
        low, high = ends if isinstance(ends, list) and len(ends) == 2 else (None, None)
        found.append(
            Difference(
                algorithm_title(name),
                _side(row, "vanilla"),
                _side(row, "upcycled"),
                100 * number(row.get("gain")),
                100 * number(low),
                100 * number(high),
                str(row.get("verdict", NONE)),
                row["holm_verdict"] if isinstance(row.get("holm_verdict"), str) else None,
            )
        )
    return found


def _side(row: Row, name: str) -> Row:
    side = row.get(name)
    cell = side.get("accuracy") if isinstance(side, dict) else None
    known = cell if isinstance(cell, dict) else {}
    return {key: None if math.isnan(value := number(known.get(key))) else value for key in ("mean", "sd")}


def comparison(document: Row) -> Html:
    """Return the table of paired differences with their intervals drawn to one scale, and what they show."""
    rows = differences(document)
    if not rows:
        return EMPTY
    ends = [0.0, *(end for row in rows for end in (row.low, row.high) if not math.isnan(end))]
    percent = f"{100 * number(document.get('confidence')):g} %"
    is_corrected = any(row.corrected is not None for row in rows)
    head = ["algorithm", "vanilla %", "upcycled %", "difference", f"{percent} interval, in points", "", "verdict"]
    head += ["after Holm's correction"] if is_corrected else []
    lines = []
    for row in rows:
        is_tested = not math.isnan(row.gain + row.low + row.high)
        cells = [
            tag("td", spread(row.vanilla, 2, 100)),
            tag("td", spread(row.upcycled, 2, 100)),
            tag("td", text(signed(row.gain) if is_tested else NONE)),
            tag("td", _whisker(row, min(ends), max(ends)) if is_tested else text(NONE)),
            tag("td", text(f"{signed(row.low)} to {signed(row.high)}" if is_tested else NONE)),
            tag("td", text(row.verdict), class_="words"),
            *([tag("td", text(row.corrected or NONE), class_="words")] if is_corrected else []),
        ]
        lines.append([tag("th", text(row.name), scope="row"), *cells])
    titles = [tag("th", text(title), scope="col", class_="words" if k > 5 else None) for k, title in enumerate(head)]
    return join(
        (
            tag("h3", text("Upcycled against vanilla")),
            tag("p", text(_in_short(rows)), class_="verdict"),
            table(titles, lines, "Paired differences"),
            notes(document),
        )
    )


def _in_short(rows: Sequence[Difference]) -> str:
    """Return the finding: what is significant, after the correction where there is one."""
    final = [row.corrected or row.verdict for row in rows]
    if len(rows) == 1:
        return f"{rows[0].name}: {final[0]}."
    gains, losses = sum("gain" in words for words in final), sum("loss" in words for words in final)
    found = f"{gains} significant gains and {losses} significant losses among {len(rows)} algorithms."
    if not gains and not losses:
        found = f"no significant difference for any of {len(rows)} algorithms."
    return f"After Holm's correction: {found}" if any(row.corrected for row in rows) else found.capitalize()


def _whisker(row: Difference, least: float, most: float) -> Html:
    """Return an interval as a line with its mean, on a scale that all rows share; zero is marked."""

    def at(value: float) -> float:
        return round(MARGIN + (value - least) / (most - least or 1.0) * (WIDTH - 2 * MARGIN), 1)

    return tag(
        "svg",
        tag("line", x1=at(0.0), x2=at(0.0), y1=0, y2=HEIGHT, class_="zero"),
        tag("line", x1=at(row.low), x2=at(row.high), y1=HEIGHT / 2, y2=HEIGHT / 2, class_="line"),
        tag("circle", cx=at(row.gain), cy=HEIGHT / 2, r=4.5, class_="dot"),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        width=WIDTH,
        height=HEIGHT,
        class_="whisker c0",
        role="img",
        aria_label=f"{row.name}: {signed(row.low)} to {signed(row.high)} points",
    )


def notes(document: Row) -> Html:
    """Return what the command itself says about its numbers."""
    found = document.get("notes", document.get("note"))
    lines = found if isinstance(found, list) else [found] if isinstance(found, str) else []
    return join(tag("p", text(line), class_="small") for line in lines)


def ranking(document: Row) -> Html:
    """Return the ranking of a sweep, and how its choice did on test data."""
    rows = [row for row in document.get("ranking") or [] if isinstance(row, dict)]
    if not rows:
        return EMPTY
    keys = list(dict.fromkeys(key for row in rows for key in _settings(row)))
    head = ["rank", *keys, "validation accuracy %", "validation loss"]
    lines = []
    for k, row in enumerate(rows, start=1):
        scores = [spread(_cell(row, "accuracy"), 2, 100), spread(_cell(row, "loss"), 3)]
        if row.get("failed"):
            scores[0] = text("failed")
        cells = [tag("td", text(shown(_settings(row).get(key)))) for key in keys]
        place = text(count(number(row.get("rank", k))))
        lines.append([tag("th", place, scope="row"), *cells, *(tag("td", score) for score in scores)])
    return join(
        (
            tag("h3", text("Ranking on validation data")),
            _chosen(document.get("chosen")),
            table([tag("th", text(title), scope="col") for title in head], lines, "Ranking", class_="plain"),
            notes(document),
        )
    )


def _chosen(chosen: Any) -> Html:
    if not isinstance(chosen, dict):
        return EMPTY
    settings = ", ".join(f"{key} {shown(value)}" for key, value in _settings(chosen).items())
    test = chosen.get("test")
    accuracy = _cell(test, "accuracy") if isinstance(test, dict) else {"mean": None, "sd": None}
    sd = f" ± {fixed(accuracy['sd'], 2, 100)}" if accuracy["sd"] is not None else ""
    words = f"Chosen: {settings}. Test accuracy {fixed(accuracy['mean'], 2, 100)}{sd} %."
    return tag("p", text(words), class_="verdict")


def _settings(row: Row) -> Row:
    found = row.get("settings")
    return found if isinstance(found, dict) else {}


def _cell(row: Row, name: str) -> Row:
    return _side({name: {"accuracy": row.get(name)}}, name)
