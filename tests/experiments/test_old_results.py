"""Folders that the version before wrote: they report and compare, their checkpoints are refused, their ledgers read."""

import json
import shutil
from pathlib import Path

import pytest

import upcycled as up
from upcycled.cli.main import main

OLD = Path(__file__).parent / "old_results"


@pytest.fixture
def here(tmp_path, monkeypatch):
    shutil.copytree(OLD, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_finished_run_is_recognised_and_not_run_again(here, capsys):
    assert main(["run", "old.toml", "--quiet", "--json"]) == 0
    seeds = json.loads(capsys.readouterr().out)["seeds"]
    assert [seed["status"] for seed in seeds] == ["reused", "reused"]


def test_another_setting_is_told_from_the_old_one(here, capsys):
    assert main(["run", "old.toml", "local.lr=0.5", "--quiet"]) == 2
    assert "local.lr is 0.5, but" in capsys.readouterr().err


def test_a_comparison_is_made_of_its_runs_and_reported(here, capsys):
    before = json.loads(Path("results/old/compare-work/compare.json").read_text())
    assert main(["compare", "old.toml", "--quiet", "--json"]) == 0
    after = json.loads(capsys.readouterr().out)
    for name in ("vanilla", "upcycled"):
        assert after["rows"][0][name]["seeds"] == before["rows"][0][name]["seeds"]
    assert main(["report", "results/old"]) == 0
    assert main(["report", "results/old/compare-work"]) == 0
    assert "fedavg" in Path("results/old/compare-work/report.html").read_text()


def test_its_checkpoint_is_refused_in_one_sentence_and_not_touched(here, capsys):
    Path("results/old/seed-0/summary.json").unlink()
    kept = {path: path.read_bytes() for path in Path("results").rglob("*.safetensors")}
    assert main(["run", "old.toml", "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "has format 1, but this version of upcycled reads format 2" in said
    assert said.count("\n") == 1
    assert {path: path.read_bytes() for path in Path("results").rglob("*.safetensors")} == kept


def test_its_ledger_reads_as_unchained_with_the_epsilon_of_then(here):
    ledger = up.privacy.Ledger.read("results/old/seed-0/ledger.jsonl")
    summary = json.loads(Path("results/old/seed-0/summary.json").read_text())["privacy"]
    assert (ledger.format, ledger.chain) == (1, "unchained")
    assert ledger.epsilon(summary["delta"]).tolist() == pytest.approx(summary["epsilon"]["clients"])


def test_a_folder_of_a_later_version_is_refused_in_one_sentence(here, capsys):
    path = Path("results/old/seed-0/summary.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    for words in (["run", "old.toml", "--quiet"], ["report", "results/old"]):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert "has format 99, but this version of upcycled reads up to format 2" in said
        assert said.count("\n") == 1


def test_what_is_written_now_says_its_format(here):
    assert main(["compare", "old.toml", "results=new", "--quiet"]) == 0
    documents = [*Path("new").rglob("summary.json"), *Path("new").rglob("compare.json")]
    assert len(documents) == 5
    assert all(json.loads(path.read_text())["format"] == 2 for path in documents)
    headers = [json.loads(path.read_text().splitlines()[0]) for path in Path("new").rglob("ledger.jsonl")]
    assert [header["format"] for header in headers] == [3] * 4
