"""Tables and plot of docs/theory.md, from the study's cells."""

from __future__ import annotations

import itertools
import textwrap
from typing import Any

import numpy as np

import upcycled as up
from studies.common.data import ROOT, SYN
from studies.common.page import table, write_page
from studies.common.pictures import write_picture
from studies.common.store import Cells

PAGE, PLOT = ROOT / "docs" / "theory.md", ROOT / "docs" / "images" / "theory-bound.png"
COUNTER_EXAMPLE = "counter-example"
"""The key of a cell of its own."""

TITLES = {
    "exact": "all clients, local minimisers to float32",
    "sgd": "all clients, SGD, 90 % stragglers",
    "sampled": "60 of 100 clients, local minimisers",
}
SETS = tuple(SYN)
RATIOS = ("vanilla", "c = 1/sqrt(M)", "c = 0.5", "c = 1")
"""The upcycling coefficient c = mu/(mu + lambda_m)."""
PLOTTED = "c = 0.5"


def setting(name: str) -> str:
    """Return the key of the cell about the paper's own settings on a set."""
    return f"settings|{name}"


def write(kept: Cells) -> None:
    """Draw the plot, and put the tables into their place in the page."""
    plot(kept)
    write_page(PAGE, blocks(kept))


def blocks(kept: Cells) -> dict[str, list[str]]:
    """Return what stands between the page's marks."""
    heading = "**The paper's own settings**: its data, mu = 0.5 (the only one it names), K = 9 of 30 clients."
    counted = [line for words in verdict(kept) for line in textwrap.wrap(words, 120, subsequent_indent="  ")]
    return {"bound": [*counted, "", *runs_table(kept), "", heading, "", *settings_table(kept)]}


def number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def spread(values: list[float]) -> str:
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


def runs(kept: Cells) -> dict[str, dict[str, Any]]:
    return {key: run for key, run in kept.items() if key.partition("|")[0] in TITLES}


def verdict(kept: Cells) -> list[str]:
    found, lines = runs(kept), []
    for form, words in (("repaired", "repaired bound"), ("sharp", "sharp bound"), ("paper", "bound as printed")):
        meant = [run for run in found.values() if run["forms"][form]["applies"]]
        inside = sum(run["forms"][form]["above"] == 0 for run in meant)
        loose = [run["forms"][form]["bound"] / run["average"] for run in meant]
        lines.append(
            f"- The {words} says something about {len(meant)} of {len(found)} recorded runs; the measured mean is "
            f"within it in every data round of {inside} of them. It is {number(min(loose))} to {number(max(loose))} "
            f"times the measurement after the last round (median {number(float(np.median(loose)))})."
        )
    shares = [_first_term(run) / run["forms"]["sharp"]["bound"] for run in found.values()]
    lines.append(
        f"- Its first term, (f(w(0)) - 0)/(M C1), is {100 * min(shares):.0f} to {100 * max(shares):.0f} % of the sharp "
        f"bound (median {100 * float(np.median(shares)):.0f} %)."
    )
    alone = [run for key, run in found.items() if not key.startswith("sampled")]
    steps = sum(run["rounds"] - 1 for run in alone)
    least = min(run["forms"]["repaired"]["least_slack"] for run in alone)
    lines.append(
        f"- The lemma behind it, from each data round to the next, in the {len(alone)} runs with all clients, where "
        f"nothing is random: {steps:,} inequalities; what is left of the tightest is {number(least)}, "
        f"{'so all hold' if least >= 0 else 'so it is VIOLATED'}."
    )
    broken = kept[COUNTER_EXAMPLE]
    lines.append(
        f"- One client, four samples, mu = {broken['mu']:g}: the lemma as printed (C1 = {broken['C1']['paper']:.4f}) "
        f"is violated in {broken['violated']['paper']} of {broken['checked']} rounds, the repaired one (C1 = "
        f"{broken['C1']['repaired']:.4f}) in {broken['violated']['repaired']}."
    )
    return lines


def _first_term(run: dict[str, Any]) -> float:
    return float(run["loss"][0] / (run["rounds"] * run["forms"]["sharp"]["C1"]))


def runs_table(kept: Cells) -> list[str]:
    lines = []
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for key, run in runs(kept).items():
        kind, name, ratio, _ = key.split("|")
        groups.setdefault((kind, name, ratio), []).append(run)
    order = list(itertools.product(TITLES, SETS, RATIOS))
    for kind, name, ratio in sorted(groups, key=order.index):
        found = groups[kind, name, ratio]
        met = [run for run in found if run["forms"]["sharp"]["applies"]]
        bounds = [run["forms"]["sharp"]["bound"] for run in met]
        row = [
            TITLES[kind],
            name,
            ratio,
            number(found[0]["smoothness"]),
            number(found[0]["mu"]),
            spread([run["dissimilarity"] for run in found]),
            number(max(run["inexactness"] for run in found), 2),
            spread([run["average"] for run in found]),
            spread(bounds) if met else "C1 <= 0",
            spread([bound / run["average"] for bound, run in zip(bounds, met, strict=True)]) if met else "-",
        ]
        lines.append(row)
    measured = ["L", "mu", "B", "gamma", "mean of ‖∇f‖²", "bound (sharp)", "bound / mean"]
    return table(["runs", "Syn", "coefficient", *measured], lines)


def settings_table(kept: Cells) -> list[str]:
    columns = ["Syn", "L", "B at w = 0", "C1, paper", "C1, repaired", "C1, sharp"]
    columns += [f"least mu, {form}" for form in up.theory.FORMS]
    rows = []
    for name in SETS:
        about = kept[setting(name)]
        row = [name, number(about["smoothness"]), number(about["dissimilarity"])]
        row += [number(about["C1"][form]) for form in up.theory.FORMS]
        least = [about["smallest_mu"][form] for form in up.theory.FORMS]
        row += ["none" if value is None else number(value) for value in least]
        rows.append(row)
    return table(columns, rows)


def plot(kept: Cells) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.2), dpi=110, layout="constrained")
    axes = figure.subplots(1, len(SETS), sharex=True)
    for ax, name in zip(axes, SETS, strict=True):
        found = [run for key, run in runs(kept).items() if key.startswith(f"exact|{name}|{PLOTTED}|")]
        for i, run in enumerate(found):
            curve = run["curve"]
            words = ("bound (Theorem 1, repaired)", "measured mean") if i == 0 else (None, None)
            ax.plot(curve["round"], curve["bound"], color="#d55e00", linestyle="--", label=words[0])
            ax.plot(curve["round"], curve["average"], color="#0072b2", label=words[1])
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_title(f"Syn({name}), mu = {number(found[0]['mu'])}")
        ax.set_xlabel("data rounds M")
        ax.grid(axis="y", color="#e5e5e5")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("mean of ‖∇f‖² over M rounds")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    write_picture(figure, PLOT)
