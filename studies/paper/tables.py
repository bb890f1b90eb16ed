"""From cells to the numbers of a table: ours, the paper's, the difference, and whether upcycling gained anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from studies.common.statistics import Paired, paired, paired_json, welch_p_value
from studies.paper.choose import Cell, Choice, Point
from studies.paper.plan import Block, blocks
from studies.paper.settings import SAME, Settings, Table, paper_numbers

Printed = tuple[float, float]
"""A mean and a standard deviation of the paper."""

PAPER_RUNS = 4
"""Of which the paper's means and standard deviations are."""

Accuracies = tuple[float | None, ...]
"""In percent, one for each seed; None where the run is not there. Empty: no setting of the grid works."""


@dataclass(frozen=True)
class Entry:
    """One number of a table: a method and a strategy in a column, over seeds."""

    by_seed: Accuracies
    choice: Choice | None
    paper: Printed | None
    seconds: float
    """What its runs took so far."""
    failed: int = 0
    """Runs that ended in an error (they diverged); they are not run again."""

    @property
    def point(self) -> Point | None:
        """The chosen settings; None while they are not chosen."""
        return None if self.choice is None else self.choice.point

    @property
    def is_complete(self) -> bool:
        return bool(self.by_seed) and None not in self.by_seed

    @property
    def mean(self) -> float | None:
        """Over all seeds; None while one is missing."""
        return fmean(_known(self.by_seed)) if self.is_complete else None

    @property
    def sd(self) -> float | None:
        return stdev(_known(self.by_seed)) if self.is_complete and len(self.by_seed) > 1 else None

    @property
    def difference(self) -> float | None:
        return None if self.mean is None or self.paper is None else self.mean - self.paper[0]

    def as_json(self) -> dict[str, Any]:
        chosen = self.choice
        return {
            "mean": _short(self.mean),
            "sd": _short(self.sd),
            "by_seed": [_short(value) for value in self.by_seed],
            "paper": None if self.paper is None else list(self.paper),
            "difference": _short(self.difference),
            "settings": None
            if chosen is None
            else {"lr": chosen.point.lr, **dict(chosen.point.own)}
            | ({} if chosen.point.rho is None else {"rho": chosen.point.rho}),
            "validation_accuracy": None if chosen is None else _short(_percent(chosen.accuracy)),
            "tried": None if chosen is None else chosen.tried,
            "at_edge": None if chosen is None else list(chosen.at_edge),
            "seconds": _short(self.seconds),
            "failed": self.failed,
        }


@dataclass(frozen=True)
class Row:
    """A method in a column: vanilla, upcycled, and the difference that upcycling makes, paired over seeds."""

    block: Block
    vanilla: Entry
    upcycled: Entry | None
    """None for the ablation, which has no upcycled runs."""
    confidence: float
    same: Entry | None = None
    """Vanilla at upcycled's settings, where the table has such runs."""

    @property
    def gain(self) -> Paired | None:
        """Upcycled minus vanilla, seed by seed; None while a run is missing."""
        return None if self.upcycled is None else entries_paired(self.upcycled, self.vanilla, self.confidence)

    @property
    def gain_of_rho(self) -> Paired | None:
        """Upcycled minus vanilla at upcycled's settings: nothing differs but rho."""
        if self.upcycled is None or self.same is None:
            return None
        return entries_paired(self.upcycled, self.same, self.confidence)

    @property
    def paper_gain(self) -> float | None:
        printed = self._printed
        return None if printed is None else printed[1][0] - printed[0][0]

    @property
    def _printed(self) -> tuple[Printed, Printed] | None:
        """What the paper prints of vanilla and of upcycled; None where it does not print both."""
        if self.upcycled is None or self.upcycled.paper is None or self.vanilla.paper is None:
            return None
        return self.vanilla.paper, self.upcycled.paper

    @property
    def is_unlike_paper(self) -> bool | None:
        """Whether the paper's gain differs from ours significantly (Welch); None where one is missing."""
        gain, paper, printed = self.gain, self.paper_gain, self._printed
        if gain is None or paper is None or printed is None:
            return None
        count = len(gain.differences)
        p_value = welch_p_value(
            gain.mean - paper,
            variances=[gain.sd**2 / count, *(sd**2 / PAPER_RUNS for _, sd in printed)],
            degrees=[count - 1, PAPER_RUNS - 1, PAPER_RUNS - 1],
        )
        return p_value < 1 - self.confidence

    @property
    def entries(self) -> list[Entry]:
        """Vanilla, upcycled, and vanilla at its settings; not the latter where vanilla has the same settings."""
        same = None if self.same is None or self.same.point == self.vanilla.point else self.same
        return [entry for entry in (self.vanilla, self.upcycled, same) if entry is not None]

    def as_json(self) -> dict[str, Any]:
        return {
            "method": self.block.method.name,
            "column": self.block.column.name,
            "is_in_paper": not self.block.method.is_ablation,
            "vanilla": self.vanilla.as_json(),
            "upcycled": None if self.upcycled is None else self.upcycled.as_json(),
            "gain": None if self.gain is None else paired_json(self.gain),
            "paper_gain": _short(self.paper_gain),
            "is_unlike_paper": self.is_unlike_paper,
        } | (
            {}
            if self.same is None
            else {
                "vanilla_at_upcycled_settings": self.same.as_json(),
                "gain_of_rho": None if self.gain_of_rho is None else paired_json(self.gain_of_rho),
            }
        )


@dataclass(frozen=True)
class Filled:
    """A table with what is known of it."""

    table: Table
    settings: Settings
    rows: tuple[Row, ...]

    @property
    def missing(self) -> int:
        gaps = sum(value is None for row in self.rows for entry in row.entries for value in entry.by_seed)
        return gaps - self.failed

    @property
    def failed(self) -> int:
        """Runs that ended in an error."""
        return sum(entry.failed for row in self.rows for entry in row.entries)

    @property
    def total(self) -> int:
        """Runs of the table, without those of the grids."""
        return sum(len(entry.by_seed) for row in self.rows for entry in row.entries)

    def row(self, column: str, method: str) -> Row:
        return next(r for r in self.rows if (r.block.column.name, r.block.method.name) == (column, method))

    def as_json(self) -> dict[str, Any]:
        return {
            "table": self.table.name,
            "title": self.table.title,
            "is_quick": self.settings.is_quick,
            "seeds": list(self.table.seeds),
            "runs": {"wanted": self.total, "missing": self.missing, "failed": self.failed},
            "confidence": self.settings.confidence,
            "columns": [
                {
                    "name": column.name,
                    "data": column.data,
                    "title": self.settings.data[column.data].title,
                    "stragglers": column.stragglers,
                    "data_rounds": self.settings.data[column.data].rounds,
                }
                for column in self.table.columns
            ],
            "rows": [row.as_json() for row in self.rows],
        }


def fill(settings: Settings, table: Table, cell: Cell, only: Sequence[str] = ()) -> Filled:
    """Return a table from the cells that are there; rows in the table's own order."""
    numbers = {} if settings.is_quick else paper_numbers()
    rows = [_row(block, cell, numbers, settings.confidence) for block in blocks(settings, table, only)]
    columns = [column.name for column in table.columns]
    rows.sort(key=lambda row: (columns.index(row.block.column.name), table.methods.index(row.block.method.name)))
    return Filled(table, settings, tuple(rows))


def entries_paired(one: Entry, other: Entry, confidence: float) -> Paired | None:
    """Return the differences of two entries with the same seeds; None while a run is missing."""
    if not (one.is_complete and other.is_complete) or len(one.by_seed) < 2:
        return None
    return paired(_known(one.by_seed), _known(other.by_seed), confidence)


def _row(block: Block, cell: Cell, numbers: dict[str, Any], confidence: float) -> Row:
    table, column = block.column.printed
    printed = numbers.get(table, {}).get(block.method.name, {})
    entries = {}
    for strategy in block.strategies:
        runs = [cell(spec) for spec in block.runs(strategy, cell)] or [None] * block.wanted(strategy, cell)
        accuracies = tuple(None if run is None else _percent(run.get("accuracy")) for run in runs)
        paper = printed.get(strategy, {}).get(column)
        entries[strategy] = Entry(
            by_seed=accuracies,
            choice=block.choice(strategy, cell),
            paper=None if paper is None else (paper[0], paper[1]),
            seconds=sum(run.get("seconds") or 0.0 for run in runs if run is not None),
            failed=sum(run is not None and run.get("accuracy") is None for run in runs),
        )
    return Row(block, entries["vanilla"], entries.get("upcycled"), confidence, entries.get(SAME))


def _known(values: Accuracies) -> list[float]:
    return [value for value in values if value is not None]


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
