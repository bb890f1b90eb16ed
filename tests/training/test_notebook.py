"""A notebook with a real kernel: what a researcher sees is short, and progress ends at 100 %."""

from __future__ import annotations

import re

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

MOST = 2000
SET_UP = """\
import upcycled as up
from upcycled.training import progress
progress.QUIET_SECONDS = progress.NOTEBOOK_SECONDS = 0.0
data = up.data.synthetic(0.5, 0.5, clients=30, seed=0)
asked = {"algorithm": up.FedAvg(), "engine": "sequential"}
"""
CELLS = {
    "description": "data.describe()",
    "result": "result = up.train(data, **asked, upcycle=0.5, iterations=40)\nresult",
    "history": "result.history",
    "comparison": "found = up.compare(data, **asked, iterations=10, seeds=(0, 1))\nfound",
    "plot": "found.plot();",
    "error": "x = 1\nup.FedProx(mu=-1)",
}


@pytest.fixture(scope="module")
def executed():
    cells = [nbformat.v4.new_code_cell(text) for text in (SET_UP, *CELLS.values())]
    book = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3", allow_errors=True).execute()
    assert not [out for out in book.cells[0].outputs if out.output_type == "error"]
    return dict(zip(CELLS, (cell.outputs for cell in book.cells[1:]), strict=True))


# Jupyter's own packages warn of one another.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("name", ["description", "result", "history", "comparison"])
def test_what_a_cell_ends_in_is_shown_in_under_2_kb(executed, name):
    (shown,) = [out.data for out in executed[name] if out.output_type == "execute_result"]
    assert set(shown) == {"text/plain", "text/html"}
    assert all(0 < len(text.encode()) < MOST for text in shown.values())
    assert "<table>" in shown["text/html"]


@pytest.mark.parametrize(("name", "words"), [("result", "iteration 40/40"), ("comparison", r"6.*6.*done")])
def test_progress_stays_in_one_place_and_ends_at_100_percent(executed, name, words):
    (bar,) = [out.data for out in executed[name] if out.output_type == "display_data"]
    assert "100 %" in bar["text/plain"]
    assert re.search(words, bar["text/plain"])
    assert 'value="1.000"' in bar["text/html"]


def test_a_plot_is_a_picture(executed):
    (picture,) = [out.data for out in executed["plot"] if out.output_type == "display_data"]
    assert "image/png" in picture


def test_an_error_is_the_users_line_and_one_sentence(executed):
    (error,) = executed["error"]
    assert error.traceback == [
        "line 2: up.FedProx(mu=-1)",
        "InputError: FedProx mu is -1, but it must be a finite number >= 0",
    ]
