"""The demonstration: one model trained vanilla, upcycled, and each with a proven epsilon; on generated data.

Plots as files: matplotlib figures without pyplot, so nothing global is touched and no display is needed.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from upcycled._utils.extras import missing, needs
from upcycled._utils.files import write_json, write_whole
from upcycled._utils.formats import interval, signed
from upcycled._utils.lock import locked
from upcycled._utils.plotting import COLOURS, INK, MUTED, TITLES, style
from upcycled._utils.statistics import Paired
from upcycled.config.experiment import Experiment, parse
from upcycled.core.errors import InputError, UpcycledError, check_number
from upcycled.core.vectors import Real
from upcycled.experiments.batch import Options, Outcome, prepare_batch
from upcycled.report import NAME as PAGE
from upcycled.report import write_report
from upcycled.run_folder import RunFolder
from upcycled.training.train import train


@dataclass(frozen=True)
class PlotCurve:
    """One line of a plot: runs of the same kind, one per seed."""

    group: str
    """Curves of one group share a colour."""
    is_upcycled: bool
    rounds: Real
    accuracy: Real
    """(seeds, rounds), in percent."""
    loss: Real

    @property
    def label(self) -> str:
        """The words of the legend."""
        return "upcycled" if self.is_upcycled else "vanilla"


def curve(group: str, is_upcycled: bool, histories: Sequence[Sequence[Mapping[str, Any]]]) -> PlotCurve:
    """Return the model after each data round (and its upcycled iteration) from the rows of every seed's history."""
    last = [{row["data_round"]: row for row in rows if row["accuracy"] is not None} for rows in histories]
    rounds = sorted(set(last[0]).intersection(*last[1:]))
    return PlotCurve(
        group,
        is_upcycled,
        np.array(rounds, dtype=np.float64),
        np.array([[100 * seed[m]["accuracy"] for m in rounds] for seed in last], dtype=np.float64),
        np.array([[seed[m]["loss"] for m in rounds] for seed in last], dtype=np.float64),
    )


def write_comparison(path: Path, curves: Sequence[PlotCurve], title: str, subtitle: str) -> None:
    """Write a PNG: accuracy and loss against data rounds, one column per algorithm, mean over seeds with a band.

    The band is one standard deviation; it may leave the picture where it is much wider than the curves move.
    """
    needs("a plot", "matplotlib")
    from matplotlib.figure import Figure

    groups = list(dict.fromkeys(c.group for c in curves))
    figure = Figure(figsize=(1.2 + 4.4 * len(groups), 6.8), dpi=150, facecolor="white")
    left = 0.75 / figure.get_figwidth()
    figure.subplots_adjust(left=left, right=0.98, top=0.82, bottom=0.09, wspace=0.08, hspace=0.22)
    figure.text(left, 0.945, title, fontsize=15, fontweight="bold", color=INK)
    figure.text(left, 0.905, subtitle, fontsize=9.5, color=MUTED)
    panels = figure.subplots(len(TITLES), len(groups), sharex=True, sharey="row", squeeze=False)
    for row, (metric, words) in zip(panels, TITLES.items(), strict=True):
        limits = _limits([getattr(c, metric).mean(axis=0) for c in curves])
        for axes, group, colour in zip(row, groups, COLOURS * len(groups), strict=False):
            axes.set_ylim(*limits)
            style(axes)
            for c in (c for c in curves if c.group == group):
                _draw(axes, c, getattr(c, metric), colour)
        row[0].set_title(words, loc="left", fontsize=10.5, color=MUTED)
    for axes, group in zip(panels[0], groups, strict=True):
        axes.set_title(group, loc="center", fontsize=12, fontweight="bold", color=INK)
        axes.legend(loc="lower right", frameon=False, fontsize=10, handlelength=2.6, labelcolor=INK)
    for axes in panels[-1]:
        axes.set_xlabel("data rounds", color=MUTED)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", backend="agg")
    write_whole(path, stream.getvalue())


def _limits(means: Sequence[Real]) -> tuple[float, float]:
    """Return a range that shows every mean curve and some of the bands."""
    low, high = min(float(m.min()) for m in means), max(float(m.max()) for m in means)
    margin = 0.25 * (high - low) or 0.5
    return low - margin, high + margin


def _draw(axes: Any, curve: PlotCurve, values: Real, colour: str) -> None:
    mean = values.mean(axis=0)
    shade = colour if curve.is_upcycled else MUTED
    if len(values) > 1:
        spread = values.std(axis=0, ddof=1)
        axes.fill_between(curve.rounds, mean - spread, mean + spread, color=shade, alpha=0.11, linewidth=0)
    line: Any = "-" if curve.is_upcycled else (0, (3.5, 1.8))
    marker = "o" if len(mean) == 1 else None
    axes.plot(curve.rounds, mean, color=colour, linestyle=line, linewidth=2, marker=marker, label=curve.label)


ROUNDS = 80
SEEDS = 32
COEFFICIENT = 0.7
EPSILON, DELTA = 4.0, 1e-5
CONFIDENCE = 0.95
BASE: dict[str, Any] = {
    "data": {"source": "synthetic", "alpha": 0.5, "beta": 0.5, "clients": 30, "seed": 0},
    "model": {"kind": "logistic"},
    "algorithm": {"name": "fedprox", "mu": 8.0},
    "clients": {"participation": 0.3},
}
# All rows have the mechanism's local solver and projection: rows of a kind differ only in upcycling, and kinds only in
# the noise.
NOISE: dict[str, dict[str, float]] = {
    "no noise": {"noise_std": 0.0},
    f"epsilon {EPSILON:g}": {"epsilon": EPSILON, "delta": DELTA},
}
TITLE = "One model: vanilla, upcycled, and with a proven epsilon"
MARK = "demo.json"
PLOT = "demo.png"


@dataclass(frozen=True)
class Contestant:
    """One row of the table."""

    group: str
    is_upcycled: bool
    experiment: Experiment

    @property
    def title(self) -> str:
        """What tables call it."""
        return f"{'upcycled' if self.is_upcycled else 'vanilla'}, {self.group}"


@dataclass(frozen=True)
class Demo:
    """What the demonstration found and wrote."""

    rows: tuple[tuple[Contestant, Outcome], ...]
    plot: Path | None
    repeat: str
    report: Path | None = None
    """The page; None, like the plot, where the extra ``report`` is not there."""

    @property
    def note(self) -> str:
        """The result in a sentence, and its limits."""
        found = [
            f"{signed(one.mean, 2, 100)} points with {group} "
            f"({100 * one.confidence:g} % interval {interval(*one.interval, 2, 100)})"
            for group, one in self.differences.items()
        ]
        seeds = len(self.rows[0][1].seeds)
        return (
            f"Half the messages; accuracy difference, upcycled minus vanilla: {', '.join(found)}; "
            f"{seeds} paired seeds. An upcycled run has as many iterations, but only every other one is a data round. "
            f"Epsilon is the worst client's at delta {DELTA:g}; the noise here is seeded, a simulation that protects "
            f"nobody, and epsilon what the same settings cost with real noise. Half of the rounds need less noise for "
            f"the same epsilon; whether that pays depends on data and method. Upcycled FedProx equals FedProx with a "
            f"server learning rate of {1 + COEFFICIENT:g} (1 + rho). All seeds share one data set: other data may "
            f"differ by more than the intervals say."
        )

    @property
    def differences(self) -> dict[str, Paired]:
        """Upcycled minus vanilla accuracy of each kind, paired by seed."""
        found = {}
        for (c, vanilla), (_, upcycled) in zip(self.rows[::2], self.rows[1::2], strict=True):
            pairs = zip(_accuracies(vanilla), _accuracies(upcycled), strict=True)
            found[c.group] = Paired(tuple(b - a for a, b in pairs), CONFIDENCE)
        return found

    def as_json(self) -> dict[str, Any]:
        runs = [
            {
                "kind": c.group,
                "upcycled": c.is_upcycled,
                "folder": str(Path(c.experiment.results) / c.experiment.name),
                "summary": outcome.summary(),
                "epsilon": outcome.worst_epsilon,
                "seeds": [seed.as_json() for seed in outcome.seeds],
            }
            for c, outcome in self.rows
        ]
        plot, page = (None if path is None else str(path) for path in (self.plot, self.report))
        differences = [
            {"kind": group, "mean": one.mean, "interval": list(one.interval), "confidence": one.confidence}
            for group, one in self.differences.items()
        ]
        document = {"runs": runs, "differences": differences, "plot": plot, "report": page}
        return document | {"repeat": self.repeat, "note": self.note}


def _accuracies(outcome: Outcome) -> list[float]:
    return [float(summary.accuracy) for summary in outcome.finished if summary.accuracy is not None]


def contestants(rounds: int, seeds: int, output: str) -> list[Contestant]:
    """Return the four experiments, all of as many iterations: those of an upcycled run are half without data."""
    check_number("--rounds", rounds, at_least=1, integer=True)
    check_number("--seeds", seeds, at_least=2, integer=True)
    if not output:
        raise InputError("--output is '', but it must be the path of a folder")
    found = []
    for group, noise in NOISE.items():
        for is_upcycled in (False, True):
            raw = {
                **BASE,
                "privacy": {"mechanism": "erm_output", "norm_bound": 8.0, **noise},
                "name": f"{'upcycled' if is_upcycled else 'vanilla'}-{group.replace(' ', '-')}",
                "iterations": rounds,
                "seeds": list(range(seeds)),
                "results": output,
                **({"upcycle": {"kind": "constant", "coefficient": COEFFICIENT}} if is_upcycled else {}),
            }
            found.append(Contestant(group, is_upcycled, parse(raw)))
    return found


def run_demo(runs: Sequence[Contestant], repeat: str, options: Options | None = None) -> Demo:
    """Run all contestants; write results, a summary and, if the extra is there, a plot and a page into one folder."""
    output = Path(runs[0].experiment.results)
    _check_ours(output)
    with locked(output):
        # An earlier demonstration makes room.
        write_whole(output / MARK, b"{}\n")
        for c in runs:
            shutil.rmtree(output / c.experiment.name, ignore_errors=True)
        for name in (PLOT, PAGE):
            (output / name).unlink(missing_ok=True)
        _compile_first(runs)
        found = prepare_batch([c.experiment for c in runs], "demo").run(options)
        return _demonstrated(runs, found, output, repeat)


def _compile_first(runs: Sequence[Contestant]) -> None:
    """Run an iteration of each kind, for nothing: on a new machine kernels are compiled then, and in no row's time."""
    for c in {c.group: c for c in runs}.values():
        train(c.experiment.build_data(), c.experiment.spec(0).replace(iterations=1, progress=False))


def _demonstrated(runs: Sequence[Contestant], found: Sequence[Outcome], output: Path, repeat: str) -> Demo:
    """Draw the plot and write the documents."""
    for outcome in found:
        for seed in outcome.seeds:
            if seed.error is not None:
                raise UpcycledError(f"{outcome.experiment.name}, seed {seed.seed}: {seed.error}")
    curves = [
        curve(c.group, c.is_upcycled, [RunFolder(seed.folder).read_history() for seed in outcome.seeds])
        for c, outcome in zip(runs, found, strict=True)
    ]
    about = found[0].finished[0].data
    subtitle = (
        f"Softmax regression, FedProx, Syn(0.5, 0.5), {about['clients']} clients, 30 % a round, "
        f"mean of {len(found[0].seeds)} seeds, band: one standard deviation"
    )
    plot = None if missing("matplotlib") else output / PLOT
    demo = Demo(tuple(zip(runs, found, strict=True)), plot, repeat)
    if plot is not None:
        write_comparison(plot, curves, TITLE, subtitle)
    write_json(output / MARK, demo.as_json())
    return replace(demo, report=None if missing("jinja2") else write_report(output))


def _check_ours(output: Path) -> None:
    """Refuse a folder that holds anything but an earlier demonstration."""
    held = [path for path in output.iterdir() if not path.name.startswith(".")] if output.is_dir() else []
    if held and not (output / MARK).exists():
        raise InputError(
            f"--output is '{output}', which holds other things, but it must be a new or empty folder, "
            f"or that of an earlier demo"
        )
