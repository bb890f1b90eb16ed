"""Trackers: what TensorBoard and MLflow read back, also of a run that was stopped and went on."""

from __future__ import annotations

import json
import sys

import pytest

from tests.experiments.small import small_file
from tests.wording import has_all
from upcycled.cli.main import main
from upcycled.config.experiment import load_config
from upcycled.core.errors import InputError, UpcycledError
from upcycled.experiments.batch import Options, run_experiment
from upcycled.privacy import Ledger
from upcycled.trackers import TRACKERS, open_trackers

FROM_ELSEWHERE = [
    # Packages of others, and what they warn about when they are imported or write files.
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore::PendingDeprecationWarning",
    "ignore::ResourceWarning",
]
pytestmark = [pytest.mark.filterwarnings(line) for line in FROM_ELSEWHERE]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small_file(tmp_path)
    return tmp_path


class StopAt:
    def __init__(self, iteration):
        self.iteration = iteration

    def start(self, plan, before): ...

    def record(self, record, run):
        if record.iteration == self.iteration:
            raise KeyboardInterrupt

    def finish(self): ...


def run(tracker, *overrides, stop_at=None):
    trackers = open_trackers([tracker])
    # Told before the stop, as if the kill came just after: the tracker is ahead of the checkpoint.
    options = Options(watch=lambda experiment, seed: [*trackers(experiment, seed), StopAt(stop_at)])
    return run_experiment(load_config("small.toml", ["seeds=[0]", *overrides]), "small.toml", options)


def read_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def read_mlflow(folder, name="small"):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=(folder / "mlruns").as_uri())
    experiment = client.get_experiment_by_name(name)
    found = {}
    for each in client.search_runs([experiment.experiment_id]):
        history = {
            key: [(m.step, m.value) for m in client.get_metric_history(each.info.run_id, key)]
            for key in each.data.metrics
        }
        found[each.info.run_name] = each, history
    return found


def expected(folder, name):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(row["iteration"], pytest.approx(row[name])) for row in rows if row[name] is not None]


@pytest.mark.parametrize("stop_at", [None, 3])
def test_tensorboard_has_every_step_once(here, stop_at):
    if stop_at is not None:
        with pytest.raises(KeyboardInterrupt):
            run("tensorboard", stop_at=stop_at)
    run("tensorboard")
    folder = here / "results" / "small" / "seed-0"
    found = read_tensorboard(folder / "tensorboard")
    for name in ("accuracy", "loss", "bytes_up", "coefficient"):
        assert found[name] == expected(folder, name)


@pytest.mark.parametrize("stop_at", [None, 3])
def test_mlflow_has_every_step_once_in_one_run(here, stop_at):
    if stop_at is not None:
        with pytest.raises(KeyboardInterrupt):
            run("mlflow", stop_at=stop_at)
        ((each, _),) = read_mlflow(here / "results").values()
        assert each.info.status == "KILLED"
        # As after a kill: the last second before it was never written down.
        (here / "results" / "small" / "seed-0" / "checkpoint").exists()
    run("mlflow")
    ((name, (each, history)),) = read_mlflow(here / "results").items()
    assert (name, each.info.status) == ("seed-0", "FINISHED")
    folder = here / "results" / "small" / "seed-0"
    for key in ("accuracy", "loss", "bytes_up", "coefficient"):
        assert history[key] == expected(folder, key)
    assert each.data.params["algorithm.mu"] == "0.5"
    assert "results" not in each.data.params


def test_another_config_is_another_mlflow_run(here):
    run("mlflow")
    run("mlflow", "local.lr=0.02", "results=results/other", "name=small")
    assert len(read_mlflow(here / "results")) == 1
    run("mlflow", "seeds=[1]")
    assert sorted(read_mlflow(here / "results")) == ["seed-0", "seed-1"]


def test_the_command_takes_several_trackers_and_several_seeds(here, capsys):
    assert main(["run", "small.toml", "--tracker", "tensorboard", "--tracker", "mlflow", "--quiet"]) == 0
    assert sorted(read_mlflow(here / "results")) == ["seed-0", "seed-1"]
    for seed in (0, 1):
        assert len(read_tensorboard(here / "results" / "small" / f"seed-{seed}" / "tensorboard")["loss"]) == 4


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_missing_extra_is_one_sentence_before_anything_is_run(here, name, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, name, None)
    assert main(["run", "small.toml", "--tracker", name]) == 2
    err = capsys.readouterr().err
    assert has_all(err, f"error: --tracker {name}", name, f"'.[{name}]'")
    assert not (here / "results").exists()


def test_an_unknown_tracker_is_answered_with_the_nearest():
    with pytest.raises(InputError, match=r"--tracker.*'tensorbord'.*did you mean 'tensorboard'\?"):
        open_trackers(["tensorbord"])


def test_what_a_tracker_fails_with_is_one_sentence(here, monkeypatch):
    run("tensorboard", "iterations=1", "name=first")

    def broken(self, *args):
        raise OSError("the cable is out")

    monkeypatch.setattr("upcycled.trackers.tensorboard.TensorBoard.record", broken)
    with pytest.raises(UpcycledError, match=r"tracker.*OSError"):
        run("tensorboard")


def test_a_third_tracker_is_one_file_and_one_line(here, monkeypatch):
    (here / "lines.py").write_text(
        """
class Lines:
    def __init__(self, path): self.path = path
    def start(self, plan, before): self.path.write_text("")
    def record(self, record, run): self.path.write_text(self.path.read_text() + f"{record.iteration} ")
    def finish(self): pass

def opened():
    from pathlib import Path
    return lambda watched: Lines(Path(f"{watched.home.name}-{watched.seed}.txt"))
"""
    )
    monkeypatch.syspath_prepend(str(here))
    monkeypatch.setitem(TRACKERS, "lines", "lines")
    run("lines")
    assert (here / "small-0.txt").read_text() == "1 2 3 4 "


@pytest.mark.parametrize("tracker", TRACKERS)
@pytest.mark.parametrize("stop_at", [None, 3])
def test_epsilon_is_there_after_every_data_round_of_a_private_run(here, tracker, stop_at):
    privacy = "\n[privacy]\nmechanism = 'model_clipping'\nclip_norm = 1.0\nnoise_std = 9.0\n"
    with (here / "small.toml").open("a") as file:
        file.write(privacy)
    if stop_at is not None:
        with pytest.raises(KeyboardInterrupt):
            run(tracker, stop_at=stop_at)
    run(tracker)
    folder = here / "results" / "small" / "seed-0"
    found = Ledger.read(folder / "ledger.jsonl").epsilon_over_rounds(1e-5)
    if tracker == "tensorboard":
        logged = read_tensorboard(folder / "tensorboard")["epsilon"]
    else:
        logged = read_mlflow(here / "results")["seed-0"][1]["epsilon"]
    assert [step for step, _ in logged] == list(found.iterations)
    assert len(logged) > 1
    assert [value for _, value in logged] == pytest.approx(list(found.worst), rel=1e-6)
