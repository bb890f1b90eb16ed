"""``python -m studies.paper``: budget first, cells kept, gaps named, wrong use in one sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import upcycled as up
from studies.common.store import Cells, write_cells
from studies.paper import __main__ as command
from studies.paper.__main__ import main
from tests.wording import has_all
from upcycled._utils.lock import locked
from upcycled.cli.main import main as upcycled_main

ROOT = Path(__file__).parents[2]
QUICK = ["table1", "--quick", "--only", "syn_iid", "fedavg", "fedavg_server_lr"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder, and a data folder with one small set under an official name."""
    folder = tmp_path / "data"
    folder.mkdir()
    data = up.data.synthetic("iid", clients=5, dim=4, sizes=30, seed=0)
    arrays = {}
    for part, shards in (("train", data.train), ("test", data.test)):
        found = {"x": shards.x, "y": shards.y, "client": np.repeat(np.arange(5), shards.sizes)}
        arrays |= {f"syn_iid_{part}_{key}": value for key, value in found.items()}
    np.savez(folder / "upcycled_synthetic.npz", **arrays)
    monkeypatch.setenv("UPCYCLED_DATA", str(folder))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_budget_comes_first_then_the_table_and_a_second_call_has_nothing_to_do(here, capsys):
    assert main(QUICK) == 0
    out, err = capsys.readouterr()
    # FedAvg: 2 learning rates, times 2 rho; the ablation: 2 x 2; 2 seeds of each of three.
    first = err.splitlines()[0]
    assert first.startswith("table1: 16 runs to do, about ")
    assert "core-minutes" in first
    assert "Syn(iid), 90 % stragglers, 20 data rounds" in out
    assert "FedAvg, server lr tuned" in out
    assert "These numbers cannot be set beside the paper's" in out
    assert "98.06" not in out
    assert main([*QUICK, "--json"]) == 0
    out, err = capsys.readouterr()
    assert has_all(err, "nothing", "runs")
    found = json.loads(out)
    assert [row["method"] for row in found["rows"]] == ["fedavg", "fedavg_server_lr"]
    kept = json.loads((here / "results" / "paper-quick" / "table1.json").read_text())
    assert kept["runs"]["missing"] > 0  # the file holds the whole table, --only or not
    assert found["rows"][0] in kept["rows"]


def test_a_command_that_is_stopped_says_what_is_kept_and_how_to_go_on(here, capsys, monkeypatch):
    def stopped(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(command.running, "compute", stopped)
    assert main(QUICK) == 130
    words = " ".join(QUICK)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"error: stopped by Ctrl-C; finished runs are kept; to go on: python -m studies.paper {words}"


def test_edges_of_grids_are_counted_where_there_is_a_grid(capsys):
    sides = [{"at_edge": ["lr", "rho"]}, {"at_edge": []}, {"at_edge": None}, None]
    command._show_edges([{"vanilla": one, "upcycled": other} for one in sides[:1] for other in sides])
    out = capsys.readouterr().out
    # Four rows: four vanilla sides and three upcycled ones, of which one has no choice yet.
    assert "The learning rate is at an edge of its grid in 5 of 6 choices" in out
    assert "rho is at an edge of its grid in 5 of 6 choices" in out


def test_a_budget_alone_computes_nothing(here, capsys):
    assert main([*QUICK, "--budget", "--results", "elsewhere"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "16 runs to do" in err
    assert not list((here / "elsewhere").glob("syn-*"))


@pytest.mark.slow
def test_times_and_private_figures_have_tables_too(here, capsys):
    assert main(["table4", "--quick", "--only", "fedavg"]) == 0
    assert "Training time at equal iterations" in capsys.readouterr().out
    assert main(["figures", "--quick", "--only", "syn_iid", "fedprox"]) == 0
    out = capsys.readouterr().out
    assert "Output perturbation at the paper's noise" in out
    assert "not private" in out
    assert "These numbers cannot be set beside the paper's" in out
    folder = here / "results" / "paper-quick"
    assert (folder / "reproduction-private-output.png").read_bytes()[:4] == b"\x89PNG"
    panels = json.loads((folder / "figures.json").read_text())["panels"]
    assert sum(panel["runs"]["missing"] == 0 for panel in panels) == 4


def test_without_data_one_sentence_says_where_it_must_be(here, monkeypatch, capsys, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("UPCYCLED_DATA", str(empty))
    monkeypatch.setenv("XDG_CACHE_HOME", str(empty))
    for name, words in (("syn", "upcycled_synthetic.npz"), ("femnist", "data fetch femnist"), ("sent140", "sent140")):
        assert main(["table1", "--only", name, "fedavg", "--results", "x"]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert "UPCYCLED_DATA" in err
        assert words in err


def test_wrong_words_are_wrong_use(here, capsys):
    for words, sentence in (
        (["table5"], "WHAT is 'table5', but it must be known"),
        (["table1", "--only", "fedavgg"], "--only is 'fedavgg', but it must be a data set or a method"),
        (["table3", "--only", "syn"], "table3 has nothing of --only syn to compute: --only must name"),
        (["sent140", "--quick"], "so it must be asked for without --quick"),
        (["sent140", "--only", "scaffold"], "sent140 has nothing of --only scaffold to compute"),
        (["table4", "--only", "femnist"], "table4 has nothing of --only femnist to compute"),
        (["table1", "--only", ""], "--only is '', but it must name data sets or methods"),
        (["table1", "--only", "syn", ","], "--only is ',', but it must name data sets or methods"),
    ):
        assert main(words) == 2
        assert sentence in capsys.readouterr().err
    assert not (here / "results").exists()


def test_a_second_command_on_the_same_folder_is_told(here, capsys):
    with locked(here / "busy" / "quick"):
        assert main([*QUICK, "--results", "busy"]) == 1
    assert "in use" in capsys.readouterr().err


def test_help_names_every_table_and_no_word_at_all_is_wrong_use(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "usage: python -m studies.paper" in shown
    assert all(f"\n  {name} " in shown for name in command.WHAT)
    assert main([]) == 2
    assert main(["table1", "--fast"]) == 2


def test_the_package_itself_has_no_such_command(capsys):
    assert upcycled_main(["paper", "table1"]) == 2
    assert "command 'paper'" in capsys.readouterr().err


@pytest.mark.slow
def test_it_runs_as_a_module_from_the_repository(here):
    words = [sys.executable, "-m", "studies.paper", "table5"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: WHAT is 'table5', but it must be known")


@pytest.fixture
def page(here, monkeypatch):
    """A page, and no cells to write it from."""
    (here / "docs").mkdir()
    found = here / "docs" / "reproduction.md"
    found.write_text("numbers\n<!-- status: begin -->\nas they were\n<!-- status: end -->\n")
    monkeypatch.setattr(command, "PAGE", found)
    monkeypatch.setattr(command, "IMAGES", here / "docs" / "images")
    monkeypatch.setattr(command.running, "RESULTS", here / "cells")
    return found


@pytest.mark.parametrize(
    "options", [["--quick"], ["--only", "syn"], ["--budget"], ["--results", "x"], ["--json"], ["--only", ""]]
)
def test_the_page_is_written_whole_or_not_at_all_so_options_are_refused(page, options, capsys):
    before = page.read_text()
    assert main(["document", *options]) == 2
    out, err = capsys.readouterr()
    assert has_all(err, "document", options[0], page, "cells")
    assert (out, err.count("\n"), page.read_text()) == ("", 1, before)


def test_without_cells_the_page_stays_as_it_was(page, capsys):
    before = page.read_text()
    write_cells(command.running.RESULTS / "syn-test.parquet", {})
    assert main(["document"]) == 2
    assert has_all(capsys.readouterr().err, command.running.RESULTS, "cells")
    assert page.read_text() == before


def test_the_page_is_written_beside_a_running_command_and_its_half_line_stays(page, capsys):
    cells = command.running.RESULTS / "syn-test.jsonl"
    cells.parent.mkdir()
    run = "syn_iid|test|fedavg|lr=0.1|vanilla|T=80|stragglers=0.9|clients=0.3|epochs=10|batch=32|momentum=0.5|seed=0"
    cells.write_text(json.dumps({"key": run, "accuracy": 0.5, "loss": 1.0}) + '\n{"key":"syn_ii')
    before = cells.read_bytes()
    with locked(cells.parent):
        assert main(["document"]) == 0
    assert "as they were" not in page.read_text()
    assert "docs/reproduction.md" in capsys.readouterr().out
    assert cells.read_bytes() == before
    assert not cells.with_suffix(".parquet").exists()


@pytest.mark.slow
def test_a_whole_table_brings_its_page_up_to_date_and_a_small_one_does_not(page, monkeypatch, capsys):
    before = page.read_text()
    assert main(QUICK) == 0
    assert page.read_text() == before
    monkeypatch.setattr(command.running, "compute", lambda *arguments: None)
    assert main(["table4", "--only", "fedavg"]) == 0
    assert "as they were" not in page.read_text()
    assert (command.running.RESULTS / "table4.json").exists()


def test_tries_that_all_diverge_are_said_to_and_not_promised_again(here, capsys):
    words = ["table1", "--quick", "--only", "syn_iid", "fedavg"]
    assert main(words) == 0
    path = here / "results" / "paper-quick" / "syn-validation.parquet"
    kept = {key: {"error": "diverged"} if "rho=" in key else cell for key, cell in Cells(path).items()}
    write_cells(path, kept)
    capsys.readouterr()
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert "nothing to do" in err
    assert "No setting of the grid works, every try diverged: fedavg on syn_iid, upcycled." in out
    assert "goes on with them" not in out
