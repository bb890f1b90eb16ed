"""Compute what is missing of the study of coefficients, and write docs/coefficients.md.

    python -m studies.coefficients                  everything that is not there yet, then the page
    python -m studies.coefficients choices|syn|femnist|private|page
    python -m studies.coefficients --quick          one set, two algorithms, two seeds, in a temporary folder

Cells are kept one by one in the folder results, so that a stopped command goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from studies.coefficients import choices, femnist, page, private, syn
from studies.coefficients import settings as s
from studies.common.store import Cells, compute_cells

PARTS = ("choices", "syn", "femnist", "private", "page")


def tell(what: str) -> Callable[[int, int], None]:
    def line(done: int, total: int) -> None:
        if done % 200 == 0 or done == total:
            print(f"{what}: {done} of {total} runs", file=sys.stderr, flush=True)

    return line


def compute(cells: Cells, wanted: choices.Wanted, what: str) -> None:
    missing = sum(key not in cells for key in wanted)
    print(f"{what}: {missing} of {len(wanted)} runs to do", file=sys.stderr, flush=True)
    compute_cells(cells, wanted, s.value_of, progress=False, tell=tell(what))
    cells.fold()


def run_choices(folder: Path, sets: tuple[str, ...], algorithms: tuple[str, ...]) -> None:
    chosen = s.opened("choices", folder)
    compute(chosen, choices.lr_runs(sets, algorithms), "learning rates")
    compute(chosen, choices.larger_runs(chosen, sets, algorithms), "larger learning rates")
    compute(chosen, choices.way_runs(chosen, sets, algorithms), "constants and server steps")


def run_syn(folder: Path, sets: tuple[str, ...], algorithms: tuple[str, ...], seeds: tuple[int, ...]) -> None:
    chosen = s.opened("choices", folder)
    compute(s.opened("syn", folder), syn.runs(chosen, sets, algorithms, seeds), "comparison")


def run_femnist(folder: Path, algorithms: tuple[str, ...], seeds: tuple[int, ...]) -> None:
    cells = s.opened("femnist", folder)
    compute(cells, femnist.lr_runs(algorithms), "FEMNIST learning rates")
    compute(cells, femnist.way_runs(cells, algorithms), "FEMNIST constants and server steps")
    compute(cells, femnist.test_runs(cells, algorithms, seeds), "FEMNIST comparison")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", help=f"{', '.join(PARTS)}; all of them if none is named")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    parts = asked.part or PARTS
    if unknown := set(parts) - set(PARTS):
        parser.error(f"part {sorted(unknown)} is not known: it must be of {', '.join(PARTS)}")
    if asked.quick:
        with tempfile.TemporaryDirectory() as folder:
            where = Path(folder)
            run_choices(where, ("iid",), ("FedAvg", "FedProx"))
            run_syn(where, ("iid",), ("FedAvg", "FedProx"), s.SEEDS[:2])
            page.show(where, ("iid",), ("FedAvg", "FedProx"), s.SEEDS[:2])
        return
    if "syn" in parts or "choices" in parts:
        run_choices(s.CELLS, s.SETS, tuple(s.ALGORITHMS))
        run_syn(s.CELLS, s.SETS, tuple(s.ALGORITHMS), s.SEEDS)
    if "femnist" in parts:
        run_femnist(s.CELLS, femnist.ALGORITHMS, femnist.SEEDS)
    if "private" in parts:
        compute(s.opened("private"), private.runs(s.SETS, private.SEEDS), "private")
    if "page" in parts:
        page.write()


if __name__ == "__main__":
    main()
