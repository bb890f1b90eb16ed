"""The final model on test data, as pictures: confusion matrix, ROC curves, calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from upcycled._utils.formats import shortened
from upcycled.report.charts import COLOURS, Drawn
from upcycled.report.collect import Seed, number

MOST_EXPERIMENTS = 8
MOST_CELLS = 30
"""Classes of a matrix that can still be read."""
LEFT, RIGHT, TOP, BOTTOM = 44, 292, 10, 258
"""Where the axes of a picture lie, in 300 by 300."""
ROOM_FOR_NAMES = 60
"""By how much a matrix with names is wider, to the left."""
LETTER = 6.5
"""How wide a letter is."""
OF_CLASS = "class "
"""How a calibration of two classes says whose probability it is of, before the class's number."""
BASELINES = {"classes": "majority class", "labels": "labels' shares", "numbers": "mean"}


@dataclass(frozen=True)
class Cell:
    """How many samples of a class were answered with another, or with itself."""

    x: float
    y: float
    count: int
    share: float
    """Of the class's samples."""
    words: str


@dataclass(frozen=True)
class Matrix:
    """A confusion matrix over all seeds: a row is a class, a column an answer."""

    classes: int
    side: float
    cells: tuple[Cell, ...]
    names: tuple[str, ...] = ()
    """What the classes are called; empty where they have numbers alone."""

    @property
    def margin(self) -> int:
        """How far it reaches to the left of pictures without names."""
        return ROOM_FOR_NAMES if self.names else 0

    @property
    def rows(self) -> tuple[str, ...]:
        """What stands before the rows."""
        if not self.names:
            return tuple(map(str, range(self.classes)))
        numbered = [name if self._has_room_below else f"{k} {name}" for k, name in enumerate(self.names)]
        return tuple(shortened(name, int((LEFT - 6 + ROOM_FOR_NAMES) / LETTER)) for name in numbered)

    @property
    def columns(self) -> tuple[str, ...]:
        """What stands below the columns: names, or the numbers that rows then have too."""
        return self.names if self._has_room_below else tuple(map(str, range(self.classes)))

    @property
    def _has_room_below(self) -> bool:
        return bool(self.names) and max(map(len, self.names)) * LETTER <= self.side

    @property
    def has_numbers(self) -> bool:
        """Whether there is room for numbers in the cells."""
        return self.classes <= 12


@dataclass(frozen=True)
class Path:
    """A line of a picture."""

    name: str
    colour: int
    d: str


@dataclass(frozen=True)
class Picture:
    """Lines between limits that both axes share."""

    paths: tuple[Path, ...]
    dots: tuple[tuple[float, float, float], ...] = ()
    """x, y and radius."""
    ticks: tuple[tuple[float, float, float], ...] = ()
    """Where a tick is across, where it is up, and its value."""
    of: str = ""


@dataclass(frozen=True)
class Pictures:
    """Everything that is drawn of an experiment's final models."""

    one: Drawn
    matrix: Matrix | None
    roc: Picture | None
    calibration: Picture | None

    @property
    def is_empty(self) -> bool:
        return self.matrix is None and self.roc is None and self.calibration is None


def pictures(every: Sequence[Drawn]) -> list[Pictures]:
    """Return the pictures of the first experiments that have some; curves are of an experiment's first seed."""
    found = []
    for one in every:
        evaluated = [(seed.evaluation, seed.label_names) for seed in one.part.seeds if seed.evaluation is not None]
        if evaluated:
            first, names = evaluated[0]
            matrix = _matrix([document.get("confusion") for document, _ in evaluated], names)
            curves, calibration = _roc(first.get("roc"), names), _calibration(first.get("calibration"), names)
            found.append(Pictures(one, matrix, curves, calibration))
    return [one for one in found if not one.is_empty][:MOST_EXPERIMENTS]


def baseline_words(seeds: Sequence[Seed]) -> str:
    """Return what a model that has learnt nothing from features answers with."""
    kinds = [seed.evaluation.get("targets") for seed in seeds if seed.evaluation is not None]
    return BASELINES.get(str(kinds[0]) if kinds else "classes", BASELINES["classes"])


def _matrix(documents: Sequence[Any], names: Sequence[str]) -> Matrix | None:
    tables = [table for table in map(_counts, documents) if table is not None]
    if not tables or len({len(table) for table in tables}) > 1 or len(tables[0]) > MOST_CELLS:
        return None
    classes = len(tables[0])
    total = [[sum(table[i][j] for table in tables) for j in range(classes)] for i in range(classes)]
    called = tuple(names) if len(names) == classes else ()
    side, cells = (RIGHT - LEFT) / classes, []
    for i, row in enumerate(total):
        for j, count in enumerate(row):
            share = count / sum(row) if sum(row) else 0.0
            words = f"class {_called(str(i), called)} answered with {_called(str(j), called)}: {count}"
            cells.append(Cell(LEFT + j * side, TOP + i * side, count, share, words))
    return Matrix(classes, side, tuple(cells), called)


def _called(of: str, names: Sequence[str]) -> str:
    """Return the name of a class that a file knows by its number; anything else as it is.

    >>> _called("1", ["well", "ill"]), _called("1", []), _called("all together", ["well", "ill"])
    ('ill', '1', 'all together')
    """
    return dict(zip(map(str, range(len(names))), names, strict=True)).get(of, of)


def _counts(document: Any) -> list[list[int]] | None:
    if not isinstance(document, list) or not document:
        return None
    rows = [row if isinstance(row, list) else [] for row in document]
    known = [[number(value) for value in row] for row in rows]
    is_square = all(len(row) == len(rows) for row in known)
    if not is_square or any(math.isnan(value) or value < 0 for row in known for value in row):
        return None
    return [[int(value) for value in row] for row in known]


def _numbers(table: Any, name: str) -> list[float]:
    values = table.get(name) if isinstance(table, Mapping) else None
    return [number(value) for value in values] if isinstance(values, list) else []


def _across(value: float, low: float = 0.0, high: float = 1.0) -> float:
    return round(LEFT + (RIGHT - LEFT) * (value - low) / (high - low), 1)


def _up(value: float, low: float = 0.0, high: float = 1.0) -> float:
    return round(BOTTOM - (BOTTOM - TOP) * (value - low) / (high - low), 1)


def _ticks(low: float, high: float) -> tuple[tuple[float, float, float], ...]:
    values = [low + part * (high - low) for part in (0.0, 0.25, 0.5, 0.75, 1.0)]
    return tuple((_across(value, low, high), _up(value, low, high), value) for value in values)


def _line(xs: Sequence[float], ys: Sequence[float], low: float = 0.0, high: float = 1.0) -> str:
    points = zip(xs, ys, strict=True)
    return "M" + "L".join(f"{_across(x, low, high)} {_up(y, low, high)}" for x, y in points)


def _is_drawable(xs: Sequence[float], ys: Sequence[float]) -> bool:
    return bool(xs) and len(xs) == len(ys) and not any(map(math.isnan, (*xs, *ys)))


def _roc(document: Any, names: Sequence[str]) -> Picture | None:
    paths = []
    for k, curve in enumerate(document if isinstance(document, list) else []):
        false, true = _numbers(curve, "false"), _numbers(curve, "true")
        if _is_drawable(false, true):
            paths.append(Path(_called(str(curve.get("of", "")), names), k % COLOURS, _line(false, true)))
    return Picture(tuple(paths), ticks=_ticks(0.0, 1.0)) if paths else None


def _calibration(document: Any, names: Sequence[str]) -> Picture | None:
    said, seen, samples = (_numbers(document, name) for name in ("predicted", "observed", "samples"))
    if not _is_drawable(said, seen) or not _is_drawable(said, samples):
        return None
    of = str(document.get("of", ""))
    # Probabilities have limits of their own; numbers have those that they take.
    low, high = (min(*said, *seen), max(*said, *seen)) if of == "numbers" else (0.0, 1.0)
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)
    most = max(samples) or 1.0
    dots = tuple(
        (_across(x, low, high), _up(y, low, high), round(3 + 5 * math.sqrt(max(count, 0.0) / most), 1))
        for x, y, count in zip(said, seen, samples, strict=True)
    )
    if of.startswith(OF_CLASS):
        of = OF_CLASS + _called(of.removeprefix(OF_CLASS), names)
    return Picture((Path(of, 0, _line(said, seen, low, high)),), dots, _ticks(low, high), of)
