"""``upcycled privacy``: golden numbers, labels, and one sentence for what is wrong."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from tests.experiments.small import small_file
from tests.wording import has_all
from upcycled.audit.explain import ANSWERS
from upcycled.cli.main import main
from upcycled.cli.privacy import FORMULAS

D = "--delta 1e-5"
GOLDEN = [
    (f"epsilon gaussian --rounds 40 --sensitivity 0.0892857142857 --noise-std 0.8 {D}", "epsilon",
     2.93736807),
    ("epsilon gaussian --rounds 1 --sensitivity 1 --noise-std 1 --epsilon 1", "delta", 0.1269367375),
    (f"epsilon paper-output --rounds 40 --clip-norm 10 --noise-std 0.8 --n 224 {D}", "paper_epsilon",
     1.755837836),
    (f"epsilon paper-output --rounds 1 --clip-norm 10 --noise-std 1 --n 100 {D}", "epsilon", 284.3918495),
    (f"epsilon paper-output --rounds 40 --clip-norm 10 --noise-std 0.8 --n 224 {D}", "epsilon_if_assumed",
     2.9373680667),
    ("epsilon paper-output --rounds 40 --clip-norm 10 --noise-std 0.8 --n 224 --epsilon 1.5", "paper_delta",
     0.0002492011409),
]  # fmt: skip


def answers(words, capsys):
    assert main(["privacy", *shlex.split(words), "--json"]) == 0
    return {one["name"]: one for one in json.loads(capsys.readouterr().out)["answers"]}


@pytest.mark.parametrize(("words", "name", "value"), GOLDEN)
def test_a_calculator_gives_the_golden_number(words, name, value, capsys):
    assert answers(words, capsys)[name]["value"] == pytest.approx(value, rel=1e-6)


def test_the_sampled_calculator_gives_the_golden_numbers_of_both_adjacencies(capsys):
    words = f"epsilon sampled --q 0.01 --noise-multiplier 1.1 --steps 1000 {D}"
    replaced = answers(words, capsys)["epsilon"]
    other = answers(f"{words} --adjacency add_remove", capsys)["epsilon"]
    assert replaced["value"] == pytest.approx(2.4778, rel=1e-3)
    assert other["value"] == pytest.approx(1.515370248, rel=1e-3)
    assert "replace-one" in replaced["meaning"]
    assert "NOT this package's epsilon" in other["meaning"]


def test_what_is_the_papers_is_never_called_epsilon_and_never_proven(capsys):
    for words, _, _ in GOLDEN:
        for name, one in answers(words, capsys).items():
            assert one["proven"] != (name.startswith("paper_") or name.endswith("_if_assumed"))
            assert one["meaning"]


def page(formula, capsys):
    assert main(["privacy", "epsilon", formula, "--help"]) == 0
    return capsys.readouterr().out


def test_a_formulas_page_has_its_own_flags_and_no_others(capsys):
    flags = set(re.findall(r"^  (--[a-z0-9-]+)", page("gaussian", capsys), flags=re.MULTILINE))
    assert flags == {"--rounds", "--sensitivity", "--noise-std", "--delta", "--epsilon", "--json"}
    flags = set(re.findall(r"^  (--[a-z0-9-]+)", page("sampled", capsys), flags=re.MULTILINE))
    assert flags == {"--q", "--noise-multiplier", "--steps", "--delta", "--adjacency", "--json"}
    assert main(["privacy", "epsilon", "--help"]) == 0
    out = capsys.readouterr().out
    assert set(re.findall(r"^  (--[a-z0-9-]+)", out, flags=re.MULTILINE)) == set()
    assert all(name in out for name in FORMULAS)


def test_every_formula_of_the_table_can_be_asked_for_and_has_an_example_that_runs(capsys):
    assert set(FORMULAS) == set(ANSWERS)
    for name in FORMULAS:
        assert main(shlex.split(page(name, capsys).splitlines()[-1])[1:]) == 0
        assert " = " in capsys.readouterr().out


def test_an_answer_in_words_labels_what_is_not_proven(capsys):
    main(shlex.split(f"privacy epsilon paper-output --rounds 1 --clip-norm 10 --noise-std 1 --n 100 {D}"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("epsilon = 284.39")
    assert "sensitivity 2 clip_norm" in lines[2]
    assert lines[3].startswith("paper_epsilon = 0.4848525912")
    assert lines[3].endswith("(not proven)")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("epsilon gaussian --clip-norm 4", r"'--clip-norm'.*command.*--help"),
        ("epsilon gaussian --rounds 4 --sensitivity 1 --delta 1e-5", r"--noise-std.*missing"),
        ("epsilon gaussian --rounds 4 --sensitivity 1 --noise-std 1", r"--delta.*missing"),
        (f"epsilon gaussian --rounds 4 --sensitivity 1 --noise-std 1 --epsilon 1 {D}", r"--epsilon.*1\.0"),
        (f"epsilon gaussian --rounds 4 --sensitivity 1 --noise-std -1 {D}", r"--noise-std.*-1\.0"),
        ("epsilon gaussian --rounds 4 --sensitivity 1 --noise-std 1 --delta 0", r"--delta.*0\.0"),
        (f"epsilon sampled --q 2 --noise-multiplier 1 --steps 9 {D}", r"--q.*2\.0"),
        (f"epsilon sampled --q 0.1 --noise-multiplier 1 --steps 9 --adjacency add {D}", r"--adjacency.*'add'"),
    ],
)
def test_bad_input_is_one_sentence_that_names_the_flag(words, sentence, capsys):
    assert main(["privacy", *shlex.split(words)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(sentence, err)
    assert err.count("\n") == 1


def test_a_question_without_a_known_formula_is_refused(capsys):
    assert main(["privacy", "epsilon"]) == 2
    assert "required: FORMULA" in capsys.readouterr().err
    assert main(["privacy", "epsilon", "gausian", "--rounds", "4"]) == 2
    assert has_all(capsys.readouterr().err, "'gausian'", "'gaussian', 'paper-output', 'sampled')")
    assert main(["privacy", "epsilon", "gaussian", "--rounds", "many"]) == 2
    assert has_all(capsys.readouterr().err, "--rounds", "'many'")


@pytest.fixture
def private(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small_file(tmp_path)
    with (tmp_path / "small.toml").open("a") as file:
        file.write('\n[privacy]\nmechanism = "model_clipping"\nclip_norm = 1.0\nnoise_std = 2.0\n')


@pytest.mark.usefixtures("private")
def test_explain_prints_words_and_three_ways_to_run_side_by_side(capsys):
    assert main(["privacy", "explain", "small.toml", "clients.participation=1.0", "--clients"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("protected: nothing, for this is a simulation")
    assert "\nnot protected: that a client takes part" in out
    assert "\nIn detail\nsimulation: not private" in out
    assert "not covered:" in out
    rows = [line.split("  ") for line in out.splitlines()]
    rounds = next([cell.strip() for cell in row if cell.strip()] for row in rows if row[0] == "data rounds")
    assert rounds == ["data rounds", "4", "2", "2"]
    assert "paper's number (not proven), worst" in out
    assert "paper_epsilon" in out


@pytest.mark.usefixtures("private")
def test_explain_as_json_has_every_client(capsys):
    assert main(["privacy", "explain", "small.toml", "--delta", "1e-6", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [variant["data_rounds"] for variant in document["variants"]] == [4, 2, 2]
    assert len(document["variants"][0]["clients"]) == 4
    first = document["variants"][0]
    assert first["epsilon"]["worst"] == max(client["epsilon"] for client in first["clients"])
    assert first["delta"] == 1e-6


@pytest.mark.usefixtures("private")
def test_explain_notes_a_large_delta_on_standard_error_and_refuses_a_wrong_one(capsys):
    assert main(["privacy", "explain", "small.toml", "--delta", "0.01"]) == 0
    assert has_all(capsys.readouterr().err, "delta", "0.01", "1/(10")
    assert main(["privacy", "explain", "small.toml", "--delta", "2"]) == 2
    assert has_all(capsys.readouterr().err, "error: small.toml: --delta", "2.0")


def test_explain_of_a_file_without_privacy_is_plain(tmp_path, capsys):
    assert main(["privacy", "explain", str(small_file(tmp_path))]) == 0
    assert capsys.readouterr().out.startswith("Nothing is protected")
