"""The runs of a table: which are wanted, in which order, and which of them can be named yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from studies.paper.choose import (
    Cell,
    Choice,
    Place,
    Point,
    choose,
    first_stage,
    grid_of,
    in_turns,
    is_hopeless,
    stages,
    trial,
    trials_of,
)
from studies.paper.settings import SAME, Column, Method, Settings, Table, select
from studies.paper.spec import Spec, usual


@dataclass(frozen=True)
class Block:
    """The runs of one method in one column: they are computed together."""

    settings: Settings
    column: Column
    method: Method
    seeds: tuple[int, ...]
    part: str = "test"
    has_same: bool = False

    @property
    def strategies(self) -> tuple[str, ...]:
        """Vanilla, upcycled, and what the table wants beside them."""
        return (*self.method.strategies, SAME) if self.has_same else self.method.strategies

    @property
    def title(self) -> str:
        share = f"{100 * self.column.stragglers:g} % stragglers"
        return f"{self.settings.data[self.column.data].title}, {share}, {self.method.title}"

    @property
    def place(self) -> Place:
        like = grid_of(self.settings, self.column.chosen_data).like
        method = self.method if like is None else self.settings.methods[like]
        return Place(method, self.column.chosen_data, self.column.chosen_stragglers)

    def choice(self, strategy: str, cell: Cell) -> Choice | None:
        if strategy == SAME:
            other = self.choice("upcycled", cell)
            return None if other is None else replace(other, point=replace(other.point, rho=None))
        found = choose(self.settings, self.place, strategy, cell)
        if found is None or self.place.method is self.method:
            return found
        return replace(found, point=replace(found.point, own=tuple(self.method.default.items())))

    def trials(self, cell: Cell) -> list[Spec]:
        """Return the runs of the grid that can be named by now."""
        return list(dict.fromkeys(self._tries(cell)))

    def _tries(self, cell: Cell) -> Iterator[Spec]:
        for strategy in self.method.strategies:
            known = stages(self.settings, self.place, strategy, cell)
            for stage in [first_stage(self.settings, self.place)] if known is None else known:
                for point in stage:
                    yield from trials_of(self.settings, self.place)(point)

    def runs(self, strategy: str, cell: Cell) -> list[Spec]:
        """Return the table's own runs, one for each seed; empty while their settings are not chosen."""
        choice = self.choice(strategy, cell)
        return [] if choice is None else [final(self, choice.point, seed) for seed in self.seeds]

    def wanted(self, strategy: str, cell: Cell) -> int:
        """Return how many runs the table has: none where the grid has no setting that works."""
        return 0 if is_hopeless(self.choice(strategy, cell), self._tries(cell), cell) else len(self.seeds)

    def outlook(self, cell: Cell) -> list[Spec]:
        """Return all missing runs of grid and table, with stand-ins for settings that are not chosen yet."""
        grid, later = grid_of(self.settings, self.place.data), list[Spec]()
        own = {name: tried[0] for name, tried in self.method.own.items()} if self.method.is_ablation else None
        guess = Point(grid.lr[len(grid.lr) // 2], tuple((own or self.method.default).items()), None)
        for strategy in self.strategies:
            if not self.wanted(strategy, cell):
                continue
            point = replace(guess, rho=grid.rho[0] if strategy == "upcycled" else None)
            if strategy != SAME and stages(self.settings, self.place, strategy, cell) is None:
                tries = grid.rho if point.rho is not None else next(iter(self.method.own.values()))
                at = replace(point, own=tuple((own or self.place.method.default).items()))
                later += [trial(self.settings, self.place, at, seed) for seed in grid.seeds] * len(tries)
            later += self.runs(strategy, cell) or [final(self, point, seed) for seed in self.seeds]
        return [spec for spec in [*self.trials(cell), *later] if cell(spec) is None]

    def next_runs(self, cell: Cell) -> list[Spec]:
        """Return missing runs that can be started now; empty when the block is complete."""
        missing = [spec for spec in self.trials(cell) if cell(spec) is None]
        return missing or in_turns([self.runs(strategy, cell) for strategy in self.strategies], cell)


def final(block: Block, point: Point, seed: int) -> Spec:
    """Return a run of the table at the chosen settings: as many data rounds for vanilla and upcycled."""
    column, rounds = block.column, block.settings.data[block.column.data].rounds
    return usual(
        block.settings,
        block.method,
        data=column.data,
        part=block.part,
        own=point.own,
        lr=point.lr,
        rho=point.rho,
        iterations=rounds * (1 if point.rho is None else 2),
        stragglers=column.stragglers,
        seed=seed,
    )


def blocks(settings: Settings, table: Table, only: Sequence[str] = ()) -> Iterator[Block]:
    """Yield the blocks of a table in the order they are computed: column by column, costly methods last.

    ``only`` holds names of data sets, their groups, or methods (see `select`).
    """
    left = select(settings, only)
    methods = [settings.methods[name] for name in table.methods if name in left.methods]
    for column in table.columns:
        for is_costly in (False, True):
            for method in methods:
                if method.is_costly == is_costly and column.data in left.data:
                    yield Block(settings, column, method, table.seeds, table.part, table.has_same)
