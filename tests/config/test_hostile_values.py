"""Values of a file that no parser should fall over: deep, long, wide, or with characters that no path has."""

from __future__ import annotations

import pytest

from tests.experiments.small import everything_under, small_file
from upcycled.cli.main import main

DEEP = 5000
VALUES = {
    "NUL in results": (['results="a\\u0000b"'], "results is 'a\\x00b'"),
    "unknown user in results": (
        ['results="~nobody-there/r"'],
        "results is '~nobody-there/r', but this machine knows no",
    ),
    "NUL in data": (['data={source="npz", path="a\\u0000b.npz"}'], "data.path is 'a\\x00b.npz'"),
    "unknown user in data": (['data={source="npz", path="~nobody-there/a.npz"}'], "data.path is '~nobody-there/a.npz'"),
    "NUL in account": (['privacy={mechanism="erm_output", account="\\u0000"}'], "privacy.account is '\\x00'"),
    "long path": ([f'data={{source="npz", path="{"a" * 5000}.npz"}}'], "data.path"),
    "wide name": ([f'name="{"界" * 100}"'], "200 bytes"),
    "deep value": ([f"a={'[' * DEEP}{']' * DEEP}"], "must be a TOML value"),
    "long key": (["k" * 5000 + "=1"], "has no such key"),
    "long word": ([f'algorithm.name="{"k" * 50000}"'], "it must be a known name"),
    "long command": (["--" + "b" * 5000], "is not an argument of this command"),
    "huge sizes": (["data.sizes=9223372036854775807"], "data.sizes is 9223372036854775807"),
    "huge model": (["model={kind='mlp', hidden=[10000000000000]}"], "model hidden is [10000000000000]"),
}


@pytest.mark.parametrize(("words", "said"), VALUES.values(), ids=VALUES)
def test_a_hostile_value_is_answered_by_one_short_sentence(words, said, tmp_path, monkeypatch, capsys):
    small_file(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = everything_under(tmp_path)
    assert main(["run", "small.toml", *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert len(err) < 1500
    assert said in err
    assert everything_under(tmp_path) == before


def test_a_file_of_nobody_is_refused(capsys):
    assert main(["run", "a\0b.toml"]) == 2
    assert "NUL character" in capsys.readouterr().err
