"""The page as a whole: one document with everything in it, which asks nothing of any network.

The other modules collect values; every mark of HTML is in ``templates``, where text is escaped unless it is one of the
package's own assets.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from upcycled._utils import formats
from upcycled._utils.extras import needs
from upcycled.privacy.mechanisms import PROVEN, epsilon_called
from upcycled.report.charts import (
    MOST_SHOWN,
    SCORES,
    Drawn,
    chart_data,
    drawn,
    known_axes,
    metrics_of,
    scored_on,
    still,
)
from upcycled.report.collect import Results
from upcycled.report.distributions import client_table
from upcycled.report.final_model import pictures
from upcycled.report.findings import comparison, notes, ranking
from upcycled.report.scores import claim_of, costs, has_curve, is_any_simulated, known, lines, metric_of
from upcycled.report.settings import (
    algorithm_of,
    complete_file,
    data_words,
    differing_settings,
    own_command,
    own_modules,
    run_command,
    shared_settings,
    versions,
)
from upcycled.run_folder import worst_epsilon

if TYPE_CHECKING:
    from jinja2 import Environment


PACKAGE = "upcycled.report"
SCRIPTS = ("scale.js", "readout.js", "lines.js", "rows.js", "main.js")
TITLES = {"compare": "vanilla against upcycled", "sweep": "sweep"}
SECTIONS = {
    "results": "Results",
    "curves": "Learning curves",
    "final": "Final model",
    "clients": "Clients",
    "privacy": "Privacy",
    "settings": "What was run",
    "repeat": "Repeat it",
}
"""Names of templates, which are the places that links lead to."""
FILTERS = (
    *("count", "epsilon", "fixed", "listed", "mean_sd", "megabytes", "score_title", "setting", "signed", "significant"),
)


def render(results: Results, title: str | None = None) -> str:
    """Return the page; the same results give the same page."""
    needs("a report", "jinja2")
    every = drawn(results)
    parts = [one.part for one in every]
    scored = scored_on(every)
    charts = chart_data(every, scored)
    claim = claim_of(every)
    called = epsilon_called(claim)
    charts["epsilon"] = called[0].upper() + called[1:]
    documents = results.documents
    drawings, metrics = pictures(every), metrics_of(every)
    missing = {"final": not drawings, "clients": not any(one.clients for one in every)}
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=title or _name(results),
            **_assets(),
            sections={key: words for key, words in SECTIONS.items() if not missing.get(key)},
            charts=_finite(charts),
            every=every,
            scored_on=scored,
            algorithms=list(
                dict.fromkeys(algorithm_of(part) or one.label for part, one in zip(parts, every, strict=True))
            ),
            sources=list(dict.fromkeys(filter(None, (dict(data_words(part)).get("source") for part in parts)))),
            facts=_facts(every, claim),
            claim=claim,
            problems=results.problems,
            unfinished=[place for part in results.parts for place in (*part.unfinished, *part.stopped)],
            comparison=comparison(documents.get("compare", {})),
            ranking=ranking(documents.get("sweep", {})),
            notes={name: notes(document) for name, document in documents.items()},
            lines=lines(every),
            is_simulated=is_any_simulated(every),
            restricted=[one.label for one in every if one.part.is_restricted],
            unprotected=[one.label for one in every if not one.part.is_restricted and not one.part.is_public],
            axes=known_axes(every),
            metrics=metrics,
            pictures=drawings,
            warned=_warned(every),
            stills={score: still(every, score) for score in (*SCORES, *metrics)},
            num_hidden=max(0, len(every) - MOST_SHOWN),
            client_table=client_table([(one.label, one.clients) for one in every], metrics),
            costs=costs(every),
            has_epsilon_curve=has_curve(every),
            shared=shared_settings(parts),
            differing=differing_settings(parts, [one.label for one in every]),
            own_command=own_command(documents),
            versions=versions(results),
        )
    )


def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    found = Environment(
        loader=PackageLoader(PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    found.filters |= {name: getattr(formats, name) for name in FILTERS}
    found.globals |= {
        "NONE": formats.NONE,
        "PROVEN": PROVEN,
        "interval": formats.interval,
        "known": known,
        "metric_of": metric_of,
        "own_modules": own_modules,
        "run_command": run_command,
        "complete_file": complete_file,
    }
    return found


def _name(results: Results) -> str:
    """Return a title: what the command called it, the experiment's name, or the folder's."""
    for kind, words in TITLES.items():
        own = results.documents.get(kind, {}).get("name")
        if isinstance(own, str):
            return f"{own}: {words}"
    return results.parts[0].name if len(results.parts) == 1 else results.name


def _warned(every: Sequence[Drawn]) -> list[str]:
    """Return what the runs warned of, each sentence once, with the experiments that it is of."""
    said: dict[str, dict[str, None]] = {}
    for one in every:
        for words in (words for seed in one.part.seeds for words in seed.summary.notes):
            said.setdefault(words, {})[one.label] = None
    return [f"{', '.join(labels)}: {words}" if len(every) > 1 else words for words, labels in said.items()]


def _facts(every: Sequence[Drawn], claim: str) -> list[tuple[str, str]]:
    """Return the few numbers to know before reading on."""
    seeds = [seed for one in every for seed in one.part.seeds]
    facts = [("Experiments", str(len(every))), ("Runs", str(len(seeds)))]
    for name, title in (("data_rounds", "Data rounds"), ("iterations", "Iterations")):
        values = sorted({getattr(seed.summary, name) for seed in seeds})
        if values:
            few = [formats.fixed(value, 0) for value in values]
            facts.append((title, " / ".join(few) if len(few) <= 2 else f"{few[0]} to {few[-1]}"))
    clients = list(dict.fromkeys(filter(None, (dict(data_words(one.part)).get("clients") for one in every))))
    facts += [("Clients", " / ".join(clients))] if 0 < len(clients) <= 2 else []
    worst = worst_epsilon(seed.summary for seed in seeds)
    whose = "" if claim == PROVEN else f", {claim}"
    facts += [(f"Worst ε of a run{whose}", formats.epsilon(worst))] if worst is not None else [("Privacy", "none")]
    together = [one.part.together for one in every if one.part.together is not None]
    if together:
        all_of = max(together, key=lambda one: math.inf if one.epsilon is None else one.epsilon)
        stated = "not composed" if all_of.epsilon is None else formats.epsilon(all_of.epsilon)
        facts.append((f"ε of an experiment's {all_of.runs} runs together{whose}", stated))
    return facts


def _assets() -> dict[str, Any]:
    """Return style and script, the policy that allows just these, and who made the page."""
    from markupsafe import Markup

    import upcycled

    folder = files(PACKAGE) / "assets"
    style = folder.joinpath("report.css").read_text(encoding="utf-8")
    sources = (folder.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS)
    script = '(() => {\n"use strict";\n' + "".join(sources) + "})();\n"
    policy = (
        f"default-src 'none'; style-src {fingerprint(style)}; script-src {fingerprint(script)}; img-src data:; "
        f"base-uri 'none'; form-action 'none'"
    )
    return {"style": Markup(style), "script": Markup(script), "policy": policy, "version": upcycled.__version__}


def fingerprint(content: str) -> str:
    """Return the hash by which a content security policy allows an inline script or style.

    >>> fingerprint("")
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
    """
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _finite(value: Any) -> Any:
    """Round to what a picture shows, and write null for what is not a number."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        short = float(f"{value:.5g}")
        return int(short) if short.is_integer() and abs(short) < 1e15 else short
    return value
