"""Points of a sweep: all combinations of its lists, or draws from its lists and ranges."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from upcycled.config.ranges import Range
from upcycled.core.errors import InputError, check_number
from upcycled.support.formats import general

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
