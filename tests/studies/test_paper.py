"""The reproduction: transcribed numbers, choices on validation samples only, pairs over seeds, honest gaps."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import upcycled as up
from studies.common.page import replaced
from studies.common.store import Cells, write_cells
from studies.paper import run as computing
from studies.paper.budget import measured, sample_epochs
from studies.paper.choose import Place, Point, best_of, choose, stages, trial
from studies.paper.document import page_blocks
from studies.paper.figures import Picture, convergence, draw, line
from studies.paper.markdown import accuracy_table, gain_table, status_line
from studies.paper.plan import blocks
from studies.paper.private import panel_json, panels
from studies.paper.run import Asked, expect, numbers, open_book
from studies.paper.settings import load_settings, paper_numbers
from studies.paper.sources import Sources, Store
from studies.paper.spec import Spec
from studies.paper.tables import Entry, Row, fill
from studies.paper.timing import timed
from studies.paper.verdict import against_server_lr, by_method, gains

ROOT = Path(__file__).parents[2]
CELLS = ROOT / "studies" / "paper" / "results"
SETS = ("syn_iid", "syn_0_0", "syn_0p5_0p5", "syn_1_1")


def write_synthetic(folder, poison=False):
    """Four small sets under the names of the official file; ``poison`` turns every test label round."""
    arrays = {}
    for i, name in enumerate(SETS):
        data = up.data.synthetic(0.5, 0.5, clients=5, dim=4, sizes=30, seed=i)
        for part, shards in (("train", data.train), ("test", data.test)):
            arrays[f"{name}_{part}_x"] = shards.x
            arrays[f"{name}_{part}_y"] = 1 - shards.y if poison and part == "test" else shards.y
            arrays[f"{name}_{part}_client"] = np.repeat(np.arange(5), shards.sizes)
    folder.mkdir(exist_ok=True)
    np.savez(folder / "upcycled_synthetic.npz", **arrays)
    return folder


@pytest.fixture
def small_data(tmp_path, monkeypatch):
    monkeypatch.setenv("UPCYCLED_DATA", str(write_synthetic(tmp_path / "data")))
    return tmp_path


def computed(folder, only, what="table1"):
    """A small book with some pieces computed."""
    asked = Asked(what, quick=True, only=only, results=folder)
    book = open_book(asked)
    wanted = list(blocks(book.settings, book.settings.tables[what], only))
    computing.compute(book.store, book.sources, wanted, lambda words: None, progress=False)
    return book


# ---------------------------------------------------------------- the paper's numbers


def rows_of(text, label, after):
    """The numbers of each method in a tabular near a label, read by cells and not by their order in a line."""
    at = text.index(label)
    start = text.index(r"\begin{tabular}", at) if after else text.rindex(r"\begin{tabular}", 0, at)
    found = {}
    for row in text[start : text.index(r"\end{tabular}", start)].split(r"\\"):
        words = [word.strip() for word in row.split("&")]
        name = re.sub(r"\\hline|\\textbf|\\cline\{.*?\}|[{}\s]", "", words[0])
        cells = [re.findall(r"\d+\.\d+", word.replace(r"\textbf", "")) for word in words[1:]]
        cells = [[float(value) for value in pair] for pair in cells if len(pair) == 2]
        if cells and name:
            found[name.lower()] = cells
    return found


def test_the_printed_numbers_are_those_of_the_latex_source(shared_data):
    source = shared_data.parent / "paper" / "upcycled-fl.tex"
    if not source.exists():
        pytest.skip("the paper's LaTeX source is not here")
    text, printed = source.read_text(), paper_numbers()
    six = [*SETS, "femnist", "sent140"]
    layouts = {
        "table1": (r"\label{tab:accuracy}", False, six),
        "table2": (r"\label{tab:accuracy_30_stragger}", True, six),
        "table3": (r"\label{tab:femnist_full}", False, ["femnist26_30", "femnist26_90"]),
    }
    for table, (label, after, columns) in layouts.items():
        rows = rows_of(text, label, after)
        assert len(rows) == 14
        for name, cells in rows.items():
            method = name.removeprefix("upcycled-")
            strategy = "upcycled" if name.startswith("upcycled-") else "vanilla"
            assert printed[table][method][strategy] == dict(zip(columns, cells, strict=True)), (table, name)
    times = rows_of(text, r"\label{tab:communication_cost}", True)
    order = ["fedavg", "fedavgm", "fedprox", "scaffold", "feddyn", "pfedme", "fedyogi"]
    assert printed["table4"]["vanilla"] == dict(zip(order, times["baseline"], strict=True))
    assert printed["table4"]["upcycled"] == dict(zip(order, times["upcycled"], strict=True))


# ---------------------------------------------------------------- the choice


def test_poisoned_test_labels_change_accuracies_but_no_choice(tmp_path, monkeypatch):
    only = ("syn_0p5_0p5", "fedavg", "fedprox")
    found = {}
    for kind, poison in (("clean", False), ("poisoned", True)):
        monkeypatch.setenv("UPCYCLED_DATA", str(write_synthetic(tmp_path / f"data-{kind}", poison)))
        book = computed(tmp_path / kind, only)
        wanted = list(blocks(book.settings, book.settings.tables["table1"], only))
        choices = [block.choice(strategy, book.store) for block in wanted for strategy in block.method.strategies]
        assert None not in choices
        filled = fill(book.settings, book.settings.tables["table1"], book.store, only)
        found[kind] = choices, [row.vanilla.mean for row in filled.rows]
    assert found["clean"][0] == found["poisoned"][0]
    assert found["poisoned"][1] == pytest.approx([100 - mean for mean in found["clean"][1]])


def test_what_a_choice_is_made_from_has_no_test_samples(small_data):
    book = open_book(Asked("table1", quick=True, results=small_data / "cells"))
    whole, part = book.sources.data("syn_iid", "test"), book.sources.data("syn_iid", "validation")
    assert part.test.num_rows + part.train.num_rows == whole.train.num_rows
    assert part.validation is None
    held_out = {row.tobytes() for row in whole.test.x}
    assert not held_out & {row.tobytes() for row in np.concatenate([part.train.x, part.test.x])}


def cells_of(scores):
    """A store that knows (accuracy, loss) by learning rate."""

    def cell(spec):
        found = scores.get((spec.lr, spec.rho))
        return None if found is None else {"accuracy": found[0], "loss": found[1]}

    return cell


def spec_at(point, settings):
    place = Place(settings.methods["fedavg"], "femnist", 0.9)
    return [trial(settings, place, point, 100)]


def test_ties_go_to_the_smaller_loss_failures_are_out_and_edges_are_named():
    settings = load_settings()
    points = [Point(lr, (), None) for lr in (0.01, 0.1, 1.0)]
    runs = lambda point: spec_at(point, settings)  # noqa: E731
    best = best_of(points, runs, cells_of({(0.01, None): (0.8, 0.6), (0.1, None): (0.8, 0.5), (1.0, None): (0.7, 0.1)}))
    assert (best.point.lr, best.accuracy, best.tried, best.at_edge) == (0.1, 0.8, 3, ())
    failed = cells_of({(0.01, None): (0.5, 0.6), (0.1, None): (0.4, 0.5), (1.0, None): (None, None)})
    assert best_of(points, runs, failed).point.lr == 0.01
    assert best_of(points, runs, failed).at_edge == ("lr",)
    assert best_of(points, runs, failed, by="loss").point.lr == 0.1
    assert best_of(points, runs, cells_of({(0.01, None): (0.8, 0.6)})) is None


def test_a_staged_grid_tries_rho_at_the_best_learning_rate_only():
    settings = load_settings()
    place = Place(settings.methods["fedavg"], "femnist", 0.9)
    grid = settings.grids["femnist"]
    first = {(lr, None): (0.5 + 0.1 * (lr == 0.03), 1.0) for lr in grid.lr}
    assert stages(settings, place, "upcycled", cells_of({})) is None
    tries = stages(settings, place, "upcycled", cells_of(first))
    assert [point.lr for point in tries[0]] == list(grid.lr)
    assert {(point.lr, point.rho) for point in tries[1]} == {(0.03, rho) for rho in grid.rho}
    second = first | {(0.03, rho): (0.6 + 0.01 * (rho == 0.9), 1.0) for rho in grid.rho}
    choice = choose(settings, place, "upcycled", cells_of(second))
    assert (choice.point.lr, choice.point.rho, choice.at_edge) == (0.03, 0.9, ("rho",))
    assert choice.tried == len(grid.lr) + len(grid.rho)
    ablation = replace(place, method=settings.methods["fedavg_server_lr"])
    shared = [
        trial(settings, ablation, point, 100).key for point in stages(settings, ablation, "vanilla", cells_of(first))[0]
    ]
    assert shared == [trial(settings, place, point, 100).key for point in tries[0]]


def test_a_complete_grid_is_every_combination():
    settings = load_settings()
    place = Place(settings.methods["fedprox"], "syn_iid", 0.9)
    grid = settings.grids["syn"]
    (tries,) = stages(settings, place, "upcycled", cells_of({}))
    assert len(set(tries)) == len(tries) == len(grid.lr) * len(grid.rho) * 4
    assert not set(grid.seeds) & set(settings.tables["table1"].seeds)


# ---------------------------------------------------------------- runs and cells


def test_vanilla_and_upcycled_have_as_many_data_rounds_and_equal_seeds(small_data):
    book = computed(small_data / "cells", ("syn_iid", "fedavg"))
    (block,) = blocks(book.settings, book.settings.tables["table1"], ("syn_iid", "fedavg"))
    vanilla, upcycled = (block.runs(strategy, book.store) for strategy in ("vanilla", "upcycled"))
    assert [spec.data_rounds for spec in vanilla] == [spec.data_rounds for spec in upcycled] == [20, 20]
    assert [2 * spec.iterations for spec in vanilla] == [spec.iterations for spec in upcycled]
    assert [spec.seed for spec in vanilla] == [spec.seed for spec in upcycled] == [0, 1]
    assert book.store(upcycled[0])["rounds"] == list(range(1, 21))


def test_a_stopped_command_goes_on_with_the_missing_cells_only(small_data, monkeypatch):
    folder, only = small_data / "cells", ("syn_1_1", "fedprox")
    computed(folder, only)
    path = folder / "quick" / "syn-test.parquet"
    before = Cells(path).items()
    # As a kill leaves it: some cells in Parquet, some in the journal, and half a line.
    write_cells(path, dict(before[:1]))
    lines = [json.dumps({"key": key, **value}) for key, value in before[1:]]
    path.with_suffix(".jsonl").write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:20])
    seen = []
    real = computing.run_specs
    monkeypatch.setattr(computing, "run_specs", lambda *a, **k: (seen.extend(a[2]), real(*a, **k)))
    computed(folder, only)
    assert [spec.key for spec in seen] == [before[-1][0]]
    assert not path.with_suffix(".jsonl").exists()
    for (key, new), (old_key, old) in zip(Cells(path).items(), before, strict=True):
        assert key == old_key
        assert {**new, "seconds": 0, "eval_seconds": 0} == {**old, "seconds": 0, "eval_seconds": 0}


def test_a_spec_that_differs_in_anything_has_another_key():
    settings = load_settings()
    spec = spec_at(Point(0.1, (("mu", 0.5),), 0.5), settings)[0]
    changes = {
        "data": "syn_iid",
        "part": "test",
        "algorithm": "fedprox",
        "own": (("mu", 0.1),),
        "lr": 0.2,
        "rho": None,
        "iterations": 7,
        "stragglers": 0.3,
        "participation": 1.0,
        "epochs": 3,
        "batch_size": 8,
        "momentum": 0.0,
        "seed": 9,
        "mechanism": "dpsgd",
    }
    keys = {replace(spec, **{name: value}).key for name, value in changes.items()}
    assert len(keys | {spec.key}) == len(changes) + 1
    for one in (spec, replace(spec, mechanism="erm_output", noise=(("epsilon", 8.0),), lr=None, rho=None, own=())):
        assert Spec.from_key(one.key) == one


def test_the_budget_counts_what_is_missing_and_nothing_when_all_is_there(small_data):
    only = ("syn_iid", "fedavg")
    asked = Asked("table1", quick=True, only=only, results=small_data / "cells")
    book = open_book(asked)
    wanted = list(blocks(book.settings, book.settings.tables["table1"], only))
    cost = expect(book, wanted)
    # lr 2, rho 2 and one seed: 2 vanilla and 4 upcycled tries; then 2 seeds of either.
    assert cost.runs == 2 + 4 + 4
    assert cost.seconds > 0
    book = computed(small_data / "cells", only)
    assert str(expect(book, wanted)) == "nothing to do: all runs are there"


def test_a_rate_is_that_of_the_newest_cells_and_one_slow_run_does_not_move_it(small_data):
    only = ("syn_iid", "fedavg")
    book = open_book(Asked("table1", quick=True, only=only, results=small_data / "cells"))
    spec = next(iter(blocks(book.settings, book.settings.tables["table1"], only))).outlook(book.store)[0]

    class Known:
        def known(self, data):
            seconds = [100.0] * 40 + [2.0] * 15 + [1000.0]
            yield from ((spec, {"seconds": one, "eval_seconds": 1.0}) for one in seconds)

    assert set(measured(Known(), book.sources, only).values()) == {3.0 / sample_epochs(spec, book.sources)}


# ---------------------------------------------------------------- tables


def known_cells(settings, accuracies):
    """Every try is as good as the other; the runs of a table have given accuracies by (is upcycled, seed)."""

    def cell(spec):
        if spec.part == "validation":
            return {"accuracy": 0.5, "loss": 1.0}
        found = accuracies.get((spec.rho is not None, spec.seed))
        return None if found is None else {"accuracy": found, "loss": 1.0, "seconds": 2.0}

    return cell


def test_the_verdict_counts_gains_beside_the_papers_and_names_the_extremes():
    settings = load_settings()

    def cell(spec):
        if spec.part == "validation":
            return {"accuracy": 0.5, "loss": 1.0}
        # FedAvg gains 1 point in every seed but for 0.01; FedProx loses 3, with a spread that hides it; others nothing.
        gain = {"fedavg": 0.01, "fedprox": -0.03}.get(spec.algorithm, 0.0)
        noise = {"fedavg": 1e-4, "fedprox": 0.1}.get(spec.algorithm, 0.0) * (-1) ** spec.seed
        return {"accuracy": 0.8 + (gain + noise if spec.rho is not None else 0.0), "loss": 1.0, "seconds": 2.0}

    found = fill(settings, settings.tables["table1"], cell, ("syn_iid", "fedavg", "fedprox", "scaffold"))
    (line,) = [one for one in gains(found) if one.startswith("- **All")]
    # (1 - 3 + 0) / 3; the paper gains 0.77, 1.10 and 1.17 there.
    assert "(3 pairs): gain on average -0.67 points, median +0.00, positive in 1 of 3; significant gain in 1" in line
    assert "significant loss in 0 (after Holm's correction 1 and 0)" in line
    unlike = sum(row.is_unlike_paper for row in found.rows)
    assert f"The paper: +1.01 on average, positive in 3 of 3; significantly unlike ours in {unlike}." in line
    assert line.endswith("Smallest -3.00 (FedProx on Syn(iid)), largest +1.00 (FedAvg on Syn(iid)).")


def chosen_apart(spec):
    """Validation sends vanilla to learning rate 0.1 and upcycled to 0.01, where vanilla is ten points worse."""
    if spec.part == "validation":
        return {"accuracy": 0.9 if spec.lr == (0.1 if spec.rho is None else 0.01) else 0.5, "loss": 1.0}
    level = 0.82 if spec.rho is not None else {0.1: 0.80, 0.01: 0.70}[spec.lr]
    # FedProx's upcycled runs are so unlike that nothing is sure of them.
    spread = (0.3 if spec.algorithm == "fedprox" else 0.001) * (spec.rho is not None)
    return {"accuracy": level + spread * (-1) ** spec.seed, "loss": 1.0, "seconds": 2.0}


def test_what_rho_alone_adds_is_told_from_what_other_settings_add():
    settings = load_settings()
    found = fill(settings, settings.tables["seeds"], chosen_apart, ("syn_iid", "fedavg", "fedprox"))
    assert found.missing == 0
    assert found.total == 2 * 2 * 3 * 64  # two shares of stragglers, two methods, three kinds of runs
    for row in found.rows:
        assert (row.vanilla.point.lr, row.same.point.lr, row.same.point.rho) == (0.1, 0.01, None)
        assert row.gain.mean == pytest.approx(2.0)
        assert row.gain_of_rho.mean == pytest.approx(12.0)
    small = replace_columns(found)
    # FedProx: sd 30.2, so 12 points are 3.2 standard errors of 3.8, and 2 points half of one.
    # The paper on Syn(iid), 90 and 30 % stragglers: FedAvg 0.77 and 0.80, FedProx 1.10 and 1.02.
    assert by_method(small)[2:] == [
        "| FedAvg | +2.00 | 2 / 0 of 2 | +12.00 | 2 / 0 of 2 | +0.78 |",
        "| FedProx | +2.00 | 0 / 0 of 2 | +12.00 | 2 / 0 of 2 | +1.06 |",
        "| **all 4 pairs** | +2.00 | 2 / 0 of 4 | +12.00 | 4 / 0 of 4 | +0.92 |",
    ]
    assert "**+12.00**" in gain_table(small, of_rho=True)[-1]
    assert "(+" not in gain_table(small, of_rho=True)[-1]  # the paper has no such number
    assert by_method(fill(settings, settings.tables["seeds"], lambda spec: None)) == ["Not computed yet."]


def test_vanilla_runs_are_counted_once_where_both_sides_chose_the_same():
    settings = load_settings()
    known = {(is_upcycled, seed): 0.8 for is_upcycled in (False, True) for seed in range(64)}
    found = fill(settings, settings.tables["seeds"], known_cells(settings, known), ("syn_iid", "fedavg"))
    assert found.total == 2 * 2 * 64


def test_the_gain_is_paired_over_seeds_with_students_interval():
    settings = load_settings()
    vanilla, upcycled = (0.80, 0.90, 0.70, 0.60), (0.81, 0.92, 0.73, 0.64)
    known = {(False, i): a for i, a in enumerate(vanilla)} | {(True, i): a for i, a in enumerate(upcycled)}
    found = fill(settings, settings.tables["table1"], known_cells(settings, known), ("syn_iid", "fedavg"))
    (row,) = found.rows
    # Differences 1, 2, 3, 4: mean 2.5, sd sqrt(5/3) = 1.29099; t(3 df, 97.5 %) = 3.18245; half = 3.18245 * 1.29099 / 2.
    low, high = row.gain.interval
    assert row.gain.mean == pytest.approx(2.5)
    assert (low, high) == (pytest.approx(2.5 - 2.05426, abs=1e-4), pytest.approx(2.5 + 2.05426, abs=1e-4))
    assert row.gain.is_significant
    assert row.vanilla.mean == pytest.approx(75.0)
    assert row.vanilla.difference == pytest.approx(75.0 - 98.06)
    assert row.paper_gain == pytest.approx(98.83 - 98.06)
    assert found.missing == 0
    assert "**+2.50** [+0.45, +4.55] (+0.77)" in "\n".join(gain_table(replace_columns(found)))


@pytest.mark.parametrize(("paper_gain", "is_unlike"), [(4.0, False), (4.2, True), (0.0, False), (-0.2, True)])
def test_the_papers_gain_is_set_against_ours_with_both_errors(paper_gain, is_unlike):
    """Ours: 1, 3, 1, 3, so mean 2 and sd^2 / 4 = 1/3. The paper: two means of four with sd 1, so 1/4 each.

    Together 5/6, with (5/6)^2 / ((1/9 + 1/16 + 1/16) / 3) = 8.8 degrees of freedom, of which 5 % lie beyond 2.27:
    the paper's gain may be 2.27 sqrt(5/6) = 2.07 away from 2.
    """
    entry = partial(Entry, choice=None, seconds=1.0)
    vanilla = entry(by_seed=(80.0,) * 4, paper=(80.0, 1.0))
    row = Row(None, vanilla, entry(by_seed=(81.0, 83.0, 81.0, 83.0), paper=(80.0 + paper_gain, 1.0)), confidence=0.95)
    assert row.is_unlike_paper is is_unlike
    assert replace(row, upcycled=replace(row.upcycled, paper=None)).is_unlike_paper is None


def replace_columns(found):
    """The table with the columns and methods that its rows have."""
    columns = tuple(dict.fromkeys(row.block.column for row in found.rows))
    methods = tuple(dict.fromkeys(row.block.method.name for row in found.rows))
    return replace(found, table=replace(found.table, columns=columns, methods=methods))


def test_missing_runs_are_shown_as_missing_and_never_averaged():
    settings = load_settings()
    known = {(False, i): 0.8 for i in range(4)} | {(True, i): 0.9 for i in range(3)}
    found = fill(settings, settings.tables["table1"], known_cells(settings, known), ("syn_iid", "fedavg"))
    (row,) = found.rows
    assert row.upcycled.mean is None
    assert row.gain is None
    assert (found.missing, found.total) == (1, 8)
    assert (found.failed, row.upcycled.failed) == (0, 0)
    broken = fill(
        settings,
        settings.tables["table1"],
        lambda spec: {"error": "diverged"} if spec.part == "test" else {"accuracy": 0.5, "loss": 1.0},
        ("syn_iid", "fedavg"),
    )
    assert (broken.missing, broken.failed) == (0, 8)
    assert "of which 8 diverged" in status_line(replace_columns(broken))
    small = replace_columns(found)
    assert "Not computed yet: 1 of 8 runs" in status_line(small)
    assert accuracy_table(small)[-1] == "| **Upcycled** FedAvg | – (98.83) |"
    nothing = fill(settings, settings.tables["table3"], lambda spec: None)
    assert nothing.missing == nothing.total == (7 * 2 + 1) * 2 * 4
    assert gains(nothing) == ["- No pair of method and data set is complete yet."]
    assert against_server_lr(nothing) == ["Not computed yet."]
    json.dumps(nothing.as_json(), allow_nan=False)


def test_upcycled_fedavg_is_fedavg_with_a_longer_server_step(small_data):
    """The ablation of the page: the same rho gives the same model, so the same accuracies."""
    only = ("syn_0_0", "fedavg", "fedavg_server_lr")
    book = computed(small_data / "cells", only)
    found = fill(book.settings, book.settings.tables["table1"], book.store, only)
    plain, tuned = found.rows
    rho, server_lr = plain.upcycled.choice.point.rho, dict(tuned.vanilla.choice.point.own)["server_lr"]
    tried = {
        dict(point.own)["server_lr"] for point in stages(book.settings, tuned.block.place, "vanilla", book.store)[0]
    }
    assert tried == {1.1, 1.9}
    if server_lr == pytest.approx(1 + rho):
        assert plain.upcycled.by_seed == tuned.vanilla.by_seed


# ---------------------------------------------------------------- private runs, times, figures


def test_private_panels_have_equal_iterations_and_the_noise_of_the_paper():
    found = [panel for panel in panels(load_settings()) if panel.figure == "output"]
    assert {panel.data for panel in found} >= set(SETS)
    for panel in found:
        if panel.data in SETS:
            sides = [panel.spec(strategy, panel.points(strategy)[0], 0) for strategy in ("vanilla", "upcycled")]
            assert [spec.iterations for spec in sides] == [80, 80]
            assert [spec.data_rounds for spec in sides] == [80, 40]
            assert [dict(spec.noise) for spec in sides] == [
                {"clip_norm": 10.0, "noise_std": 1.0},
                {"clip_norm": 10.0, "noise_std": 0.8},
            ]
            assert all((spec.stragglers, spec.participation) == (0.0, 1.0) for spec in sides)


def test_the_small_version_leaves_out_what_takes_hours():
    quick, whole = ({panel.data for panel in panels(load_settings(quick=is_quick))} for is_quick in (True, False))
    assert whole - quick == {"sent140"}
    tried = {panel.figure: (panel.lr, panel.rho) for panel in panels(load_settings(quick=True), ("syn_iid", "fedavg"))}
    assert tried == {"output": ((0.1,), (0.5,)), "objective": ((0.001,), (0.5,))}  # one setting, not at an edge
    tables = load_settings(quick=True).tables.values()
    assert not {column.data for table in tables for column in table.columns} & {"sent140", "sent140_reduced"}


def test_a_private_panel_shows_both_epsilons_of_its_runs(small_data):
    asked = Asked("figures", quick=True, only=("syn_iid", "fedprox"), results=small_data / "cells")
    book = open_book(asked)
    wanted = list(panels(book.settings, asked.only))
    computing.compute(book.store, book.sources, wanted, lambda words: None, progress=False)
    by_figure = {panel.figure: panel_json(panel, book.store) for panel in wanted}
    output, objective = by_figure["output"], by_figure["objective"]
    # The proven sensitivity is 2 tau whatever n is; the paper's is tau / n.
    assert output["vanilla"]["epsilon"][1] > 100 * output["vanilla"]["paper_epsilon"][1]
    assert objective["vanilla"]["epsilon"] == [None, None]  # infinite: paper mode claims nothing
    assert by_figure["proven-output"]["upcycled"]["epsilon"][1] == pytest.approx(8.0, rel=1e-3)
    assert by_figure["proven-output"]["vanilla"]["epsilon"][1] == pytest.approx(8.0, rel=1e-3)
    assert output["gain"]["by_seed"] == pytest.approx(
        np.subtract(output["vanilla"]["losses"], output["upcycled"]["losses"]), abs=1e-4
    )


def test_ratios_of_times_are_upcycled_over_vanilla_seed_by_seed():
    settings = load_settings()
    (one,) = timed(settings, ("fedavg",))
    seconds = {(False, seed): 2.0 + seed for seed in range(4)} | {(True, seed): 1.0 + seed for seed in range(4)}
    found = one.as_json(lambda spec: {"seconds": seconds[spec.rho is not None, spec.seed]})
    assert found["ratios"] == pytest.approx([1 / 2, 2 / 3, 3 / 4, 4 / 5], abs=1e-4)
    assert found["paper_ratio"] == pytest.approx(86.44 / 147.50, abs=1e-4)
    assert {spec.iterations for spec in one.known(lambda spec: None)} == {80}
    assert len(one.next_runs(lambda spec: None)) == 1  # timed runs run alone
    assert one.as_json(lambda spec: None)["ratio"] is None


def test_a_curve_with_a_missing_seed_is_not_drawn(small_data, tmp_path):
    only = ("syn_iid", "fedavg")
    book = computed(small_data / "cells", only)
    table = book.settings.tables["table1"]
    (block,) = blocks(book.settings, table, only)
    runs = block.runs("upcycled", book.store)
    assert line("upcycled", runs, book.store).losses.shape == (2, 20)
    assert line("upcycled", runs, lambda spec: None if spec.seed == 1 else book.store(spec)) is None
    plots = convergence(book.settings, table, book.store)
    assert [plot.column for plot in plots if plot.lines] == ["FedAvg"]
    picture = Picture("title", "data rounds", tuple(plots))
    draw(tmp_path / "a.png", picture)
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    assert picture.is_drawable
    assert not replace(picture, plots=tuple(replace(plot, lines=()) for plot in plots)).is_drawable


# ---------------------------------------------------------------- what is committed


def committed():
    settings = load_settings()
    return settings, Store(CELLS, settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "method", "strategy"),
    [("syn_iid", "fedavg", "upcycled"), ("syn_0_0", "scaffold", "vanilla"), ("syn_1_1", "feddyn", "upcycled")],
)
def test_a_committed_cell_is_what_the_code_gives_today(shared_data, monkeypatch, data, method, strategy):
    monkeypatch.setenv("UPCYCLED_DATA", str(shared_data))
    settings, store = committed()
    (block,) = blocks(settings, settings.tables["table1"], (data, method))
    spec = block.runs(strategy, store)[0]
    assert (spec.seed, spec.data_rounds) == (0, 80)
    sources = Sources(settings)
    federation = sources.data(data, "test")
    result = up.train(**spec.arguments(federation, sources.model(data), 1), progress=False)
    kept = store(spec)
    # One sample may fall on the other side on another processor.
    assert result.accuracy == pytest.approx(kept["accuracy"], abs=1.5 / federation.test.num_rows)
    assert result.loss == pytest.approx(kept["loss"], rel=1e-3)
    assert result.history[-1].data_round == kept["rounds"][-1] == 80


@pytest.mark.slow
def test_many_seeds_go_on_with_the_tables_own_runs():
    """Seeds 0 to 3 are runs of Tables 1 and 2 too, kept apart: they must have come out the same."""
    settings, store = committed()
    compared = 0
    for block in blocks(settings, settings.tables["seeds"]):
        for strategy in block.method.strategies:
            for spec in block.runs(strategy, store)[:4]:
                again, first = store(spec), store(replace(spec, part="test"))
                assert again["accuracy"] == pytest.approx(first["accuracy"], abs=1e-6), spec.key
                assert again["loss"] == pytest.approx(first["loss"], rel=1e-5), spec.key
                compared += 1
    assert compared == 7 * 2 * 8 * 4


@pytest.mark.slow
def test_many_seeds_have_the_settings_and_the_printed_numbers_of_their_tables():
    settings, store = committed()
    many = fill(settings, settings.tables["seeds"], store)
    tables = {name: fill(settings, settings.tables[name], store, ("syn",)) for name in ("table1", "table2")}
    for row in many.rows:
        table, column = row.block.column.printed
        other = tables[table].row(column, row.block.method.name)
        assert row.block.column.stragglers == other.block.column.stragglers == {"table1": 0.9, "table2": 0.3}[table]
        assert row.paper_gain == other.paper_gain is not None
        assert (row.vanilla.choice, row.upcycled.choice) == (other.vanilla.choice, other.upcycled.choice)
        assert len(row.vanilla.by_seed) == 64


def test_as_many_test_images_of_26_letters_are_in_the_choices_data_as_the_page_says(shared_data, monkeypatch):
    """The page says about a quarter: the two sets were cut from the same images."""
    monkeypatch.setenv("UPCYCLED_DATA", str(shared_data))
    ten, all_letters = up.data.femnist(), up.data.femnist(letters=26)
    known = {row.tobytes() for row in np.asarray(ten.train.x)}
    shared = np.mean([row.tobytes() in known for row in np.asarray(all_letters.test.x)])
    assert 0.2 < shared < 0.3


def test_of_many_seeds_only_the_ends_are_kept(small_data):
    only = ("syn_iid", "fedavg")
    book = computed(small_data / "cells", only, "seeds")
    wanted = blocks(book.settings, book.settings.tables["seeds"], only)
    kept = [book.store(spec) for block in wanted for spec in block.runs("upcycled", book.store)]
    assert len(kept) == 2 * 2  # two shares of stragglers, two seeds
    assert all(set(one) >= {"accuracy", "loss", "seconds"} and "losses" not in one for one in kept)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["table1", "table2", "table3", "seeds", "sent140", "table4", "figures"])
def test_the_committed_numbers_are_those_of_the_committed_cells(what):
    kept = json.loads((CELLS / f"{what}.json").read_text())
    assert numbers(open_book(Asked(what)), what) == kept


@pytest.mark.slow
def test_the_page_is_written_from_the_committed_cells():
    book = open_book(Asked("table1"))
    page = (ROOT / "docs" / "reproduction.md").read_text()
    wanted = page_blocks(book)
    marks = re.findall(r"<!-- (\S+): begin -->", page)
    assert set(marks) <= set(wanted)
    assert replaced(page, wanted) == page
