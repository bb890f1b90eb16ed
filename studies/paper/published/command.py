"""``python -m studies.paper as-published``: computes what the chain misses, run by run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from studies.common.store import Cells, compute_cells
from studies.paper.plan import Block
from studies.paper.published.chain import LOSSES, Known, Run, chain, next_runs, pairs
from studies.paper.published.page import block_of
from studies.paper.sources import Sources, Store, check_data
from studies.paper.spec import brief

FOLDER = "as-published"
"""Of the chain's own cells, in the folder of the reproduction's: their keys are others."""


def published_block(store: Store) -> list[str]:
    """Return the page's block from the cells that are there."""
    wanted = pairs(store.settings)
    return block_of(*chain(wanted, known_in(store)), wanted, store.settings)


def known_in(store: Store) -> Known:
    return Known(Cells(_path(store)), store)


def _path(store: Store) -> Path:
    return store.folder / FOLDER / "cells.parquet"


def arguments_of(sources: Sources, run: Run) -> dict[str, object]:
    spec = run.spec
    data = sources.data(spec.data, spec.part)
    return spec.arguments(data, sources.model(spec.data), spec.data_rounds) | {"loss": LOSSES[run.softmax]}


def compute(known: Known, sources: Sources, wanted: list[Block], tell: Callable[[str], None]) -> None:
    """Compute what is missing, pair by pair: tries first, and then what they decide."""
    for block in wanted:
        while missing := next_runs([block], known):
            tell(f"as-published, {block.title}: {len(missing)} runs")
            for part in dict.fromkeys(run.spec.part for run in missing):
                check_data(known.store, sources, block.column.data, part)
            runs = {run.key: partial(arguments_of, sources, run) for run in missing}
            compute_cells(known.own, runs, brief, progress=False)
    known.own.fold()
