"""What the command does, without the printing: find what is missing, compute it, write the numbers down."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from studies.common.store import compute_cells
from studies.paper import figures
from studies.paper.budget import Budget, budget, calibrate
from studies.paper.choose import Cell
from studies.paper.plan import blocks
from studies.paper.private import figure_titles, panel_json, panels
from studies.paper.settings import Settings, check_only, load_settings
from studies.paper.sources import Sources, Store, check_data
from studies.paper.spec import Spec, brief, full
from studies.paper.tables import fill
from studies.paper.timing import timed
from upcycled._utils.files import write_whole
from upcycled._utils.lock import locked
from upcycled.core.errors import InputError

RESULTS = Path(__file__).parent / "results"
"""The cells that the project's page is written from."""

TIME, FIGURES = "table4", "figures"


@dataclass(frozen=True)
class Asked:
    what: str
    quick: bool = False
    only: tuple[str, ...] = ()
    results: Path | None = None

    @property
    def folder(self) -> Path:
        """Where the cells lie; the small version never mixes with the whole one."""
        if self.results is not None:
            return self.results / "quick" if self.quick else self.results
        return Path("results") / "paper-quick" if self.quick else RESULTS


@dataclass(frozen=True)
class Book:
    """The settings, the cells that are there, and the data they are made from."""

    settings: Settings
    store: Store
    sources: Sources


def open_book(asked: Asked) -> Book:
    settings = load_settings(asked.quick)
    check_only(settings, asked.only)
    return Book(settings, Store(asked.folder, settings), Sources(settings))


class Piece(Protocol):
    """A part of the work that is computed together: its grid, what that decides, its runs."""

    @property
    def title(self) -> str:
        """What the command calls it."""

    def next_runs(self, cell: Cell) -> list[Spec]:
        """Return missing runs that can be started now; empty when it is complete."""

    def outlook(self, cell: Cell) -> list[Spec]:
        """Return all missing runs, with stand-ins for those that cannot be named yet."""


def pieces(settings: Settings, asked: Asked) -> list[Piece]:
    """Return what the command is made of, in the order it is computed."""
    if asked.what == TIME:
        return list(timed(settings, asked.only))
    if asked.what == FIGURES:
        # The sets stand in the order of what they cost.
        order = list(settings.data)
        found = sorted(panels(settings, asked.only), key=lambda panel: order.index(panel.data))
        return list(found)
    return list(blocks(settings, settings.tables[asked.what], asked.only))


def expect(book: Book, wanted: Iterable[Piece]) -> Budget:
    missing: Counter[Spec] = Counter()
    for piece in wanted:
        # A stand-in stands for several runs; a run that two pieces want is one run.
        missing |= Counter(piece.outlook(book.store))
    return budget(book.store, book.sources, list(missing.elements()))


def run(asked: Asked, tell: Callable[[str], None], is_budget_only: bool = False) -> dict[str, Any]:
    """Compute what is missing; return every number of what was asked for, which is in a file beside the cells too."""
    book = open_book(asked)
    wanted = pieces(book.settings, asked)
    if not wanted:
        named = f" of --only {' '.join(asked.only)}" if asked.only else ""
        right = "--only must name its data sets or methods"
        if asked.quick and pieces(load_settings(), asked):
            right = (
                "--quick leaves out Sent140, whose runs take most of an hour, so it must be asked for without --quick"
            )
        raise InputError(f"{asked.what} has nothing{named} to compute: {right}")
    with locked(asked.folder):
        cost = expect(book, wanted)
        tell(f"{asked.what}: {cost}; cells in {asked.folder}")
        if not is_budget_only:
            if asked.what == TIME and cost.runs:
                first = next(spec for piece in wanted for spec in piece.outlook(book.store))
                calibrate(first, book.sources)  # so that no timed run has to warm up
            compute(book.store, book.sources, wanted, tell)
            write_json(asked.folder / f"{asked.what}.json", numbers(book, asked.what))
            if asked.what == FIGURES:
                draw_figures(book, asked.folder)
    return numbers(book, asked.what, asked.only)


def compute(
    store: Store, sources: Sources, wanted: Iterable[Piece], tell: Callable[[str], None], progress: bool = True
) -> None:
    """Compute pieces in order: the tries of a grid, what they decide, the runs themselves."""
    for piece in wanted:
        while missing := piece.next_runs(store):
            kind = "tries of the grid" if missing[0].part == "validation" else "runs"
            tell(f"{piece.title}: {len(missing)} {kind}")
            run_specs(store, sources, missing, progress)
    store.fold()


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


def numbers(book: Book, what: str, only: Sequence[str] = ()) -> dict[str, Any]:
    """Return every number of a table or of the private figures, as plain values."""
    if what == TIME:
        rows = [one.as_json(book.store) for one in timed(book.settings, only)]
        return {"table": what, "is_quick": book.settings.is_quick, "rows": rows}
    if what == FIGURES:
        found = [panel_json(panel, book.store) for panel in panels(book.settings, only)]
        return {"is_quick": book.settings.is_quick, "titles": figure_titles(), "panels": found}
    return fill(book.settings, book.settings.tables[what], book.store, only).as_json()


def all_figures(book: Book) -> dict[str, figures.Picture]:
    """Return every figure, by the name of its file; those without a complete plot are left out."""
    found: dict[str, figures.Picture] = {}
    for name in ("table1", "table2"):
        table = book.settings.tables[name]
        share = f"{100 * table.columns[0].stragglers:g}"
        plots = figures.convergence(book.settings, table, book.store)
        title = f"Loss at equal client work, {share} % stragglers"
        found[f"convergence-{share}"] = figures.Picture(title, "data rounds", tuple(plots))
    every = list(panels(book.settings))
    for name, title in figure_titles().items():
        plots = figures.private([panel for panel in every if panel.figure == name], book.store)
        found[f"private-{name}"] = figures.Picture(title, "iterations", tuple(plots))
    return {name: picture for name, picture in found.items() if picture.is_drawable}


def draw_figures(book: Book, folder: Path) -> list[Path]:
    """Draw every figure of which something is there; return the files."""
    drawn = []
    for name, picture in all_figures(book).items():
        drawn.append(folder / f"reproduction-{name}.png")
        figures.draw(drawn[-1], picture)
    return drawn


def write_json(path: Path, document: dict[str, Any]) -> None:
    write_whole(path, (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())
