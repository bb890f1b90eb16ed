"""The recorded study: a cell computed again gives what is on the page."""

from __future__ import annotations

import pytest

import upcycled as up
from studies.common.store import Cells
from studies.theory_bound import study


def test_every_recorded_run_that_meets_the_assumptions_is_within_the_proven_bounds():
    kept = Cells(study.CELLS)
    recorded = {cell.key: kept[cell.key] for cell in study.cells(quick=False)}
    met = [run for run in recorded.values() if run["forms"]["sharp"]["applies"]]
    assert len(met) > 50
    for form in ("repaired", "sharp"):
        assert all(run["forms"][form]["holds"] for run in met if run["forms"][form]["applies"])
        assert all(run["forms"][form]["bound"] >= run["average"] for run in met if run["forms"][form]["applies"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iid", "1,1"])
def test_a_recorded_cell_can_be_computed_again(shared_data, monkeypatch, name):
    monkeypatch.setenv("UPCYCLED_DATA", str(shared_data))
    cell = study.Cell("exact", name, "c = 0.5", 1)
    kept = Cells(study.CELLS)[cell.key]
    data = study.load(cell.kind, name)
    again = study.kept_of(up.train(**study.arguments(cell, data, kept["mu"], study.ROUNDS), progress=False), kept["mu"])
    # Other processors sum float32 in another order.
    assert again["average"] == pytest.approx(kept["average"], rel=1e-4)
    assert again["forms"]["repaired"]["bound"] == pytest.approx(kept["forms"]["repaired"]["bound"], rel=1e-4)
    assert again["dissimilarity"] == pytest.approx(kept["dissimilarity"], rel=1e-4)
