"""Cells: kept one by one, never lost, never computed twice."""

from __future__ import annotations

import pytest

import upcycled as up
from upcycled.core.errors import InputError
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
