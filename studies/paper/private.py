"""The private figures: which runs they need, and what is known of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

from studies.common.statistics import paired, paired_json
from studies.paper.choose import Cell, Choice, Point, best_of, in_turns, is_hopeless
from studies.paper.settings import STRATEGIES, Method, Settings, read_toml, select
from studies.paper.spec import Spec, Values, rounded, usual


@dataclass(frozen=True)
class Panel:
    """One method on one data set under one mechanism: vanilla and upcycled with as many iterations."""

    figure: str
    claim: str
    """"paper": its noise, and its own epsilon; "proven": noise that costs the same proven epsilon."""
    settings: Settings
    method: Method
    data: str
    own: Values
    iterations: int
    mechanism: str
    noise: Mapping[str, Values]
    """By strategy."""
    lr: tuple[float | None, ...]
    rho: tuple[float, ...]
    seeds: tuple[int, ...]
    grid_seeds: tuple[int, ...]
    grid_iterations: int
    participation: float
    stragglers: float

    def spec(self, strategy: str, point: Point, seed: int, part: str = "test") -> Spec:
        return usual(
            self.settings,
            self.method,
            data=self.data,
            part=part,
            own=point.own,
            lr=point.lr,
            rho=point.rho,
            iterations=self.iterations if part == "test" else self.grid_iterations,
            stragglers=self.stragglers,
            participation=self.participation,
            seed=seed,
            mechanism=self.mechanism,
            noise=self.noise[strategy],
        )

    def points(self, strategy: str) -> list[Point]:
        rhos: Sequence[float | None] = self.rho if strategy == "upcycled" else [None]
        return [Point(lr, self.own, rho) for lr, rho in itertools.product(self.lr, rhos)]

    def tries_of(self, strategy: str, point: Point) -> list[Spec]:
        """Return the runs that score a point on validation samples."""
        return [self.spec(strategy, point, seed, "validation") for seed in self.grid_seeds]

    def choice(self, strategy: str, cell: Cell) -> Choice | None:
        """Return the point with the smallest loss on validation samples; None while tries are missing."""
        return best_of(self.points(strategy), lambda point: self.tries_of(strategy, point), cell, by="loss")

    def trials(self) -> list[Spec]:
        """Return the runs of the grid; a side with one point needs none."""
        grids = {strategy: self.points(strategy) for strategy in STRATEGIES}
        return [
            spec
            for strategy, points in grids.items()
            if len(points) > 1
            for point in points
            for spec in self.tries_of(strategy, point)
        ]

    def runs(self, strategy: str, cell: Cell) -> list[Spec]:
        """Return the figure's own runs; empty while their settings are not chosen."""
        return self.runs_at(strategy, self.choice(strategy, cell))

    def runs_at(self, strategy: str, choice: Choice | None) -> list[Spec]:
        return [] if choice is None else [self.spec(strategy, choice.point, seed) for seed in self.seeds]

    def wanted(self, strategy: str, cell: Cell) -> int:
        """Return how many runs the figure has: none where the grid has no setting that works."""
        return 0 if is_hopeless(self.choice(strategy, cell), self.trials(), cell) else len(self.seeds)

    def outlook(self, cell: Cell) -> list[Spec]:
        """Return all missing runs, with stand-ins for settings that are not chosen yet."""
        later = []
        for strategy in STRATEGIES:
            guess, seeds = self.points(strategy)[0], self.seeds[: self.wanted(strategy, cell)]
            later += self.runs(strategy, cell) or [self.spec(strategy, guess, seed) for seed in seeds]
        return [spec for spec in [*self.trials(), *later] if cell(spec) is None]

    def next_runs(self, cell: Cell) -> list[Spec]:
        """Return missing runs that can be started now; empty when the panel is complete."""
        missing = [spec for spec in self.trials() if cell(spec) is None]
        return missing or in_turns([self.runs(strategy, cell) for strategy in STRATEGIES], cell)

    @property
    def title(self) -> str:
        return f"{self.figure}, {self.settings.data[self.data].title}, {self.method.title}"


def panel_json(panel: Panel, cell: Cell) -> dict[str, Any]:
    """Return the ends of a panel's runs: loss, accuracy, epsilons, and the paired gain (vanilla's loss minus ours)."""
    sides = {strategy: _ends(panel, strategy, cell) for strategy in STRATEGIES}
    losses = [sides[strategy]["losses"] for strategy in STRATEGIES]
    gain = None
    if all(one is not None and len(one) > 1 for one in losses):
        gain = paired_json(paired(losses[0], losses[1], panel.settings.confidence))
    return {
        "figure": panel.figure,
        "claim": panel.claim,
        "data": panel.data,
        "title": panel.settings.data[panel.data].title,
        "method": panel.method.name,
        "method_title": panel.method.title,
        "iterations": panel.iterations,
        "runs": {name: sum(one[name] for one in sides.values()) for name in ("wanted", "missing", "seconds")},
        **sides,
        "gain": gain,
    }


def _ends(panel: Panel, strategy: str, cell: Cell) -> dict[str, Any]:
    choice = panel.choice(strategy, cell)
    specs = panel.runs_at(strategy, choice)
    wanted = len(specs) or panel.wanted(strategy, cell)
    cells = [found for spec in specs if (found := cell(spec)) is not None]
    whole = [found for found in cells if found.get("loss") is not None and found.get("accuracy") is not None]
    is_complete = len(whole) == len(panel.seeds)
    first = whole[0] if is_complete else {}
    return {
        "wanted": wanted,
        "missing": wanted - len(cells),
        "seconds": rounded(sum(found.get("seconds") or 0.0 for found in cells)),
        "noise": dict(panel.noise[strategy]),
        "settings": None
        if choice is None
        else {"lr": choice.point.lr, "rho": choice.point.rho, **dict(choice.point.own)},
        "at_edge": None if choice is None else list(choice.at_edge),
        "losses": [found["loss"] for found in whole] if is_complete else None,
        "loss": rounded(fmean(found["loss"] for found in whole)) if is_complete else None,
        "loss_sd": rounded(stdev(found["loss"] for found in whole)) if is_complete and len(whole) > 1 else None,
        "accuracy": rounded(100 * fmean(found["accuracy"] for found in whole)) if is_complete else None,
        "epsilon": first.get("epsilon"),
        "paper_epsilon": first.get("paper_epsilon"),
    }


def panels(settings: Settings, only: Sequence[str] = ()) -> Iterator[Panel]:
    """Yield the panels of all private figures; ``only`` may name data sets, groups and methods."""
    raw = read_toml("settings/private.toml")
    small = read_toml("settings/quick.toml") if settings.is_quick else {"left_out": []}
    left = select(settings, only)
    data = {name for name in left.data if settings.data[name].group not in small["left_out"]}
    for figure, values in raw["figures"].items():
        for one in values["panels"]:
            merged = {**values, **one}
            for name in merged["methods"]:
                if one["data"] in data and name in left.methods:
                    found = _panel(settings, raw, figure, merged, settings.methods[name])
                    yield _made_small(found, small["rounds"]) if settings.is_quick else found


def figure_titles() -> dict[str, str]:
    return {name: values["title"] for name, values in read_toml("settings/private.toml")["figures"].items()}


def _panel(settings: Settings, raw: Mapping[str, Any], figure: str, values: Mapping[str, Any], method: Method) -> Panel:
    own = values.get("own", {}).get(method.name, method.default)
    vanilla = values["vanilla"]
    return Panel(
        figure=figure,
        claim=values["claim"],
        settings=settings,
        method=method,
        data=values["data"],
        own=tuple(own.items()),
        iterations=values["iterations"],
        mechanism=values["mechanism"],
        noise={"vanilla": tuple(vanilla.items()), "upcycled": tuple(values.get("upcycled", vanilla).items())},
        lr=tuple(values.get("lr", [None])),
        rho=tuple(values["rho"]),
        seeds=tuple(values.get("seeds", raw["seeds"])),
        grid_seeds=tuple(values.get("grid_seeds", raw["grid_seeds"])),
        grid_iterations=values.get("grid_iterations", values["iterations"]),
        participation=raw["participation"],
        stragglers=raw["stragglers"],
    )


def _made_small(panel: Panel, rounds: Mapping[str, int]) -> Panel:
    few = min(rounds[panel.settings.data[panel.data].group], panel.iterations // 8)
    few += few % 2
    # The middle of a grid: its ends are there to be ruled out.
    lr, rho = panel.lr[len(panel.lr) // 2], panel.rho[len(panel.rho) // 2]
    return replace(panel, iterations=few, grid_iterations=few, lr=(lr,), rho=(rho,), seeds=panel.seeds[:2])
