"""What was run and how to run it again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from upcycled.experiments.report.charts import Drawn
from upcycled.experiments.report.collect import Results
from upcycled.experiments.report.markup import EMPTY, Html, join, pairs, table, tag, text
from upcycled.experiments.report.settings import (
    complete_file,
    data_words,
    own_command,
    run_command,
    shown,
    split_settings,
    versions,
)


def settings_section(every: Sequence[Drawn]) -> Html:
    """Return the data, the settings that all experiments share, and a table of those they differ in."""
    shared, differing = split_settings([one.part for one in every])
    groups: dict[str, list[tuple[str, Any]]] = {}
    for name, value in shared.items():
        head, dot, rest = name.rpartition(".")
        groups.setdefault(head if dot else "run", []).append((rest if dot else name, value))
    described = _data(every)
    told = {name for name, _ in described}
    more = [(name, shown(value)) for name, value in groups.pop("data", []) if name not in told]
    boxes = [_group("data", [*described, *more])]
    boxes += [_group(name, [(key, shown(value)) for key, value in items]) for name, items in groups.items()]
    return tag(
        "section",
        tag("h2", text("What was run")),
        tag(
            "p",
            text(f"{'Settings that all experiments share' if differing else 'All settings'}, defaults included."),
            class_="about",
        ),
        tag("div", *boxes, class_="tables"),
        _differing(every, differing),
        id="settings",
    )


def _data(every: Sequence[Drawn]) -> list[tuple[str, str]]:
    """Return the description of the data, or where experiments have different data, what is the same."""
    words = [dict(data_words(one.part)) for one in every]
    return [
        (name, value if all(w.get(name) == value for w in words) else "several") for name, value in words[0].items()
    ]


def _group(name: str, items: Sequence[tuple[str, str]]) -> Html:
    if not items:
        return EMPTY
    lines = [tag("div", tag("dt", text(key.replace("_", " "))), tag("dd", text(value))) for key, value in items]
    return tag("div", tag("h3", text(name)), tag("dl", *lines))


def _differing(every: Sequence[Drawn], differing: dict[str, list[Any]]) -> Html:
    if not differing or len(every) < 2:
        return EMPTY
    labels = [one.label for one in every]
    cells = [list(map(shown, values)) for values in differing.values()]
    # The longer side goes down the page.
    corner, across, down, rows_of = "setting", labels, list(differing), cells
    if len(every) > len(differing):
        corner, across, down, rows_of = (
            "experiment",
            list(differing),
            labels,
            [list(c) for c in zip(*cells, strict=True)],
        )
    head = [tag("th", text(name), scope="col") for name in (corner, *across)]
    rows = [
        [tag("th", text(name), scope="row"), *(tag("td", text(cell)) for cell in row)]
        for name, row in zip(down, rows_of, strict=True)
    ]
    return join((tag("h3", text("What differs")), table(head, rows, "Settings that differ")))


def repeat_section(results: Results, every: Sequence[Drawn]) -> Html:
    """Return the commands, the versions, and every experiment's complete file."""
    own = own_command(results.documents)
    runs = "\n".join(run_command(one.part) for one in every if one.part.config)
    made = [(name, text(", ".join(values))) for name, values in versions(results).items()]
    files = [
        tag(
            "details",
            tag("summary", text(f"Complete file: {one.label}"), tag("span", text(f" ({one.part.name})"))),
            tag("pre", tag("code", text(complete_file(one.part))), tabindex=0),
        )
        for one in every
        if one.part.config
    ]
    whole = join((tag("p", text("The whole folder:")), _code(own))) if own else EMPTY
    each = join((tag("p", text("Each experiment, from within the results folder:")), _code(runs))) if runs else EMPTY
    words = "The same versions give the same numbers, bit for bit, except for seconds (and for real noise)."
    return tag(
        "section",
        tag("h2", text("Repeat it")),
        whole,
        each,
        tag("p", text(words), class_="about"),
        pairs(made),
        *files,
        id="repeat",
    )


def _code(words: str) -> Html:
    return tag("pre", tag("code", text(words)), tabindex=0)


def footer() -> Html:
    """Return what made the page."""
    import upcycled

    return tag("footer", text(f"Made by upcycled report {upcycled.__version__} from the files of the results folder."))
