"""The convergence record: what a run measured of the theorem's terms, beside what the theorem says of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from upcycled.core.vectors import Real
from upcycled.report.charts import Drawn
from upcycled.report.collect import Part, Row, number
from upcycled.report.curves import THEORY, Curve

AVERAGE = "Mean of ‖∇f‖² over the data rounds so far"
MEASURED = {
    "gradient_norm": "Norm of the gradient ‖∇f‖",
    "loss": "Training objective f",
    "dissimilarity": "Dissimilarity B of the clients",
}
"""Columns of the record that are drawn by themselves."""
MOST_POINTS = 150
NOT_PROVEN = "paper"
"""The form of the bound as printed: in the table, but not drawn as if it bounded anything."""


def record_of(part: Part, curve: Curve) -> dict[str, dict[str, list[float]]]:
    """Return the lines of an experiment's record by name, each with x (data rounds) and y (mean over seeds)."""
    found: dict[str, dict[str, list[float]]] = {}
    is_data = ~np.array(curve.is_upcycled, dtype=bool)
    for name in MEASURED:
        values = curve.mean.get(f"{THEORY}{name}")
        if values is not None:
            found[name] = _line(curve.data_round[is_data], values[is_data])
    for name, values in _averages(part).items():
        found[name] = _line(np.arange(1.0, len(values) + 1), values)
    return found


def _averages(part: Part) -> dict[str, Real]:
    """Return the mean squared gradient norm, and the bounds on it that say something about these runs."""
    documents = _documents(part)
    lines: dict[str, list[Any]] = {"average": [document["measured"].get("average") for document in documents]}
    for form in dict.fromkeys(name for document in documents for name in document["forms"]):
        own = [document["forms"].get(form, {}) for document in documents]
        if form != NOT_PROVEN and all(one.get("applies") is True for one in own):
            lines[f"bound:{form}"] = [one.get("bound") for one in own]
    return {name: found for name, rows in lines.items() if (found := _mean_of(rows)) is not None}


def _documents(part: Part) -> list[Row]:
    found = [seed.summary.get("theory") for seed in part.seeds]
    return [document for document in found if isinstance(document, dict) and _is_whole(document)]


def _is_whole(document: Row) -> bool:
    forms, measured = document.get("forms"), document.get("measured")
    return isinstance(measured, dict) and isinstance(forms, dict) and all(isinstance(f, dict) for f in forms.values())


def _mean_of(rows: Sequence[Any]) -> Real | None:
    if not rows or not all(isinstance(row, list) and len(row) == len(rows[0]) and row for row in rows):
        return None
    found: Real = np.array([[number(value) for value in row] for row in rows]).mean(axis=0)
    return found


def _line(xs: Real, ys: Real) -> dict[str, list[float]]:
    kept = [round(k) for k in np.linspace(0, len(xs) - 1, min(len(xs), MOST_POINTS))] if len(xs) else []
    return {"x": xs[kept].tolist(), "y": ys[kept].tolist()}


def theory_charts(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return which lines of the records are drawn together."""
    there = list(dict.fromkeys(name for record in records for name in record))
    charts = []
    if "average" in there:
        bounds = [name for name in there if name.startswith("bound:")]
        columns = [{"key": "average", "name": "measured", "bound": False}]
        columns += [{"key": key, "name": f"bound, {key.removeprefix('bound:')}", "bound": True} for key in bounds]
        charts.append({"name": AVERAGE, "columns": columns})
    for key, title in MEASURED.items():
        if key in there:
            charts.append({"name": title, "columns": [{"key": key, "name": "measured", "bound": False}]})
    return charts


@dataclass(frozen=True)
class Bound:
    """A form of the bound beside the measurement, at the end of a run."""

    one: Drawn
    form: str
    is_proven: bool
    C1: float
    applies: Any
    """Yes, no, or something else where the file does not say."""
    holds: Any
    bound: float
    measured: float
    ratio: float


def bounds(every: Sequence[Drawn]) -> list[Bound]:
    """Return every form of the bound, of each experiment's first seed."""
    return [
        Bound(
            one,
            form,
            form != NOT_PROVEN,
            number(about.get("C1")),
            about.get("applies"),
            about.get("holds"),
            _last(about.get("bound")),
            _last(document["measured"].get("average")),
            number(about.get("looseness")),
        )
        for one in every
        for document in _documents(one.part)[:1]
        for form, about in document["forms"].items()
    ]


def _last(values: Any) -> float:
    return number(values[-1]) if isinstance(values, list) and values else math.nan


def assumptions(every: Sequence[Drawn]) -> list[tuple[Drawn, list[Row]]]:
    """Return the theorem's assumptions, of each experiment's first seed: ``name``, ``holds``, ``words``."""
    found: list[tuple[Drawn, list[Row]]] = []
    for one in every:
        for document in _documents(one.part)[:1]:
            own = document.get("assumptions")
            rows: list[Row] = [row for row in own if isinstance(row, dict)] if isinstance(own, list) else []
            found += [(one, rows)] if rows else []
    return found
