"""``upcycled theory``: constants of a file or of numbers, and a run beside its bound."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

import upcycled as up
from tests.experiments.small import small_file
from upcycled.cli.main import main

NUMBERS = ["--smoothness", "1", "--dissimilarity", "1.2", "--mu", "4", "--cohort", "10", "--lam", "4"]
MET = [
    "algorithm.mu=300", "upcycle.coefficient=0.5", "clients.participation=1", "local.lr=0.003", "local.epochs=12",
    'local.batch_size="full"',
]  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small_file(tmp_path)
    return tmp_path


def test_the_calculator_gives_what_the_library_gives(capsys):
    assert main(["theory", "constants", *NUMBERS, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for form in up.theory.FORMS:
        made = up.theory.constants(
            smoothness=1, dissimilarity=1.2, mu=4, strong_convexity=4, cohort=10, lam=4, form=form
        )
        for name in ("C1", "C2", "C3", "C1_hat", "C2_tilde"):
            assert found["forms"][form][name] == getattr(made, name)
        least = up.theory.smallest_mu(smoothness=1, dissimilarity=1.2, cohort=10, form=form)
        assert found["forms"][form]["smallest_mu"] == least
    assert found["given"]["cohort"] == 10


def test_the_calculator_s_table_is_for_people(capsys):
    assert main(["theory", "constants", *NUMBERS]) == 0
    out = capsys.readouterr().out
    assert "least mu for that" in out
    assert "repaired: the paper's proof with its two slips put right" in out
    assert main(["theory", "constants", "--smoothness", "1", "--dissimilarity", "2", "--mu", "4", "--cohort", "8"]) == 0
    assert "No mu gives C1 > 0 where K <= 2 B^2" in capsys.readouterr().out


def test_a_file_is_estimated_without_training(here, capsys):
    assert main(["theory", "small.toml", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    data = up.data.synthetic(0.5, 0.5, clients=4, dim=3, sizes=20)
    assert found["estimates"]["smoothness"] == pytest.approx(up.theory.estimate_smoothness(data, "logistic"))
    assert found["estimates"]["for_all_parameters"] is True
    assert found["problem"] | {"lam": 0} == {
        "algorithm": "fedprox", "mu": 0.5, "clients": 4, "cohort": 2, "data_rounds": 2, "lam": 0,
    }  # fmt: skip
    assert found["problem"]["lam"] == pytest.approx([0.5 / 0.7 - 0.5] * 2)
    assert found["schedule"] == pytest.approx([0.5 * (math.sqrt(2) - 1)] * 2)
    assert found["forms"]["paper"]["converges"] is False
    assert found["run"] is None
    assert not (here / "results").exists()


def test_a_run_prints_bound_beside_measurement_and_the_verdict(here, capsys):
    assert main(["theory", "small.toml", "--run", *MET]) == 0
    out = capsys.readouterr().out
    assert "ok  exact local minimisers" in out
    assert "Bound beside measurement" in out
    assert "bound, repaired" in out
    assert "times the measurement" in out


def test_the_run_s_document_has_every_number(here, capsys):
    assert main(["theory", "small.toml", "--run", "--json", *MET]) == 0
    found = json.loads(capsys.readouterr().out)["run"]
    assert found["rounds"] == 2
    assert found["forms"]["repaired"]["applies"] is True
    assert found["forms"]["repaired"]["holds"] is True
    assert len(found["measured"]["average"]) == 2
    assert len(found["measured"]["loss"]) == 3
    assert found["forms"]["repaired"]["bound"][-1] >= found["measured"]["average"][-1]


def test_a_violated_bound_is_exit_code_one(here, capsys, monkeypatch):
    # Told that f cannot fall below where it starts, the theorem would leave nothing for the gradients.
    from upcycled.runtime import bound_probe as measure

    still = [*MET, "upcycle.coefficient=0"]
    assert main(["theory", "small.toml", "--json", *still]) == 0
    start = json.loads(capsys.readouterr().out)["estimates"]["initial_loss"]
    real = measure.facts_of
    monkeypatch.setattr(measure, "facts_of", lambda plan: replace(real(plan), floor=start))
    assert main(["theory", "small.toml", "--run", *still]) == 1
    assert "VIOLATED" in capsys.readouterr().out


def test_a_run_that_diverges_is_an_error_and_not_a_bound_that_held_so_far(here, capsys):
    assert main(["theory", "small.toml", "--run", "upcycle.coefficient=1e41"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: the run diverged: the global model is not finite after iteration 2")  # of 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('name = "fedprox"\nmu = 0.5', 'name = "fedavg"'), "is about FedProx with mu > 0"),
        (("mu = 0.5", "mu = 0"), "fedprox with mu = 0"),
        (("coefficient = 0.7", "coefficient = 1.5"), "known before the run"),
    ],
)
def test_a_file_that_the_theorem_is_not_about_is_told_so(here, capsys, change, words):
    small_file(here, change)
    assert main(["theory", "small.toml"]) == 0
    out = capsys.readouterr().out
    assert words in out
    assert "L, smoothness" in out
    assert "C1 hat" not in out


def test_a_network_gets_local_values_and_the_warning_that_they_are_local(here, capsys):
    small_file(here, ("[algorithm]", '[model]\nkind = "mlp"\nhidden = [3]\n\n[algorithm]'), ("mu = 0.5", "mu = 90"))
    assert main(["theory", "small.toml", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["estimates"]["for_all_parameters"] is False
    assert found["estimates"]["curvature"] < 0
    assert any("initial weights" in words for words in found["remarks"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["theory", "constants"], "--smoothness is missing"),
        (["theory", "constants", *NUMBERS[:-1], "much"], "--lam is 'much', but it must be a number"),
        (["theory", "constants", *NUMBERS, "--dissimilarity", "0"], "--dissimilarity is 0.0, but it must be"),
        (["theory", "constants", *NUMBERS, "--strong-convexity", "0"], "--strong-convexity is 0.0"),
        (["theory", "constants", *NUMBERS, "--run"], "--run must be left out"),
        (["theory", "constants", *NUMBERS, "a=1"], "'a=1' must be left out"),
        (["theory", "absent.toml"], "the file does not exist"),
        (["theory", "small.toml", "--mu", "3"], "--mu is 3.0, but it must be left out with a config file"),
        (["theory", "small.toml", "algorithm.mu=-1"], "algorithm.mu is -1"),
    ],
)
def test_wrong_use_is_answered_by_one_sentence_and_exit_code_two(here, capsys, words, sentence):
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1


def test_a_private_deployment_is_refused(here, capsys):
    text = '\n[privacy]\nmechanism = "model_clipping"\nclip_norm = 1\nnoise_std = 1\nnoise = "system"\n'
    path = here / "small.toml"
    path.write_text(path.read_text() + text)
    assert main(["theory", "small.toml", "--run"]) == 2
    assert "theory is True, but it must be False with noise='system'" in capsys.readouterr().err
