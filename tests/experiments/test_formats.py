"""Every file of a results folder states its format, and files of a later format are rejected."""

import json
from pathlib import Path

import pytest

from tests.experiments.small import small_file
from upcycled.cli.main import main


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    private = (
        '[clients]\nparticipation = 1.0\n\n[privacy]\nmechanism = "model_clipping"\nclip_norm = 1.0\nnoise_std = 4.0\n'
    )
    small_file(tmp_path, ("[clients]\nparticipation = 0.5\n", private))
    return tmp_path


def test_a_folder_of_a_later_version_is_rejected_in_one_sentence(here, capsys):
    assert main(["run", "small.toml", "--quiet"]) == 0
    path = Path("results/small/seed-0/summary.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    capsys.readouterr()
    for arguments in (["run", "small.toml", "--quiet"], ["report", "results/small"]):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert "has format 99" in error
        assert error.count("\n") == 1


def test_results_and_ledgers_state_their_format(here):
    assert main(["compare", "small.toml", "--quiet"]) == 0
    documents = [*Path("results").rglob("summary.json"), *Path("results").rglob("compare.json")]
    assert len(documents) == 7
    assert all(json.loads(path.read_text())["format"] == 2 for path in documents)
    headers = [json.loads(path.read_text().splitlines()[0]) for path in Path("results").rglob("ledger.jsonl")]
    assert [header["format"] for header in headers] == [4] * 6
