"""Points of a sweep: combinations of its lists, draws from its ranges, and Optuna's search.

Points of a sweep: all combinations of its lists, or draws from its lists and ranges.

Optuna's search over a sweep's space: points are asked for in batches, and a stopped search is replayed.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from upcycled._utils.extras import needs
from upcycled._utils.formats import general
from upcycled.config.overrides import Range
from upcycled.core.errors import InputError, check_number

Space: TypeAlias = Mapping[str, tuple[Any, ...] | Range]

TRIES_EACH = 50
"""Draws of a point that was not drawn before, at most: a small space may have none left."""


@dataclass(frozen=True)
class Point:
    """A value for each key that is swept."""

    values: tuple[tuple[str, Any], ...]

    @property
    def label(self) -> str:
        """The point in words.

        >>> Point((("local.lr", 0.1), ("model.hidden", [8, 8]))).label
        'local.lr=0.1, model.hidden=[8, 8]'
        """
        return ", ".join(f"{key}={shown(value)}" for key, value in self.values)

    @property
    def mark(self) -> str:
        """A short name that is the same wherever and whenever the point is drawn."""
        return hashlib.sha256(repr(self.values).encode()).hexdigest()[:10]


def grid(space: Space) -> list[Point]:
    """Return all combinations, the last key moving fastest.

    >>> [point.label for point in grid({"a": (1, 2), "b": (3, 4)})]
    ['a=1, b=3', 'a=1, b=4', 'a=2, b=3', 'a=2, b=4']
    """
    lists = []
    for key, values in space.items():
        if isinstance(values, Range):
            raise InputError(
                f'sweep."{key}" is a range, but a grid needs lists: give --random N or --optuna N, or a list of values'
            )
        lists.append(values)
    return [Point(tuple(zip(space, values, strict=True))) for values in itertools.product(*lists)]


def draws(space: Space, count: int, seed: int) -> list[Point]:
    """Return different random points, fewer than asked for where there are no more.

    Draw i depends on the seed and i alone: asking for more later keeps those that are there.

    >>> draws({"a": (1, 2, 3)}, 2, seed=0) == draws({"a": (1, 2, 3)}, 3, seed=0)[:2]
    True
    """
    check_number("--random", count, at_least=1, integer=True)
    check_number("--draw-seed", seed, at_least=0, integer=True)
    found: dict[str, Point] = {}
    for i in range(count * TRIES_EACH):
        if len(found) == count:
            break
        rng = np.random.default_rng((seed, i))
        point = Point(tuple((key, _drawn(values, rng.random())) for key, values in space.items()))
        found.setdefault(point.mark, point)
    return list(found.values())


def shown(value: Any) -> str:
    """Return a value as it is written in a table: drawn numbers with four digits."""
    return general(value, 4) if isinstance(value, float) else str(value)


def _drawn(values: tuple[Any, ...] | Range, share: float) -> Any:
    if isinstance(values, Range):
        found = values.at(share)
        # Twelve digits are enough to run with, and survive every file format.
        return found if isinstance(found, int) else float(f"{found:.12g}")
    return values[int(share * len(values))]


AT_ONCE = 8
"""Points asked for together; the same on every machine, for the answers depend on it."""


def search(
    space: Space,
    count: int,
    seed: int,
    evaluate: Callable[[Sequence[Point]], Sequence[float | None]],
    worst: float | None = 0.0,
) -> None:
    """Ask for points and tell their scores, higher being better, until there are ``count``.

    The sampler is seeded and told in order, so the same scores lead to the same points: a search that was stopped goes
    through those that are there at once.

    Args:
        space: lists and ranges.
        count: points in all; Optuna may ask for one more than once.
        seed: of the sampler.
        evaluate: gives the score of each point; None where it has none (the run diverged).
        worst: what no score is below, and such a point counts as; None where there is no such number.
    """
    check_number("--optuna", count, at_least=1, integer=True)
    check_number("--draw-seed", seed, at_least=0, below=2**32, integer=True)
    needs("--optuna", "optuna")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True, n_startup_trials=min(10, max(1, count // 3)))
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for start in range(0, count, AT_ONCE):
        trials = [study.ask() for _ in range(min(AT_ONCE, count - start))]
        points = [
            Point(tuple((key, _suggested(trial, key, values)) for key, values in space.items())) for trial in trials
        ]
        for trial, score in zip(trials, evaluate(points), strict=True):
            known = worst if score is None else score
            if known is None:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, known)


def _suggested(trial: Any, key: str, values: tuple[Any, ...] | Range) -> Any:
    if not isinstance(values, Range):
        # By place: a list may hold lists, which Optuna does not take.
        return values[trial.suggest_categorical(key, list(range(len(values))))]
    if values.integer:
        return int(trial.suggest_int(key, int(values.low), int(values.high), log=values.log))
    return float(f"{trial.suggest_float(key, float(values.low), float(values.high), log=values.log):.12g}")
