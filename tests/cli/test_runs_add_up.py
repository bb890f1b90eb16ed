"""What private runs cost that stopped and went on, and what several of them cost together."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from upcycled.cli.main import main
from upcycled.privacy import Ledger

CODE = """
import os
from pathlib import Path

def die_once(record):
    if record.iteration == 3 and not Path("died.txt").exists():
        Path("died.txt").touch()
        os._exit(9)
"""
FILE = """
name = "small"
iterations = 4
seeds = [0]
[data]
source = "synthetic"
alpha = "iid"
clients = 3
[algorithm]
name = "fedprox"
mu = 0.5
[privacy]
mechanism = "erm_output"
norm_bound = 1.0
epsilon = 2.0
delta = 1e-5
noise = "system"
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "dying_parts.py").write_text(CODE)
    (tmp_path / "small.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "dying_parts", raising=False)
    return tmp_path


def test_a_run_that_stopped_and_went_on_says_what_it_paid_again_and_why_epsilon_is_larger(here, capsys):
    words = ["run", "small.toml", "--path", ".", "--quiet", "callbacks=['dying_parts:die_once']"]
    words.append("checkpoint_every=100")
    assert subprocess.run([sys.executable, "-m", "upcycled", *words], check=False).returncode == 9
    assert main(words) == 0
    said = capsys.readouterr().out
    ledger = Ledger.read("results/small/seed-0/ledger.jsonl")
    assert [entry.round for entry in ledger] == [1, 2, 3, 1, 2, 3, 4]
    closing = re.search(r"Seed 0: 3 charges are repeats, .* which is why epsilon is (\S+) and not (\S+)\.\n", said)
    assert closing is not None
    # It was calibrated to end at 2; seven rounds in place of four are sqrt(7/4) times mu.
    assert closing.group(2) == "2"
    assert float(closing.group(1)) == pytest.approx(ledger.max_epsilon(1e-5), rel=1e-5)
    assert float(closing.group(1)) > 2.5
    summary = json.loads(Path("results/small/seed-0/summary.json").read_text())["privacy"]
    assert summary["repeats"] == {"charges": 3, "epsilon_without": pytest.approx(2.0, abs=1e-6)}
    assert "3 charges are repeats" in dict(summary["statement_items"])["paid again"]


def test_a_run_that_never_stopped_says_nothing_of_it(here, capsys):
    assert main(["run", "small.toml", "--quiet"]) == 0
    assert "repeat" not in capsys.readouterr().out
    assert json.loads(Path("results/small/seed-0/summary.json").read_text())["privacy"]["repeats"] is None
