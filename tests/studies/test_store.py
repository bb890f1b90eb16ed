"""Cells: kept one by one, never lost, never computed twice, and in Parquet what they were."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import upcycled as up
from studies.common.store import Cells, compute_cells, write_cells
from upcycled._utils.files import WriteError
from upcycled.core.errors import DivergedError, InputError

ROOT = Path(__file__).parents[2]
CELLS = {
    "a|1": {"accuracy": 0.1 + 0.2, "bytes": 2**53 - 1, "losses": [0.5, None, 5e-324], "rounds": [1, 2]},
    "b|ä": {"error": "diverged"},
    "c": {"accuracy": None, "losses": [], "forms": {"sharp": {"C1": None, "holds": True}}, "unmet": ["x"]},
    "d": {},
}


def runs(seen):
    data = up.data.synthetic("iid", clients=3, seed=0)

    def arguments(seed):
        seen.append(seed)
        return {"data": data, "algorithm": up.FedAvg(), "iterations": 0 if seed == 9 else 2, "seed": seed}

    return {f"seed {seed}": lambda seed=seed: arguments(seed) for seed in (0, 1, 9)}


def test_a_second_call_computes_only_what_is_missing(tmp_path):
    seen: list[int] = []
    cells = Cells(tmp_path / "deep" / "cells.parquet")
    compute_cells(cells, runs(seen), lambda result: {"accuracy": result.accuracy}, progress=False)
    assert sorted(seen) == [0, 1, 9]
    again = Cells(tmp_path / "deep" / "cells.parquet")
    assert again["seed 0"] == cells["seed 0"]
    assert set(again["seed 0"]) == {"accuracy"}
    assert again["seed 9"]["error"].startswith("iterations is 0")
    compute_cells(again, runs(seen), lambda result: {"accuracy": result.accuracy}, progress=False)
    assert len(seen) == 3


def test_where_no_run_may_fail_the_error_ends_the_computation_and_is_no_cell(tmp_path):
    cells = Cells(tmp_path / "cells.parquet")
    with pytest.raises(InputError, match=r"iterations.*0"):
        compute_cells(cells, runs([]), lambda result: {}, may_fail=False, progress=False)
    assert "seed 9" not in Cells(tmp_path / "cells.parquet")


@pytest.mark.parametrize("may_fail", [True, False])
def test_a_run_that_diverged_is_its_error_and_not_its_result_so_far(tmp_path, may_fail):
    cells = Cells(tmp_path / "cells.parquet")
    data = up.data.synthetic("iid", clients=3, seed=0)
    run = {"data": data, "algorithm": up.FedAvg(), "iterations": 4, "upcycle": 1e41}
    assert len(up.train_many([run], progress=False)[0].history) == 1
    wanted = {"far": lambda: run}
    if may_fail:
        compute_cells(cells, wanted, lambda result: {"accuracy": result.accuracy}, progress=False)
        assert cells["far"]["error"].startswith("the run diverged: the global model is not finite after iteration 2")
    else:
        with pytest.raises(DivergedError):
            compute_cells(cells, wanted, lambda result: {}, may_fail=False, progress=False)
        assert "far" not in cells


# ---------------------------------------------------------------- Parquet


def test_folded_cells_are_what_they_were_and_in_their_order(tmp_path):
    cells = Cells(tmp_path / "cells.parquet")
    for key, value in CELLS.items():
        cells.add(key, value)
    cells.fold()
    assert not cells.journal.exists()
    again = Cells(tmp_path / "cells.parquet")
    # As text: 1 is not 1.0, None is not left out, and the order of names counts.
    assert json.dumps(dict(again.items())) == json.dumps(CELLS)
    assert again.keys() == list(CELLS)


def test_other_tools_read_the_columns(tmp_path):
    import pandas

    write_cells(tmp_path / "cells.parquet", CELLS)
    frame = pandas.read_parquet(tmp_path / "cells.parquet").set_index("key")
    assert frame.loc["a|1", "accuracy"] == 0.1 + 0.2
    assert frame.loc["b|ä", "error"] == "diverged"
    assert frame["accuracy"].isna().sum() == 3


def test_what_parquet_would_change_is_refused_and_the_journal_stays(tmp_path):
    cells = Cells(tmp_path / "cells.parquet")
    cells.add("a", {"forms": {"sharp": 1.0}})
    cells.fold()
    before = cells.path.read_bytes()
    cells.add("b", {"forms": {"paper": 1.0}})  # columns of a struct are the same for all rows
    with pytest.raises(WriteError, match="would not be what they are"):
        cells.fold()
    assert cells.path.read_bytes() == before
    assert dict(Cells(cells.path).items()) == {"a": {"forms": {"sharp": 1.0}}, "b": {"forms": {"paper": 1.0}}}


def test_folding_goes_on_with_later_cells_and_without_any_leaves_the_file_alone(tmp_path):
    cells = Cells(tmp_path / "cells.parquet")
    cells.fold()
    assert not cells.path.exists()
    cells.add("a", {"x": 1})
    cells.fold()
    cells.add("b", {"y": 2.5})
    cells.add("a", {"x": 3})
    cells.fold()
    assert Cells(cells.path).items() == [("a", {"x": 3}), ("b", {"y": 2.5})]
    before = cells.path.stat().st_mtime_ns
    cells.fold()
    assert cells.path.stat().st_mtime_ns == before


def test_a_kill_between_the_parquet_file_and_the_end_of_its_journal_changes_nothing(tmp_path, monkeypatch):
    cells = Cells(tmp_path / "cells.parquet")
    cells.add("a", {"x": 1})
    cells.add("b", {"x": 2})

    def killed(path, missing_ok=False):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            cells.fold()
    again = Cells(tmp_path / "cells.parquet")
    assert again.journal.exists()
    assert again.items() == [("a", {"x": 1}), ("b", {"x": 2})]
    again.fold()
    assert Cells(tmp_path / "cells.parquet").items() == again.items()


KILLED = """
import itertools, sys
from pathlib import Path
from studies.common.store import Cells
cells = Cells(Path(sys.argv[1]))
for i in itertools.count():
    cells.add(f"run {i}", {"x": i, "words": "x" * 4000})
    print(i, flush=True)
    if i % 7 == 3:
        cells.fold()
"""


@pytest.mark.slow
def test_every_cell_that_was_finished_when_a_process_was_killed_is_there(tmp_path):
    path = tmp_path / "cells.parquet"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    words = [sys.executable, "-c", KILLED, str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        finished = [int(process.stdout.readline()) for _ in range(11)]
        process.send_signal(signal.SIGKILL)  # it is folding, or just did
        finished += [int(line) for line in process.stdout.read().splitlines()]
    kept = Cells(path)
    assert all(kept[f"run {i}"]["x"] == i for i in finished)
    assert kept.keys() == [f"run {i}" for i in range(len(kept))]
    assert len(kept) in (len(finished), len(finished) + 1)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"hello"])
def test_a_damaged_parquet_file_is_one_sentence(tmp_path, content):
    path = tmp_path / "cells.parquet"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"cells\.parquet.*damaged"):
        Cells(path)
    assert path.read_bytes() == content


def test_a_parquet_file_cut_short_or_without_keys_is_damaged(tmp_path):
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "cells.parquet"
    write_cells(path, CELLS)
    whole = path.read_bytes()
    for content in (whole[:-20], whole[: len(whole) // 2], whole[:40] + whole[60:]):
        path.write_bytes(content)
        with pytest.raises(InputError, match="is damaged"):
            Cells(path)
    for columns in ({"x": [1]}, {"key": ["a"]}, {"key": [None], "fields": [""]}, {"key": ["a"], "fields": ["x"]}):
        parquet.write_table(pyarrow.table(columns), path)
        with pytest.raises(InputError, match="is damaged"):
            Cells(path)


# ---------------------------------------------------------------- the journal


@pytest.fixture
def journal(tmp_path):
    return tmp_path / "cells.jsonl"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cells.parquet"


def test_a_line_cut_short_is_dropped_and_its_cell_computed_again(path, journal):
    journal.write_text('{"key":"a","x":1}\n{"key":"b","x"')
    cells = Cells(path)
    assert cells.keys() == ["a"]
    cells.add("b", {"x": 2})
    assert Cells(path)["b"] == {"x": 2}


def test_a_damaged_line_in_the_middle_is_named(path, journal):
    journal.write_text('{"key":"a","x":1}\n{"x":1}\n{"key":"b","x":1}\n')
    with pytest.raises(InputError, match=r"cells\.jsonl: line 2.*cell"):
        Cells(path)


def test_reading_never_changes_the_file_but_the_next_cell_goes_on_a_line_of_its_own(path, journal):
    """A page may be written from cells while a command is just adding one."""
    half = '{"key":"a","x":1}\n{"key":"b","x"'
    journal.write_text(half)
    assert Cells(path).keys() == ["a"]
    assert journal.read_text() == half
    cells = Cells(path)
    journal.write_text(half + ':1}\n{"key":"c","x":2}\n{"ke')  # the other command went on
    cells.add("d", {"x": 3})
    assert [json.loads(line)["key"] for line in journal.read_text().splitlines()] == ["a", "b", "c", "d"]


def test_a_reader_beside_a_command_that_is_just_folding_misses_nothing(path, journal, monkeypatch):
    cells = Cells(path)
    cells.add("a", {"x": 1})
    read = Path.read_bytes

    def slow(self):
        content = read(self)
        if self == journal:
            cells.fold()
        return content

    monkeypatch.setattr(Path, "read_bytes", slow)
    assert Cells(path).items() == [("a", {"x": 1})]
    assert not journal.exists()


def test_a_file_that_is_one_half_line_starts_anew(path, journal):
    journal.write_text('{"key":"b"')
    cells = Cells(path)
    assert len(cells) == 0
    cells.add("b", {"x": 2})
    assert journal.read_text() == '{"key":"b","x":2}\n'


def test_bytes_that_are_no_text_are_named_with_their_line(path, journal):
    journal.write_bytes(b'{"key":"a","x":1}\n{"key":"\xff","x":1}\n')
    with pytest.raises(InputError, match=r"cells\.jsonl: line 2.*cell"):
        Cells(path)


def test_a_cell_must_pass_its_owners_check(path, journal):
    journal.write_text('{"key":"a","x":1}\n{"key":"b","x":-1}\n')

    def check(key, value):
        if value["x"] < 0:
            raise ValueError(key)

    assert len(Cells(path)) == 2
    with pytest.raises(InputError, match=r"line 2.*cell"):
        Cells(path, check)
    Cells(path).fold()
    with pytest.raises(InputError, match=r"cells\.parquet: row 2.*damaged"):
        Cells(path, check)


def test_a_folder_in_the_way_is_one_sentence(tmp_path):
    for name in ("cells.parquet", "other.jsonl"):
        (tmp_path / name).mkdir()
        with pytest.raises(InputError, match="cannot be read"):
            Cells((tmp_path / name).with_suffix(".parquet"))
    (tmp_path / "file").write_text("x")
    with pytest.raises(WriteError, match="cannot be written"):
        Cells(tmp_path / "file" / "cells.parquet").add("a", {"x": 1})
