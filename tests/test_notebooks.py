"""The notebooks of examples/notebooks, executed by a real kernel from the first cell to the last."""

from __future__ import annotations

from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")

BOOKS = sorted((Path(__file__).parents[1] / "examples" / "notebooks").glob("*.ipynb"))

# Jupyter's own packages warn of one another.
pytestmark = pytest.mark.filterwarnings("ignore")


def read(path):
    return nbformat.read(path, as_version=4)


@pytest.mark.slow
@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_the_first_cell_to_the_last(path, tmp_path):
    book = read(path)
    client = nbclient.NotebookClient(
        book, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()  # its last cells assert what the text says
    for cell in book.cells:
        for out in cell.get("outputs", ()):
            shown = out.get("data", {})
            assert all(len(text) < 20_000 for kind, text in shown.items() if kind.startswith("text/"))


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs_and_says_what_it_is(path):
    book = read(path)
    nbformat.validate(book)
    assert book.cells[0].source.startswith("# ")
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    assert any("assert " in cell.source for cell in code)


def test_there_is_a_notebook_for_each_of_the_paths():
    assert len(BOOKS) >= 6
