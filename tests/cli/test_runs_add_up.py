"""What private runs cost that stopped and went on, and what several of them cost together."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from tests.privacy.runs import cohort, setting
from upcycled.cli.main import main
from upcycled.privacy import DPSGD, Ledger
from upcycled.privacy.accounting import gdp_epsilon
from upcycled.privacy.ledger.joint import FIXED_ONLY, cost_together, is_quickly_composed, joint_epsilon
from upcycled.report import write_report

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


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Three finished seeds with real noise, and what the command said at their end."""
    folder = tmp_path_factory.mktemp("three")
    (folder / "small.toml").write_text(FILE.replace("seeds = [0]", "seeds = [0, 1, 2]"))
    out = StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out):
        patch.chdir(folder)
        assert main(["run", "small.toml", "--quiet"]) == 0
    return folder / "results" / "small", out.getvalue()


def composed(folder):
    """By hand: seeds of the same mu are one Gaussian of sqrt(3) mu, but for what its sampler costs."""
    ledgers = [Ledger.read(path) for path in sorted(folder.glob("seed-*/ledger.jsonl"))]
    squares = [(entry.charge.sensitivity / entry.charge.noise_std) ** 2 for ledger in ledgers for entry in ledger]
    by_hand = gdp_epsilon(mu=float(np.sqrt(np.sum(squares, axis=0)).max()), delta=1e-5)
    stated = float(joint_epsilon(ledgers, 1e-5).max())
    assert by_hand < stated < by_hand * 1.001
    return len(ledgers), stated


def test_seeds_on_the_same_records_are_stated_together_beside_the_worst_of_a_run(three, capsys):
    folder, said = three
    runs, epsilon = composed(folder)
    assert runs == 3
    assert epsilon > 3.5
    assert "proven epsilon 2.000 for the worst client" in said
    stated = f"epsilon {epsilon:.3f} for the worst client at delta 1e-05, {FIXED_ONLY}"
    assert f"All 3 runs together: {stated}.\n" in said
    page = write_report(folder).read_text()
    assert "<dt>Worst ε of a run</dt><dd>2.000</dd>" in page
    assert f"<dt>ε of an experiment&#39;s 3 runs together</dt><dd>{epsilon:.3f}</dd>" in page
    assert f"All 3 runs together: {stated}.</p>" in page
    assert main(["privacy", "ledger", *(str(path) for path in sorted(folder.glob("seed-*")))]) == 0
    assert f"{epsilon:.3f}" in capsys.readouterr().out


def test_the_document_has_it_and_a_seed_alone_or_a_simulation_has_nothing_to_add(three, here, capsys):
    folder, _ = three
    words = ["run", str(folder.parents[1] / "small.toml"), f"results={folder.parent}", "--json", "--quiet"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)["together"]
    assert found == {"runs": 3, "epsilon": pytest.approx(composed(folder)[1]), "delta": 1e-5, "why_not": None}
    for more in (["seeds=[0]"], ["seeds=[0, 1]", "privacy.noise=seeded", "name=other"]):
        assert main(["run", "small.toml", "--json", "--quiet", *more]) == 0
        assert json.loads(capsys.readouterr().out)["together"] is None
    assert cost_together([here / "results" / "small" / "seed-0", here / "results" / "other" / "seed-0"]) is None


def test_stopped_runs_and_earlier_attempts_count_and_what_cannot_be_composed_is_said(three, tmp_path):
    folder = tmp_path / "small"
    shutil.copytree(three[0], folder)
    (folder / "seed-2" / "summary.json").unlink()  # it goes on, or was given up: what it released was seen
    assert cost_together(sorted(folder.glob("seed-*"))).epsilon == pytest.approx(composed(folder)[1])
    (folder / "seed-1" / "ledger.jsonl").rename(folder / "seed-0" / "ledger-2.jsonl")
    (folder / "seed-0" / "summary.json").rename(folder / "seed-1" / "summary.json")
    assert cost_together(sorted(folder.glob("seed-*"))).runs == 3
    shutil.copy(folder / "seed-2" / "ledger.jsonl", folder / "seed-1" / "ledger.jsonl")
    (folder / "seed-1" / "summary.json").unlink()
    found = cost_together(sorted(folder.glob("seed-*")))
    assert found.epsilon is None
    assert found.words.startswith("What these 4 runs cost together is not stated here: two of the ledgers are of run ")


def test_a_page_says_where_runs_are_not_composed_and_never_asks_the_key(three, tmp_path, monkeypatch):
    folder = tmp_path / "small"
    shutil.copytree(three[0], folder)
    monkeypatch.setattr("upcycled.privacy.ledger.joint._key", None)  # whoever calls it fails
    assert "All 3 runs together" in write_report(folder).read_text()
    monkeypatch.setattr("upcycled.privacy.ledger.joint.is_quickly_composed", lambda ledgers: False)
    page = write_report(folder).read_text()
    assert "runs together</dt><dd>not composed</dd>" in page
    assert "is not stated here: `upcycled privacy ledger` composes them, which takes long.</p>" in page


@pytest.mark.parametrize(("clients", "is_quick"), [(16, True), (17, False)])
def test_many_clients_with_sampled_charges_are_not_composed_unasked(clients, is_quick):
    facts = setting(noise="system", sizes=[50] * clients)
    fitted = DPSGD(1.0, 1.5).fit(facts)
    ledger = Ledger(fitted, "system", facts)
    ledger.charge(1, 1, 0, fitted.charge(cohort(range(clients))))
    assert is_quickly_composed([ledger, ledger]) == is_quick
