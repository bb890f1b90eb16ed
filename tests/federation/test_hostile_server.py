"""A data holder against its server: what is weaker than its file is refused, and costs nothing."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from tests.federation.in_process import NAMES, Mail, changed, experiment_of, make_site, run_over
from tests.wording import has_all
from upcycled.federation.coordinator import plan_at_server, request_of, terms_of
from upcycled.federation.messages import FORMAT, Hello, Refusal, Reply, RunTerms, ScoreRequest, packed, unpacked
from upcycled.federation.site.site import replies_of
from upcycled.privacy.accounts.account import Account
from upcycled.training.round import ask
from upcycled.training.state import start_run

CLIPPING = {"mechanism": "update_clipping", "clip_norm": 1.0, "noise_std": 4.0, "noise": "system"}
"""A record moves a release by 2, and by a millionth more for the grid: the noise is twice that."""
LOCAL = {"lr": 0.05, "epochs": 1, "batch_size": 8}
STRICT = {"mechanisms": ["update_clipping", "erm_output"], "least_noise": 1.9, "norm_bound": 1.0}


@pytest.fixture
def home(tmp_path):
    return tmp_path / "ann" / "site" / "ann"


def strict(federation, folder, **changes):
    table = {"privacy": STRICT, "simulation": False, "account": {"epsilon": 4.0, "delta": 1e-3}} | changes
    return make_site(federation, 0, folder, **table)


def question(site, federation, experiment, run="run", rounds=None):
    """The honest question of a run's first round to client 0, and what made it."""
    from tests.federation.in_process import own_data
    from upcycled.federation.messages import SiteFacts
    from upcycled.federation.site.site import plain_facts

    terms = terms_of(experiment, 3, 4, run)
    facts = {
        name: SiteFacts(name, int(federation.train.sizes[i]), plain_facts(own_data(federation, i)))
        for i, name in enumerate(NAMES)
    }
    plan, _ = plan_at_server(experiment.spec(3), facts, None)
    asked = ask(plan, start_run(plan))
    return request_of(terms, plan, asked, 0)


def said(site, request):
    reply = unpacked(site.reply(packed(request)))
    assert isinstance(reply, Refusal), reply
    return reply.reason


def spent(home):
    """Charges on the disk, whatever a site's memory says."""
    return len(Account.read(home / "account").charges) if (home / "account").exists() else 0


def private(**changes):
    return experiment_of(privacy=CLIPPING | changes, local=LOCAL)


def test_the_honest_question_is_answered_and_charged_once(federation, tmp_path, home):
    site = strict(federation, tmp_path)
    request = packed(question(site, federation, private()))
    first = site.reply(request)
    assert isinstance(unpacked(first), Reply)
    assert spent(home) == 1
    assert site.reply(request) == first  # the same bytes, though noise is real
    again = strict(federation, tmp_path)  # another process
    assert again.reply(request) == first
    assert spent(home) == 1
    assert [path for path in (home, *home.rglob("*")) if path.stat().st_mode & 0o077] == []


@pytest.mark.parametrize(
    ("privacy", "words"),
    [
        ({"noise_std": 1.0}, r"noise.*0\.499999.*sensitivity.*site's.*1\.9"),
        ({"clip_norm": 4.0}, r"noise.*0\.499999.*sensitivity"),
        ({"noise": "seeded"}, r"noise.*seeded"),
        ({"fill": 0.5}, r"bound follows releases.*site"),
        ({"mechanism": "model_clipping"}, r"'model_clipping'.*site's.*'update_clipping'"),
    ],
)
def test_less_noise_than_its_file_asks_for_is_refused(privacy, words, federation, tmp_path, home):
    site = strict(federation, tmp_path)
    assert re.search(words, said(site, question(site, federation, private(**privacy))))
    assert spent(home) == 0


def test_no_privacy_at_all_is_refused(federation, tmp_path, home):
    site = strict(federation, tmp_path)
    assert "mechanism 'none'" in said(site, question(site, federation, experiment_of()))
    assert spent(home) == 0


def test_a_larger_norm_bound_is_refused(federation, tmp_path, home):
    output = {"mechanism": "erm_output", "norm_bound": 3.0, "epsilon": 0.1, "delta": 1e-3, "noise": "system"}
    experiment = experiment_of(privacy=output, local=None, algorithm={"name": "fedprox", "mu": 0.5})
    site = strict(federation, tmp_path)
    assert has_all(said(site, question(site, federation, experiment)), "norm_bound", "3", "site's", "1")
    assert spent(home) == 0


def test_more_rounds_than_the_budget_are_refused_and_only_what_left_is_charged(federation, tmp_path, home):
    """The account lets some rounds through, whatever the server plans, and a refusal costs nothing."""
    site = strict(federation, tmp_path, account={"epsilon": 3.0, "delta": 1e-3})
    request = question(site, federation, private())
    request = replace(request, terms=terms_of(private_of(200), 3, 4, "run"))
    replies = [unpacked(site.reply(packed(changed(request, round=m, iteration=2 * m - 1)))) for m in range(1, 13)]
    answered = [isinstance(reply, Reply) for reply in replies]
    count = sum(answered)
    assert answered == [True] * count + [False] * (12 - count)
    assert 2 < count < 12
    assert replies[count].reason == f"this site's account cannot pay for data round {count + 1}"
    account = Account.read(home / "account")
    assert len(account.charges) == count
    # By the account's own rule: one more would not have fitted.
    assert account.share("ann") <= 1 < account.share("ann") * (count + 1) / count
    # Another federation, another run: it is the same account.
    other = replace(request, terms=replace(request.terms, run="another federation's"))
    assert "cannot pay" in said(site, other)


def private_of(rounds):
    return experiment_of(privacy=CLIPPING, local=LOCAL, iterations=2 * rounds)


def test_rounds_that_the_run_does_not_have_are_refused(federation, tmp_path, home):
    site = strict(federation, tmp_path)
    request = question(site, federation, private())
    assert has_all(said(site, changed(request, round=4, iteration=7)), "data round 4", "3")
    assert spent(home) == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": np.zeros(5, dtype=np.float32)}, r"model.*5.*float32.*run's model"),
        ({"model": np.zeros(18)}, r"model.*18.*float64"),
        ({"model": np.full(18, np.nan, dtype=np.float32)}, r"model.*finite"),
        ({"b": np.zeros((1, 3), dtype=np.float32)}, "b has 3 numbers"),
        ({"b": np.zeros(18, dtype=np.float32)}, "b has 18 numbers"),
        ({"a": 7.0}, r"7.*run's algorithm.*0"),
        ({"statistics": np.zeros(2, dtype=np.float32)}, r"running statistics.*model"),
        ({"client": 9}, r"client 9.*4"),
        ({"epochs": np.array([7])}, r"epochs of client 0.*data round 1"),
        ({"epochs": np.array([1, 1])}, r"epochs of client 0.*data round 1"),
        ({"clip_scale": 2.0}, r"clip_scale is 2.*bound is fixed"),
        ({"clients": np.array([0, 1])}, "for one client"),
        ({"clients": np.zeros(1, dtype=np.float32)}, "for one client"),
        ({"clients": np.array([-1])}, "for one client"),
    ],
)
def test_another_model_or_problem_than_the_runs_is_refused(changes, words, federation, tmp_path, home):
    site = strict(federation, tmp_path)
    assert re.search(words, said(site, changed(question(site, federation, private()), **changes)))
    assert spent(home) == 0


def test_a_client_that_is_not_drawn_does_not_answer(federation, tmp_path, home):
    site = strict(federation, tmp_path)
    experiment = experiment_of(privacy=CLIPPING, local=LOCAL, clients={"participation": 0.25})
    plan = question(site, federation, private())
    request = replace(plan, terms=terms_of(experiment, 3, 4, "run"))
    drawn = experiment.spec(3).who.draw(3, 1, 4, 1).clients.tolist()
    (outside, *_) = [client for client in range(4) if client not in drawn]
    assert has_all(said(site, changed(request, client=outside)), f"client {outside}", "drawn", "data round 1")
    assert spent(home) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": {"name": "os:system"}},
        {"model": {"kind": "tests.federation.trap:factory"}},
        {"local": {"kind": "tests.federation.trap:Optimizer"}},
        {"callbacks": ["tests.federation.trap:callback"]},
    ],
)
def test_code_that_a_server_names_is_not_even_imported(changes, federation, tmp_path, home, monkeypatch):
    monkeypatch.setattr("upcycled.core.user_code.importlib.import_module", lambda name: pytest.fail(f"imported {name}"))
    site = strict(federation, tmp_path)
    request = question(site, federation, private())
    config = json.dumps(json.loads(request.terms.config) | changes)
    request = replace(request, terms=replace(request.terms, config=config))
    assert has_all(said(site, request), "names", "code")
    assert has_all(said(site, Hello(request.terms, 0)), "names", "code")
    assert spent(home) == 0


def test_an_old_round_is_not_answered_anew(federation, tmp_path, home):
    """The same question gets the same bytes; another one under its key, or a new attempt at it, gets nothing."""
    site = strict(federation, tmp_path)
    first = question(site, federation, private())
    old = site.reply(packed(first))
    second = changed(first, round=2, iteration=3, model=first.ask.model + np.float32(1))
    assert isinstance(unpacked(site.reply(packed(second))), Reply)
    assert spent(home) == 2
    assert site.reply(packed(first)) == old
    other = changed(first, model=first.ask.model + np.float32(2))
    assert has_all(said(site, other), "data round 1, attempt 0", "question")
    assert has_all(said(site, changed(first, attempt=1)), "data round 1", "site", "answered data round 2")
    assert spent(home) == 2


def test_a_site_that_died_after_its_charge_stays_charged_and_releases_once(federation, tmp_path, home, monkeypatch):
    request = packed(question(strict(federation, tmp_path), federation, private()))
    site = strict(federation, tmp_path)
    monkeypatch.setattr(
        "upcycled.federation.site.site.answer", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        site.reply(request)
    assert spent(home) == 1
    monkeypatch.undo()
    reply = strict(federation, tmp_path).reply(request)
    assert isinstance(unpacked(reply), Reply)
    assert spent(home) == 1
    # A retry by the server is another attempt: a new release, and charged.
    retried = packed(changed(unpacked(request), attempt=1))
    assert isinstance(unpacked(strict(federation, tmp_path).reply(retried)), Reply)
    assert spent(home) == 2


def test_a_site_that_died_before_its_charge_is_not_charged(federation, tmp_path, home, monkeypatch):
    request = packed(question(strict(federation, tmp_path), federation, private()))
    site = strict(federation, tmp_path)
    monkeypatch.setattr(Account, "pay", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        site.reply(request)
    assert spent(home) == 0


def test_scores_are_given_only_if_the_sites_file_says_so(federation, tmp_path):
    site = strict(federation, tmp_path)
    asked = question(site, federation, private())
    request = ScoreRequest(asked.terms, 0, 1, asked.ask.model)
    assert has_all(said(site, request), "scores", "releases", "site's", "evaluations =")
    # One that gives scores gives none beside real noise.
    giving = make_site(federation, 0, tmp_path / "giving", privacy={**STRICT, "evaluations": True})
    assert said(giving, request) == "exact scores are asked for beside real noise, and no epsilon covers them"


def test_an_account_is_needed_for_real_noise(federation, tmp_path):
    site = make_without_account(federation, tmp_path)
    assert "table [account]" in said(site, question(site, federation, private()))


def make_without_account(federation, folder):
    from tests.federation.in_process import own_data
    from upcycled.federation.site.policy import policy_of
    from upcycled.federation.site.site import Site

    raw = {"name": "ann", "data": {"path": "x.csv"}, "privacy": STRICT}
    return Site(policy_of(raw, folder), own_data(federation, 0), folder)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"kind": "ask", "format": FORMAT, "head": "[]"},
        {"kind": "ask", "format": FORMAT - 1, "head": "{}"},
        {"kind": "ask", "format": FORMAT, "head": "{" * 2000},
        {"kind": "answer", "format": FORMAT, "head": "x" * (1 << 21)},
        packed(Refusal("a site is not refused")),
    ],
)
def test_what_is_no_message_is_refused_in_words(fields, federation, tmp_path):
    reply = unpacked(strict(federation, tmp_path).reply(dict(fields)))
    assert isinstance(reply, Refusal)
    assert reply.reason


@pytest.mark.parametrize(
    ("where", "value", "words"),
    [
        ("round", -1, "ask.round.*greater than or equal to 0"),
        ("round", 2**63, "ask.round.*less than"),
        ("round", True, "ask.round.*valid integer"),
        ("round", "1", "ask.round.*valid integer"),
        ("clip_scale", "1.0", "ask.clip_scale.*valid number"),
        ("clip_scale", float("nan"), "ask.clip_scale.*finite"),
        ("model", ["<f4", 3], "ask.model.*do not fill"),
        ("model", ["<f4", -18], "ask.model.*do not fill"),
        ("model", ["<f4", 18, 1, 1], "ask.model.*do not fill"),
        ("model", ["<f4", 0, 2**40], "ask.model.*do not fill"),
        ("model", ["<f4", [18]], "ask.model.*do not fill"),
        ("model", ["|O", 18], "ask.model is of type"),
        ("model", None, "ask.model is of type"),
        ("statistics", ["<f4", 18], "ask.statistics"),
        ("cohort", None, "ask.cohort must have the fields clients, epochs, rows"),
        ("problem", {"a": 0.0}, "ask.problem must have the fields a, b"),
        ("problem", {"a": 1e999, "b": None}, "ask.problem.a.*finite"),
        ("more", 1, "ask must have the fields"),
    ],
)
def test_a_field_of_another_type_or_range_is_refused_where_it_comes_in(where, value, words, federation, tmp_path, home):
    site = strict(federation, tmp_path)
    fields = packed(question(site, federation, private()))
    head = json.loads(fields["head"])
    head["ask"][where] = value
    reply = unpacked(site.reply(fields | {"head": json.dumps(head)}))
    assert isinstance(reply, Refusal)
    assert re.search(f"the message cannot be read: .*{words}", reply.reason)
    assert spent(home) == 0


def test_what_a_server_calls_its_run_is_no_path(tmp_path):
    folder = replies_of(tmp_path, "../../../etc", "ann").folder
    assert folder.parent == tmp_path / "runs"
    assert "." not in folder.name


def test_the_central_mechanism_needs_trust_in_the_server(federation, tmp_path):
    central = {"mechanism": "central_dp_fedavg", "clip_norm": 1.0, "noise_multiplier": 5.0, "noise": "system"}
    limits = STRICT | {"mechanisms": ["central_dp_fedavg"]}
    site = strict(federation, tmp_path, privacy=limits)
    request = question(site, federation, experiment_of(privacy=central, local=LOCAL))
    assert has_all(said(site, request), "noise", "server")
    site = strict(federation, tmp_path, privacy=limits | {"trusts_server": True})
    reply = unpacked(site.reply(packed(request)))
    assert isinstance(reply, Reply)
    assert reply.vector.dtype == np.float64


def test_a_federation_of_strict_sites_still_learns(federation, tmp_path):
    sites = {name: make_site(federation, i, tmp_path, privacy=STRICT, simulation=False) for i, name in enumerate(NAMES)}
    result = run_over(Mail(sites), private())
    assert len(result.history) == 5
    assert result.privacy.rounds.tolist() == [3, 3, 3, 3]


def test_terms_hold_no_data_and_no_paths():
    experiment = experiment_of(results="/secret/place")
    terms = terms_of(experiment, 3, 4, "run")
    assert isinstance(terms, RunTerms)
    assert set(json.loads(terms.config)).isdisjoint({"data", "results", "name", "callbacks"})
