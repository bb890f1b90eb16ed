"""``explain``: the planned numbers are those of the run, for every mechanism, and nothing is trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import upcycled as up
from tests.audit.test_audit import SOUND, experiment
from tests.wording import has_all
from upcycled.audit.explain import explain
from upcycled.config.experiment import load_config
from upcycled.core.errors import InputError
from upcycled.core.sampling import everybody
from upcycled.engines.sequential import Sequential
from upcycled.experiments.batch import run_experiment


def file_with(privacy, **changes):
    """Six clients, half of them in each of five iterations, sizes of their own."""
    found = experiment(privacy, **({"iterations": 5} | changes))
    data = found.data.model_copy(update={"clients": 6, "sizes": (12, 20, 28, 36, 44, 52)})
    return found.model_copy(update={"data": data})


def trained(file, **changes):
    return up.train(file.build_data(), file.spec(0), progress=False, **changes).privacy


@pytest.mark.parametrize("name", SOUND)
def test_the_planned_epsilon_of_every_client_is_that_of_the_run(name):
    poisson = {"participation": 0.5, "sampling": "poisson"}
    # Local settings that a mechanism's own solver would ignore are refused, so there are none here.
    file = file_with(SOUND[name]).model_copy(
        update={"clients": experiment(SOUND[name]).clients.model_copy(update=poisson)}
    )
    delta = 1e-2 if name == "central" else 1e-5
    found = explain(file, "a.toml", delta)
    upcycle = file.spec(0).upcycle
    runs = [{"upcycle": None}, {"upcycle": upcycle}, {"upcycle": None, "iterations": 3}]
    assert len(found.variants) == 3
    for variant, changes in zip(found.variants, runs, strict=True):
        ledger = trained(file, **changes)
        assert np.array_equal(variant.ledger.rounds, ledger.rounds)
        assert np.array_equal(variant.epsilon, ledger.epsilon(delta))
        if variant.paper_epsilon is not None:
            assert np.array_equal(variant.paper_epsilon, ledger.paper_epsilon(delta))
    assert [variant.plan.data_rounds for variant in found.variants] == [5, 3, 3]


EXAMPLES = {path.stem: path for path in (Path(__file__).parents[2] / "examples").glob("*.toml")}
PRIVATE = [name for name, path in EXAMPLES.items() if load_config(path).privacy is not None]


def said_by_run(file, tmp_path):
    changed = {"results": str(tmp_path), "seeds": (0,)}
    return run_experiment(file.model_copy(update=changed), "a.toml").seeds[0].summary.privacy


def check_same(file, tmp_path):
    found, said = explain(file, "a.toml"), said_by_run(file, tmp_path)
    own = found.variants[1] if file.upcycle is not None else found.variants[0]
    assert own.delta == said.delta
    assert own.epsilon.tolist() == list(said.epsilon.clients)
    assert own.epsilon.max() == said.epsilon.max
    paper = None if said.paper_epsilon is None else said.paper_epsilon.max
    assert (None if own.paper_epsilon is None else own.paper_epsilon.max()) == paper
    # A run has a file, and says last how far it is evidence.
    assert [*found.sentences, "ledger: anchored; the run wrote every line itself"] == list(said.statement)


@pytest.mark.parametrize("name", SOUND)
def test_explain_and_run_state_the_same_epsilon(name, tmp_path):
    check_same(file_with(SOUND[name]), tmp_path)


@pytest.mark.parametrize("name", PRIVATE)
def test_explain_and_run_state_the_same_epsilon_of_an_example(name, tmp_path):
    check_same(load_config(EXAMPLES[name], ["iterations=6", "seeds=[0]"]), tmp_path)


def test_there_are_private_examples():
    assert len(PRIVATE) >= 2


def test_secret_cohorts_are_charged_to_everybody_as_in_the_run():
    file = file_with(SOUND["central"] | {"secret_sampling": True})
    clients = file.clients.model_copy(update={"participation": 0.5, "sampling": "poisson"})
    file = file.model_copy(update={"clients": clients})
    variant = explain(file, "a.toml", 1e-2).variants[1]
    assert np.array_equal(variant.epsilon, trained(file).epsilon(1e-2))


def test_at_equal_epsilon_the_noise_of_an_upcycled_run_is_smaller_by_root_two():
    found = explain(file_with(SOUND["erm"], iterations=8), "a.toml")
    vanilla, upcycled, equal = found.variants
    assert vanilla.noise[1] / upcycled.noise[1] == pytest.approx(np.full(6, np.sqrt(2)), rel=1e-5)
    assert np.array_equal(upcycled.noise[1], equal.noise[1])
    for variant in found.variants:
        assert variant.epsilon == pytest.approx(np.full(6, 2.0), rel=1e-6)


def test_nothing_is_trained(monkeypatch):
    monkeypatch.setattr(Sequential, "train", lambda *_: pytest.fail("trained"))
    assert explain(file_with(SOUND["model"]), "a.toml").variants


def test_the_words_say_what_is_protected_against_whom_and_under_which_assumptions():
    found = explain(file_with(SOUND["erm"]), "a.toml")
    text = "\n".join(found.sentences)
    for words in (
        "simulation: not private",
        "unit: one record, replaced by another (replace-one)",
        "adversary: whoever sees every release",
        "checked: softmax regression; features projected to norm 1",
        "the user's word: norm_bound",
        "not covered: choices made by looking at private data",
        "for the worst client",
    ):
        assert words in text
    assert not found.is_private
    real = explain(file_with(SOUND["erm"] | {"noise": "system"}), "a.toml")
    assert real.is_private
    assert "simulation" not in "\n".join(real.sentences)


def test_the_papers_number_is_labelled_and_stands_beside_the_proven_one():
    variant = explain(file_with(SOUND["model"]), "a.toml").variants[1]
    cells = variant.row()
    assert cells["paper's number (not proven), worst"] == f"{variant.paper_epsilon.max():.4g}"
    assert cells["epsilon (proven), worst client"] == f"{variant.epsilon.max():.4g}"
    assert variant.epsilon.max() > variant.paper_epsilon.max()


def test_both_ways_to_compose_pure_rounds_are_shown():
    file = file_with(SOUND["objective"], iterations=80)
    at_zero, usual = explain(file, "a.toml", 0.0).variants[1], explain(file, "a.toml").variants[1]
    assert (at_zero.delta, usual.delta) == (0, 1e-5)
    each = usual.plan.mechanism.charge(everybody(6)).epsilon
    assert at_zero.epsilon == pytest.approx(40 * each)  # every client is in all 40 data rounds
    assert usual.epsilon.max() < at_zero.epsilon.max()
    assert f"{at_zero.epsilon.max():.4g}" == usual.row()["epsilon at delta = 0 (plain sum), worst"]
    assert usual.as_json()["plain_epsilon"] == at_zero.epsilon.max()
    words = "\n".join(explain(file, "a.toml").sentences)
    assert f"the plain sum, at delta = 0, is {at_zero.epsilon.max():.6g} for the worst client" in words
    assert at_zero.noise[0] == "alpha"


def test_a_file_without_privacy_says_plainly_that_nothing_is_protected():
    found = explain(file_with(SOUND["model"]).model_copy(update={"privacy": None}), "a.toml")
    assert found.sentences[0].startswith("Nothing is protected: the file has no [privacy] table")
    assert found.variants == ()
    assert not found.as_json()["private"]


def test_the_papers_mode_claims_no_epsilon():
    found = explain(file_with({"mechanism": "objective_perturbation", "alpha": 5.0, "paper_mode": True}), "a.toml")
    assert found.variants[0].row()["epsilon"] == "none is claimed"
    assert found.as_json()["variants"][0]["epsilon"] is None
    assert found.as_json()["variants"][0]["clients"][0]["epsilon"] is None


def test_several_seeds_are_said_to_add_up():
    file = file_with(SOUND["model"]).model_copy(update={"seeds": (0, 1, 2)})
    found = explain(file, "a")
    assert any("the file has 3 seeds, and all runs on the same data add up" in r for r in found.remarks)
    assert found.remarks[0].startswith(f"The model has {found.variants[0].plan.layout.size} parameters")


def test_a_large_delta_is_warned_about_and_a_larger_one_refused():
    file = file_with(SOUND["model"])
    assert "more than 1/(10 n)" in explain(file, "a.toml", 0.005).warnings[0]
    with pytest.raises(InputError, match=r"a.toml: --delta.*0.5.*1/n"):
        explain(file, "a.toml", 0.5)


def test_what_the_mechanism_refuses_is_refused_with_the_files_name():
    with pytest.raises(InputError, match=r"a.toml: ErmOutput.*quadratic"):
        explain(file_with(SOUND["erm"], algorithm={"name": "fedavg"}), "a.toml")


def test_explain_says_what_the_account_will_be_charged_and_whether_it_can_pay(tmp_path):
    account = up.privacy.Account.open(tmp_path / "account", epsilon=2.5, delta=1e-5, kind="gaussian")
    privacy = SOUND["erm"] | {"noise": "system", "account": str(tmp_path / "account")}
    one, two = file_with(privacy), file_with(privacy).model_copy(update={"seeds": (0, 1)})
    said = [line for line in explain(one, "a.toml").remarks if account.id in line]
    assert len(said) == 1
    # mu for epsilon 2, squared, over mu for epsilon 2.5, squared.
    part = (up.privacy.gdp_mu(epsilon=2.0, delta=1e-5) / up.privacy.gdp_mu(epsilon=2.5, delta=1e-5)) ** 2
    assert has_all(said[0], "The", "charged", f"account {account.id}: {100 * part:.0f}")
    assert "of the worst client's budget of epsilon 2.5 at delta 1e-05." in said[0]
    refused = [line for line in explain(two, "a.toml").remarks if line.startswith("It will be refused: ")]
    assert len(refused) == 1
    assert "the 2 runs of this file together" in refused[0]
    assert not up.privacy.Account.read(tmp_path / "account").charges
