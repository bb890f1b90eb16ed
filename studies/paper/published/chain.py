"""From our reproduction's gains to the paper's, one difference at a time.

Table 1's synthetic columns (90 % stragglers), all seven methods: 28 pairs of a vanilla and an upcycled run at equal
data rounds. Each link of the chain changes one thing of the link before it and says which settings either side has:

- ``ours``: one softmax; learning rate, rho and the method's own parameter chosen on validation samples.
- ``defaults``: the method's own parameter is the official code's; learning rate and rho are still chosen.
- ``double``: a softmax inside the model and cross-entropy on top, as in the official code.
- ``on-test``: settings are the best on the test samples that are reported, by `TUNING` seeds.
- ``shared-lr``: the vanilla side has no learning rate of its own but the upcycled side's.

Beside the chain: ``same-seeds``, the last link reported on no other seeds than those it was tuned with; and
``comments``, at the learning rates and rho that stand in the official code's comments, where there are some, with two
softmaxes, and with one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from studies.common.statistics import Paired, paired
from studies.common.store import Cells
from studies.paper.choose import Place, Point, best_of, choose, stages, trials_of
from studies.paper.plan import Block, blocks, final
from studies.paper.settings import STRATEGIES, Settings, Table
from studies.paper.sources import Store
from studies.paper.spec import Spec
from upcycled.core.vectors import Real

SEEDS = tuple(range(16))
TUNING = SEEDS[:2]
"""The seeds of the grid that is scored on test samples: as many as on validation samples, so that only those differ."""

SHORTEST = 1e-3
"""The smallest learning rate tried with two softmaxes, whose gradients are smaller: no choice came near it."""

ORDER = ("fedavg", "feddyn", "fedprox", "scaffold", "fedyogi", "fedavgm", "pfedme")
"""In which methods are computed: those with settings in the code's comments first, the costly one last."""

ONE, DOUBLE = "one", "double"
LOSSES = {ONE: "cross_entropy", DOUBLE: "double_softmax"}

COMMENTS: Mapping[tuple[str, str], tuple[float, float]] = {
    ("fedavg", "syn_iid"): (1e-1, 0.9),
    ("fedavg", "syn_0p5_0p5"): (5e-3, 0.7),
    ("fedavg", "syn_0_0"): (1e-1, 0.3),
    ("fedavg", "syn_1_1"): (5e-3, 0.9),
    ("feddyn", "syn_iid"): (1e-1, 0.9),
    ("feddyn", "syn_0p5_0p5"): (5e-3, 0.9),
    ("feddyn", "syn_0_0"): (5e-3, 0.3),
    ("feddyn", "syn_1_1"): (1e-3, 0.7),
}
"""Learning rate and rho by method and set, from the official code's comments."""


@dataclass(frozen=True)
class Run:
    """A run with one softmax or two."""

    softmax: str
    spec: Spec

    @property
    def key(self) -> str:
        return f"{self.softmax}|{self.spec.key}"


@dataclass(frozen=True)
class Known:
    """The cells that are there: the chain's own, and with one softmax those of the reproduction."""

    own: Cells
    store: Store

    def __call__(self, softmax: str, spec: Spec) -> Mapping[str, Any] | None:
        kept = self.store(spec) if softmax == ONE else None
        return self.own.get(Run(softmax, spec).key) if kept is None else kept

    def has(self, run: Run) -> bool:
        return self(run.softmax, run.spec) is not None


Sides = tuple[Point, Point]
"""The settings of the vanilla and the upcycled side."""


@dataclass(frozen=True)
class Link:
    """One way of comparing: how settings are chosen, with which model, and on which seeds they are reported."""

    name: str
    title: str
    softmax: str
    sides: Callable[[Block, Known], Sides | None]
    tries: Callable[[Block], list[Run]]
    seeds: tuple[int, ...] = SEEDS

    def finals(self, block: Block, known: Known) -> tuple[list[Spec], list[Spec]] | None:
        """Return the runs of either side, seed by seed; None while settings are not chosen, or there are none."""
        found = self.sides(block, known)
        if found is None:
            return None
        seeds = [seed for seed in block.seeds if seed in self.seeds]
        vanilla, upcycled = ([final(block, point, seed) for seed in seeds] for point in found)
        return vanilla, upcycled


def at_defaults(block: Block) -> Place:
    """Return where a block's choice is made if the method's own parameter is the official code's."""
    method = block.method
    return replace(block.place, method=replace(method, own={key: (value,) for key, value in method.default.items()}))


def _on_validation(place_of: Callable[[Block], Place], softmax: str, block: Block, known: Known) -> Sides | None:
    settings = _settings(block, softmax)
    found = [choose(settings, place_of(block), strategy, partial(known, softmax)) for strategy in STRATEGIES]
    chosen = [choice.point for choice in found if choice is not None]
    return (chosen[0], chosen[1]) if len(chosen) == 2 else None


def _settings(block: Block, softmax: str) -> Settings:
    """Return the settings with the grid that a model is tried on."""
    settings, group = block.settings, block.settings.data[block.column.data].group
    if softmax == ONE:
        return settings
    grid = settings.grids[group]
    longer = replace(grid, lr=tuple(lr for lr in grid.lr if lr >= SHORTEST))
    return replace(settings, grids={**settings.grids, group: longer})


def _tries(place_of: Callable[[Block], Place], softmax: str, block: Block) -> list[Run]:
    place = place_of(block)
    runs_of = trials_of(block.settings, place)
    points = [point for strategy in STRATEGIES for point in _points(block, strategy, place, softmax)]
    return [Run(softmax, spec) for point in points for spec in runs_of(point)]


def _points(block: Block, strategy: str, place: Place, softmax: str) -> list[Point]:
    (points,) = stages(_settings(block, softmax), place, strategy, lambda spec: None) or [[]]  # Syn's grid is complete
    return points


def _runs_on_test(block: Block, point: Point) -> list[Spec]:
    return [final(block, point, seed) for seed in TUNING if seed in block.seeds]


def _tries_on_test(block: Block) -> list[Run]:
    points = [point for strategy in STRATEGIES for point in _points(block, strategy, at_defaults(block), DOUBLE)]
    return [Run(DOUBLE, spec) for point in points for spec in _runs_on_test(block, point)]


def _on_test(block: Block, known: Known) -> Sides | None:
    cell, runs_of = partial(known, DOUBLE), partial(_runs_on_test, block)
    found = [best_of(_points(block, strategy, at_defaults(block), DOUBLE), runs_of, cell) for strategy in STRATEGIES]
    chosen = [choice.point for choice in found if choice is not None]
    return (chosen[0], chosen[1]) if len(chosen) == 2 else None


def _with_shared_lr(block: Block, known: Known) -> Sides | None:
    found = _on_test(block, known)
    return None if found is None else (replace(found[1], rho=None), found[1])


def _by_comments(block: Block, known: Known) -> Sides | None:
    told = COMMENTS.get((block.method.name, block.column.data))
    if told is None:
        return None
    point = Point(told[0], tuple(block.method.default.items()), told[1])
    return replace(point, rho=None), point


def _place(block: Block) -> Place:
    return block.place


CHAIN = (
    Link(
        "ours",
        "our reproduction: one softmax, all chosen on validation samples",
        ONE,
        partial(_on_validation, _place, ONE),
        partial(_tries, _place, ONE),
    ),
    Link(
        "defaults",
        "the method's own parameter as in the official code",
        ONE,
        partial(_on_validation, at_defaults, ONE),
        partial(_tries, at_defaults, ONE),
    ),
    Link(
        "double",
        "a softmax inside the model too",
        DOUBLE,
        partial(_on_validation, at_defaults, DOUBLE),
        partial(_tries, at_defaults, DOUBLE),
    ),
    Link("on-test", "learning rate and rho the best on the test samples", DOUBLE, _on_test, _tries_on_test),
    Link("shared-lr", "vanilla at upcycled's learning rate", DOUBLE, _with_shared_lr, _tries_on_test),
)
_COMMENTS = Link("comments", "learning rate and rho of the code's comments", DOUBLE, _by_comments, lambda block: [])
BESIDE = (
    replace(CHAIN[-1], name="same-seeds", title="the last, reported on the seeds of its tuning only", seeds=TUNING),
    _COMMENTS,
    replace(_COMMENTS, name="comments-one", title="the same settings with one softmax", softmax=ONE),
)


def table_of(settings: Settings) -> Table:
    """Return Table 1's synthetic columns with the chain's seeds; their runs are those of the table with 64 seeds."""
    table, seeds = settings.tables["table1"], settings.tables["seeds"]
    columns = tuple(column for column in table.columns if settings.data[column.data].group == "syn")
    few = tuple(seed for seed in SEEDS if seed in seeds.seeds)
    return replace(table, name="as-published", columns=columns, seeds=few, methods=seeds.methods, part=seeds.part)


def pairs(settings: Settings, only: tuple[str, ...] = ()) -> list[Block]:
    """Return the pairs, method by method: a method's are set beside each other first."""
    found = list(blocks(settings, table_of(settings), only))
    return sorted(found, key=lambda block: ORDER.index(block.method.name))


def next_runs(wanted: list[Block], known: Known) -> list[Run]:
    """Return the missing runs that can be named by now: tries, and what they decide."""
    return list(dict.fromkeys(run for run in _named(wanted, known) if not known.has(run)))


def _named(wanted: list[Block], known: Known) -> Iterator[Run]:
    for block in wanted:
        for link in (*CHAIN, *BESIDE):
            yield from link.tries(block)
            for side in link.finals(block, known) or ():
                yield from (Run(link.softmax, spec) for spec in side)


@dataclass(frozen=True)
class Gains:
    """Upcycled minus vanilla in points: one row a pair, one column a seed; the rows that are there."""

    link: Link
    by_pair: Mapping[tuple[str, str], Real]
    """By method and data set."""

    def of_method(self, name: str) -> float | None:
        rows = [gains.mean() for (method, _), gains in self.by_pair.items() if method == name]
        return float(np.mean(rows)) if rows else None

    @property
    def by_seed(self) -> Real:
        """The mean over pairs, for each seed: pairs share a seed's cohorts, so seeds are what is independent."""
        found: Real = np.mean(list(self.by_pair.values()), axis=0)
        return found

    @property
    def mean(self) -> Paired:
        return paired(self.by_seed, np.zeros(len(self.by_seed)))

    def minus(self, other: Gains) -> Paired:
        return paired(self.by_seed, other.by_seed)


def gains_of(link: Link, wanted: list[Block], known: Known) -> Gains:
    found = {}
    for block in wanted:
        runs = link.finals(block, known)
        if runs is None:
            continue
        cells = [[known(link.softmax, spec) for spec in side] for side in runs]
        scores = [[None if cell is None else cell.get("accuracy") for cell in side] for side in cells]
        if all(score is not None for side in scores for score in side):
            vanilla, upcycled = (100 * np.array(side, dtype=np.float64) for side in scores)
            found[block.method.name, block.column.data] = upcycled - vanilla
    return Gains(link, found)


def chain(wanted: list[Block], known: Known) -> tuple[list[Gains], list[Gains]]:
    """Return the gains of every link, over the pairs that the whole chain has, and those of what stands beside it."""
    found = [gains_of(link, wanted, known) for link in CHAIN]
    common = [pair for pair in found[0].by_pair if all(pair in one.by_pair for one in found)]
    kept = [replace(one, by_pair={pair: one.by_pair[pair] for pair in common}) for one in found]
    beside = [gains_of(link, wanted, known) for link in BESIDE]
    return kept, [replace(one, by_pair={p: row for p, row in one.by_pair.items() if p in common}) for one in beside]
