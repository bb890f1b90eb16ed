"""Folders that the version before wrote: they report, and their ledgers read."""

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


def test_it_is_reported(here):
    assert main(["report", "results/old"]) == 0
    assert main(["report", "results/old/compare-work"]) == 0
    assert "fedavg" in Path("results/old/compare-work/report.html").read_text()


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
