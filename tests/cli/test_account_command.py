"""``upcycled privacy account``, and files whose runs are charged to one."""

from __future__ import annotations

import json

import pytest

from upcycled.cli.main import main
from upcycled.privacy import Account

FILE = """
name = "{name}"
iterations = {iterations}
seeds = [0, 1]
results = "results"
[data]
source = "synthetic"
alpha = "iid"
clients = 3
[algorithm]
name = "fedavg"
[privacy]
mechanism = "model_clipping"
clip_norm = 1.0
noise_std = 20.0
noise = "{noise}"
account = "account"
"""


@pytest.fixture
def account(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["privacy", "account", "open", "account", "--epsilon", "2", "--delta", "1e-5"]) == 0
    capsys.readouterr()
    return tmp_path / "account"


def written(name="first", iterations=4, noise="system"):
    with open(f"{name}.toml", "w") as file:
        file.write(FILE.format(name=name, iterations=iterations, noise=noise))
    return f"{name}.toml"


def document(capsys, *words):
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_an_account_is_opened_shown_and_closed(account, capsys):
    shown = document(capsys, "privacy", "account", "show", str(account))
    assert (shown["epsilon"], shown["delta"], shown["closed"], shown["clients"]) == (2.0, 1e-5, False, [])
    assert main(["privacy", "account", "show", str(account)]) == 0
    assert shown["id"] in capsys.readouterr().out
    assert document(capsys, "privacy", "account", "close", str(account))["closed"]
    assert main(["run", written(), "--quiet"]) == 2
    assert "is closed" in capsys.readouterr().err


def test_pots_of_the_command_line(tmp_path, capsys):
    words = ["privacy", "account", "open", str(tmp_path / "a"), "--pot", "gaussian:1.5:1e-6", "--pot", "pure:0.5:0"]
    found = document(capsys, *words)
    assert (found["epsilon"], found["delta"]) == (2.0, 1e-6)
    assert [pot["kind"] for pot in found["pots"]] == ["gaussian", "pure"]
    for wrong in (["--pot", "gaussian:1"], ["--pot", "pure:1:0", "--kind", "pure"], ["--epsilon", "two"], []):
        assert main(["privacy", "account", "open", str(tmp_path / "b"), *wrong]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_seeds_charge_the_account_once_and_what_is_reused_or_simulated_does_not(account, capsys):
    file = written()
    found = document(capsys, "run", file, "--quiet")
    # Two seeds of four data rounds.
    assert Account(account).rounds("0") == 8
    spent = found["seeds"][0]["privacy"]
    assert spent["account"]["id"] == Account(account).id
    assert Account(account).id in spent["scope"]
    assert main(["run", file, "--quiet"]) == 0
    assert Account(account).id in capsys.readouterr().out
    assert main(["run", written("simulated", noise="seeded"), "--quiet"]) == 0
    assert "this run only" in capsys.readouterr().out
    assert Account(account).rounds("0") == 8


def test_seeds_that_do_not_fit_together_are_refused_before_anything_is_written(account, capsys, tmp_path):
    left = int(Account(account).terms.pots[0].limit / (Account(account).terms.pots[0].order * 0.1**2 / 2))
    assert main(["run", written(iterations=left // 2 + 1), "--quiet"]) == 2
    assert (
        f"these 2 runs together: client '0' has 100 % of its budget left, which buys {left}" in capsys.readouterr().err
    )
    assert not (tmp_path / "results").exists()
    assert not Account(account).studies


def test_the_report_says_what_an_epsilon_is_about(account, capsys, tmp_path):
    assert main(["run", written(), "--quiet"]) == 0
    assert main(["report", "results/first"]) == 0
    assert Account(account).id in (tmp_path / "results" / "first" / "report.html").read_text()
