"""Tables fit 80 columns, and fewer; no number is cut."""

from __future__ import annotations

import pytest

from tests.experiments.small import small_file
from upcycled.cli import output as show
from upcycled.cli.main import main
from upcycled.cli.output import fitted_widths, print_table

CLIPPED = '\n[privacy]\nmechanism = "model_clipping"\nclip_norm = 1.0\nnoise_std = 2.0\n'
SWEEP = '[sweep]\n"local.lr" = [0.01, 0.1]\n"upcycle.coefficient" = [0.3, 0.6]\n'
COLUMNS = ("run", "accuracy %", "difference, 95 % interval", "verdict")
ROWS = [("fedavg, upcycled", "91.23 ± 1.00", "+1.23 (−0.40 to +3.20)", "no significant difference")]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = small_file(tmp_path)
    path.write_text(path.read_text() + CLIPPED + SWEEP)
    return path


def printed(capsys, *words):
    main(list(words))
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ("privacy", "explain", "small.toml"),
        ("privacy", "explain", "small.toml", "--clients"),
        ("run", "small.toml", "--quiet", "~sweep"),
        ("compare", "small.toml", "--algorithms", "fedavg,fedprox", "--quiet", "~privacy", "~sweep"),
        ("sweep", "small.toml", "--quiet", "data.validation_fraction=0.2", "~privacy"),
    ],
    ids=lambda words: "-".join(words[:2]),
)
@pytest.mark.usefixtures("folder")
def test_the_tables_of_a_command_fit_80_columns(words, capsys):
    out = printed(capsys, *words)
    # Sentences are folded by the terminal; a table's line has cells, which stand apart.
    assert not [line for line in out.splitlines() if len(line) > 80 and ("  " in line or "─" in line)]
    assert "…" not in out


@pytest.mark.parametrize("width", [80, 60, 40, 30])
def test_no_number_is_cut_however_narrow(width, monkeypatch, capsys):
    monkeypatch.setattr(show, "WIDTH_IN_A_PIPE", width)
    print_table("title", COLUMNS, ROWS, words=("verdict",))
    out = capsys.readouterr().out
    for cell in ROWS[0][1:3]:
        assert cell in (out if width >= 60 else " ".join(out.split()))
    assert max(map(len, out.splitlines())) <= width


def test_widths_are_those_of_the_cells_where_there_is_room():
    widths = fitted_widths(COLUMNS, ROWS, [True, False, False, True], 200)
    assert widths == [16, 12, 25, 25]
    # 78 in all. The two of 25 give first: the third down to its number of 22, then the last, down to the next widest.
    assert fitted_widths(COLUMNS, ROWS, [True, False, False, True], 68) == [16, 12, 22, 18]
    # The least: "upcycled" or "fedavg,", the number, the interval, "significant".
    assert fitted_widths(COLUMNS, ROWS, [True, False, False, True], 53) == [8, 12, 22, 11]
    assert fitted_widths(COLUMNS, ROWS, [True, False, False, True], 52) is None


def test_text_of_a_file_is_no_markup(capsys):
    print_table("[red]title[/red]", ("", "a"), [("[bold]x", "1")])
    assert "[bold]x" in capsys.readouterr().out
