"""``upcycled run``: what stands on standard output and what on standard error."""

from __future__ import annotations

import json
import tomllib

import pytest

import upcycled as up
from tests.experiments.small import everything_under, small_file
from tests.experiments.test_run import failing_at
from tests.wording import has_all, only_line
from upcycled.cli.main import main
from upcycled.config.experiment import load_config
from upcycled.core.errors import DivergedError
from upcycled.experiments import batch as batch_module


@pytest.fixture(scope="module", autouse=True)
def kernels():
    """Compiled before anybody looks at standard error: where that takes long, it is said there."""
    data = up.data.synthetic("iid", clients=2, sizes=5, seed=0)
    up.train(data, algorithm=up.FedAvg(), iterations=1, engine="fused", progress=False)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small_file(tmp_path)
    return tmp_path


def test_the_table_has_every_seed_and_the_mean(here, capsys, monkeypatch):
    monkeypatch.setattr("upcycled.training.progress.QUIET_SECONDS", 10_000.0)  # however busy the machine is
    assert main(["run", "small.toml"]) == 0
    out, err = capsys.readouterr()
    outcome = json.loads((here / "results" / "small" / "seed-1" / "summary.json").read_text())
    lines = out.splitlines()
    row = next(line for line in lines if line.strip().startswith("1 "))
    assert f"{100 * outcome['accuracy']:.2f}" in row
    assert f"{outcome['loss']:.3f}" in row
    assert any(line.strip().startswith("mean") and "±" in line for line in lines)
    assert lines[-1] == "Results: results/small"
    said = ["seed 0 finished: results/small/seed-0", "seed 1 finished: results/small/seed-1"]
    assert sorted(err.splitlines()) == said


def test_json_is_one_document_on_standard_output_and_all_else_is_not(here, capsys):
    assert main(["run", "small.toml", "--json", "seeds=[4, 5]"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert [seed["seed"] for seed in document["seeds"]] == [4, 5]
    assert document["summary"]["data_rounds"] == {"mean": 2.0, "sd": 0.0}
    assert document["config"]["algorithm"] == {"name": "fedprox", "mu": 0.5, "server_lr": 1.0}
    assert "seed 4" in err


def test_a_second_run_says_that_nothing_had_to_be_run(here, capsys):
    main(["run", "small.toml", "--quiet"])
    capsys.readouterr()
    assert main(["run", "small.toml"]) == 0
    out, err = capsys.readouterr()
    assert err.count("is already there with this config and was not run again") == 2
    assert "mean" in out


def test_quiet_says_nothing_but_the_result(here, capsys):
    assert main(["run", "small.toml", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "Results: results/small" in out


def test_show_config_prints_the_complete_file_and_runs_nothing(here, capsys):
    before = everything_under(here)
    assert main(["run", "small.toml", "algorithm.mu=0.25", "--show-config"]) == 0
    out = capsys.readouterr().out
    assert tomllib.loads(out)["algorithm"]["mu"] == 0.25
    assert tomllib.loads(out)["local"]["momentum"] == 0.0
    (here / "shown.toml").write_text(out)
    assert load_config("shown.toml") == load_config("small.toml", ["algorithm.mu=0.25"])
    (here / "shown.toml").unlink()
    assert everything_under(here) == before


def test_show_config_as_json_is_the_same_content(here, capsys):
    assert main(["run", "small.toml", "--show-config", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["clients"] == 4


def test_a_sweep_in_the_file_is_ignored_in_one_line(here, capsys):
    with (here / "small.toml").open("a") as file:
        file.write('\n[sweep]\n"local.lr" = [0.1, 0.2]\n')
    assert main(["run", "small.toml", "--quiet"]) == 0
    assert has_all(only_line(capsys.readouterr().err), "table [sweep]", "file's", "values")
    assert "sweep" not in (here / "results" / "small" / "seed-0" / "config.toml").read_text()


def test_a_diverging_seed_is_reported_and_the_exit_code_is_1(here, capsys):
    assert main(["run", "small.toml", "local.lr=1e38", "--quiet"]) == 1
    out, err = capsys.readouterr()
    assert err.count("\n") == 2
    assert has_all(err, "seed 1 stopped", "model", "iteration 1")
    assert out.count("stopped") == 2


def test_one_failed_seed_leaves_the_others_in_the_json(here, capsys, monkeypatch):
    monkeypatch.setattr(batch_module, "train_each", failing_at(1, DivergedError("the run diverged")))
    assert main(["run", "small.toml", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [(s["seed"], s["status"], s["error"]) for s in document["seeds"]] == [
        (0, "finished", None),
        (1, "stopped", "the run diverged"),
    ]


def test_ctrl_c_keeps_what_is_done_and_says_the_command_that_goes_on(here, capsys, monkeypatch):
    train_each = batch_module.train_each

    def interrupted(runs, **options):
        results = train_each(runs, **options)
        yield next(results)
        results.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(batch_module, "train_each", interrupted)
    assert main(["run", "small.toml", "name=my", "--json"]) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == (
        "error: stopped by Ctrl-C; finished runs and the checkpoints of the others are kept; "
        "to go on: upcycled run small.toml name=my --json"
    )
    assert len(list((here / "results" / "my").rglob("summary.json"))) == 1
    monkeypatch.setattr(batch_module, "train_each", train_each)
    assert main(["run", "small.toml", "name=my"]) == 0
    assert "is already there" in capsys.readouterr().err


def test_an_unwritable_folder_is_one_sentence_and_exit_code_1(here, capsys):
    (here / "results").write_text("not a folder")
    assert main(["run", "small.toml"]) == 1
    err = capsys.readouterr().err
    assert "error: results/small" in err
    assert err.count("\n") == 1


@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_line_and_said_once(here, capsys):
    # 18 training samples: delta = 0.01 is more than 1/(10 n) = 0.0056, and less than 1/n.
    private = "privacy={mechanism='model_clipping', clip_norm=1.0, epsilon=5.0, delta=0.01}"
    assert main(["run", "small.toml", private, "--quiet"]) == 0
    err = capsys.readouterr().err
    assert has_all(err, "delta", "0.01", "1/(10")
    assert err.count("\n") == 1


def test_a_second_command_in_the_folder_is_told_in_one_sentence(here, capsys):
    from upcycled._utils.lock import locked

    with locked(here / "results" / "small"):
        assert main(["run", "small.toml"]) == 1
    err = capsys.readouterr().err
    assert has_all(err, "error: results/small", "process")
    assert err.count("\n") == 1
