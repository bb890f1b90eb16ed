"""Whatever comes back that is no answer leaves the model as the others made it, and its reason is told."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import upcycled as up
from tests.federation.in_process import NAMES, Mail, experiment_of, federation_of, make_site, run_over
from upcycled.federation.coordinator import NotEnoughError
from upcycled.federation.exchange import Delivery
from upcycled.federation.messages import Refusal, packed, unpacked
from upcycled.training.plan import make_plan
from upcycled.training.round import answer, ask, joined, take
from upcycled.training.state import start_run


@pytest.fixture
def sites(federation, tmp_path):
    return {name: make_site(federation, i, tmp_path) for i, name in enumerate(NAMES)}


def without(data, experiment, left_out):
    """What one round gives without a client: by the simulator's own functions."""
    plan = make_plan(data, experiment.spec(3).replace(progress=False))
    engine, run = plan.engine.open(plan.task, 1), start_run(plan)
    asked = ask(plan, run)
    noise = run.noise_for(plan, 1, 0)
    answers = [answer(plan, engine, asked.of(client), noise) for client in range(4) if client != left_out]
    after, _ = take(plan, run, asked, joined(asked, answers), noise)
    return torch.from_numpy(after.state.server.model)


def changed(delivery, **changes):
    return [replace(delivery, fields=packed(replace(unpacked(delivery.fields), **changes)))]


def raw(delivery, **changes):
    return [replace(delivery, fields=delivery.fields | changes)]


def vector_of(delivery):
    return unpacked(delivery.fields).vector


def with_nan(delivery):
    vector = vector_of(delivery).copy()
    vector[3] = np.nan
    return changed(delivery, vector=vector)


POISON = {
    "nan": (with_nan, "the vector is not finite"),
    "shape": (lambda d: changed(d, vector=vector_of(d)[:-1]), "the vector has 17 numbers, not 18"),
    "dtype": (lambda d: changed(d, vector=vector_of(d).astype(np.float64)), "the vector is of type float64"),
    "huge norm": (lambda d: changed(d, vector=vector_of(d) + np.float32(1e9)), "above 1e.06"),
    "stale": (lambda d: changed(d, round=7), "data round 7, attempt 0: stale"),
    "another's": (lambda d: changed(d, client=2), "another client's"),
    "samples": (lambda d: changed(d, samples=10**6), "says 1000000 samples"),
    "no message": (lambda d: raw(d, head="{}"), "cannot be read"),
    "no bytes": (lambda d: raw(d, vector="words"), r"vector.*ndarray"),
    "pickle": (lambda d: raw(d, kind="pickle"), "its kind is 'pickle'"),
    "lost": (lambda d: [Delivery(d.replies_to, None, "its node is gone")], "its node is gone"),
    "never": (lambda d: [], "no answer in time"),
}


@pytest.mark.parametrize("kind", POISON)
def test_a_poisoned_reply_is_left_out_and_its_reason_told(kind, federation, sites):
    poison, words = POISON[kind]
    mail = Mail(sites, lambda site, fields, d: poison(d) if site == "bob" and fields["kind"] == "ask" else [d])
    experiment, events = experiment_of(iterations=1), []
    result = run_over(mail, experiment, events)
    assert torch.equal(result.params, without(federation, experiment, 1))
    event, taken = events
    assert (taken.site, taken.reason) == ("", "taken: 3 of 4 answered")
    assert (event.round, event.attempt, event.site) == (1, 0, "bob")
    assert re.search(words, event.reason)


def test_a_reply_that_comes_twice_counts_once(federation, sites):
    mail = Mail(sites, lambda site, fields, d: [d, d])
    experiment = experiment_of()
    whole = up.train(federation, experiment.spec(3).replace(progress=False))
    assert torch.equal(run_over(mail, experiment).params, whole.params)


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_a_late_reply_is_not_taken_and_its_node_not_asked_meanwhile(algorithm, federation, sites):
    """Bob's first answer comes during round 2: rounds 1 and 2 go on without him, and he is asked again in round 3."""
    late = []

    def tamper(site, fields, delivery):
        if fields["kind"] != "ask":
            return [delivery]
        about = unpacked(fields).ask
        if site == "bob" and about.round == 1:
            late.append(delivery)
            return []
        if site == "dia" and about.round == 2:
            return [delivery, late.pop()]
        return [delivery]

    mail, events = Mail(sites, tamper), []
    experiment = experiment_of(algorithm={"name": algorithm}, iterations=5)
    result = run_over(mail, experiment, events)
    assert [record.clients.tolist() for record in result.history if record.kind == "data"] == [
        [0, 2, 3],
        [0, 2, 3],
        [0, 1, 2, 3],
    ]
    assert [event.reason for event in events if event.site] == ["no answer in time", "it still owes an earlier answer"]
    asked = [unpacked(fields).ask.round for site, fields in mail.sent if site == "bob" and fields["kind"] == "ask"]
    assert asked == [1, 3]
    if algorithm == "fedavg":
        first = without(federation, experiment_of(iterations=1), 1)
        assert torch.equal(run_over(Mail(sites, tamper_first()), experiment_of(iterations=1), run="2").params, first)


def tamper_first():
    return lambda site, fields, d: [] if site == "bob" and fields["kind"] == "ask" else [d]


def test_a_round_without_enough_answers_is_repeated_with_other_draws_and_not_skipped(federation, sites):
    """Round 1 fails once: its second attempt is what a simulator gets that begins with attempt 1."""

    def tamper(site, fields, delivery):
        is_ask = fields["kind"] == "ask"
        if is_ask and unpacked(fields).ask.attempt == 0 and unpacked(fields).ask.round == 1:
            return [replace(delivery, fields=packed(Refusal("not today")))]
        return [delivery]

    experiment = experiment_of(iterations=1, clients={"participation": 0.5})
    events = []
    result = run_over(Mail(sites, tamper), experiment, events)
    plan = make_plan(federation, experiment.spec(3).replace(progress=False))
    run = start_run(plan)
    run = replace(run, state=replace(run.state, attempt=1))
    asked, noise = ask(plan, run), run.noise_for(plan, 1, 1)
    answered = answer(plan, plan.engine.open(plan.task, 1), asked, noise)
    after, _ = take(plan, run, asked, answered, noise)
    assert torch.equal(result.params, torch.from_numpy(after.state.server.model))
    assert {event.reason for event in events if event.site} == {"it refused: not today"}


def test_a_run_with_too_few_answers_stops_in_one_sentence(sites):
    mail = Mail(sites, lambda site, fields, d: [] if fields["kind"] == "ask" else [d])
    with pytest.raises(NotEnoughError, match=r"data round 1.*answers.*3"):
        run_over(mail, experiment_of(), attempts=3)


def test_nobody_is_asked_for_a_round_that_cannot_have_enough_answers(sites):
    mail = Mail(sites)
    federation = federation_of(mail, attempts=1)
    from upcycled.federation.coordinator import plan_at_server, terms_of
    from upcycled.training.train import run_plan

    experiment = experiment_of()
    terms = terms_of(experiment, 3, 4, "run")
    plan, _ = plan_at_server(experiment.spec(3), federation.introduced(terms, {}), None)
    mail.offline, mail.sent = {"ann", "bob", "cem"}, []
    with pytest.raises(NotEnoughError):
        run_plan(plan.kept(progress=False), [], None, federation.data_round(terms))
    assert mail.sent == []


def test_a_run_begins_when_all_sites_are_there_and_says_who_is_missing(sites):
    mail = Mail(sites)
    mail.offline = {"cem"}
    with pytest.raises(up.InputError, match=r"1.*4 sites.*'cem'.*connected"):
        run_over(mail, experiment_of())


def test_sites_that_disagree_are_named(federation, sites, tmp_path):
    other = replace(federation, num_classes=5)
    sites["cem"] = make_site(other, 2, tmp_path / "other")
    with pytest.raises(up.InputError, match=r"classes.*5.*'cem'.*3.*'ann'"):
        run_over(Mail(sites), experiment_of())


def test_a_site_with_anothers_name_takes_no_part(federation, sites, tmp_path):
    sites["cem"] = make_site(federation, 1, tmp_path / "other")
    with pytest.raises(up.InputError, match=r"'cem'.*'bob'"):
        run_over(Mail(sites), experiment_of())


def test_a_process_that_was_started_anew_owes_nothing(federation, sites):
    """Bob dies in round 1, and is back before round 2 as the same node; his answer to round 1 never comes."""

    def tamper(site, fields, delivery):
        is_lost = fields["kind"] == "ask" and site == "bob" and unpacked(fields).ask.round == 1
        return [] if is_lost else [delivery]

    class Events(list):
        def append(self, event):
            mail.since["bob"] = "a moment later"
            super().append(event)

    mail, events = Mail(sites, tamper), Events()
    result = run_over(mail, experiment_of(), events)
    assert [record.clients.tolist() for record in result.history if record.kind == "data"] == [
        [0, 2, 3],
        [0, 1, 2, 3],
        [0, 1, 2, 3],
    ]
    assert [(event.round, event.reason) for event in events if event.site] == [(1, "no answer in time")]


def test_a_site_that_fell_silent_when_a_run_began_is_asked_again_until_the_time_is_over(sites):
    lost = []

    def tamper(site, fields, delivery):
        if fields["kind"] == "hello" and site == "bob" and len(lost) < 2:
            lost.append(site)
            return [Delivery(delivery.replies_to, None, "its node is gone")]
        return [delivery]

    mail = Mail(sites, tamper)
    result = run_over(mail, experiment_of(iterations=1))
    assert result.history[0].clients.tolist() == [0, 1, 2, 3]
    # Nobody else is asked twice.
    assert [site for site, fields in mail.sent if fields["kind"] == "hello"] == [*NAMES, "bob", "bob"]
    mail = Mail(sites, lambda site, fields, d: [Delivery(d.replies_to, None, "its node is gone")])
    with pytest.raises(up.InputError, match=r"4.*4 sites.*'ann'"):
        run_over(mail, experiment_of())


def test_a_site_that_says_no_when_a_run_begins_is_not_asked_again(federation, sites, tmp_path):
    sites["bob"] = make_site(federation, 1, tmp_path / "other", privacy={})
    mail = Mail(sites)
    with pytest.raises(up.InputError, match=r"1.*4 sites.*'bob'.*refused"):
        run_over(mail, experiment_of())
    assert len(mail.sent) == 4


def test_a_node_that_connects_anew_within_a_round_is_asked_again_and_counts_once(federation, sites):
    """Bob's question is lost on its way, as Flower's server dies; the two answers that he then gives are one."""
    asked = []

    def tamper(site, fields, delivery):
        if fields["kind"] != "ask" or site != "bob":
            return [delivery]
        asked.append(delivery)
        if len(asked) == 1:
            mail.since["bob"] = "a moment later"
            return []
        return [delivery, replace(asked[0])] if len(asked) == 2 else [delivery]

    mail, events = Mail(sites, tamper), []
    experiment = experiment_of(algorithm={"name": "scaffold"})
    result = run_over(mail, experiment, events)
    whole = up.train(federation, experiment.spec(3).replace(progress=False))
    assert torch.equal(whole.params, result.params)
    assert [event.reason for event in events if event.site] == []
    first = [fields for site, fields in mail.sent if site == "bob" and fields["kind"] == "ask"][:2]
    assert first[0] == first[1]
    # Five questions and four answers in the first round: the lost one's answer came when it was not waited for.
    assert [record.messages for record in result.history] == [9, 0, 8, 0, 8]


def test_the_end_of_a_lost_message_is_not_the_end_of_one_that_was_asked_again(sites):
    """Flower gives the first message up while the second one is under way."""
    asked = []

    def tamper(site, fields, delivery):
        if fields["kind"] != "ask" or site != "bob":
            return [delivery]
        asked.append(delivery)
        if len(asked) == 1:
            mail.since["bob"] = "a moment later"
            return []
        gone = Delivery(asked[0].replies_to, None, "its node is gone")
        return [gone, delivery] if len(asked) == 2 else [delivery]

    mail, events = Mail(sites, tamper), []
    result = run_over(mail, experiment_of(iterations=1), events)
    assert result.history[0].clients.tolist() == [0, 1, 2, 3]
    assert [event.reason for event in events if event.site] == []
