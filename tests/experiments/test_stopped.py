"""Seeds that diverge or have spent their budget: what they had is kept, said, and never made again in silence."""

from __future__ import annotations

import json
import re
import stat

import numpy as np
import pytest
from safetensors.numpy import load_file

import upcycled as up
from tests.experiments.small import everything_under
from tests.experiments.test_run import refuse_to_train
from tests.wording import has_all
from upcycled.audit.attacks import audit
from upcycled.audit.explain import explain
from upcycled.cli.main import main
from upcycled.config.experiment import load_config
from upcycled.core.errors import InputError
from upcycled.experiments import batch as batch_module
from upcycled.experiments.batch import run_experiment
from upcycled.privacy import Ledger
from upcycled.report.collect import collect

# A round costs mu = 2 clip_norm / noise_std = 1/2: two of them epsilon 2.943 at delta 1e-5, three of them 3.713.
FILE = """\
name = "b"
iterations = 6
seeds = [0, 1]

[data]
source = "synthetic"
alpha = "iid"
clients = 4
sizes = [20, 30, 40, 50]

[algorithm]
name = "fedavg"

[privacy]
mechanism = "model_clipping"
clip_norm = 1.0
noise_std = 4.0
noise = "NOISE"
budget = { epsilon = 3.0, delta = 1e-5 }
"""
REASON = "no client of data round 3 can pay for it: the budget of epsilon 3 at delta 1e-05 is spent"
FOLDER = "results/b/seed-0"


@pytest.fixture(params=["seeded", "system"])
def noise(request):
    return request.param


@pytest.fixture
def here(tmp_path, monkeypatch, noise):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b.toml").write_text(FILE.replace("NOISE", noise))
    return tmp_path


def summary_in(folder):
    return json.loads((folder / "summary.json").read_text())


def test_a_seed_whose_budget_is_spent_keeps_ledger_config_model_and_history(here, noise, capsys):
    assert main(["run", "b.toml"]) == 1
    out, err = capsys.readouterr()
    assert out.count("stopped") == 2
    assert f"seed 1 stopped: {REASON}" in err
    folder = here / FOLDER
    summary = summary_in(folder)
    assert summary["error"].startswith(REASON)
    assert (summary["iterations"], summary["data_rounds"]) == (2, 2)
    assert summary["privacy"]["epsilon"]["max"] == pytest.approx(2.943, abs=1e-3)
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
    assert np.isfinite(load_file(folder / "model.safetensors")["weight"]).all()
    key = (folder / "private" / "ledger.key").read_bytes() if noise == "system" else None
    ledger = Ledger.read(folder / "ledger.jsonl", summary["privacy"]["head"], key)
    assert (ledger.chain, ledger.ahead, ledger.rounds.tolist()) == ("anchored", 0, [2] * 4)
    assert ledger.left_out.tolist() == [1] * 4
    # The config beside a seed is still the one that makes it.
    assert load_config(folder / "config.toml").privacy.budget.build() == up.Budget(3.0, 1e-5)
    if noise == "seeded":
        experiment = load_config("b.toml", ["seeds=[0]"])
        expected = up.train(experiment.build_data(), experiment.spec(0), progress=False)
        assert np.array_equal(load_file(folder / "model.safetensors")["weight"], expected.model.weight.detach())


def test_the_same_command_says_it_again_and_runs_nothing(here, noise, capsys, monkeypatch):
    main(["run", "b.toml", "--quiet"])
    before = everything_under(here / "results")
    capsys.readouterr()
    monkeypatch.setattr(batch_module, "train_each", refuse_to_train)
    assert main(["run", "b.toml", "--quiet"]) == 1
    err = capsys.readouterr().err
    assert f"seed 0 stopped: {REASON}" in err
    assert has_all(err, "command", FOLDER)
    # The folder of real noise holds the only record of what was spent.
    assert (has_all(err, "keep", "folder"), "remove" in err) == ((True, False) if noise == "system" else (False, True))
    assert everything_under(here / "results") == before


def test_the_key_is_the_holders_own_and_a_simulation_has_none(here, noise):
    run_experiment(load_config("b.toml"), "b.toml")
    keys = sorted(here.rglob("ledger.key"))
    assert keys == [here / f"results/b/seed-{n}/private/ledger.key" for n in (0, 1) if noise == "system"]
    for key in keys:
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
        content = key.read_bytes()
        others = [path for path in here.rglob("*") if path.is_file() and path != key]
        assert not [path for path in others if content in path.read_bytes() or content.hex() in path.read_text("latin")]


def test_a_report_names_what_stopped_and_counts_it_nowhere(here, capsys):
    run_experiment(load_config("b.toml", ["seeds=[0]"]), "b.toml")
    assert main(["report", "results/b"]) == 2
    said = capsys.readouterr().err
    assert has_all(said, "results/b", "finished")
    assert has_all(said, "seed-0 stopped", f"iteration 2: {REASON}")
    # Another seed with more room finishes.
    (here / "more.toml").write_text((here / "b.toml").read_text().replace("epsilon = 3.0", "epsilon = 12.0"))
    run_experiment(load_config("more.toml", ["seeds=[1]"]), "more.toml")
    found = collect(here / "results" / "b")
    assert [seed.seed for seed in found.parts[0].seeds] == [1]
    [said] = found.parts[0].stopped
    # Real noise sets a thousandth of delta aside for its sampler.
    assert re.search(r"what it released cost the worst client epsilon 2\.943\d\d at delta 1e-05$", said)
    assert main(["report", "results/b", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["stopped"] == [said]
    assert f"note: {said}\n" in err
    page = (here / "results" / "b" / "report.html").read_text()
    assert "seed-0 stopped after iteration 2" in page
    assert "a filter holds every client within epsilon 12 at delta 1e-05" in page
    assert "anchored; it holds all that its head says, which no key was asked about" in page


def test_a_report_notices_a_ledger_that_lost_its_last_lines(here):
    run_experiment(load_config("b.toml", ["seeds=[0]", "privacy.budget.epsilon=12.0"]), "b.toml")
    path = here / FOLDER / "ledger.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))
    found = collect(here / "results" / "b")
    assert [line.partition(" (")[0] for line in found.problems] == ["seed-0/ledger.jsonl is damaged and was left out"]
    assert found.parts[0].seeds[0].evidence == "not this run's, or damaged; the numbers are the summary's"
    path.unlink()
    assert collect(here / "results" / "b").parts[0].seeds[0].evidence == "missing; the numbers are the summary's"


def test_explain_stops_where_the_run_stops_and_says_the_budget(here, capsys):
    experiment = load_config("b.toml", ["seeds=[0]"])
    found = explain(experiment, "b.toml")
    own = found.variants[0]
    run_experiment(experiment, "b.toml")
    said = summary_in(here / FOLDER)["privacy"]
    assert (own.stops_after, own.delta) == (2, said["delta"])
    assert own.epsilon.tolist() == said["epsilon"]["clients"]
    assert [*found.sentences, "ledger: anchored; the run wrote every line itself"] == said["statement"]
    assert any("a filter holds every client within epsilon 3 at delta 1e-05" in line for line in found.sentences)
    assert main(["privacy", "explain", "b.toml"]) == 0
    out = capsys.readouterr().out
    assert "3 at 1e-05" in out
    assert "2 data rounds" in out
    as_json = own.as_json()
    assert (as_json["budget"], as_json["stops_after"]) == ({"epsilon": 3.0, "delta": 1e-5}, 2)


@pytest.mark.parametrize("noise", ["seeded"])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["privacy.budget=3"], r"privacy\.budget.*3.*table.*\{ epsilon = 2\.0, delta = 1e-5 \}"),
        (["privacy.budget.epsilon=-1"], r"privacy\.budget.*\{'epsilon': -1, 'delta': 1e-05\}.*table"),
        (["privacy.budget={epsilon=1.0}"], r"privacy\.budget.*\{'epsilon': 1\.0\}.*table"),
        (["privacy.budget={epsilon=1.0, delta=0.1, x=2}"], r"'x': 2\}.*table"),
        (["privacy.budget.delta=0.0"], r"privacy\.budget\.delta.*0\.0.*Gaussian noise.*epsilon.*delta"),
        (["privacy.budget.delta=0.5"], r"privacy\.budget\.delta.*0\.5.*1/n"),
        (["privacy.mechanism=dpsgd", "privacy.noise_std=1"], r"privacy\.noise_std"),
    ],
)
def test_a_wrong_budget_gets_one_sentence_with_its_key(here, changes, words):
    with pytest.raises(InputError) as error:
        explain(load_config("b.toml", changes), "b.toml")
    assert re.search(words, str(error.value))


@pytest.mark.parametrize("noise", ["seeded"])
@pytest.mark.parametrize(
    "privacy",
    [
        "alpha = 5.0",
        "alpha = 5.0\nbudget = { epsilon = 50.0, delta = 0.0 }",
        "alpha = 5.0\nbudget = { epsilon = 50.0, delta = 1e-6 }",
        "epsilon = 2.0",
    ],
)
def test_objective_perturbation_has_one_epsilon_everywhere(here, privacy):
    text = FILE[: FILE.index("mechanism")].replace("iterations = 6", "iterations = 1")
    text = text.replace('"fedavg"', '"fedprox"\nmu = 0.5')
    (here / "b.toml").write_text(f'{text}mechanism = "objective_perturbation"\nnorm_bound = 1.0\n{privacy}\n')
    experiment = load_config("b.toml", ["seeds=[0]"])
    planned = explain(experiment, "b.toml").variants[0]
    run_experiment(experiment, "b.toml")
    summary = summary_in(here / FOLDER)["privacy"]
    seed = collect(here / "results" / "b").parts[0].seeds[0]
    claim = audit(experiment, "b.toml", replays=8).claim
    assert {planned.delta, summary["delta"], seed.spent.delta, claim.delta} == {summary["delta"]}
    assert planned.epsilon.tolist() == summary["epsilon"]["clients"]
    assert planned.epsilon.max() == seed.spent.worst[-1]
    assert planned.epsilon[0] == claim.epsilon  # the audit attacks the smallest client, which is the first


@pytest.mark.parametrize("noise", ["seeded"])
def test_explain_stops_with_the_run_though_others_could_still_pay(here):
    # One round a client, and one client a round: the first that is drawn twice ends the run.
    changes = ["iterations=12", "clients.participation=0.25", "privacy.budget.epsilon=2.2"]
    left = []
    for seed in range(4):
        experiment = load_config("b.toml", [*changes, f"seeds=[{seed}]"])
        own = explain(experiment, "b.toml").variants[0]
        run_experiment(experiment, "b.toml")
        summary = summary_in(here / f"results/b/seed-{seed}")
        assert own.stops_after == summary["data_rounds"]
        assert own.epsilon.tolist() == summary["privacy"]["epsilon"]["clients"]
        left.append(int((own.ledger.rounds == 0).sum()))
    assert max(left) > 0
