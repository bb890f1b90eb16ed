"""Everything that is chosen is chosen here, on validation data: learning rates, the constant, the server step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from studies.coefficients import settings as s
from studies.common.store import Cells

Wanted = dict[str, Callable[[], Mapping[str, Any]]]

Place = tuple[str, str, float]
"""A set, an algorithm and a share of stragglers."""


def key(*parts: object) -> str:
    return "|".join(f"{part:g}" if isinstance(part, float) else str(part) for part in parts)


def lr_runs(sets: tuple[str, ...], algorithms: tuple[str, ...]) -> Wanted:
    """Vanilla at each learning rate of the grid."""
    return _lr_runs((place, s.LRS) for place in places(sets, algorithms))


def larger_runs(cells: Cells, sets: tuple[str, ...], algorithms: tuple[str, ...]) -> Wanted:
    """Vanilla at multiples of the best learning rate, which must stay finite."""
    found = ((place, best_lr(cells, *place)) for place in places(sets, algorithms))
    return _lr_runs((place, tuple(factor * best for factor in s.LARGER)) for place, best in found)


def _lr_runs(tried: Iterable[tuple[Place, tuple[float, ...]]]) -> Wanted:
    return {
        key("lr", *place, lr, seed): _run(*place, lr, seed)
        for place, lrs in tried
        for lr in lrs
        for seed in s.CHOICE_SEEDS
    }


def way_runs(cells: Cells, sets: tuple[str, ...], algorithms: tuple[str, ...]) -> Wanted:
    """Each constant, and each server step where there is one, at the three learning rates."""
    wanted: Wanted = {}
    for name, algorithm, stragglers in places(sets, algorithms):
        for lr in three_lrs(cells, name, algorithm, stragglers):
            for way in ways(algorithm):
                for seed in s.CHOICE_SEEDS:
                    made = _run(name, algorithm, stragglers, lr, seed, way)
                    wanted[key("way", name, algorithm, stragglers, lr, way.name, seed)] = made
    return wanted


def places(sets: tuple[str, ...], algorithms: tuple[str, ...]) -> Iterator[Place]:
    for name in sets:
        for algorithm in algorithms:
            for stragglers in s.STRAGGLERS:
                yield name, algorithm, stragglers


def ways(algorithm: str) -> list[s.Way]:
    steps = [s.server(1 + rho) for rho in s.COEFFICIENTS] if algorithm in s.SERVER_STEP else []
    return [s.constant(rho) for rho in s.COEFFICIENTS] + steps


def best_lr(cells: Cells, name: str, algorithm: str, stragglers: float) -> float:
    """Return the learning rate with the best mean validation accuracy after all rounds."""
    return max(s.LRS, key=lambda lr: _last(cells, key("lr", name, algorithm, stragglers, lr)))


def three_lrs(cells: Cells, name: str, algorithm: str, stragglers: float) -> tuple[float, float, float]:
    """Return too small, right and too large."""
    best = best_lr(cells, name, algorithm, stragglers)
    finite = [f for f in s.LARGER if np.isfinite(_last(cells, key("lr", name, algorithm, stragglers, f * best)))]
    return best / s.SMALLER, best, (finite or [1.0])[0] * best


def best_way(cells: Cells, name: str, algorithm: str, stragglers: float, lr: float, kind: str) -> s.Way | None:
    """Return the constant (or server step) with the best mean validation accuracy over seeds and readings."""
    asked = [way for way in ways(algorithm) if way.name.startswith(kind)]
    if not asked:
        return None
    return max(asked, key=lambda way: _all(cells, key("way", name, algorithm, stragglers, lr, way.name)))


def _run(
    name: str, algorithm: str, stragglers: float, lr: float, seed: int, way: s.Way = s.VANILLA
) -> Callable[[], Mapping[str, Any]]:
    return lambda: s.arguments(s.syn(name, choosing=True), algorithm, lr, stragglers, way, seed)


def _found(cells: Cells, where: str) -> list[list[float]]:
    return [cells[key(where, seed)].get("accuracy", [-np.inf]) for seed in s.CHOICE_SEEDS]


def _last(cells: Cells, where: str) -> float:
    return float(np.mean([found[-1] for found in _found(cells, where)]))


def _all(cells: Cells, where: str) -> float:
    return float(np.mean([np.mean(found) for found in _found(cells, where)]))
