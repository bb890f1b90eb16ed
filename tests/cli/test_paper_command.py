"""``upcycled paper``: budget first, cells kept, gaps named, wrong use in one sentence."""

from __future__ import annotations

import json

import numpy as np
import pytest

import upcycled as up
from upcycled.cli.main import main
from upcycled.runtime.hold import hold

QUICK = ["paper", "table1", "--quick", "--only", "syn_iid", "fedavg", "fedavg_server_lr"]


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
    assert "nothing to do: all runs are there" in err
    found = json.loads(out)
    assert [row["method"] for row in found["rows"]] == ["fedavg", "fedavg_server_lr"]
    kept = json.loads((here / "results" / "paper-quick" / "table1.json").read_text())
    assert kept["runs"]["missing"] > 0  # the file holds the whole table, --only or not
    assert found["rows"][0] in kept["rows"]


def test_a_budget_alone_computes_nothing(here, capsys):
    assert main([*QUICK, "--budget", "--results", "elsewhere"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "16 runs to do" in err
    assert not list((here / "elsewhere").glob("cells-*"))


def test_times_and_private_figures_have_tables_too(here, capsys):
    assert main(["paper", "table4", "--quick", "--only", "fedavg"]) == 0
    assert "Training time at equal iterations" in capsys.readouterr().out
    assert main(["paper", "figures", "--quick", "--only", "syn_iid", "fedprox"]) == 0
    out = capsys.readouterr().out
    assert "Output perturbation at the paper's noise" in out
    assert "not private" in out
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
        assert main(["paper", "table1", "--only", name, "fedavg", "--results", "x"]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert "UPCYCLED_DATA" in err
        assert words in err


def test_wrong_words_are_wrong_use(here, capsys):
    for words, sentence in (
        (["paper", "table5"], "WHAT is 'table5', but it must be known"),
        (["paper", "table1", "--only", "fedavgg"], "--only is 'fedavgg', but it must be a data set or a method"),
        (["paper", "table3", "--only", "syn"], "table3 has nothing of --only syn to compute: --only must name"),
        (["paper", "sent140", "--quick"], "so it must be asked for without --quick"),
        (["paper", "document"], "there is no docs/reproduction.md here"),
    ):
        assert main(words) == 2
        assert sentence in capsys.readouterr().err
    assert not (here / "results").exists()


def test_a_second_command_on_the_same_folder_is_told(here, capsys):
    with hold(here / "busy"):
        assert main([*QUICK, "--results", "busy"]) == 1
    assert "in use" in capsys.readouterr().err
