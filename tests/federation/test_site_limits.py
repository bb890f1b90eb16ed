"""Limits of a site's file: a server's numbers cannot make a site allocate, or work, without bound."""

import json
import re
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from tests.federation.in_process import changed, experiment_of, make_site
from tests.federation.test_hostile_server import LOCAL, question, said
from tests.wording import has_all
from upcycled.core.randomness import permutations
from upcycled.federation.messages import Hello, Reply, ScoreRequest, packed, unpacked
from upcycled.federation.site import site as site_module
from upcycled.privacy.accounting import sampled_gaussian_epsilon, sampled_gaussian_noise_multiplier

CERTIFIED = {"mechanism": "erm_output", "norm_bound": 1.0, "noise_std": 5.0, "prox_mu": 1.0}
MODEL = {"kind": "lstm", "vocabulary": 100, "embedding": 4, "hidden": 4}


@pytest.fixture
def site(federation, tmp_path):
    return make_site(federation, 0, tmp_path)


@pytest.fixture
def request_of_changed(site, federation):
    """The honest question, with other terms."""

    def made(clients=4, **changes):
        request = question(site, federation, experiment_of(local=LOCAL))
        config = json.dumps(json.loads(request.terms.config) | changes)
        return replace(request, terms=replace(request.terms, config=config, clients=clients))

    return made


BEFORE_PLANNING = [
    ({"clients": 10**9}, r"1000000000 clients.*site's.*1000 \(limits\.clients\)"),
    ({"iterations": 2**31 - 1}, "2147483647 iterations"),
    ({"local": LOCAL | {"epochs": 10**7}}, r"10000000 epochs.*site's.*1000"),
    ({"local": {"kind": "adam", "epochs": 10**7}}, "10000000 epochs"),
    ({"local": LOCAL | {"epochs": 1000, "batch_size": 1}, "iterations": 10_000}, r"steps.*site's"),
    ({"algorithm": {"name": "pfedme", "lam": 1.0, "inner_steps": 10**9}}, r"steps.*site's"),
    ({"model": {"kind": "mlp", "hidden": [10**9]}}, r"parameters.*site's.*10000000"),
    ({"model": {"kind": "mlp", "hidden": [4000, 4000]}}, r"parameters.*site's.*10000000"),
    ({"model": MODEL | {"vocabulary": 10**9}}, r"parameters.*site's.*10000000"),
    ({"model": MODEL | {"embedding": 10**9}}, r"parameters.*site's.*10000000"),
    ({"model": MODEL | {"hidden": 10**9}}, r"parameters.*site's.*10000000"),
]


@pytest.mark.parametrize(("changes", "words"), BEFORE_PLANNING)
def test_a_number_that_makes_a_run_too_large_is_refused_before_anything_is_allocated(
    changes, words, site, request_of_changed, monkeypatch
):
    request = request_of_changed(**changes)
    score = ScoreRequest(request.terms, 0, 1, request.ask.model)
    monkeypatch.setattr(site_module, "plan_for_client", lambda *arguments: pytest.fail("it was planned"))
    tracemalloc.start()
    try:
        for message in (request, score):
            assert re.search(words, said(site, message))
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_run_of_too_many_clients_iterations_or_epochs_is_refused_at_its_hello(site, request_of_changed):
    for changes, words in BEFORE_PLANNING[:4]:
        assert re.search(words, said(site, Hello(request_of_changed(**changes).terms, 0)))


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 10**8},
        {"gamma": 1e-9, "prox_mu": 1e-5},
        {"mechanism": "objective_perturbation", "epsilon": 150.0, "prox_mu": 1e-6, "noise_std": None},
    ],
)
def test_a_certified_solver_of_too_many_steps_is_refused_before_it_works(
    changes, site, request_of_changed, monkeypatch
):
    """How many it takes follows from the mechanism's numbers."""
    privacy = {name: value for name, value in (CERTIFIED | changes).items() if value is not None}
    monkeypatch.setattr(site_module, "answer", lambda *arguments: pytest.fail("it was trained"))
    request = request_of_changed(privacy=privacy, local={}, algorithm={"name": "fedavg"})
    assert has_all(said(site, request), "steps", "site's", "10000000 (limits.steps)")


def test_numbers_below_the_limits_are_answered_and_a_file_may_raise_or_lower_them(
    federation, tmp_path, request_of_changed
):
    request = changed(request_of_changed(local=LOCAL | {"epochs": 3}), epochs=np.array([3]))
    for name, most in {"clients": 4, "iterations": 5, "epochs": 3, "parameters": request.ask.model.size}.items():
        reply = unpacked(make_site(federation, 0, tmp_path / name, limits={name: most}).reply(packed(request)))
        assert isinstance(reply, Reply), reply
        below = make_site(federation, 0, tmp_path / "below" / name, limits={name: most - 1})
        assert has_all(said(below, request), name, "site's", f"{most - 1} (limits.{name})")


def test_a_vector_longer_than_any_allowed_model_is_not_copied(federation, tmp_path, request_of_changed):
    site = make_site(federation, 0, tmp_path, limits={"parameters": 1000})
    fields = packed(request_of_changed()) | {"ask.model": bytes(10**6)}
    tracemalloc.start()
    try:
        assert "the run has 125000 parameters" in unpacked(site.reply(fields)).reason
        assert tracemalloc.get_traced_memory()[1] < 10**5
    finally:
        tracemalloc.stop()


def test_the_orders_of_many_epochs_are_drawn_one_at_a_time(federation, tmp_path, request_of_changed, monkeypatch):
    drawn = []

    def watched(key, size, epochs, first=0):
        drawn.append(epochs)
        return permutations(key, size, epochs, first)

    monkeypatch.setattr("upcycled.engines.sequential.permutations", watched)
    request = changed(request_of_changed(local=LOCAL | {"epochs": 50}, iterations=5), epochs=np.array([50]))
    assert isinstance(unpacked(make_site(federation, 0, tmp_path).reply(packed(request))), Reply)
    assert drawn == [1] * 50
    assert np.array_equal(permutations(7, 5, 3), np.concatenate([permutations(7, 5, 1, epoch) for epoch in range(3)]))


@pytest.mark.slow
@pytest.mark.parametrize(("q", "steps"), [(1e-5, 10**5), (1e-5, 10**6), (1e-6, 10**6)])
def test_calibrating_noise_for_rare_records_needs_bounded_memory_and_is_never_too_little(q, steps):
    """A window of 2^34 grid points was asked for."""
    tracemalloc.start()
    try:
        noise = sampled_gaussian_noise_multiplier(q=q, epsilon=1.0, steps=steps, delta=1e-6)
        assert tracemalloc.get_traced_memory()[1] < 2**30
    finally:
        tracemalloc.stop()
    assert sampled_gaussian_epsilon(q=q, noise_multiplier=noise, steps=steps, delta=1e-6) <= 1.0 + 1e-9
