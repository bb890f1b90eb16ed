"""A few hundred hostile files of each kind, always the same; ``python -m tests.fuzz`` tries as many as one likes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import configs, evidence, files
from tests.fuzz.__main__ import COMMANDS, of_command, tried
from tests.fuzz.judge import verdict

CORPUS = Path(__file__).parent / "corpus"
KEPT = sorted(path for path in CORPUS.iterdir() if path.is_file())
pytestmark = pytest.mark.filterwarnings("ignore:Duplicate name")


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name)
def test_what_once_went_wrong_does_not_again(path, tmp_path):
    """The file's name is its kind, a dash, and what it was."""
    kind = path.name.split("-")[0]
    assert tried(kind, path.read_bytes(), tmp_path / f"f{files.SUFFIXES.get(kind, '.toml')}") is None


@pytest.mark.parametrize("kind", [kind for kind in files.READERS if kind != "configs"])
def test_a_good_file_is_read_and_damaged_ones_are_refused_in_a_sentence(kind, tmp_path):
    if kind not in files.good_files():
        pytest.skip("its package is not installed")
    path = tmp_path / f"f{files.SUFFIXES.get(kind, '')}"
    path.write_bytes(files.good_files()[kind])
    files.READERS[kind](path)
    wrong = {place: tried(kind, files.content_of(kind, place, seed=1), path) for place in range(25)}
    assert {place: words for place, words in wrong.items() if words} == {}


def test_experiment_files_gone_wrong_are_refused_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = {place: configs.text_of(place, seed=1) for place in range(200)}
    wrong = {place: tried("configs", text, tmp_path / "f.toml") for place, text in texts.items()}
    assert {place: words for place, words in wrong.items() if words} == {}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
def test_many_more_of_both(seed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place in range(1000):
        assert tried("configs", configs.text_of(place, seed), tmp_path / "f.toml") is None
        kind = files.kinds()[place % len(files.kinds())]
        path = tmp_path / f"g{files.SUFFIXES.get(kind, '')}"
        assert tried(kind, files.content_of(kind, place, seed), path) is None


@pytest.mark.slow
def test_the_real_command_answers_likewise(tmp_path):
    for place in range(10):
        assert of_command("configs", configs.text_of(place, seed=1), tmp_path) is None
    for kind in COMMANDS.keys() - {"configs"}:
        assert of_command(kind, files.content_of(kind, 1, seed=1), tmp_path) is None


def forgeries(places, seed, names, folder):
    found, came = {}, set()
    for place in places:
        case, made = evidence.forged(place, seed, names)
        how, wrong = evidence.wrong_of(case, made, folder)
        came.add(how)
        if wrong is not None:
            found[place, case.name] = wrong
    return found, came


def test_no_forged_evidence_is_accepted_with_less_or_though_it_is_inconsistent(tmp_path):
    for name in evidence.QUICK:
        case = evidence.case_of(name)
        assert evidence.wrong_of(case, case.files, tmp_path) == ("accepted with the head", None)
    wrong, came = forgeries(range(400), 1, evidence.QUICK, tmp_path)
    assert wrong == {}
    assert came == {"refused", "accepted without the head", "accepted with the head"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_ten_thousand_forged_folders(seed, tmp_path):
    assert forgeries(range(1000), seed, evidence.NAMES, tmp_path)[0] == {}


def test_the_judge_knows_a_traceback_a_hang_and_a_long_sentence(monkeypatch):
    from upcycled.core.errors import UpcycledError

    def raising(error):
        def read():
            raise error

        return read

    assert verdict(lambda: None) is None
    assert verdict(raising(KeyError("x"))).startswith("KeyError")
    assert verdict(raising(UpcycledError("one sentence"))) is None
    assert verdict(raising(UpcycledError("two\nlines"))).startswith("a sentence of several lines")
    assert verdict(raising(UpcycledError("x" * 5000))) == "a sentence of 5000 characters"
    monkeypatch.setattr("tests.fuzz.judge.in_time.__wrapped__.__defaults__", (1,))

    def forever():
        while True:
            pass

    assert verdict(forever).startswith("TooLong")
