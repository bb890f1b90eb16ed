"""The results folder of a restricted run: what everybody may read, and private/."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.experiments.small import SMALL, everything_under, small_file
from tests.trackers.test_trackers import FROM_ELSEWHERE
from tests.wording import has_all
from upcycled.cli.main import main
from upcycled.config.experiment import load_config
from upcycled.experiments.batch import Options, run_experiment
from upcycled.trackers import open_trackers

pytestmark = [pytest.mark.filterwarnings(line) for line in FROM_ELSEWHERE]

PRIVACY = """
[privacy]
mechanism = "update_clipping"
clip_norm = 1.0
noise_std = 0.5
noise = "system"
"""
PFEDME = ('name = "fedprox"\nmu = 0.5', 'name = "pfedme"')


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small_file(tmp_path, PFEDME, text=SMALL + PRIVACY)
    return tmp_path


def run(*overrides, **options):
    experiment = load_config("small.toml", ["seeds=[0]", *overrides])
    return run_experiment(experiment, "small.toml", Options(**options)).seeds[0].folder


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


PUBLIC = {"config.toml", "metrics.jsonl", "clients.jsonl", "model.safetensors", "model.json", "ledger.jsonl"}
PUBLIC |= {"summary.json"}


def test_public_files_lie_beside_a_folder_for_the_holder_alone(here):
    before = os.umask(0)
    try:
        folder = run()
    finally:
        os.umask(before)
    assert {path.name for path in folder.iterdir()} == {*PUBLIC, "private"}
    own = folder / "private"
    names = {path.name for path in own.iterdir()} - {"ledger.key"}
    tables = {"scores.jsonl", "clients.jsonl", "notes.jsonl", "evaluation.json", "data.json"}
    assert names == {"data.key", "personal.safetensors", *tables}
    for path in (own, *own.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_the_folder_is_the_holders_before_anything_is_in_it(here):
    seen = []

    class Look:
        def record(self, record, run):
            own = here / "results" / "small" / "seed-0" / "private"
            seen.append(stat.S_IMODE(own.stat().st_mode))

    run(watch=lambda experiment, seed: [Look()])
    assert seen == [0o700] * 4


def test_public_files_hold_no_score_no_second_and_no_hash_of_the_data(here):
    folder = run()
    summary = json.loads((folder / "summary.json").read_text())
    hidden = ("accuracy", "loss", "global_accuracy", "global_loss", "seconds", "eval_seconds")
    assert [summary[name] for name in hidden] == [None] * 6
    assert all(row[name] is None for row in lines(folder / "metrics.jsonl") for name in hidden)
    for row in lines(folder / "clients.jsonl"):
        assert sorted(row) == ["client", "data_rounds", "epsilon", "gradient_steps", "train_samples"]
    assert summary["data"].keys() == {"clients", "classes", "train_samples", "id"}
    assert summary["restricted"] is True
    # Two of four clients in two rounds, down and up.
    assert summary["messages"] == 8
    assert "arrival times" in summary["privacy"]["not_covered"]


def test_the_holder_has_every_number(here):
    folder = run()
    scores = lines(folder / "private" / "scores.jsonl")
    assert [row["iteration"] for row in scores] == [1, 2, 3, 4]
    assert all(0 <= row["accuracy"] <= 1 and row["loss"] > 0 and row["seconds"] > 0 for row in scores)
    personal = load_file(folder / "private" / "personal.safetensors")
    assert 2 <= len(personal) <= 4
    clients = lines(folder / "private" / "clients.jsonl")
    # The last scores are the mean over clients of two test samples each.
    assert np.mean([row["accuracy"] for row in clients]) == pytest.approx(scores[-1]["accuracy"])
    # Real noise decides whether there is anything to say about what was learnt, and there is nothing else.
    notes = [row["note"] for row in lines(folder / "private" / "notes.jsonl")]
    assert all(has_all(note, "model", "class") for note in notes)


def test_the_documentation_has_a_line_for_every_file_and_every_number(here):
    folder = run(parquet=True, watch=open_trackers(["tensorboard", "mlflow"]))
    assert main(["report", "results/small"]) == 0
    page = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text(encoding="utf-8")
    section = page.partition("## What a private run leaves")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    documented = {name.rstrip("/") for line in rows for name in re.findall(r"`([^`]+)`", line.split("|")[1])}
    below = {path for place in (folder, here / "results", here / "results" / "small") for path in place.iterdir()}
    found = {path.name for path in below if path.name not in ("private", "small", "seed-0", ".lock")}
    found |= {f"private/{path.name}" for path in (folder / "private").iterdir()}
    assert found <= documented
    assert documented - found <= {"compare.json", "private/ledger.key", "private/checkpoint"}


def test_secret_draws_leave_no_count_of_who_took_part(here):
    secret = "privacy={mechanism='central_dp_fedavg', clip_norm=1.0, noise_multiplier=1.0, secret_sampling=true, "
    secret += "noise='system'}"
    folder = run(secret, "algorithm={name='fedavg'}", "clients.sampling='poisson'", parquet=True)
    summary = json.loads((folder / "summary.json").read_text())
    counts = ("messages", "bytes", "bytes_up", "bytes_down", "gradient_steps")
    assert [summary[name] for name in counts] == [None] * 5
    for row in lines(folder / "clients.jsonl"):
        assert sorted(row) == ["client", "epsilon", "train_samples"]
    assert all(row["messages"] is not None for row in lines(folder / "private" / "scores.jsonl"))


@pytest.mark.parametrize("overrides", [["privacy.noise='seeded'"]])
def test_an_unrestricted_run_keeps_its_layout(here, overrides):
    folder = run(*overrides)
    assert {path.name for path in folder.iterdir()} == {
        *PUBLIC,
        "personal.safetensors",
        "evaluation.json",
    }
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["restricted"] is False
    assert len(summary["data"]["sha256"]) == 64


def test_a_stopped_restricted_run_goes_on_from_its_private_checkpoint_in_the_same_ledger(here):
    class Stop:
        def record(self, record, run):
            if record.iteration == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(watch=lambda experiment, seed: [Stop()])
    folder = here / "results" / "small" / "seed-0"
    assert {path.name for path in folder.iterdir()} == {"config.toml", "ledger.jsonl", "private"}
    run()
    kinds = [line["kind"] for line in lines(folder / "ledger.jsonl")]
    assert kinds == ["run", *["data", "upcycled"] * 2, "ended"]
    assert not (folder / "ledger-2.jsonl").exists()


@pytest.fixture
def nobody_looks(monkeypatch):
    """Fails a test in which a file of a holder's is opened, or a folder of one listed."""
    opened, is_on = [], [True]

    def hook(event, arguments):
        if (
            is_on[0]
            and event in ("open", "os.listdir", "os.scandir")
            and isinstance(arguments[0], str | bytes | os.PathLike)
        ):
            path = os.fsdecode(arguments[0])
            if "private" in path.split(os.sep):
                opened.append(path)

    sys.addaudithook(hook)  # it cannot be taken away, but it can be told to be still
    yield opened
    is_on[0] = False


def test_the_audit_hook_of_these_tests_would_notice(here, nobody_looks):
    folder = run()
    nobody_looks.clear()
    lines(folder / "private" / "scores.jsonl")
    assert nobody_looks != []


@pytest.mark.parametrize("of", ["results", "results/small", "results/small/seed-0"])
def test_a_report_looks_at_nothing_of_the_holders(here, nobody_looks, of):
    run("seeds=[0]")
    nobody_looks.clear()
    assert main(["report", of]) == 0
    assert nobody_looks == []
    page = (here / of / "report.html").read_text()
    assert "When files and messages appear is not covered by epsilon." in page
    assert "the data holder's own" in page


def test_an_experiment_may_be_called_private(here):
    run("name='private'")
    assert main(["report", "results"]) == 0


def test_trackers_and_comparisons_look_at_nothing_of_the_holders(here, nobody_looks, monkeypatch, capsys):
    trackers = open_trackers(["tensorboard", "mlflow"])
    looked = []

    class Before:
        """Empties the list of what was opened before each tracker, and adds what the tracker opened."""

        def __init__(self, tracker):
            self.tracker = tracker

        def start(self, plan, before):
            self._watched("start", plan, before)

        def record(self, record, run):
            self._watched("record", record, run)

        def finish(self):
            self._watched("finish")

        def _watched(self, name, *arguments):
            nobody_looks.clear()
            getattr(self.tracker, name)(*arguments)
            looked.extend(nobody_looks)

    run(watch=lambda experiment, seed: [Before(one) for one in trackers(experiment, seed)])
    assert looked == []


def test_a_comparison_says_what_runs_cost_and_whose_the_scores_are(here, capsys):
    assert main(["compare", "small.toml", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "worst epsilon" in out
    assert "%" not in out.replace("95 %", "")
    assert out.count("Accuracy and loss are the data holder's own: comparing by them is a release.") == 1
    document = json.loads((here / "results/small/compare-work/compare.json").read_text())
    row = document["rows"][0]
    assert (row["verdict"], row["gain"], row["differences"]) == ("scores are the data holder's own", None, None)
    for side in ("vanilla", "upcycled"):
        assert row[side]["accuracy"]["mean"] is row[side]["seconds"]["mean"] is None
        assert row[side]["messages"]["mean"] == 8
        assert row[side]["epsilon"] > 0


def test_a_sweep_of_a_restricted_experiment_is_refused_before_anything_is_trained(here, capsys):
    small_file(here, PFEDME, ("sizes = 20", "sizes = 20\nvalidation_fraction = 0.1"), text=SMALL + PRIVACY)
    with (here / "small.toml").open("a") as file:
        file.write('\n[sweep]\n"local.lr" = [0.01, 0.1]\n')
    before = everything_under(here)
    assert main(["sweep", "small.toml"]) == 2
    assert capsys.readouterr().err == (
        "error: small.toml: privacy.noise is 'system', but every trial of a sweep is a release of the same data: "
        "privacy.account must name an account that pays for all of them, or the noise be 'seeded', a simulation, or "
        "the data be declared public\n"
    )
    assert everything_under(here) == before


def test_a_sweep_over_the_noise_is_refused_for_its_restricted_points(here, capsys):
    small_file(here, PFEDME, ("sizes = 20", "sizes = 20\nvalidation_fraction = 0.1"), text=SMALL + PRIVACY)
    with (here / "small.toml").open("a") as file:
        file.write('\n[sweep]\n"privacy.noise" = ["seeded", "system"]\n')
    assert main(["sweep", "small.toml", "privacy.noise=seeded"]) == 2
    assert has_all(capsys.readouterr().err, "trial", "sweep", "release")


def test_a_run_ends_with_where_the_holder_finds_his_own_and_no_number_of_it(here, capsys):
    assert main(["run", "small.toml", "--quiet"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.splitlines()[-1] == (
        "The data holder's own (scores, notes) is in private/ of each seed's folder; see `upcycled privacy own "
        "results/small`."
    )
    assert main(["run", "small.toml", "--quiet", "privacy.noise='seeded'", "name='simulated'"]) == 0
    assert "private/" not in capsys.readouterr().out


def test_the_holder_is_told_where_his_own_lies_and_asked_for_what_it_says(here, capsys):
    folder = run()
    assert main(["privacy", "own", "results/small"]) == 0
    assert capsys.readouterr() == ("results/small/seed-0/private\n", "")
    assert main(["privacy", "own", "results/small", "--scores"]) == 0
    shown = capsys.readouterr()
    last = lines(folder / "private" / "scores.jsonl")[-1]
    assert f"{100 * last['accuracy']:.2f}" in shown.out
    assert f"{last['loss']:.4f}" in shown.out
    baseline = json.loads((folder / "private" / "evaluation.json").read_text())["baseline"]
    assert f"{100 * baseline['accuracy']:.2f}" in shown.out
    assert shown.err == "warning: no epsilon covers these scores: showing them to anybody else is a release\n"
    assert main(["privacy", "own", "results/small", "--scores", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["own"][0]["last"] == last


def test_where_nothing_is_a_holders_own_is_said_in_one_sentence(here, capsys):
    run("privacy.noise='seeded'")
    assert main(["privacy", "own", "results/small"]) == 2
    assert has_all(capsys.readouterr().err, "results/small", "data holder's")


def test_an_audit_of_private_data_says_whose_its_numbers_are(here, capsys):
    asked = ["audit", "small.toml", "--replays", "4", "algorithm={name='fedavg'}"]
    assert main(asked) == 0
    assert "data holder's" in capsys.readouterr().err
    assert main([*asked, "privacy.noise='seeded'"]) == 0
    assert "the data holder's own" not in capsys.readouterr().err
