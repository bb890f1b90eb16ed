"""Cells: kept one by one, never lost, never computed twice."""

from __future__ import annotations

import json

import pytest

import upcycled as up
from upcycled.core.errors import InputError
from upcycled.core.files import WriteError
from upcycled.experiments.cells import Cells, compute_cells


def runs(seen):
    data = up.data.synthetic("iid", clients=3, seed=0)

    def arguments(seed):
        seen.append(seed)
        return {"data": data, "algorithm": up.FedAvg(), "iterations": 0 if seed == 9 else 2, "seed": seed}

    return {f"seed {seed}": lambda seed=seed: arguments(seed) for seed in (0, 1, 9)}


def test_a_second_call_computes_only_what_is_missing(tmp_path):
    seen: list[int] = []
    cells = Cells(tmp_path / "deep" / "cells.jsonl")
    compute_cells(cells, runs(seen), lambda result: {"accuracy": result.accuracy}, progress=False)
    assert sorted(seen) == [0, 1, 9]
    again = Cells(tmp_path / "deep" / "cells.jsonl")
    assert again["seed 0"] == cells["seed 0"]
    assert set(again["seed 0"]) == {"accuracy"}
    assert again["seed 9"]["error"].startswith("iterations is 0")
    compute_cells(again, runs(seen), lambda result: {"accuracy": result.accuracy}, progress=False)
    assert len(seen) == 3


def test_a_line_cut_short_is_dropped_and_its_cell_computed_again(tmp_path):
    path = tmp_path / "cells.jsonl"
    path.write_text('{"key":"a","x":1}\n{"key":"b","x"')
    cells = Cells(path)
    assert cells.keys() == ["a"]
    cells.add("b", {"x": 2})
    assert Cells(path)["b"] == {"x": 2}


def test_a_damaged_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "cells.jsonl"
    path.write_text('{"key":"a","x":1}\n{"x":1}\n{"key":"b","x":1}\n')
    with pytest.raises(InputError, match=r"cells\.jsonl: line 2 is not a cell"):
        Cells(path)


def test_reading_never_changes_the_file_but_the_next_cell_goes_on_a_line_of_its_own(tmp_path):
    """A page may be written from cells while a command is just adding one."""
    path = tmp_path / "cells.jsonl"
    half = '{"key":"a","x":1}\n{"key":"b","x"'
    path.write_text(half)
    assert Cells(path).keys() == ["a"]
    assert path.read_text() == half
    cells = Cells(path)
    path.write_text(half + ':1}\n{"key":"c","x":2}\n{"ke')  # the other command went on
    cells.add("d", {"x": 3})
    assert [json.loads(line)["key"] for line in path.read_text().splitlines()] == ["a", "b", "c", "d"]


def test_a_file_that_is_one_half_line_starts_anew(tmp_path):
    path = tmp_path / "cells.jsonl"
    path.write_text('{"key":"b"')
    cells = Cells(path)
    assert len(cells) == 0
    cells.add("b", {"x": 2})
    assert path.read_text() == '{"key":"b","x":2}\n'


def test_bytes_that_are_no_text_are_named_with_their_line(tmp_path):
    path = tmp_path / "cells.jsonl"
    path.write_bytes(b'{"key":"a","x":1}\n{"key":"\xff","x":1}\n')
    with pytest.raises(InputError, match=r"cells\.jsonl: line 2 is not a cell"):
        Cells(path)


def test_a_cell_must_pass_its_owners_check(tmp_path):
    path = tmp_path / "cells.jsonl"
    path.write_text('{"key":"a","x":1}\n{"key":"b","x":-1}\n')

    def check(key, value):
        if value["x"] < 0:
            raise ValueError(key)

    assert len(Cells(path)) == 2
    with pytest.raises(InputError, match="line 2 is not a cell"):
        Cells(path, check)


def test_a_folder_in_the_way_is_one_sentence(tmp_path):
    (tmp_path / "cells.jsonl").mkdir()
    with pytest.raises(InputError, match=r"cells\.jsonl cannot be read"):
        Cells(tmp_path / "cells.jsonl")
    (tmp_path / "file").write_text("x")
    with pytest.raises(WriteError, match="cannot be written"):
        Cells(tmp_path / "file" / "cells.jsonl").add("a", {"x": 1})
