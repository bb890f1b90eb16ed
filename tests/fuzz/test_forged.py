"""Forged folders end in a value or in one error, never in an exception of Python."""

from __future__ import annotations

import re
import shutil

import pytest

from tests.fuzz import forged
from tests.fuzz.judge import verdict
from tests.wording import has_all

COUNTS = {
    "checkpoint": (60, 238),
    "tensors": (40, 200),
    "account": (20, 60),
    "account data": (20, 60),
    "ledger": (20, 100),
    "model": (30, 200),
    "personal": (20, 100),
    "results": (3, 100),
}
"""How many are tried by default, and in the slow suite."""


def wrong(kind, count, seed, folder):
    """Return what the readers of so many forged folders did wrong."""
    found = {}
    for place in range(count):
        shutil.rmtree(folder, ignore_errors=True)
        forged.forge(kind, place, seed, folder)
        if words := verdict(lambda: forged.READERS[kind](folder)):
            found[place] = words
    return found


@pytest.mark.parametrize("kind", COUNTS)
def test_a_good_folder_is_read(kind, tmp_path):
    shutil.copytree(forged.good(kind), tmp_path / "good")
    codes = forged.READERS[kind](tmp_path / "good")
    assert kind != "results" or codes == [0] * len(codes)


@pytest.mark.parametrize("kind", COUNTS)
def test_forged_folders_are_refused_in_a_sentence(kind, tmp_path):
    assert wrong(kind, COUNTS[kind][0], 1, tmp_path / "forged") == {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", COUNTS)
def test_many_forged_folders_are_refused_in_a_sentence(kind, tmp_path):
    assert wrong(kind, COUNTS[kind][1], 2, tmp_path / "forged") == {}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("results/small/seed-0/private/notes.jsonl", b'{"note": \xff}\n', "UnicodeDecodeError"),
        ("results/small/seed-0/private/scores.jsonl", b"[1]\n", r"table.*values"),
        ("results/small/seed-0/private/evaluation.json", b'{"baseline": {"accuracy": "x"}}', "private: damaged"),
        ("results/small/seed-0/private/notes.jsonl", b'{"note": "\\ud800"}\n', "UnicodeEncodeError"),
    ],
)
def test_a_damaged_file_of_the_holders_is_named_and_ends_in_exit_code_2(tmp_path, capsys, name, content, words):
    shutil.copytree(forged.good("results"), tmp_path, dirs_exist_ok=True)
    (tmp_path / name).write_bytes(content)
    assert forged.main(["privacy", "own", str(tmp_path / "results"), "--scores"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {(tmp_path / name).parent}")
    assert re.search(words, err)
    assert has_all(err, "expected", "data")
