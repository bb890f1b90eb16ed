"""Names of clients that are nearly the same, and those that are not."""

from __future__ import annotations

import pytest

from upcycled.cli.main import main
from upcycled.data.lint import Likeness


@pytest.mark.parametrize(
    "other",
    [
        "Kings",
        " kings ",
        "KINGS.",
        "kings (copy)",
        "kings - Copy",
        "kings_2026",
        "kings2",
        "kings-old",
        "Kings_Old (2)",
    ],
)
def test_another_spelling_a_copy_and_another_year_are_nearly_the_same(other):
    assert Likeness(["lyon", "kings"]).nearest(other) == "kings"
    assert Likeness([other, "lyon"]).nearest("kings") == other
    assert Likeness(["lyon", "kings", other, "oslo"]).groups == [["kings", other]]


def test_signs_and_spaces_between_words_count_for_nothing():
    assert Likeness(["St. Gallen", "st_gallen", "StGallen 2"]).groups == [["St. Gallen", "st_gallen", "StGallen 2"]]


@pytest.mark.parametrize(
    "names",
    [
        ["site1", "site2", "site10", "site11", "site 1 1"],
        ["site_1", "site_2", "site-12"],
        ["bern", "bernau", "rome", "romeo"],
        ["1", "2", "-1", "1.5", "1-1", "12"],
        ["A+", "A-", "B"],
        ["lyon_north", "lyon_south"],
        ["--", "++"],
    ],
)
def test_numbers_other_words_and_signs_that_mean_something_are_no_likeness(names):
    # 'site 1 1' is site1 with something after it, and nothing else is.
    expected = [["site1", "site 1 1"]] if "site 1 1" in names else []
    assert Likeness(names).groups == expected


def test_a_folder_with_a_copy_of_a_file_gets_a_hint(tmp_path, capsys):
    for name in ("lyon", "lyon (copy)", "site1", "site2"):
        (tmp_path / f"{name}.csv").write_text("a,label\n0.5,0\n0.25,1\n")
    assert main(["data", "check", str(tmp_path)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "different clients" in line]
    assert lines == ["hint: 'lyon', 'lyon (copy)' are different clients, though their names are nearly the same"]
