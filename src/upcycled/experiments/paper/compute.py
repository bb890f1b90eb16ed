"""Carrying out what a table is missing, cell by cell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from upcycled.experiments.cells import compute_cells
from upcycled.experiments.paper.choose import Cell
from upcycled.experiments.paper.spec import Spec, brief, full
from upcycled.experiments.paper.store import Sources, Store, check_data


class Piece(Protocol):
    """A part of the work that is computed together: its grid, what that decides, its runs."""

    @property
    def title(self) -> str:
        """What the command calls it."""

    def next_runs(self, cell: Cell) -> list[Spec]:
        """Return missing runs that can be started now; empty when it is complete."""

    def outlook(self, cell: Cell) -> list[Spec]:
        """Return all missing runs, with stand-ins for those that cannot be named yet."""


def compute(
    store: Store, sources: Sources, wanted: Iterable[Piece], tell: Callable[[str], None], progress: bool = True
) -> None:
    """Compute pieces in order: the tries of a grid, what they decide, the runs themselves."""
    for piece in wanted:
        while missing := piece.next_runs(store):
            kind = "tries of the grid" if missing[0].part == "validation" else "runs"
            tell(f"{piece.title}: {len(missing)} {kind}")
            run_specs(store, sources, missing, progress)


def run_specs(store: Store, sources: Sources, specs: Sequence[Spec], progress: bool = True) -> None:
    """Run specs whose cells are missing; all of one data set and part, from the data that the other cells are from."""
    check_data(store, sources, specs[0].data, specs[0].part)
    wanted = {spec.key: partial(_arguments, sources, spec) for spec in specs}
    is_brief = specs[0].part in ("validation", "seeds")
    compute_cells(store.cells(specs[0]), wanted, brief if is_brief else full, progress=progress)


def _arguments(sources: Sources, spec: Spec) -> dict[str, object]:
    # Only a table's and a figure's own runs have a curve; all others are scored at their end.
    every = sources.settings.data[spec.data].score_every if spec.part == "test" else spec.data_rounds
    return spec.arguments(sources.data(spec.data, spec.part), sources.model(spec.data), every)
