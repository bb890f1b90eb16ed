"""The measured part of docs/coefficients.md, its plots and its JSON, from kept cells."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from studies.coefficients import analysis, femnist, plots, private, syn
from studies.coefficients import settings as s
from studies.coefficients.analysis import Cell
from studies.coefficients.choices import key
from upcycled.core.coefficients import Auto
from upcycled.experiments.cells import Cells
from upcycled.runtime.paired import Paired

PAGE = s.ROOT / "docs" / "coefficients.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
RIVALS = (*s.RULES, s.CONSTANT, s.SERVER)


def syn_cells(folder: Path, sets: tuple[str, ...], algorithms: tuple[str, ...], seeds: tuple[int, ...]) -> list[Cell]:
    chosen = Cells(folder / "choices.jsonl")
    places = syn.all_places(chosen, sets, algorithms)
    return analysis.read_cells(
        Cells(folder / "syn.jsonl"), places, lambda place: list(syn.contestants(chosen, place)), seeds
    )


def write(folder: Path) -> None:
    """Write page, plots and JSON from all that is there."""
    cells = syn_cells(folder, tuple(s.SETS), tuple(s.ALGORITHMS), s.SEEDS)
    fixed = fixed_constants(Cells(folder / "choices.jsonl"))
    blocks = [verdict(cells), criteria(cells), overview(cells), *breakdowns(cells), worst(cells), fixed]
    if (folder / "femnist.jsonl").exists():
        blocks.append(femnist_table(Cells(folder / "femnist.jsonl")))
    if (folder / "private.jsonl").exists():
        blocks.append(private_table(Cells(folder / "private.jsonl")))
    plots.gains(cells, RIVALS)
    plots.ladder(cells, (s.AUTO, s.CONSTANT))
    rows = [cell.row for cell in cells]
    (folder / "summary.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    body = [line for block in blocks for line in (*block, "")]
    text = PAGE.read_text()
    PAGE.write_text(text.split(BEGIN)[0] + "\n".join([BEGIN, "", *body, END]) + text.split(END)[1])


def show(folder: Path, sets: tuple[str, ...], algorithms: tuple[str, ...], seeds: tuple[int, ...]) -> None:
    """Print the overview of a small version."""
    print("\n".join(overview(syn_cells(folder, sets, algorithms, seeds))))


def verdict(cells: list[Cell]) -> list[str]:
    """Say which rule became the default, or why none did."""
    passed = [rule for rule in s.RULES if analysis.earned(cells, rule).all]
    if s.AUTO in passed:
        return [f'**`{s.AUTO}` meets every criterion, so `upcycle="auto"` is `up.coefficients.{s.AUTO}()`.**']
    return [
        "**No rule meets every criterion, so the constant stays the default:** "
        f'`upcycle="auto"` is rho = {Auto().rho(1, None):g}, the best single constant of those in "One constant" below.'
    ]


def fixed_constants(chosen: Cells) -> list[str]:
    """What one constant for everything is worth, on the validation cells that the grid's choices came from."""
    lines = [
        "One constant for all cells, on validation data, with the three seeds that the grid was searched with, at the "
        "learning rates that vanilla was tried at with them (right and too large, seldom too small):",
        "",
        "| rho | runs | mean gain over vanilla | runs more than 0.5 points worse | diverged where vanilla did not |",
        "|---|---|---|---|---|",
    ]
    for rho in s.COEFFICIENTS:
        gains, lost = [], 0
        for where in [name for name in chosen.keys() if f"|{s.constant(rho).name}|" in name]:  # noqa: SIM118
            _, data, algorithm, stragglers, lr, _, seed = where.split("|")
            beside = key("lr", data, algorithm, stragglers, lr, seed)
            vanilla = chosen[beside].get("accuracy") if beside in chosen else None
            if vanilla is None:
                continue
            if "accuracy" not in chosen[where]:
                lost += 1
                continue
            gains.append(float(np.mean(np.subtract(chosen[where]["accuracy"], vanilla))))
        worse = 100 * float(np.mean(np.array(gains) < -analysis.TOLERANCE))
        lines.append(f"| {rho:g} | {len(gains) + lost} | {np.mean(gains):+.2f} | {worse:.0f} % | {lost} |")
    return lines


def criteria(cells: list[Cell]) -> list[str]:
    """One row per rule and criterion."""
    lines = [
        f"| rule | cells whose interval reaches no lower than -{analysis.TOLERANCE:g} (needs "
        f"{100 * analysis.MOST_CELLS:g} %) | gain over vanilla, mean over cells (must exclude 0) | against the "
        f"grid-searched constant (needs -{analysis.NEAR:g}) | diverged where vanilla did not | all met |",
        "|---|---|---|---|---|---|",
    ]
    for rule in (*s.RULES, s.CONSTANT):
        own, met = analysis.summary(cells, rule), analysis.earned(cells, rule)
        against = "" if rule == s.CONSTANT else _interval(analysis.summary(cells, rule, over=s.CONSTANT))
        lines.append(
            f"| {rule} | {100 * own.safe:.1f} % of {own.cells} | {_interval(own)} | {against} | {own.diverged} | "
            f"{'' if rule == s.CONSTANT else 'yes' if met.all else 'no'} |"
        )
    return lines


def overview(cells: list[Cell]) -> list[str]:
    """Gain, and how many cells are significantly better or worse."""
    lines = [
        "| contestant | cells | gain (95 %) | significantly better | significantly worse |",
        "|---|---|---|---|---|",
    ]
    for name in RIVALS:
        if any(name in cell.found for cell in cells):
            own = analysis.summary(cells, name)
            lines.append(f"| {name} | {own.cells} | {_interval(own)} | {own.better} | {own.worse} |")
    return lines


def breakdowns(cells: list[Cell]) -> list[list[str]]:
    """Mean gains by learning rate, set, algorithm, rounds and stragglers."""
    views: dict[str, Callable[[Cell], object]] = {
        "learning rate": lambda cell: cell.place.regime,
        "set": lambda cell: f"Syn({cell.place.data})",
        "algorithm": lambda cell: cell.place.algorithm,
        "data rounds": lambda cell: cell.rounds,
        "stragglers": lambda cell: f"{100 * cell.place.stragglers:g} %",
    }
    return [_breakdown(cells, title, of) for title, of in views.items()]


def _breakdown(cells: list[Cell], title: str, of: Callable[[Cell], object]) -> list[str]:
    lines = [f"| {title} | vanilla | " + " | ".join(RIVALS) + " |", "|---|---|" + "---|" * len(RIVALS)]
    for value in dict.fromkeys(of(cell) for cell in cells):
        part = [cell for cell in cells if of(cell) == value]
        base = np.mean([np.nan_to_num(cell.found["vanilla"]).mean() for cell in part])
        lines.append(f"| {value} | {base:.2f} | " + " | ".join(_gain(part, name) for name in RIVALS) + " |")
    return lines


def _gain(cells: list[Cell], name: str) -> str:
    if not all(name in cell.found for cell in cells):
        partly = [cell for cell in cells if name in cell.found]
        return f"({analysis.summary(partly, name).mean:+.2f})" if partly else "none"
    own = analysis.summary(cells, name)
    mark = "**" if own.low > 0 or own.high < 0 else ""
    return f"{mark}{own.mean:+.2f}{mark}"


def worst(cells: list[Cell], count: int = 8) -> list[str]:
    """Return where the rule loses most."""
    lines = [
        f"Where `{s.AUTO}` loses most:",
        "",
        "| set | algorithm | learning rate | stragglers | data rounds | vanilla | gain (95 %) |",
        "|---|---|---|---|---|---|---|",
    ]
    for cell in sorted(cells, key=lambda cell: cell.interval(s.AUTO)[0])[:count]:
        mean, low, high = cell.interval(s.AUTO)
        p = cell.place
        lines.append(
            f"| Syn({p.data}) | {p.algorithm} | {p.lr:g} ({p.regime}) | {100 * p.stragglers:g} % | {cell.rounds} | "
            f"{np.nan_to_num(cell.found['vanilla']).mean():.2f} | {mean:+.2f} ({low:+.2f} to {high:+.2f}) |"
        )
    return lines


def femnist_table(cells: Cells) -> list[str]:
    """Accuracy after each reading, and the paired gain of each contestant."""
    lines = ["FEMNIST, network of 196 hidden units, 90 % stragglers:", ""]
    lines += ["| algorithm | contestant | " + " | ".join(f"{m} rounds" for m in s.READ) + " |", "|---|---|---|---|---|"]
    for algorithm in femnist.ALGORITHMS:
        base = _runs(cells, ("test", algorithm, "vanilla"), femnist.SEEDS)
        shown = " | ".join(f"{x:.2f}" for x in base.mean(axis=0))
        lines.append(f"| {algorithm} (lr {femnist.best_lr(cells, algorithm):g}) | vanilla | {shown} |")
        for name, way in femnist.contestants(cells, algorithm).items():
            if name != "vanilla":
                found = _runs(cells, ("test", algorithm, name), femnist.SEEDS)
                label = f"{name} ({way.name})" if name in (s.CONSTANT, s.SERVER) else name
                lines.append(f"| | {label} | " + " | ".join(_paired(d) for d in (found - base).T) + " |")
    return lines


def private_table(cells: Cells) -> list[str]:
    """Accuracy of vanilla, and the paired gain of each contestant."""
    rivals = [name for name in private.WAYS if name != "vanilla"]
    lines = [
        f"ErmOutput, {private.ROUNDS} data rounds, everybody takes part, the same proven epsilon for all:",
        "",
        "| set | algorithm | epsilon | vanilla | " + " | ".join(rivals) + " |",
        "|---|---|---|---|" + "---|" * len(rivals),
    ]
    for name in s.SETS:
        for algorithm in private.ALGORITHMS:
            for epsilon in private.EPSILONS:
                where = ("private", name, algorithm, epsilon)
                base = _runs(cells, (*where, "vanilla"), private.SEEDS)[:, -1]
                gains = [_paired(_runs(cells, (*where, rival), private.SEEDS)[:, -1] - base) for rival in rivals]
                lines.append(
                    f"| Syn({name}) | {algorithm} | {epsilon:g} | {base.mean():.2f} | " + " | ".join(gains) + " |"
                )
    return lines


def _runs(cells: Cells, where: tuple[object, ...], seeds: Iterable[int]) -> np.ndarray:
    return np.array([cells[key(*where, seed)].get("accuracy", [0.0, 0.0, 0.0]) for seed in seeds], dtype=np.float64)


def _paired(differences: np.ndarray) -> str:
    paired = Paired(tuple(float(d) for d in differences), 0.95)
    low, high = paired.interval
    mark = "**" if paired.is_significant else ""
    return f"{mark}{paired.mean:+.2f}{mark} ({low:+.2f} to {high:+.2f})"


def _interval(found: analysis.Summary) -> str:
    return f"{found.mean:+.2f} ({found.low:+.2f} to {found.high:+.2f})"
