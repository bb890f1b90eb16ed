"""``upcycled demo``: table, plot, command to repeat it, and one honest sentence."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.wording import has_all
from upcycled.cli.main import main


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_demo_prints_a_table_a_plot_the_command_and_a_caveat(here, capsys):
    assert main(["demo", "--rounds", "2", "--seeds", "2", "--output", "out here"]) == 0
    out, err = capsys.readouterr()
    for word in ("accuracy", "rounds", "messages", "MB", "epsilon", "seconds"):
        assert word in out
    rows = [line for line in out.splitlines() if line.strip().startswith(("vanilla,", "upcycled,"))]
    assert [row.split()[:3] for row in rows] == [
        ["vanilla,", "no", "noise"],
        ["upcycled,", "no", "noise"],
        ["vanilla,", "epsilon", "4"],
        ["upcycled,", "epsilon", "4"],
    ]
    assert all("±" in row for row in rows)
    assert [row.split()[-5:-1] for row in rows] == [
        ["2", "36", "0.006", "–"],
        ["1", "18", "0.003", "–"],
        ["2", "36", "0.006", "4.000"],
        ["1", "18", "0.003", "4.000"],
    ]
    assert all(len(line) <= 80 for line in out.split("Plot:")[0].splitlines())
    plot = here / out.split("Plot:")[1].splitlines()[0].strip()
    assert plot.read_bytes()[:4] == b"\x89PNG"
    assert plot.stat().st_size > 20_000
    assert "server learning rate of 1.7 (1 + rho)" in out
    assert "a simulation that protects nobody" in out
    assert err.count("data rounds") == 8

    repeat = shlex.split(out.split("Repeat:")[1].splitlines()[0])
    assert repeat[0] == "upcycled"
    first = json.loads((here / "out here" / "demo.json").read_text())
    assert main([*repeat[1:], "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    scores = [[(s["accuracy"], s["loss"]) for run in doc["runs"] for s in run["seeds"]] for doc in (first, again)]
    assert scores[0] == scores[1]


@pytest.mark.parametrize(
    ("absent", "words", "left_out"),
    [
        (["matplotlib"], "no plot was written: that needs matplotlib", {"plot"}),
        (
            ["matplotlib", "jinja2"],
            "no plot and no page was written: that needs matplotlib and jinja2",
            {"plot", "report"},
        ),
    ],
    ids=len,
)
def test_a_demo_without_the_extra_report_leaves_out_what_needs_it(here, absent, words, left_out, monkeypatch, capsys):
    (here / "out").mkdir()
    for name in ("demo.json", "demo.png", "report.html"):  # of an earlier demo
        (here / "out" / name).touch()
    for package in absent:
        monkeypatch.setitem(sys.modules, package, None)
    assert main(["demo", "--rounds", "1", "--seeds", "2", "--output", "out", "--json"]) == 0
    out, err = capsys.readouterr()
    assert has_all(err.splitlines()[-1], words, "'.[report]'")
    found = json.loads(out)
    assert {key for key in ("plot", "report") if found[key] is None} == left_out
    assert len(found["runs"]) == 4
    there = {"plot": "demo.png", "report": "report.html"}
    assert {key for key, name in there.items() if not (here / "out" / name).exists()} == left_out


@pytest.mark.slow
def test_the_readme_shows_what_the_demo_prints_and_its_page_opens_without_a_warning(here, capsys):
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert main(["demo"]) == 0
    out, err = capsys.readouterr()
    assert "warning" not in err
    lines = [line.strip() for line in out.splitlines()]
    rows = re.findall(r"^\| ((?:vanilla|upcycled), .*) \|$", readme, flags=re.MULTILINE)
    assert len(rows) == 4
    for row in rows:  # without the last column, seconds
        assert row.replace(" | ", " ").split() in [line.split()[:-1] for line in lines]
    (sentence,) = re.findall(r"^Half the messages; .*? paired seeds\.", readme, flags=re.MULTILINE | re.DOTALL)
    assert any(line.startswith(" ".join(sentence.split()) + " ") for line in lines)
    assert 'class="notice"' not in (here / "results" / "demo" / "report.html").read_text()


def test_wrong_numbers_are_wrong_use_and_write_nothing(here, capsys):
    assert main(["demo", "--rounds", "0"]) == 2
    assert has_all(capsys.readouterr().err, "--rounds", "0", "integer >= 1")
    assert main(["demo", "--seeds", "1"]) == 2
    assert has_all(capsys.readouterr().err, "--seeds", "1", "integer >= 2")
    assert list(here.iterdir()) == []
