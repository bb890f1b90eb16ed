"""How numbers look: the same on the page as in the terminal."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.experiments.report_cases import LOCAL, PROX, run_one, words_of
from upcycled.cli.main import main
from upcycled.core import formats
from upcycled.experiments.report import write_report

NUMBERS = st.floats(-1e12, 1e12)


@given(NUMBERS, st.integers(0, 6))
def test_fixed_is_the_nearest_number_with_so_many_digits(value, digits):
    words = formats.fixed(value, digits)
    assert abs(float(words.replace(",", "")) - value) <= 0.5 * 10.0**-digits * (1 + 1e-9) + 1e-3 * (abs(value) > 1e9)
    assert len(words.partition(".")[2]) == digits
    assert words.strip("-0.") or not words.startswith("-")  # no negative zero


@given(NUMBERS)
def test_a_sign_is_shown_unless_the_shown_number_is_zero(value):
    words = formats.signed(value)
    assert words[0] in "+−" or words == "0.00"
    assert words.lstrip("+−") == formats.fixed(abs(value))
    assert words[0] != ("−" if value > 0 else "+")


@pytest.mark.parametrize(
    "show", [formats.fixed, formats.significant, formats.epsilon, formats.count, formats.megabytes]
)
def test_what_is_not_known_is_a_dash(show):
    assert show(None) == show(math.nan) == formats.NONE == "–"
    assert formats.mean_sd({"mean": None, "sd": None}) == "–"
    assert formats.signed(None) == formats.setting(None) == "–"


def test_an_epsilon_that_nothing_proves_is_none_and_a_large_one_has_no_digits():
    shown = [formats.epsilon(value) for value in (math.inf, 0.0, 0.5, 999.9994, 1e5, 1e-4)]
    assert shown == ["none", "0", "0.500", "999.999", "100,000", "0.0001"]


def test_a_run_has_the_same_numbers_in_the_terminal_and_on_its_page(tmp_path, capsys):
    mechanism = {"mechanism": "erm_output", "norm_bound": 1.0, "noise_std": 0.8}
    run_one(tmp_path, "private", **PROX | {"privacy": mechanism})
    run_one(tmp_path, "public", algorithm={"name": "fedavg"}, local=LOCAL)
    for name in ("private", "public"):
        # The same config again: the results are there, and only the table is printed.
        config = tmp_path / name / "seed-0" / "config.toml"
        assert main(["run", str(config), "seeds=[0, 1]", f"results={tmp_path}"]) == 0
        out = capsys.readouterr().out
        page = words_of(write_report(tmp_path / name).read_text(encoding="utf-8"))
        mean = next(line for line in out.splitlines() if line.startswith("mean"))
        accuracy, loss, rounds, iterations, messages, sent, seconds = (
            word.strip() for word in mean[5:].split("  ") if word.strip()
        )
        assert f"{accuracy} {loss} {rounds} {iterations} {messages} {sent}" in page
        assert f"{seconds}" in page
        if name == "private":
            spent = json.loads((tmp_path / name / "seed-0" / "summary.json").read_text())["privacy"]["epsilon"]
            assert f"proven epsilon {spent['max']:.3f} for the worst client, {spent['median']:.3f} median" in out
            assert f"{spent['max']:.3f}" in page
