"""The reproduction when something is wrong: names a table lacks, other data, damaged cells, tries that all diverge."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import upcycled as up
from studies.paper import run as computing
from studies.paper.markdown import accuracy_table, choice_table, private_table, status_line
from studies.paper.plan import blocks
from studies.paper.private import panel_json, panels
from studies.paper.run import Asked, expect, open_book, pieces, run
from studies.paper.settings import load_settings, select
from studies.paper.sources import DATA, Sources, Store, check_data
from studies.paper.spec import Spec, check_cell
from studies.paper.tables import fill
from studies.paper.timing import timed
from tests.studies.test_paper import SETS, write_synthetic
from tests.wording import has_all
from upcycled.core.errors import InputError
from upcycled.training.checkpoint.fingerprint import hash_of_data

ROOT = Path(__file__).parents[2]
RUN = "syn_iid|validation|fedavg|lr=0.1|vanilla|T=20|stragglers=0.9|clients=0.3|epochs=10|batch=32|momentum=0|seed=100"


@pytest.fixture
def small_data(tmp_path, monkeypatch):
    monkeypatch.setenv("UPCYCLED_DATA", str(write_synthetic(tmp_path / "data")))
    return tmp_path


# ---------------------------------------------------------------- --only


@pytest.mark.parametrize(
    ("what", "only"),
    [
        ("sent140", ("scaffold",)),
        ("seeds", ("fedavg_server_lr",)),
        ("seeds", ("femnist",)),
        ("table4", ("femnist",)),
        ("table4", ("fedavg_server_lr",)),
        ("table4", ("femnist", "fedavg")),
        ("figures", ("fedavg_server_lr",)),
        ("figures", ("femnist26",)),
        ("table3", ("syn", "fedavg")),
    ],
)
def test_known_names_that_a_table_lacks_leave_nothing_of_it(what, only, tmp_path):
    assert pieces(load_settings(), Asked(what, only=only)) == []
    with pytest.raises(InputError, match=rf"{what}.*--only {' '.join(only)}.*--only"):
        run(Asked(what, only=only, results=tmp_path / "cells"), print)
    assert not (tmp_path / "cells").exists()


def test_names_of_methods_restrict_methods_and_names_of_data_restrict_data():
    settings = load_settings()
    whole = select(settings)
    assert (whole.data, whole.methods) == (set(settings.data), set(settings.methods))
    assert select(settings, ["fedavg"]) == replace(whole, methods=frozenset({"fedavg"}))
    assert select(settings, ["syn"]) == replace(whole, data=frozenset(SETS))
    both = select(settings, ["syn_iid", "femnist26", "fedprox"])
    assert (both.data, both.methods) == ({"syn_iid", "femnist26"}, {"fedprox"})
    # What a table has of them is taken, the others are no reason to refuse.
    found = blocks(settings, settings.tables["sent140"], ("fedavg", "scaffold"))
    assert [block.method.name for block in found] == ["fedavg"]


def test_the_same_names_mean_the_same_for_tables_times_and_figures():
    settings = load_settings()
    assert {one.data for one in timed(settings, ("syn",))} == {"syn_iid"}
    assert len(list(timed(settings, ("syn", "fedavg", "fedprox")))) == 2
    assert {one.column.data for one in blocks(settings, settings.tables["table1"], ("syn",))} == set(SETS)
    assert {one.data for one in panels(settings, ("syn",))} == set(SETS)
    assert {one.method.name for one in panels(settings, ("syn", "fedavg"))} == {"fedavg"}


def test_a_set_is_also_called_by_the_name_of_its_source():
    settings = load_settings()
    wanted = list(blocks(settings, settings.tables["sent140"], ("sent140", "fedavg")))
    assert [block.column.data for block in wanted] == ["sent140_reduced"]
    assert {block.column.data for block in blocks(settings, settings.tables["table1"], ("sent140",))} == {"sent140"}


@pytest.mark.parametrize(
    ("what", "only", "is_blamed"),
    [
        ("sent140", (), True),
        ("table1", ("sent140",), True),
        ("figures", ("sent140",), True),
        ("sent140", ("scaffold",), False),
        ("table3", ("syn",), False),
        ("table4", ("sent140",), False),
    ],
)
def test_the_small_version_is_blamed_only_where_the_whole_one_has_something(what, only, is_blamed, tmp_path):
    with pytest.raises(InputError) as caught:
        run(Asked(what, quick=True, only=only, results=tmp_path), print)
    assert ("without --quick" in str(caught.value)) == is_blamed
    assert (has_all(str(caught.value), "data sets", "methods")) != is_blamed


# ---------------------------------------------------------------- which data cells come from


def fingerprints(folder):
    return json.loads((folder / "quick" / DATA).read_text())


def compute_some(folder, what="table1", only=("syn_iid", "fedavg")):
    run(Asked(what, quick=True, only=only, results=folder), lambda words: None)


def test_cells_know_their_data_and_other_files_of_that_name_are_refused(small_data, monkeypatch):
    folder = small_data / "cells"
    compute_some(folder)
    kept = fingerprints(folder)
    assert set(kept) == {"syn_iid"}
    assert set(kept["syn_iid"]) == {"test", "validation"}
    before = {path.name: path.read_bytes() for path in (folder / "quick").glob("syn-*")}
    monkeypatch.setenv("UPCYCLED_DATA", str(write_synthetic(small_data / "other", poison=True)))
    for what, only in (("table1", ("syn_iid", "scaffold")), ("table4", ("fedavg",)), ("seeds", ("syn_iid", "fedavg"))):
        with pytest.raises(InputError) as caught:
            compute_some(folder, what, only)
        assert str(caught.value) == (
            f"the files of Syn(iid) on this machine differ from those that the cells in {folder / 'quick'} come from, "
            "so their runs must not be mixed: --results DIR computes anew in another folder"
        )
    assert {path.name: path.read_bytes() for path in (folder / "quick").glob("syn-*")} == before
    assert fingerprints(folder) == kept
    compute_some(small_data / "elsewhere")
    assert fingerprints(small_data / "elsewhere") != kept


def test_another_share_of_validation_samples_is_other_data_for_tries_only(small_data):
    settings = load_settings(quick=True)
    store = Store(small_data / "cells", settings)
    check_data(store, Sources(settings), "syn_iid", "validation")
    other = Sources(replace(settings, validation_fraction=0.3))
    check_data(store, other, "syn_iid", "test")
    check_data(store, other, "syn_iid", "seeds")
    with pytest.raises(InputError, match=r"validation samples.*Syn\(iid\)"):
        check_data(store, other, "syn_iid", "validation")


def test_the_fingerprint_is_there_before_the_first_cell_and_keeps_what_others_wrote(small_data, monkeypatch):
    settings = load_settings(quick=True)
    store, sources = Store(small_data / "cells", settings), Sources(settings)
    check_data(store, sources, "syn_0_0", "time")
    assert list(json.loads((store.folder / DATA).read_text())["syn_0_0"]) == ["test"]

    def stopped(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(computing, "compute_cells", stopped)
    with pytest.raises(KeyboardInterrupt):
        computing.run_specs(store, sources, [Spec.from_key(RUN)], progress=False)
    assert set(json.loads((store.folder / DATA).read_text())) == {"syn_0_0", "syn_iid"}
    assert not list(store.folder.glob("syn-*"))


@pytest.mark.parametrize("content", [b"", b"[]", b'{"syn_iid": 3}', b"\xff{}"])
def test_a_damaged_file_of_fingerprints_is_one_sentence(small_data, content):
    settings = load_settings(quick=True)
    store = Store(small_data / "cells", settings)
    store.folder.mkdir()
    (store.folder / DATA).write_bytes(content)
    with pytest.raises(InputError, match=r"data\.json.*written"):
        check_data(store, Sources(settings), "syn_iid", "test")
    assert (store.folder / DATA).read_bytes() == content


def test_other_word_vectors_are_other_data():
    x, y = [np.array([[1, 2], [2, 0]])], [np.array([0, 1])]
    data = up.data.FederatedData.from_arrays(x, y, num_classes=2)
    tables = [np.full((3, 4), value, dtype=np.float32) for value in (0.0, 1.0)]
    found = {hash_of_data(one) for one in (data, *(data.with_vectors(table) for table in tables))}
    assert len(found) == 3


@pytest.mark.slow
def test_the_committed_cells_come_from_the_data_that_are_here(shared_data, monkeypatch):
    path = ROOT / "studies" / "paper" / "results" / DATA
    monkeypatch.setenv("UPCYCLED_DATA", str(shared_data))
    settings, kept = load_settings(), json.loads(path.read_text())
    sources = Sources(settings)
    store = Store(path.parent, settings)
    known = {(spec.data, spec.part) for spec, _ in store.known(settings.data)}
    assert known
    for name, part in known:
        form = "validation" if part == "validation" else "test"
        assert kept[settings.data[name].source][form] == sources.fingerprint(name, form), (name, part)


# ---------------------------------------------------------------- damaged cells


@pytest.mark.parametrize(
    "line",
    [
        b'{"key":"hello","accuracy":0.5,"loss":1.0}',
        b'{"key":7,"accuracy":0.5,"loss":1.0}',
        b'{"key":["a"],"accuracy":0.5,"loss":1.0}',
        b'{"key":"%s","accuracy":"good","loss":1.0}' % RUN.encode(),
        b'{"key":"%s","accuracy":true,"loss":1.0}' % RUN.encode(),
        b'{"key":"%s","accuracy":NaN,"loss":1.0}' % RUN.encode(),
        b'{"key":"%s","accuracy":0.5}' % RUN.encode(),
        b'{"key":"%s","accuracy":0.5,"loss":1.0,"seconds":"long"}' % RUN.encode(),
        b'{"key":"%s","accuracy":0.5,"loss":1.0,"losses":["x"]}' % RUN.encode(),
        b'{"key":"%s","accuracy":0.5,"loss":1.0}' % RUN.replace("fedavg", "nothing").encode(),
        b'{"key":"%s","accuracy":0.5,"loss":1.0}' % RUN.replace("T=20", "T=0").encode(),
        b'{"key":"%s","accuracy":0.5,"loss":1.0}' % RUN.replace("fedavg", "fedavg\xff").encode("latin-1"),
        b"[]",
        b"",
    ],
)
def test_a_line_that_is_no_cell_is_named_with_its_file_and_nothing_is_computed(small_data, line):
    folder = small_data / "cells" / "quick"
    folder.mkdir(parents=True)
    path = folder / "syn-validation.jsonl"
    whole = json.dumps({"key": RUN.replace("seed=100", "seed=101"), "accuracy": 0.5, "loss": 1.0}).encode()
    path.write_bytes(whole + b"\n" + line + b"\n")
    with pytest.raises(InputError) as caught:
        compute_some(small_data / "cells")
    assert has_all(str(caught.value), f"{path}: line 2", "cell")
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == whole + b"\n" + line + b"\n"


@pytest.mark.slow
def test_what_is_kept_of_a_run_or_of_its_error_is_a_cell(small_data):
    check_cell(RUN, {"error": "diverged"})
    check_cell(RUN, {"accuracy": None, "loss": None, "seconds": 0.1})
    compute_some(small_data / "cells")
    compute_some(small_data / "cells", "figures", ("syn_iid", "fedprox"))
    book = open_book(Asked("table1", quick=True, results=small_data / "cells"))
    assert Counter(spec.part for spec, _ in book.store.known({"syn_iid"}))["test"] > 4


# ---------------------------------------------------------------- tries that all diverge


def diverging(is_bad, accuracy=0.8):
    """Cells of which some tries diverged; every run that is asked for is there."""

    def cell(spec):
        if spec.part == "validation" and is_bad(spec):
            return {"error": "diverged"}
        return {"accuracy": accuracy, "loss": 1.0, "seconds": 1.0}

    return cell


def only_tries(cell):
    """What is there before the table's own runs."""
    return lambda spec: cell(spec) if spec.part == "validation" else None


def small_table(found):
    """The table with the columns and methods of its rows."""
    columns = tuple(dict.fromkeys(row.block.column for row in found.rows))
    methods = tuple(dict.fromkeys(row.block.method.name for row in found.rows))
    return replace(found, table=replace(found.table, columns=columns, methods=methods))


@pytest.mark.parametrize(("what", "data"), [("table1", "syn_iid"), ("table1", "femnist"), ("seeds", "syn_iid")])
def test_vanilla_runs_do_not_wait_for_an_upcycled_grid_in_which_nothing_works(what, data):
    settings = load_settings()
    cell = diverging(lambda spec: spec.rho is not None)
    table, only = settings.tables[what], (data, "fedavg")
    for block in blocks(settings, table, only):
        assert block.wanted("vanilla", only_tries(cell)) == len(table.seeds)
        assert block.wanted("upcycled", only_tries(cell)) == 0
        # Nothing more is expected than what is carried out: vanilla's own runs.
        named = block.next_runs(only_tries(cell))
        assert [spec.seed for spec in named] == list(table.seeds)
        assert {spec.rho for spec in named} == {None}
        assert block.outlook(only_tries(cell)) == named
        assert block.next_runs(cell) == block.outlook(cell) == []
    found = small_table(fill(settings, table, cell, only))
    assert (found.missing, found.failed) == (0, 0)
    assert found.total == len(table.seeds) * len(found.rows)
    assert found.rows[0].gain is None
    assert "Complete" in status_line(found)
    assert "no setting works" in accuracy_table(found)[-1]
    assert "no setting works" in "\n".join(choice_table(found))
    assert "no setting works" not in accuracy_table(found)[-2]
    json.dumps(found.as_json(), allow_nan=False)


@pytest.mark.parametrize("data", ["syn_iid", "femnist", "sent140"])
def test_where_no_try_of_either_side_works_there_is_nothing_to_do_and_the_table_says_so(data):
    settings = load_settings()
    cell, only = diverging(lambda spec: True), (data, "fedavg")
    (block,) = blocks(settings, settings.tables["table1"], only)
    assert block.next_runs(only_tries(cell)) == block.outlook(only_tries(cell)) == []
    found = small_table(fill(settings, settings.tables["table1"], only_tries(cell), only))
    assert (found.missing, found.total) == (0, 0)
    assert all("no setting works" in line for line in accuracy_table(found)[-2:])


def test_while_a_try_is_missing_nothing_is_given_up():
    settings = load_settings()
    (block,) = blocks(settings, settings.tables["table1"], ("syn_iid", "fedavg"))
    tries = block.trials(lambda spec: None)
    cell = lambda spec: None if spec == tries[-1] or spec.part == "test" else {"error": "diverged"}  # noqa: E731
    assert block.next_runs(cell) == [tries[-1]]
    assert block.wanted("upcycled", cell) == 4
    found = fill(settings, settings.tables["table1"], cell, ("syn_iid", "fedavg"))
    assert found.missing == found.total == 8


def test_an_ablation_asked_for_alone_names_its_first_tries_too():
    """Its staged grid starts with FedAvg's learning rates, which nobody else names here."""
    settings = load_settings()
    for what in ("table1", "table3"):
        for block in blocks(settings, settings.tables[what], ("femnist", "femnist26", "fedavg_server_lr")):
            lr = [spec.lr for spec in block.next_runs(lambda spec: None)]
            assert lr == list(settings.grids["femnist"].lr)
            assert block.wanted("vanilla", lambda spec: None) == 4


def test_a_private_grid_in_which_nothing_works_ends_too():
    settings = load_settings()
    panel = next(one for one in panels(settings, ("syn_iid", "fedavg")) if one.figure == "output")
    for is_bad, sides in ((lambda spec: spec.rho is not None, 1), (lambda spec: True, 0)):
        cell = diverging(is_bad)
        named = panel.next_runs(only_tries(cell))
        assert len(named) == len(panel.outlook(only_tries(cell))) == sides * len(panel.seeds)
        assert panel.next_runs(cell) == panel.outlook(cell) == []
        found = panel_json(panel, cell)
        assert (found["runs"]["wanted"], found["runs"]["missing"]) == (sides * len(panel.seeds), 0)
        assert found["gain"] is None
        assert private_table([found])[-1].count("no setting works") == 2 - sides


def test_a_command_whose_tries_all_diverge_ends_and_a_second_one_has_nothing_to_do(small_data, monkeypatch):
    asked = Asked("table1", quick=True, only=("syn_iid", "fedavg"), results=small_data / "cells")
    book = open_book(asked)
    wanted = pieces(book.settings, asked)
    for spec in wanted[0].trials(book.store):
        book.store.cells(spec).add(spec.key, {"error": "diverged"})
    found = run(asked, lambda words: None)
    assert found["runs"] == {"wanted": 0, "missing": 0, "failed": 0}
    assert str(expect(open_book(asked), wanted)) == "nothing to do: all runs are there"


# ---------------------------------------------------------------- folders


def test_the_small_version_has_its_own_folder_wherever_results_go(tmp_path):
    folders = [
        Asked("table1", quick, results=results).folder for quick in (False, True) for results in (None, tmp_path)
    ]
    assert len(set(folders)) == 4
    assert Asked("table1", results=tmp_path).folder == tmp_path
