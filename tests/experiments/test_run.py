"""Running an experiment: what is written, what is not run twice, and what happens when something fails."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

import upcycled as up
from tests.experiments.small import SMALL, everything_under, small_file, spec_in
from upcycled._utils.files import WriteError, write_together, write_whole
from upcycled._utils.lock import InUseError, locked
from upcycled._utils.statistics import mean_and_sd
from upcycled.config.experiment import load_config
from upcycled.core.errors import DivergedError, InputError
from upcycled.experiments import batch as batch_module
from upcycled.experiments import run_in_folder
from upcycled.experiments.batch import Options, run_experiment, seed_line
from upcycled.experiments.results import plain
from upcycled.run_folder import RunFolder
from upcycled.training.executor import Failed

MODEL = ["model.json", "model.safetensors"]
TABLES = ["clients.jsonl", "config.toml", "evaluation.json", "metrics.jsonl"]
FILES = [*TABLES, *MODEL, "summary.json"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small_file(tmp_path)
    return tmp_path


def run(*overrides, **options):
    return run_experiment(load_config("small.toml", overrides), "small.toml", Options(**options))


def refuse_to_train(*args, **kwargs):
    raise AssertionError("a seed was run that should not have been")


def failed(result, error):
    """Return what a batch has of a run that did not finish: a diverged one comes with its result so far."""
    return replace(result, error=error) if isinstance(error, DivergedError) else Failed(error, result.settings)


def failing_at(seed, error):
    """Return a stand-in for the batch runner in which the run of one seed fails."""
    train_each = batch_module.train_each

    def stand_in(runs, **options):
        for place, result in train_each(runs, **options):
            yield place, failed(result, error) if spec_in(runs[place]).seed == seed else result

    return stand_in


def test_a_run_writes_what_train_gives(here):
    outcome = run()
    assert [(s.seed, s.status) for s in outcome.seeds] == [(0, "finished"), (1, "finished")]
    experiment = load_config("small.toml")
    for seed in (0, 1):
        folder = here / "results" / "small" / f"seed-{seed}"
        assert sorted(p.name for p in folder.iterdir()) == FILES
        expected = up.train(experiment.build_data(), experiment.spec(seed), progress=False)
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert [row["accuracy"] for row in rows] == expected.history.column("accuracy")
        assert [row["kind"] for row in rows] == ["data", "upcycled", "data", "upcycled"]
        tensors = load_file(folder / "model.safetensors")
        assert tensors.keys() == expected.model.state_dict().keys()
        assert all(np.array_equal(tensors[k], v) for k, v in expected.model.state_dict().items())
        summary = json.loads((folder / "summary.json").read_text())
        assert (summary["accuracy"], summary["loss"]) == (expected.accuracy, expected.loss)
        # Two data rounds of two clients, one vector of 3 * 2 + 2 float32 down and one up for each.
        assert (summary["data_rounds"], summary["messages"], summary["bytes"]) == (2, 8, 2 * 2 * 2 * 8 * 4)


def test_the_config_beside_a_seed_repeats_that_seed(here):
    run()
    folder = here / "results" / "small" / "seed-1"
    alone = load_config(folder / "config.toml", ["results=again"])
    assert alone.seeds == (1,)
    run_experiment(alone, "config.toml")
    again = here / "again" / "small" / "seed-1" / "model.safetensors"
    assert again.read_bytes() == (folder / "model.safetensors").read_bytes()


def test_the_summary_is_mean_and_sample_deviation_over_seeds(here):
    outcome = run("seeds=[0, 1, 2]")
    losses = [s.summary.loss for s in outcome.seeds]
    # By hand: sd^2 = sum (x - mean)^2 / (3 - 1).
    mean = sum(losses) / 3
    sd = (sum((x - mean) ** 2 for x in losses) / 2) ** 0.5
    assert outcome.summary()["loss"] == pytest.approx({"mean": mean, "sd": sd})
    assert mean_and_sd([0.25]) == {"mean": 0.25, "sd": None}
    assert mean_and_sd([None]) == {"mean": None, "sd": None}


def test_a_finished_seed_is_not_run_again(here, monkeypatch):
    first = run()
    before = everything_under(here)
    monkeypatch.setattr(batch_module, "train_each", refuse_to_train)
    second = run()
    assert [s.status for s in second.seeds] == ["reused", "reused"]
    assert second.summary() == first.summary()
    assert everything_under(here) == before


def test_added_seeds_are_run_and_the_others_are_kept(here, monkeypatch):
    run("seeds=[0]")
    trained = []
    train_each = batch_module.train_each

    def noting(runs, **options):
        trained.extend(spec_in(run).seed for run in runs)
        return train_each(runs, **options)

    monkeypatch.setattr(batch_module, "train_each", noting)
    outcome = run("seeds=[2, 0, 1]")
    assert trained == [2, 1]
    assert [(s.seed, s.status) for s in outcome.seeds] == [(2, "finished"), (0, "reused"), (1, "finished")]


@pytest.mark.parametrize("lost", ["summary.json", "cut short"])
def test_a_seed_without_a_whole_summary_is_run_again(here, lost):
    run("seeds=[0]")
    summary = here / "results" / "small" / "seed-0" / "summary.json"
    if lost == "cut short":
        summary.write_text(summary.read_text()[:20])
    else:
        summary.unlink()
    assert [s.status for s in run("seeds=[0]").seeds] == ["finished"]
    assert json.loads(summary.read_text())["seed"] == 0


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("local.lr=0.1", r"local\.lr is 0\.1, but .*seed-0 holds a run with 0\.05"),
        ("upcycle.coefficient=0.1", r"upcycle\.coefficient is 0\.1, but .* with 0\.7"),
        ("clients.stragglers=0.5", r"clients\.stragglers is 0\.5, but .* with 0\.0"),
        ("data.sizes=21", r"data\.sizes is 21, but .* with 20"),
    ],
)
def test_a_folder_of_another_config_is_refused_and_stays_as_it_is(here, override, words):
    run()
    before = everything_under(here)
    with pytest.raises(InputError, match=rf"^small\.toml: {words}"):
        run(override)
    assert everything_under(here) == before


def test_a_folder_of_something_else_is_refused_and_stays_as_it_is(here):
    folder = here / "results" / "small" / "seed-1"
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("two years of work")
    before = everything_under(here)
    with pytest.raises(InputError, match=r"readable config\.toml") as refused:
        run()
    assert "remove" not in str(refused.value)
    assert everything_under(here) == before


def test_data_that_changed_under_the_same_path_is_noticed(here):
    x, client = np.arange(16, dtype=np.float32).reshape(8, 2), np.repeat([0, 1], 4)
    for shift in (0, 1):
        y = (np.arange(8) + shift) % 2
        np.savez(here / "set.npz", train_x=x, train_y=y, train_client=client)
        data = ["data.source=npz", "data.path=set.npz"]
        text = (here / "small.toml").read_text()
        start, end = text.index("alpha"), text.index("[algorithm]")
        (here / "own.toml").write_text(text[:start] + text[end:])
        experiment = load_config("own.toml", data)
        if shift == 0:
            outcome = run_experiment(experiment, "own.toml")
            # Without test samples there is nothing to score, and that is not an error.
            assert outcome.is_complete
            assert outcome.summary()["accuracy"] == {"mean": None, "sd": None}
    with pytest.raises(InputError, match=r"seed-0.*data"):
        run_experiment(experiment, "own.toml")


def test_a_seed_that_diverges_is_reported_and_the_others_finish(here, monkeypatch):
    error = DivergedError("the run diverged: the global model is not finite after iteration 3; lower ...")
    monkeypatch.setattr(batch_module, "train_each", failing_at(0, error))
    outcome = run()
    assert [s.status for s in outcome.seeds] == ["stopped", "finished"]
    assert "after iteration 3" in outcome.seeds[0].error
    assert not outcome.is_complete
    assert json.loads((here / "results" / "small" / "seed-0" / "summary.json").read_text())["error"] == str(error)
    assert outcome.summary()["loss"]["mean"] == outcome.seeds[1].summary.loss


def test_a_run_that_diverges_at_once_keeps_the_model_it_began_with(here):
    outcome = run("local.lr=1e38")
    assert [(s.status, s.summary) for s in outcome.seeds] == [("stopped", None)] * 2
    for seed in (0, 1):
        folder = here / "results" / "small" / f"seed-{seed}"
        assert sorted(p.name for p in folder.iterdir()) == FILES
        summary = json.loads((folder / "summary.json").read_text())
        assert "not finite after iteration 1;" in summary["error"]
        assert (summary["iterations"], summary["data_rounds"], summary["accuracy"]) == (0, 0, None)
        assert (folder / "metrics.jsonl").read_text() == ""
        assert load_file(folder / "model.safetensors")["weight"].isfinite().all()


def test_a_full_disk_is_one_sentence_and_leaves_no_part_of_a_file(here, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(run_in_folder, "drop_checkpoint", lambda *args, **kwargs: None)
        run("seeds=[0]")
    folder = here / "results" / "small" / "seed-0"
    # The checkpoint of the finished run is there: only the results are left to be written.
    for path in folder.iterdir():
        if path.is_file():
            path.unlink()
    begin = RunFolder.begin
    monkeypatch.setattr(RunFolder, "begin", lambda *args: begin(*args) or fill_the_disk(monkeypatch, after=1))
    (folder / "config.toml").write_text(load_config("small.toml", ["seeds=[0]"]).for_seed(0).resolved_toml())
    with pytest.raises(WriteError, match=r"metrics\.jsonl.*\(No space left on device\)"):
        run("seeds=[0]")
    assert sorted(p.name for p in folder.iterdir()) == ["checkpoint", "config.toml"]


@pytest.mark.parametrize("is_finished", [False, True])
def test_code_that_only_the_results_folder_names_is_not_imported(here, monkeypatch, is_finished):
    (here / "planted_in_results.py").write_text(f"from pathlib import Path\nPath({str(here / 'ran')!r}).touch()\n")
    monkeypatch.syspath_prepend(str(here))
    run("seeds=[0]")
    folder = here / "results" / "small" / "seed-0"
    before, after = (f'[algorithm]\nname = "{name}"' for name in ("fedprox", "planted_in_results:FedNova"))
    config = (folder / "config.toml").read_text()
    assert before in config
    (folder / "config.toml").write_text(config.replace(before, after))
    if not is_finished:
        (folder / "summary.json").unlink()
    with pytest.raises(up.InputError, match="holds a run with"):
        run("seeds=[0]", *(["iterations=20"] if is_finished else []))
    assert not (here / "ran").exists()


def fill_the_disk(monkeypatch, after):
    """Let so many files be flushed, and no more."""
    flush, calls = os.fsync, []

    def full(handle):
        calls.append(handle)
        if len(calls) > after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(handle)

    monkeypatch.setattr(os, "fsync", full)


def test_files_written_together_are_all_old_or_whole(tmp_path, monkeypatch):
    write_together(tmp_path, {"a": b"1", "b": b"1"})
    fill_the_disk(monkeypatch, after=1)
    with pytest.raises(WriteError, match="b cannot be written"):
        write_together(tmp_path, {"a": b"2", "b": b"2"})
    assert everything_under(tmp_path) == {"a": b"1", "b": b"1"}


def test_a_file_in_the_way_of_the_folder_is_one_sentence_before_any_training(here, monkeypatch):
    (here / "results").write_text("not a folder")
    monkeypatch.setattr(batch_module, "train_each", refuse_to_train)
    with pytest.raises(WriteError, match=r"results.*written"):
        run()


def test_a_failed_write_keeps_the_file_that_was_there(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_whole(path, b"before")

    def fail(handle):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(WriteError, match=r"a\.txt.*written"):
        write_whole(path, b"after")
    assert everything_under(tmp_path) == {"a.txt": b"before"}


def test_numbers_that_are_not_finite_become_null():
    row = {"a": float("nan"), "b": [float("inf"), 1.5], "c": None, "d": 2}
    assert plain(row) == {"a": None, "b": [None, 1.5], "c": None, "d": 2}


def test_what_goes_wrong_only_while_training_names_the_file_too(here, monkeypatch):
    error = InputError("is 0.5 of 4 clients, but 10000 Poisson draws in a row were empty", field="participation")
    monkeypatch.setattr(batch_module, "train_each", failing_at(0, error))
    with pytest.raises(InputError, match=r"^small\.toml: clients\.participation.*0\.5.*4 clients"):
        run()


class Watcher:
    def __init__(self, seed, seen):
        self.seed, self.seen = seed, seen

    def start(self, plan, before):
        self.seen.append((self.seed, "start", len(before)))

    def record(self, record, run):
        self.seen.append((self.seed, record.iteration))

    def finish(self):
        self.seen.append((self.seed, "end"))


def test_everyone_is_told_and_every_iteration_is_watched(here):
    seen, told = [], []
    run(
        watch=lambda experiment, seed: [Watcher(seed, seen)],
        tell=lambda experiment, outcome: told.append((experiment.name, outcome.seed, outcome.status)),
    )
    for seed in (0, 1):
        own = [entry[1:] for entry in seen if entry[0] == seed]
        assert own == [("start", 0), (1,), (2,), (3,), (4,), ("end",)]
    assert sorted(told) == [("small", 0, "finished"), ("small", 1, "finished")]


def test_a_stopped_run_goes_on_where_it_was_and_ends_in_the_same_bits(here):
    whole = run("seeds=[0]", "results=whole").seeds[0].folder

    class Stop(Watcher):
        def record(self, record, run):
            if record.iteration == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("seeds=[0]", watch=lambda experiment, seed: [Stop(seed, [])])
    folder = here / "results" / "small" / "seed-0"
    assert not (folder / "summary.json").exists()
    seen = []
    again = run("seeds=[0]", watch=lambda experiment, seed: [Watcher(seed, seen)]).seeds[0]
    assert seed_line(again) == f"seed 0 finished, from the checkpoint of an earlier command on: {again.folder}"
    assert seen == [(0, "start", 3), (0, 4), (0, "end")]
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert (folder / "clients.jsonl").read_bytes() == (whole / "clients.jsonl").read_bytes()


def test_a_second_command_in_the_same_folder_is_told_and_stops(here):
    with locked(here / "results" / "small"), pytest.raises(InUseError, match=r"results/small.*process \d+"):
        run()
    assert not (here / "results" / "small" / "seed-0").exists()


def test_how_often_it_is_saved_changes_no_result_and_may_be_changed(here):
    run("seeds=[0]", "checkpoint_every=1")
    assert [s.status for s in run("seeds=[0]", "checkpoint_every='5s'").seeds] == ["reused"]


def test_a_results_folder_of_an_earlier_version_without_the_newer_keys_is_recognised(here):
    run("seeds=[0]")
    config = here / "results" / "small" / "seed-0" / "config.toml"
    newer = ("checkpoint_every", "scored_on")
    lines = config.read_text().splitlines()
    config.write_text("\n".join(line for line in lines if not line.startswith(newer)))
    assert [s.status for s in run("seeds=[0]").seeds] == ["reused"]


def test_seeds_in_a_batch_and_alone_have_the_same_bits(here):
    together = run("results=together").seeds
    alone = [run(f"seeds=[{seed}]", "results=alone").seeds[0] for seed in (0, 1)]
    for one, other in zip(together, alone, strict=True):
        for name in ("model.safetensors", "clients.jsonl"):
            assert (one.folder / name).read_bytes() == (other.folder / name).read_bytes()


PRIVATE = """
[privacy]
mechanism = "model_clipping"
clip_norm = 1.0
noise_std = 0.5
noise = "NOISE"
"""


@pytest.mark.parametrize(("noise", "rounds"), [("seeded", 2), ("system", 4)])
def test_a_private_runs_charges_lie_in_its_folder_and_a_repeat_with_real_noise_is_charged_again(
    tmp_path, noise, rounds
):
    source = tmp_path / "private.toml"
    text = (Path(__file__).parents[2] / "examples" / "synthetic.toml").read_text()
    source.write_text(text + PRIVATE.replace("NOISE", noise))
    changes = ["iterations=4", "seeds=[0]", f"results={json.dumps(str(tmp_path / 'results'))}"]
    experiment = load_config(source, changes)
    folder = run_experiment(experiment, str(source)).seeds[0].folder
    (folder / "summary.json").unlink()
    run_experiment(experiment, str(source))
    ledger = (folder / "ledger.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in ledger[1:]] == [*["data", "upcycled"] * 2, "ended"]
    lines = [json.loads(line) for path in folder.glob("ledger*.jsonl") for line in path.read_text().splitlines()]
    assert sum(line["kind"] == "data" for line in lines) == rounds


@pytest.mark.slow
def test_a_model_of_a_module_in_a_named_folder_reaches_the_workers(here, monkeypatch):
    monkeypatch.syspath_prepend(here)  # what --path does
    (here / "own_model.py").write_text(
        "from torch import nn\n\n"
        "class Net(nn.Linear):\n    def forward(self, x):\n        return nn.Linear.forward(self, x.tanh())\n\n"
        "def make():\n    return Net(3, 2)\n"
    )
    together = run("model.kind='own_model:make'", "results=together")
    assert [s.status for s in together.seeds] == ["finished", "finished"]
    alone = run("model.kind='own_model:make'", "results=alone", "seeds=[0]")
    assert together.seeds[0].summary.loss == alone.seeds[0].summary.loss


SCHEMA = """\
[columns.x]
kind = "number"
bounds = [0, 8]
[columns.z]
kind = "ignored"
[columns.label]
kind = "label"
classes = ["0", "1"]
"""


@pytest.mark.parametrize(
    "data",
    [
        'source = "csv"\npath = "a.csv"\nclient = "z"\n',
        'source = "table"\npath = ["a.csv", "b.csv"]\nschema = "schema.toml"\n',
    ],
    ids=["one", "several"],
)
def test_the_file_beside_a_seed_names_no_folder_of_somebodys_machine_and_repeats_the_seed(here, data):
    """It is for everybody, also where noise is real; and all of it may lie elsewhere by then."""
    rows = "".join(f"{i},{i % 3},{i % 2}\n" for i in range(8))
    for name in ("a.csv", "b.csv"):
        (here / name).write_text(f"x,z,label\n{rows}")
    (here / "schema.toml").write_text(SCHEMA)
    small_file(here, (SMALL[SMALL.index("[data]") : SMALL.index("[algorithm]")], f"[data]\n{data}\n"))
    run("seeds=[0]")
    config = here / "results" / "small" / "seed-0" / "config.toml"
    assert str(here) not in config.read_text()
    assert "../../../a.csv" in config.read_text()
    assert load_config(config).data == load_config("small.toml").data
    assert [s.status for s in run("seeds=[0]").seeds] == ["reused"]
