"""The notebooks of examples/notebooks, executed by a real kernel from the first cell to the last."""

from __future__ import annotations

from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")

BOOKS = sorted((Path(__file__).parents[1] / "examples" / "notebooks").glob("*.ipynb"))
FEDERATIONS = [path for path in BOOKS if "federation" in path.stem]
"""Those that start processes beside their own."""

# Jupyter's own packages warn of one another.
pytestmark = pytest.mark.filterwarnings("ignore")


def read(path):
    return nbformat.read(path, as_version=4)


def execute(path, folder):
    """Run it; its last cells assert what the text says."""
    book = read(path)
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(book, timeout=600, kernel_name="python3", resources=resources).execute()
    for cell in book.cells:
        for out in cell.get("outputs", ()):
            shown = out.get("data", {})
            assert all(len(text) < 20_000 for kind, text in shown.items() if kind.startswith("text/"))


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in BOOKS if path not in FEDERATIONS], ids=lambda path: path.stem)
def test_a_notebook_runs_from_the_first_cell_to_the_last(path, tmp_path):
    execute(path, tmp_path)


@pytest.mark.federation
@pytest.mark.parametrize("path", FEDERATIONS, ids=lambda path: path.stem)
def test_a_notebook_with_a_federation_runs_and_leaves_no_process(path, tmp_path):
    pytest.importorskip("flwr", reason="Flower is not installed: make test-federation installs it")
    from upcycled.federation.folder import open_folder
    from upcycled.federation.local import down

    try:
        execute(path, tmp_path)
    finally:
        # A cell that fails leaves the rest out, and the last one ends what was started.
        left = [one for found in tmp_path.glob("*/federation.toml") for one in down(open_folder(found.parent))]
    assert left == []


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs_and_says_what_it_is(path):
    book = read(path)
    nbformat.validate(book)
    assert book.cells[0].source.startswith("# ")
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    assert any("assert " in cell.source for cell in code)


def test_there_is_a_notebook_for_each_of_the_paths():
    assert len(BOOKS) >= 7
    assert len(FEDERATIONS) == 1
