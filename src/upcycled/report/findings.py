"""What a command concluded from a folder of experiments: paired differences of a comparison, the ranking of a sweep."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from upcycled._utils.formats import general, score_digits
from upcycled.report.collect import Row, number
from upcycled.report.settings import algorithm_title

Cell = Mapping[str, float | None]


@dataclass(frozen=True)
class Difference:
    """Upcycled minus vanilla score of one algorithm, accuracy as a fraction; NaN where too few seeds finished."""

    name: str
    vanilla: Cell
    upcycled: Cell
    gain: float
    low: float
    high: float
    verdict: str
    holm_verdict: str | None
    """The verdict after a correction for there being several."""
    is_finding: bool
    """Whether it is significant, after the correction where there is one."""
    is_longer_step: bool = False
    """Whether the vanilla runs had a longer server step."""
    places: Mapping[str, float] | None = None
    """Where zero, the ends and the mean lie on a scale from 0 to 1 that all rows share; None where NaN."""


@dataclass(frozen=True)
class ComparisonTable:
    """The paired differences of all algorithms."""

    rows: tuple[Difference, ...]
    confidence: float
    score: str = "accuracy"
    lower_is_better: bool = False

    @property
    def how(self) -> tuple[int, float]:
        """With how many digits its numbers are shown, and scaled by what."""
        return score_digits(self.score)

    @property
    def is_corrected(self) -> bool:
        """Whether there are several, which Holm's correction counts."""
        return any(row.holm_verdict is not None for row in self.rows)

    @property
    def parts(self) -> list[ComparisonTable]:
        """The rows against vanilla, and those against vanilla with a longer server step, as tables of their own."""
        split = (tuple(row for row in self.rows if row.is_longer_step == is_longer) for is_longer in (False, True))
        return [replace(self, rows=rows) for rows in split if rows]

    @property
    def gains(self) -> int:
        """Findings in favour of upcycling."""
        return sum(row.is_finding and (row.gain > 0) != self.lower_is_better for row in self.rows)

    @property
    def losses(self) -> int:
        """Findings against it."""
        return sum(row.is_finding and (row.gain < 0) != self.lower_is_better for row in self.rows)


def comparison(document: Row) -> ComparisonTable | None:
    """Read ``compare.json``; None where it has no rows."""
    confidence = number(document.get("confidence"))
    own, longer = _tables(document.get("rows")), _tables(document.get("longer_step_rows"))
    ordered = [
        row
        for first in own
        for row in (first, *(other for other in longer if other.get("algorithm") == first.get("algorithm")))
    ]
    rows = [_difference(row, confidence) for row in ordered]
    ends = [0.0, *(end for row in rows for end in (row.low, row.high) if not math.isnan(end))]
    least, width = min(ends), max(ends) - min(ends) or 1.0
    placed = []
    for row in rows:
        values = {"zero": 0.0, "low": row.low, "mean": row.gain, "high": row.high}
        is_tested = not any(map(math.isnan, values.values()))
        places = {name: (value - least) / width for name, value in values.items()} if is_tested else None
        placed.append(replace(row, places=places))
    judged = _table(document.get("judged"))
    name, is_lower = str(judged.get("name", "accuracy")), judged.get("lower_is_better") is True
    return ComparisonTable(tuple(placed), confidence, name, is_lower) if placed else None


def _difference(row: Row, confidence: float) -> Difference:
    ends = row.get("interval")
    low, high = ends if isinstance(ends, list) and len(ends) == 2 else (None, None)
    holm_verdict = row.get("holm_verdict")
    is_corrected = isinstance(holm_verdict, str)
    name, server_lr = algorithm_title(str(row.get("algorithm", ""))), number(row.get("server_lr"))
    return Difference(
        name if math.isnan(server_lr) else f"{name}, server_lr = {general(server_lr)}",
        _score_cell(_table(row.get("vanilla"))),
        _score_cell(_table(row.get("upcycled"))),
        number(row.get("gain")),
        number(low),
        number(high),
        str(row.get("verdict", "")),
        str(holm_verdict) if is_corrected else None,
        _is_significant(row, "holm_" if is_corrected else "", confidence),
        is_longer_step=not math.isnan(server_lr),
    )


def _score_cell(row: Row) -> Cell:
    """Return the score that a command judged by; earlier files have accuracy only."""
    return cell_of(row, "score" if "score" in row else "accuracy")


def _is_significant(row: Row, which: str, confidence: float) -> bool:
    own = row.get(f"{which}is_significant")
    # Earlier files have no such field; the p-value is 1 where there is no spread to judge by.
    return own if isinstance(own, bool) else number(row.get(f"{which}p_value")) < 1 - confidence


@dataclass(frozen=True)
class RankedRow:
    """A point of a sweep."""

    rank: float
    settings: Row
    score: Cell
    loss: Cell
    has_failed: bool


@dataclass(frozen=True)
class Ranking:
    """All points of a sweep by validation scores, and how the chosen one did on test data."""

    rows: tuple[RankedRow, ...]
    chosen: Row | None
    test_score: Cell
    score: str = "accuracy"
    """The name of what points are ranked by."""

    @property
    def how(self) -> tuple[int, float]:
        """With how many digits its numbers are shown, and scaled by what."""
        return score_digits(self.score)

    @property
    def keys(self) -> list[str]:
        """The settings that were swept."""
        return list(dict.fromkeys(key for row in self.rows for key in row.settings))


def ranking(document: Row) -> Ranking | None:
    """Read ``sweep.json``; None where nothing is ranked."""
    rows = tuple(
        RankedRow(
            number(row.get("rank", k)),
            _table(row.get("settings")),
            _score_cell(row),
            cell_of(row, "loss"),
            bool(row.get("failed")),
        )
        for k, row in enumerate(_tables(document.get("ranking")), start=1)
    )
    chosen = document.get("chosen")
    settings = _table(chosen.get("settings")) if isinstance(chosen, dict) else None
    test = _table(_table(chosen).get("test"))
    name = str(_table(document.get("judged")).get("name", "accuracy"))
    return Ranking(rows, settings, _score_cell(test), name) if rows else None


def notes(document: Row) -> list[str]:
    """Return what the command itself says about its numbers."""
    own = document.get("notes", document.get("note"))
    return [str(line) for line in own] if isinstance(own, list) else [own] if isinstance(own, str) else []


def cell_of(row: Row, name: str) -> Cell:
    """Return mean and standard deviation; None for what is not a number."""
    known = _table(row.get(name))
    return {key: None if math.isnan(value := number(known.get(key))) else value for key in ("mean", "sd")}


def _table(value: Any) -> Row:
    return value if isinstance(value, dict) else {}


def _tables(value: Any) -> list[Row]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []
