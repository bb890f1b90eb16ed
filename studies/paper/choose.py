"""Settings chosen on validation samples: which runs a choice needs, and what it comes to once they are there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from studies.paper.settings import Grid, Method, Settings
from studies.paper.spec import Spec, Values, usual

Cell = Callable[[Spec], Mapping[str, Any] | None]
"""The cell of a run, None where it is not computed."""


@dataclass(frozen=True)
class Point:
    lr: float | None
    """None for mechanisms that bring their own solver."""
    own: Values
    rho: float | None


@dataclass(frozen=True)
class Choice:
    """The best point of a grid, and how sure one can be of it."""

    point: Point
    accuracy: float | None
    """On validation samples, the mean over the grid's seeds; None where there was nothing to choose."""
    tried: int
    at_edge: tuple[str, ...]
    """Parameters whose best value is the smallest or largest that was tried: a wider grid might do better."""


@dataclass(frozen=True)
class Place:
    """Where a choice is made: a method on a data set with a share of stragglers."""

    method: Method
    data: str
    stragglers: float


def grid_of(settings: Settings, data: str) -> Grid:
    return settings.grids[settings.data[data].group]


def trial(settings: Settings, place: Place, point: Point, seed: int) -> Spec:
    """Return the run that scores a point on validation samples."""
    rounds = grid_of(settings, place.data).rounds
    return usual(
        settings,
        place.method,
        data=place.data,
        part="validation",
        own=point.own,
        lr=point.lr,
        rho=point.rho,
        iterations=rounds * (1 if point.rho is None else 2),
        stragglers=place.stragglers,
        seed=seed,
    )


def trials_of(settings: Settings, place: Place) -> Callable[[Point], Sequence[Spec]]:
    seeds = grid_of(settings, place.data).seeds
    return lambda point: [trial(settings, place, point, seed) for seed in seeds]


def first_stage(settings: Settings, place: Place) -> list[Point]:
    """Return what a staged grid tries first: vanilla learning rates, the method's own parameters at their defaults."""
    own = tuple(place.method.default.items())
    return [Point(lr, own, None) for lr in grid_of(settings, place.data).lr]


def stages(settings: Settings, place: Place, strategy: str, cell: Cell) -> list[list[Point]] | None:
    """Return the points to try, stage by stage; None while an earlier stage that decides them is not computed."""
    grid, method = grid_of(settings, place.data), place.method
    own = [tuple(zip(method.own, values, strict=True)) for values in itertools.product(*method.own.values())]
    rhos: Sequence[float | None] = grid.rho if strategy == "upcycled" else [None]
    if grid.kind == "complete":
        return [[Point(*values) for values in itertools.product(grid.lr, own, rhos)]]
    first = first_stage(settings, place)
    if strategy == "vanilla" and not method.is_ablation:
        return [first]
    best = best_of(first, trials_of(settings, place), cell)
    if best is None:
        return None
    lr, default = best.point.lr, best.point.own
    later = own if method.is_ablation else [default]
    return [first, [Point(lr, values, rho) for values, rho in itertools.product(later, rhos)]]


def best_of(
    points: Sequence[Point], runs_of: Callable[[Point], Sequence[Spec]], cell: Cell, by: str = "accuracy"
) -> Choice | None:
    """Return the point whose runs have the best mean accuracy (or loss); None while one of them is missing.

    Ties go to the smaller loss (or larger accuracy), then to the earlier point. A point that failed with one seed is
    out. A grid of one point needs no runs.
    """
    if len(points) == 1:
        return Choice(points[0], None, 1, ())
    scores: dict[Point, tuple[float, ...]] = {}
    for point in points:
        found = [cell(spec) for spec in runs_of(point)]
        if any(one is None for one in found):
            return None
        kept = [one for one in found if one is not None and one.get("accuracy") is not None and one["loss"] is not None]
        if len(kept) == len(found):
            scores[point] = (-fmean(one["accuracy"] for one in kept), fmean(one["loss"] for one in kept))
    if not scores:
        return None
    best = min(scores, key=lambda point: scores[point] if by == "accuracy" else scores[point][::-1])
    return Choice(best, -scores[best][0], len(points), _edges(best, points))


def choose(settings: Settings, place: Place, strategy: str, cell: Cell) -> Choice | None:
    """Return the choice of the last stage, with the edges of all of them; None while tries are missing."""
    tries = stages(settings, place, strategy, cell)
    if tries is None:
        return None
    found = [best_of(points, trials_of(settings, place), cell) for points in tries]
    if any(choice is None for choice in found):
        return None
    chosen = [choice for choice in found if choice is not None]
    last = chosen[-1]
    edges = dict.fromkeys(name for choice in chosen for name in choice.at_edge)
    return Choice(last.point, last.accuracy, sum(choice.tried for choice in chosen), tuple(edges))


def is_hopeless(choice: Choice | None, tries: Iterable[Spec], cell: Cell) -> bool:
    """Whether all tries are there and no point of the grid works: then no run will ever be named."""
    return choice is None and all(cell(spec) is not None for spec in tries)


def in_turns(sides: Iterable[Sequence[Spec]], cell: Cell) -> list[Spec]:
    """Return the missing runs of several sides, seed by seed, so that a stopped command leaves pairs.

    A side without runs is one whose grid has no point that works; the others do not wait for it.
    """
    there = [runs for runs in sides if runs]
    return [spec for of_seed in zip(*there, strict=True) for spec in of_seed if cell(spec) is None]


def _edges(best: Point, points: Sequence[Point]) -> tuple[str, ...]:
    found = []
    tried: dict[str, set[float]] = {
        "lr": {p.lr for p in points if p.lr is not None},
        "rho": {p.rho for p in points if p.rho is not None},
    }
    tried |= {name: {dict(p.own)[name] for p in points} for name, _ in best.own}
    at = {"lr": best.lr, "rho": best.rho, **dict(best.own)}
    for name, values in tried.items():
        if len(values) > 1 and at[name] in (min(values), max(values)):
            found.append(name)
    return tuple(found)
