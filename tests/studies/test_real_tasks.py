"""A federation of ten clients learns what plain torch learns from the pooled rows in as many epochs."""

import pytest

pytest.importorskip("sklearn", reason="the sets come with scikit-learn (extra metrics)")

from studies.real_tasks import Outcome, cells, outcome

CELLS = {f"{cell.model}-{cell.task}": cell for cell in cells()}


def test_the_nine_cells_are_three_models_and_three_tasks():
    assert len(CELLS) == 9


def test_a_shortfall_is_positive_where_the_federation_is_worse():
    """AUROC 0.90 against 0.95: 0.05 worse; RMSE 1.1 against 1.0: a tenth worse."""
    assert Outcome(CELLS["linear-binary"], (0.90,), (0.95,)).shortfall == pytest.approx(0.05)
    assert Outcome(CELLS["linear-number"], (1.1,), (1.0,)).shortfall == pytest.approx(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", CELLS)
def test_a_federation_learns_what_central_training_does(name):
    found = outcome(CELLS[name], range(3))
    assert found.shortfall < found.allowed, found
