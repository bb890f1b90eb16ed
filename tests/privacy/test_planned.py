"""Runs that did not end as planned state the epsilon of their whole plan; those that did, that of their charges."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest

import upcycled as up
from tests.privacy.runs import QUIET, chained, cohort, setting, wide
from tests.privacy.test_ledger_read import RUNS
from upcycled.audit.explain import planned_ledger
from upcycled.config.experiment import load_config
from upcycled.core.errors import DivergedError
from upcycled.experiments.batch import run_experiment
from upcycled.privacy import Account, Budget, ErmOutput, Ledger, ModelClipping, ObjectivePerturbation
from upcycled.privacy.ledger import header
from upcycled.privacy.ledger.budget import planned_charges
from upcycled.privacy.ledger.joint import joint_epsilon
from upcycled.report.collect import collect
from upcycled.training.plan import make_plan

DELTA = 1e-5
ERM = {"algorithm": up.FedProx(mu=0.5), "privacy": ErmOutput(1.0, noise_std=4.0), "iterations": 20, **QUIET}


def stop_after(iteration):
    """A stopping rule: a callback that sees scores and releases could decide by them."""
    return lambda record: up.STOP if record.iteration == iteration else None


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", RUNS)
def test_a_stopping_rule_leaves_the_epsilon_of_the_plan(federation, tmp_path, name):
    asked = {"algorithm": up.FedAvg(), "iterations": 6, "upcycle": 0.5} | QUIET | RUNS[name]
    asked["participation"] = 0.5 if "secret" in name else 1.0
    whole = up.train(federation, **asked, ledger=tmp_path / "whole").privacy
    stopped = up.train(federation, **asked, ledger=tmp_path / "stopped", callbacks=[stop_after(1)]).privacy
    delta = whole.default_delta
    assert whole.is_as_planned
    assert lines_of(tmp_path / "whole")[-1]["kind"] == "ended"
    for ledger in (stopped, Ledger.read(tmp_path / "stopped")):
        assert not ledger.is_as_planned
        if whole.budget is None:
            assert ledger.epsilon(delta) == pytest.approx(whole.epsilon(delta), rel=1e-9)
        else:
            assert (ledger.epsilon(delta) >= whole.epsilon(delta)).all()
            assert ledger.max_epsilon(delta) == whole.budget.epsilon
        assert ledger.max_epsilon(delta) == ledger.epsilon(delta).max()
        if whole.promise.is_claimed:
            assert ledger.spent_epsilon(delta) < ledger.max_epsilon(delta)
        planned = ledger.header.data_rounds
        words = f"stopped after 1 of {planned} data rounds; stated for the planned {planned}"
        assert words in dict(ledger.statement_items(delta))["schedule"]
        assert words in str(ledger) or not whole.promise.is_claimed
    assert dict(whole.statement_items(delta))["schedule"].startswith(("fixed before the first round", "a filter holds"))


def test_a_stopping_rule_breaks_the_epsilon_of_the_rounds_so_far_and_not_the_planned_one():
    """By simulation: who stops when the releases look unlikely for the neighbour exceeds delta several times."""
    delta, rounds = 1e-3, 20
    facts = setting(sizes=[40, 40, 40], rounds=np.full(3, rounds), data_rounds=rounds)
    fitted = ModelClipping(1.0, 8.0).fit(facts)
    ledger, charge, so_far = Ledger(fitted, "seeded", facts), fitted.charge(cohort(range(3))), []
    for m in range(1, rounds + 1):
        ledger.charge(m, m, 0, charge)
        so_far.append(ledger.spent_epsilon(delta))
        planned = ledger.max_epsilon(delta)
    mu, rng, runs = float((charge.sensitivity / charge.noise_std)[0]), np.random.default_rng(0), 200_000
    loss, goes_on = np.zeros(runs), np.ones(runs, dtype=bool)
    exceeded = {"so far": 0.0, "planned": 0.0}
    for m, epsilon in enumerate(so_far, start=1):
        loss[goes_on] += mu**2 / 2 + mu * rng.standard_normal(int(goes_on.sum()))
        stops = goes_on & ((loss > epsilon + mu / 2) | (m == rounds))
        for name, stated in (("so far", epsilon), ("planned", planned)):
            exceeded[name] += float(np.maximum(0.0, 1 - np.exp(stated - loss[stops])).sum()) / runs
        goes_on &= ~stops
    assert exceeded["so far"] > 3.5 * delta
    assert exceeded["planned"] < 0.5 * delta


def diverges(record):
    raise DivergedError("as a run whose loss is not finite")


def interrupts(record):
    raise KeyboardInterrupt


def breaks(record):
    raise RuntimeError("as a kill")


@pytest.mark.parametrize("ends", [diverges, interrupts, breaks])
@pytest.mark.parametrize("noise", ["seeded", "system"])
def test_what_ends_a_run_early_leaves_the_epsilon_of_the_plan_until_it_goes_on(tmp_path, ends, noise):
    data, kept = wide(), {"ledger": tmp_path / "a", "checkpoint": tmp_path / "kept", "checkpoint_every": 1}
    whole = up.train(data, **ERM, noise=noise).privacy
    with contextlib.suppress(RuntimeError):
        up.train(data, **ERM, **kept, noise=noise, callbacks=[ends])
    read = Ledger.read(tmp_path / "a")
    assert (read.last_round, read.is_as_planned) == (1, False)
    assert read.epsilon(DELTA) == pytest.approx(whole.epsilon(DELTA), rel=1e-9)
    again = up.train(data, **ERM, **kept, noise=noise).privacy
    assert again.is_as_planned
    assert again.epsilon(DELTA) == pytest.approx(whole.epsilon(DELTA), rel=1e-9)
    assert lines_of(tmp_path / "a")[-1]["kind"] == "ended"
    before = (tmp_path / "a").read_bytes()
    assert up.train(data, **ERM, **kept, noise=noise).privacy.is_as_planned
    assert (tmp_path / "a").read_bytes() == before


def test_a_file_that_was_cut_anywhere_never_states_less(tmp_path):
    path = tmp_path / "a"
    whole = up.train(wide(), **ERM | {"participation": 0.5, "noise": "system"}, ledger=path).privacy
    lines = path.read_bytes().splitlines(keepends=True)
    for count in range(2, len(lines) + 1):
        path.write_bytes(b"".join(lines[:count]))
        read = Ledger.read(path)
        assert read.epsilon(DELTA) == pytest.approx(whole.epsilon(DELTA), rel=1e-9)
        assert read.is_as_planned == (count >= len(lines) - 1)  # the last round was charged, or the run ended
    path.write_bytes(lines[0])
    assert Ledger.read(path).max_epsilon(DELTA) == 0  # nothing left a client


def test_what_a_kill_repeated_is_paid_beside_the_plan(tmp_path):
    facts, mechanism = setting(rounds=np.full(3, 4), data_rounds=4), ModelClipping(1.0, 4.0)
    fitted = mechanism.fit(facts)
    ledger = Ledger(fitted, "system", facts)
    charge = fitted.charge(cohort(range(3)))
    for m in (1, 2, 2):
        ledger.charge(m, m, 0, charge)
    squares = 5 * float((charge.sensitivity / charge.noise_std)[0] ** 2)
    assert ledger.max_epsilon(DELTA) == pytest.approx(up.privacy.gdp_epsilon(mu=squares**0.5, delta=DELTA), rel=1e-9)
    without = up.privacy.gdp_epsilon(mu=(squares * 4 / 5) ** 0.5, delta=DELTA)
    assert ledger.epsilon_without_repeats(DELTA) == pytest.approx(without, rel=1e-9)


@pytest.mark.parametrize("privacy", [ErmOutput(1.0, noise_std=0.9), ObjectivePerturbation(5.0, norm_bound=1.0)])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_a_run_that_its_own_budget_ends_has_ended_as_planned(federation, tmp_path, privacy, participation):
    budget = Budget(4.0, DELTA) if isinstance(privacy, ErmOutput) else Budget(12.0, 0.0)
    asked = {"algorithm": up.FedProx(mu=0.5), "privacy": privacy, "budget": budget, "participation": participation}
    asked |= QUIET | {"iterations": 60}
    result = up.train(federation, **asked, ledger=tmp_path / "a")
    ledger, delta = result.privacy, budget.delta
    assert isinstance(result.error, up.BudgetSpentError)
    planned = planned_ledger(make_plan(federation, up.RunSpec(**asked)))
    for one in (ledger, Ledger.read(tmp_path / "a"), planned):
        assert one.is_as_planned
        assert one.epsilon(delta).tolist() == ledger.epsilon(delta).tolist()
        assert one.max_epsilon(delta) == one.spent_epsilon(delta)
    # The same run, stopped by somebody: a client might have been charged up to its plan, or to the budget.
    stopped = up.train(federation, **asked, callbacks=[stop_after(1)]).privacy
    unlimited = planned_ledger(make_plan(federation, up.RunSpec(**asked | {"budget": None}))).epsilon(delta)
    assert not stopped.is_as_planned
    assert stopped.epsilon(delta) == pytest.approx(np.minimum(unlimited, budget.epsilon), rel=1e-9)
    assert (stopped.epsilon(delta) >= ledger.epsilon(delta)).all()
    assert stopped.spent_epsilon(delta) < stopped.max_epsilon(delta) == budget.epsilon


def test_scores_that_were_not_charged_count(federation, tmp_path):
    scores = up.privacy.ChargedScores(5.0, every=2)
    asked = ERM | {"iterations": 6, "charged_scores": scores}
    whole = up.train(federation, **asked).privacy
    stopped = up.train(federation, **asked, ledger=tmp_path / "a", callbacks=[stop_after(3)]).privacy
    has_test = federation.test.sizes > 0
    for one in (stopped, Ledger.read(tmp_path / "a")):
        assert one.epsilon(DELTA)[has_test] == pytest.approx(whole.epsilon(DELTA)[has_test], rel=1e-9)
        assert (one.epsilon(DELTA) >= whole.epsilon(DELTA) * (1 - 1e-9)).all()


def test_a_file_in_short_states_a_bound_of_the_plan(tmp_path, monkeypatch):
    asked = ERM | {"participation": 0.5}
    whole = up.train(wide(), **asked).privacy
    monkeypatch.setattr(header, "LISTED", 3)
    stopped = up.train(wide(), **asked, ledger=tmp_path / "a", callbacks=[stop_after(7)]).privacy
    read = Ledger.read(tmp_path / "a")
    assert len(lines_of(tmp_path / "a")[0]["planned"]["data"]["times"]) == 1
    assert np.array_equal(read.epsilon(DELTA), stopped.epsilon(DELTA))
    assert (read.epsilon(DELTA) >= whole.epsilon(DELTA)).all()
    clipped = asked | {"privacy": ModelClipping(1.0, 8.0)}
    same = up.train(wide(), **clipped).privacy
    bound = up.train(wide(), **clipped, callbacks=[stop_after(7)]).privacy
    assert bound.max_epsilon(DELTA) == pytest.approx(same.max_epsilon(DELTA), rel=1e-9)  # who is in most rounds


def test_ledgers_that_add_up_count_all_that_was_planned(tmp_path):
    asked, delta = ERM | {"noise": "system", "iterations": 6}, DELTA
    stopped = up.train(wide(), **asked, callbacks=[stop_after(2)]).privacy
    whole, other = (up.train(wide(), **asked).privacy for _ in range(2))
    assert joint_epsilon([stopped, other], delta) == pytest.approx(joint_epsilon([whole, other], delta), rel=1e-9)
    pure = asked | {"privacy": ObjectivePerturbation(1.0, norm_bound=1.0)}
    mixed, complete = (up.train(wide(), **pure, **more).privacy for more in ({"callbacks": [stop_after(2)]}, {}))
    found, expected = (joint_epsilon([one, other], delta) for one in (mixed, complete))
    assert found == pytest.approx(expected, rel=1e-9)


# What no run writes


def forged(path, change):
    lines = lines_of(path)
    change(lines)
    path.write_text(chained(lines))


FORGED = {
    "an end after some rounds": lambda lines: lines.insert(3, lines[-1] | {"iteration": 2, "round": 2}),
    "an end before all rounds": lambda lines: lines.pop(-2),
    "an end with a round missing": lambda lines: lines.pop(3),
    "an end of nothing": lambda lines: lines.insert(1, lines[-1] | {"iteration": 1, "round": 1}),
    "no counts": lambda lines: lines[0]["planned"]["data"].update(times=[-1]),
    "no rows": lambda lines: lines[0]["planned"]["data"].update(rows=None),
    "rows of fewer clients": lambda lines: lines[0]["planned"]["data"].update(rows=[0]),
    "another kind": lambda lines: lines[0]["planned"]["data"].update(charge="pure", epsilon=[1.0] * 4),
    "another table": lambda lines: lines[0].update(planned=[]),
    "no plan": lambda lines: lines[0].pop("planned"),
    "a part that is none": lambda lines: lines[0].update(planned={"data": 1}),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_plan_or_an_end_that_no_run_writes_is_refused(tmp_path, name):
    path = tmp_path / "a"
    up.train(wide(), **ERM | {"iterations": 4}, ledger=path)
    forged(path, FORGED[name])
    with pytest.raises(up.InputError, match=r"^ledger '.*'.*damaged.*line"):
        Ledger.read(path)


def test_a_budget_that_was_not_spent_ended_no_run(federation, tmp_path):
    path = tmp_path / "a"
    asked = ERM | {"privacy": ErmOutput(1.0, noise_std=0.9), "budget": Budget(2.0, DELTA)}
    up.train(federation, **asked, ledger=path)
    lines = lines_of(path)
    assert [line["kind"] for line in lines[-2:]] == ["left out", "ended"]
    round = lines[-2]["round"]
    cut = [line for line in lines if line["kind"] == "run" or line["round"] < round - 1] + [
        lines[-2] | {"iteration": round - 1, "round": round - 1},
        lines[-1] | {"iteration": round - 1, "round": round - 1},
    ]
    path.write_text(chained(cut))
    with pytest.raises(up.InputError, match=r"planned.*planned charges.*missing"):
        Ledger.read(path)


def test_a_client_that_the_mechanism_never_charges_has_no_plan():
    facts = setting()
    fitted = ModelClipping(1.0, 4.0).fit(facts)
    plan = planned_charges(fitted, facts, is_brief=False)["data"]
    assert (plan.rows, plan.times.tolist()) == (None, [40])
    charge, times = plan.of_clients(3)
    assert (charge.clients.tolist(), times.tolist()) == ([0, 1, 2], [40, 40, 40])


# Accounts


def test_an_account_keeps_what_a_stopped_run_planned_until_it_ends(tmp_path):
    account = Account.open(tmp_path / "account", epsilon=4.0, delta=DELTA, kind="gaussian")
    kept = {"checkpoint": tmp_path / "kept", "checkpoint_every": 1, "ledger": tmp_path / "a"}
    asked = ERM | {"noise": "system", "account": account.folder, "iterations": 10}
    other = Account.open(tmp_path / "other", epsilon=4.0, delta=DELTA, kind="gaussian")
    up.train(wide(), **asked | {"account": other.folder})
    whole = Account.read(other.folder)
    up.train(wide(), **asked, **kept, callbacks=[stop_after(3)])
    stopped = Account.read(account.folder)
    assert stopped.rounds("0") == 3
    for client in stopped.clients:
        assert stopped.share(client) == pytest.approx(whole.share(client), rel=1e-9)
        assert stopped.epsilon(client) == pytest.approx(whole.epsilon(client), rel=1e-9)
        assert len(stopped.charges_of(client)) == 10
    assert "all that these studies planned counts as spent" in dict(stopped.statement_items())["not ended as planned"]
    up.train(wide(), **asked, **kept)
    ended = Account.read(account.folder)
    assert ended.content.splitlines()[-1].startswith(b'{"kind":"ended","study":1')
    assert "not ended as planned" not in dict(ended.statement_items())
    assert ended.share("3") == pytest.approx(whole.share("3"), rel=1e-9)
    assert [len(ended.charges), ended.rounds("0")] == [10, 10]


def test_what_is_kept_for_a_run_is_refused_to_others_and_its_own_when_it_goes_on(tmp_path):
    account = Account.open(tmp_path / "account", epsilon=2.0, delta=DELTA, kind="gaussian")
    kept = {"checkpoint": tmp_path / "kept", "checkpoint_every": 1, "ledger": tmp_path / "a"}
    asked = ERM | {"noise": "system", "account": account.folder, "iterations": 8}
    up.train(wide(), **asked, **kept, callbacks=[stop_after(1)])
    share = Account.read(account.folder).share("3")
    assert 0.5 < share < 1
    with pytest.raises(up.InputError, match=r"%.*ended"):
        up.train(wide(), **asked)
    assert up.train(wide(), **asked, **kept).privacy.is_as_planned
    assert Account.read(account.folder).share("3") == pytest.approx(share)


def test_a_run_that_breaks_before_its_first_release_costs_an_account_nothing(tmp_path, monkeypatch):
    account = Account.open(tmp_path / "account", epsilon=4.0, delta=DELTA)
    monkeypatch.setattr("upcycled.engines.sequential.Sequential.train", None)
    with pytest.raises(TypeError):
        up.train(wide(), **ERM | {"noise": "system", "account": account.folder, "iterations": 4})
    assert Account.read(account.folder).clients == ()
    assert len(Account.read(account.folder).studies) == 1


def test_scores_are_kept_too_and_what_a_budget_left_over_is_given_back(federation, tmp_path):
    account = Account.open(tmp_path / "account", epsilon=8.0, delta=DELTA, kind="gaussian")
    scores = up.privacy.ChargedScores(20.0, every=2)
    asked = ERM | {"noise": "system", "account": account.folder, "iterations": 6, "charged_scores": scores}
    up.train(federation, **asked, callbacks=[stop_after(3)])
    assert len(Account.read(account.folder).charges_of("0")) == 6 + 3
    before = Account.read(account.folder).share("1")
    up.train(federation, **asked)
    ended = Account.read(account.folder)
    assert ended.share("1") == pytest.approx(2 * before, rel=1e-9)


# What people read

FILE = """
name = "stopped"
iterations = 6
callbacks = ["tests.privacy.test_planned:StopsAtTwo"]
[data]
source = "synthetic"
alpha = "iid"
clients = 3
[algorithm]
name = "fedprox"
[privacy]
mechanism = "erm_output"
norm_bound = 1.0
noise_std = 2.0
noise = "system"
"""


class StopsAtTwo:
    """A callback that ends its run."""

    def record(self, record, run):
        return up.STOP if record.iteration == 2 else None


def test_summary_report_and_model_state_the_plan(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.toml").write_text(FILE)
    run_experiment(load_config("a.toml", []), "a.toml")
    whole = run_experiment(load_config("a.toml", ["~callbacks", 'name="whole"']), "a.toml").seeds[0].summary.privacy
    folder = tmp_path / "results" / "stopped" / "seed-0"
    stated = json.loads((folder / "summary.json").read_text())["privacy"]
    assert (stated["as_planned"], whole.as_planned) == (False, True)
    assert stated["epsilon"]["clients"] == pytest.approx(whole.epsilon.clients, rel=1e-9)
    words = "stopped after 2 of 6 data rounds; stated for the planned 6"
    assert any(words in line for line in stated["statement"])
    model = json.loads((folder / "model.json").read_text())
    assert words in json.dumps(model)
    found = collect(folder.parent)
    assert found.problems == ()
    assert f"epsilon {stated['epsilon']['max']:.3f}" in dict(found.parts[0].seeds[0].plain)["how far"]
    assert len(found.parts[0].seeds[0].spent.worst) == 2
