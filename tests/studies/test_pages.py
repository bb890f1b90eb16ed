"""Pages of the documentation are what today's code writes from the committed cells."""

from __future__ import annotations

import json
import re

import pytest

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


def is_current(page, blocks):
    text = page.read_text()
    assert all(f"<!-- {name}: begin -->" in text for name in blocks)
    return replaced(text, blocks) == text


def test_the_noises_of_the_privacy_page_are_those_of_the_cells():
    assert is_current(spending.PAGE, spending.blocks(Cells(spending.CELLS)))


def test_the_tables_of_the_page_of_reuse_are_those_of_the_cells():
    assert is_current(reuse.PAGE, reuse.blocks(Cells(reuse.CELLS)))


def test_the_readme_says_of_reuse_what_the_page_says():
    """Reuse minus vanilla with the same weights, and what the weights gain alone, for three studies; so do the FAQ."""
    page, readme, faq = (
        " ".join((ROOT / name).read_text().split()) for name in ("docs/reuse.md", "README.md", "docs/faq.md")
    )
    titles = ("FedProx, ErmOutput", "FedProx (mu 1), ObjectivePerturbation", "FedDyn by n_i, ErmOutput")
    number = r"[+-]\d+\.\d\d"
    shown, alone = [], []
    for title in titles:
        found = re.search(
            rf"- {re.escape(title)}: reuse minus vanilla 80, weights: ([^:]*?) points, (\d+ seeds)"
            rf".*?The weights alone [^:]*: ({number})\.",
            page,
        )
        shown.append((found[1].replace("*", ""), found[2]))
        alone.append(found[3])
    assert f"ErmOutput {alone[0]} points, objective perturbation {alone[1]}, FedDyn {alone[2]}. Reuse" in readme
    assert "same weights: " + "; ".join(f"{difference}, {seeds}" for difference, seeds in shown) in readme
    assert "{} points {}".format(*shown[0][0].split(" ", 1)) in faq


def test_the_decisive_baseline_of_reuse_has_every_seed_of_reuse():
    """Vanilla with as many data rounds as reuse has iterations, and the same weights: without it no gain is shown."""
    kept = Cells(reuse.CELLS)
    assert reuse.BASELINES[reuse.WEIGHTED] == {"iterations": 80, "aggregation": reuse.REUSE["aggregation"]}
    for name in (*reuse.MAIN, "participation-fedprox", "generated-fedprox"):
        for where in reuse.places(name):
            seeds = reuse.shared_seeds(kept, where, {reuse.WEIGHTED: name, reuse.OURS: name})
            assert len(seeds) == reuse.ROWS[name].seeds >= 8


def test_the_bounds_of_the_theory_page_are_those_of_the_cells():
    assert is_current(theory.PAGE, theory.blocks(Cells(theory_bound.CELLS)))


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
