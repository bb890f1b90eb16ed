"""What is charged, when, to whom, and what the ledger says about it."""

from __future__ import annotations

import json

import numpy as np
import pytest

import upcycled as up
from tests.privacy.runs import QUIET, cohort, setting
from upcycled.core.errors import BudgetSpentError
from upcycled.privacy import Budget, Ledger, ModelClipping, ObjectivePerturbation
from upcycled.privacy.ledger.entries import PaperTilt

DELTA = 1e-5
CLIPPED = ModelClipping(clip_norm=10.0, noise_std=0.8)


def run(federation, **changes):
    arguments = {"algorithm": up.FedAvg(), "privacy": CLIPPED, "iterations": 6, "upcycle": 0.5} | QUIET
    return up.train(federation, **(arguments | changes))


def test_upcycled_run_charges_nothing_on_even_iterations(federation):
    ledger = run(federation).privacy
    assert [entry.kind for entry in ledger] == ["data", "upcycled"] * 3
    assert all(entry.clients.size == 0 and entry.charge is None for entry in ledger if entry.kind == "upcycled")
    assert ledger.rounds.tolist() == [3, 3, 3, 3]
    vanilla = run(federation, upcycle=None, iterations=3).privacy
    assert np.array_equal(vanilla.epsilon(DELTA), ledger.epsilon(DELTA))


def test_epsilon_is_the_exact_gaussian_one_of_twice_the_clip_norm(federation):
    ledger = run(federation).privacy
    exact = up.privacy.gaussian_epsilon(rounds=3, sensitivity=20.0, noise_std=0.8, delta=DELTA)
    assert np.allclose(ledger.epsilon(DELTA), exact, rtol=1e-6)
    assert (ledger.epsilon(DELTA) >= exact).all()
    assert ledger.max_epsilon(DELTA) == ledger.epsilon(DELTA).max()


def test_the_papers_number_stands_beside_it_and_is_smaller(federation):
    ledger = run(federation).privacy
    paper = up.privacy.paper_epsilon(rounds=3, clip_norm=10.0, noise_std=0.8, n=federation.train.sizes, delta=DELTA)
    assert np.allclose(ledger.paper_epsilon(DELTA), paper)
    assert (ledger.paper_epsilon(DELTA) < ledger.epsilon(DELTA)).all()
    with pytest.raises(up.InputError, match=r"paper.*epsilon.*'update_clipping'"):
        run(federation, privacy=up.privacy.UpdateClipping(1.0, 1.0)).privacy.paper_epsilon(DELTA)


def test_a_client_pays_in_the_rounds_it_takes_part_in(federation):
    result = run(federation, participation=0.5, iterations=10)
    counts = np.zeros(4, dtype=int)
    for record in result.history:
        counts[record.clients] += 1
    assert np.array_equal(result.privacy.rounds, counts)
    assert np.unique(counts).size > 1
    epsilon = result.privacy.epsilon(DELTA)
    assert np.array_equal(np.argsort(epsilon, kind="stable"), np.argsort(counts, kind="stable"))


def test_calibration_meets_each_clients_count_in_the_public_schedule(federation):
    privacy = ModelClipping(10.0, epsilon=3.0, delta=DELTA)
    ledger = run(federation, privacy=privacy, participation=0.5, iterations=10).privacy
    took_part = ledger.rounds > 0
    assert np.allclose(ledger.epsilon(DELTA)[took_part], 3.0, rtol=1e-9)


def test_the_same_simulated_round_is_not_charged_twice_and_a_real_one_is():
    facts = setting()
    fitted = CLIPPED.fit(facts)
    for noise, rounds in (("seeded", 1), ("system", 2)):
        ledger = Ledger(fitted, noise, facts)
        for _ in range(2):
            ledger.charge(1, 1, 0, fitted.charge(cohort(range(3))))
        assert ledger.rounds.tolist() == [rounds] * 3
    ledger.charge(1, 1, 1, fitted.charge(cohort(range(3))))
    assert ledger.rounds.tolist() == [3] * 3


def test_no_noise_is_an_infinite_epsilon_and_no_round_is_none(federation):
    ledger = run(federation, privacy=ModelClipping(1.0, 0.0), participation=0.25, iterations=1).privacy
    assert sorted(ledger.epsilon(DELTA).tolist()) == [0.0, 0.0, 0.0, np.inf]


def test_paper_mode_claims_no_epsilon_and_says_so(federation):
    result = run(federation, privacy=ObjectivePerturbation(20.0, paper_mode=True), model="mlp")
    assert (result.privacy.epsilon(DELTA) == np.inf).all()
    assert "none is claimed, this is not private" in result.privacy.statement(DELTA)


def test_delta_of_one_over_n_is_refused_when_asking_too(federation):
    with pytest.raises(up.InputError, match="below 1/n"):
        run(federation).privacy.epsilon(1 / 41)


def test_pure_rounds_add_up_or_compose_optimally(federation):
    privacy = ObjectivePerturbation(20.0, norm_bound=1.0)
    ledger = run(federation, privacy=privacy, algorithm=up.FedProx(mu=0.5)).privacy
    each = next(iter(ledger)).charge.epsilon
    assert np.allclose(ledger.epsilon(0.0), 3 * each)
    composed = [up.privacy.pure_composition_epsilon(epsilons=[e] * 3, delta=DELTA) for e in each]
    assert np.allclose(ledger.epsilon(DELTA), composed)


def test_a_client_that_cannot_pay_is_left_out_and_the_run_says_so(federation):
    # Sensitivities differ by n_i, so the small clients run out first.
    privacy = up.privacy.ErmOutput(1.0, noise_std=0.9)
    budget = Budget(epsilon=2.0, delta=DELTA)
    result = run(federation, privacy=privacy, algorithm=up.FedProx(), budget=budget, upcycle=None, iterations=4)
    ledger = result.privacy
    free = run(federation, privacy=privacy, algorithm=up.FedProx(), iterations=1).privacy
    assert ledger.max_epsilon(DELTA) <= 2.0
    each = up.privacy.rounds_within(
        budget=(2.0, DELTA), sensitivity=next(iter(free)).charge.sensitivity, noise_std=np.full(4, 0.9)
    )
    assert np.array_equal(ledger.rounds, np.minimum(each, 4))
    assert ledger.rounds.min() < 4 == ledger.rounds.max()
    assert np.array_equal(ledger.left_out, 4 - ledger.rounds)
    assert all(np.array_equal(e.clients, r.clients) for e, r in zip(
        [e for e in ledger if e.kind == "data"], result.history, strict=True))  # fmt: skip
    assert "clients were left out" in ledger.statement(DELTA)


def test_a_run_that_nobody_can_pay_for_stops_in_one_sentence(federation):
    with pytest.raises(BudgetSpentError, match=r"client.*data round 1.*pay"):
        run(federation, budget=Budget(1.0, DELTA))


def test_a_pure_budget_is_filtered_by_plain_sums(federation):
    privacy = ObjectivePerturbation(1.0, norm_bound=1.0)
    charged = run(federation, privacy=privacy, algorithm=up.FedProx(), iterations=1).privacy
    each = next(iter(charged)).charge.epsilon
    budget = Budget(epsilon=2.5 * each.min(), delta=0.0)
    ledger = run(federation, privacy=privacy, algorithm=up.FedProx(), upcycle=None, iterations=2, budget=budget).privacy
    assert np.array_equal(ledger.rounds, np.minimum(np.floor(budget.epsilon / each), 2))


def test_the_statement_has_every_item(federation):
    ledger = run(federation).privacy
    words = ledger.statement(DELTA)
    assert words.splitlines() == [f"{topic}: {text}" for topic, text in ledger.statement_items(DELTA)]
    for item in (
        "simulation: not private", "unit: one record", "replace-one", "adversary: whoever sees every release",
        "delta: 1e-05", "data rounds charged: 3 to 3", "worst client", "median", "paper's formula",
        "checked: every release", "user's word", "all clients in every data round", "fixed before the first round",
        "tuning", "other runs", "sizes n_i", "timing", "test metrics", "this run only",
    ):  # fmt: skip
        assert item in words
    real = run(federation, noise="system", participation=0.5).privacy.statement(DELTA)
    assert "operating system's entropy" in real
    assert "simulation" not in real
    assert "no amplification is claimed" in real


def test_an_overview_names_what_holds_the_run_to_its_epsilon(federation, tmp_path):
    account = up.privacy.Account.open(tmp_path / "account", epsilon=9.0, delta=1e-3)
    real = {
        "privacy": ModelClipping(1.0, 8.0),
        "noise": "system",
        "budget": Budget(8.0, DELTA),
        "ledger": tmp_path / "a",
        "account": account.folder,
    }
    ledger = run(federation, iterations=2, **real).privacy
    rows = dict(ledger.overview.rows)
    assert rows["budget"] == "8.000 at delta 1e-05"
    assert rows["account"] == account.id
    assert rows["file"] == "anchored"
    assert rows["worst client's epsilon"] == f"{ledger.max_epsilon(DELTA):.3f} at delta 1e-05"
    plain = dict(run(federation, iterations=2).privacy.overview.rows)
    assert not plain.keys() & {"budget", "account", "file"}
    paper = run(federation, privacy=ObjectivePerturbation(20.0, paper_mode=True), iterations=2).privacy
    assert paper.worst_in_words == dict(paper.overview.rows)["worst client's epsilon"] == "none is claimed"


def test_the_papers_number_for_a_tilt_is_infinite_where_its_condition_fails():
    # u2 <= n a / 2 with u2 = 0.11: a = 0.01 needs 22 samples.
    rounds = np.array([3, 0])
    few, many = (PaperTilt(np.full(2, 20.0), 0.01).epsilon(rounds, np.full(2, n), DELTA) for n in (21, 22))
    assert few.tolist() == [np.inf, 0.0]
    assert np.isfinite(many).all()
    assert many[0] > 0


def test_the_file_holds_each_charge_before_its_release_leaves(federation, tmp_path, monkeypatch):
    path = tmp_path / "deep" / "ledger.jsonl"
    from upcycled.privacy.mechanisms.clipping import Clipped

    original, lines_at_release = Clipped.release, []

    def spy(self, *arguments):
        lines_at_release.append(len(path.read_text().splitlines()))
        return original(self, *arguments)

    monkeypatch.setattr(Clipped, "release", spy)
    ledger = run(federation, ledger=path).privacy
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines_at_release == [2, 4, 6]
    assert [line["kind"] for line in lines] == ["run", *["data", "upcycled"] * 3, "ended"]
    header, data, even = lines[:3]
    assert (header["format"], len(header["chain"])) == (4, 64)
    assert (header["noise"], header["note"]) == ("seeded", "simulation: not private")
    assert header["sizes"]["largest"] == 41
    assert data["first"]["sizes"] == [23, 7, 41, 12]
    assert header["released"] == "the clipped model, with Gaussian noise"
    assert header["assumptions_checked"] == ["every release is clipped to norm 10"]
    assert (data["iteration"], data["round"], data["attempt"], data["clients"]) == (1, 1, 0, [0, 1, 2, 3])
    assert data["noise_std"] == [0.8] * 4
    assert data["sensitivity"] == next(iter(ledger)).charge.sensitivity.tolist()
    assert even["cost"] == 0


def test_a_repeated_simulation_finds_its_own_lines_and_another_run_is_refused(federation, tmp_path):
    path = tmp_path / "ledger.jsonl"
    run(federation, ledger=path)
    charges = [line for line in path.read_text().splitlines() if '"data"' in line]
    again = run(federation, ledger=path).privacy
    assert [line for line in path.read_text().splitlines() if '"data"' in line] == charges
    assert again.rounds.tolist() == [3] * 4
    for other in ({"seed": 1}, {"noise": "system"}):
        with pytest.raises(up.InputError, match=r"charges.*another"):
            run(federation, ledger=path, **other)


def test_the_file_never_holds_data(federation, tmp_path):
    path = tmp_path / "ledger.jsonl"
    run(federation, ledger=path)
    keys = {key for line in path.read_text().splitlines() for key in json.loads(line)}
    assert not keys & {"x", "y", "vectors", "loss", "gradient", "key", "seed"}
