"""Pages of the documentation are what today's code writes from the committed cells."""

from __future__ import annotations

import json
import re

import pytest

from studies.coefficients import page as coefficients
from studies.coefficients import settings
from studies.common.data import ROOT
from studies.common.page import replaced, write_page
from studies.common.store import Cells
from studies.reuse import study as reuse
from studies.spending import study as spending
from studies.theory_bound import page as theory
from studies.theory_bound import study as theory_bound
from upcycled.core.errors import InputError

RAW = 3_000_000
"""Bytes that all studies' results may have together in the repository."""


@pytest.fixture(scope="module")
def coefficient_cells():
    return coefficients.all_cells()


def is_current(page, blocks):
    text = page.read_text()
    assert all(f"<!-- {name}: begin -->" in text for name in blocks)
    return replaced(text, blocks) == text


def test_the_noises_and_the_advice_of_the_privacy_page_are_those_of_the_cells():
    assert is_current(spending.PAGE, spending.blocks(Cells(spending.CELLS)))


def test_the_tables_of_the_page_of_reuse_are_those_of_the_cells():
    assert is_current(reuse.PAGE, reuse.blocks(Cells(reuse.CELLS)))


def test_the_readme_says_of_reuse_what_the_page_says():
    """Its four numbers are the page's, rounded: mean gains of three studies, and the first one's at epsilon 0.5."""
    page, readme = reuse.PAGE.read_text(), " ".join((ROOT / "README.md").read_text().split())
    prox, dyn, objective = (
        float(re.search(rf"^- {re.escape(of)}: mean gain \+([0-9.]+)", page, re.MULTILINE)[1])
        for of in ("FedProx, ErmOutput", "FedDyn by n_i, ErmOutput", "FedProx (mu 1), ObjectivePerturbation")
    )
    small = float(re.search(r"^- FedProx, ErmOutput.*?\+([0-9.]+) at 0\.5", page, re.MULTILINE)[1])
    assert f"gain {prox:.1f} points over the best of three baselines for FedProx" in readme
    assert (
        f"({small:.1f} at epsilon 0.5), {objective:.1f} with objective perturbation and {dyn:.1f} for FedDyn" in readme
    )


def test_the_bounds_of_the_theory_page_are_those_of_the_cells():
    assert is_current(theory.PAGE, theory.blocks(Cells(theory_bound.CELLS)))


@pytest.mark.slow
def test_the_page_of_coefficients_is_written_from_its_cells(coefficient_cells):
    assert is_current(coefficients.PAGE, coefficients.blocks(coefficient_cells))


def test_the_summary_of_coefficients_is_that_of_its_cells(coefficient_cells):
    kept = Cells(settings.CELLS / "summary.parquet")
    assert dict(kept.items()) == coefficients.summary_rows(coefficient_cells)


def test_all_that_studies_keep_in_the_repository_is_small():
    kept = [path for path in ROOT.glob("studies/*/results/*") if path.suffix in (".parquet", ".json")]
    assert len(kept) > 20
    assert sum(path.stat().st_size for path in kept) < RAW
    for path in kept:
        if path.suffix == ".json":
            json.loads(path.read_text())


def test_a_page_with_half_a_pair_of_marks_is_refused_and_stays_as_it_was(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- x: begin -->\nold\n")
    with pytest.raises(InputError, match="both marks must be there"):
        write_page(page, {"x": ["new"]})
    assert page.read_text() == "a\n<!-- x: begin -->\nold\n"
