"""Runs with ``theory=True``: what they record, that they are the same runs, and the bound beside them."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import upcycled as up
from tests.theory.byhand import added
from upcycled.runtime.bound_probe import BoundProbe
from upcycled.theory.empirical_risk import objective_for

EXACT = {"progress": False, "engine": "sequential"}


def exact_local(data, mu):
    """Full-batch descent with step 1/(L + mu): a step leaves at most L/(L + mu) of the gradient, all e^-12."""
    smoothness = up.theory.estimate_smoothness(data, "logistic")
    steps = math.ceil(12 / math.log1p(mu / smoothness))
    return up.LocalSGD(lr=1 / (smoothness + mu), epochs=steps, batch_size=None)


def met(data, mu, **more):
    usual = {"algorithm": up.FedProx(mu=mu), "upcycle": up.coefficients.Proximal(mu=mu, lam=mu), "iterations": 12}
    return up.train(data, theory=True, **(EXACT | usual | {"local": exact_local(data, mu)} | more))


@pytest.fixture(scope="module")
def unequal():
    return up.data.synthetic(0.5, 0.5, clients=6, dim=4, sizes=[20, 33, 51, 27, 40, 22], seed=0)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"algorithm": up.Scaffold(), "upcycle": 0.5, "participation": 0.5},
        {"engine": "sequential", "model": "mlp", "model_options": {"hidden": [3]}},
        {"privacy": up.privacy.ErmOutput(norm_bound=1.0, epsilon=2.0, delta=1e-5)},
    ],
)
def test_measuring_does_not_change_a_run_s_bits(unequal, more):
    arguments = {"algorithm": up.FedProx(mu=0.5), "upcycle": 0.7, "iterations": 5, "progress": False} | more
    plain, measured = up.train(unequal, **arguments), up.train(unequal, theory=True, **arguments)
    assert torch.equal(plain.params, measured.params)
    assert plain.history.column("accuracy") == measured.history.column("accuracy")
    assert plain.theory is None
    assert all(not record.metrics for record in plain.history)
    assert all(record.metrics for record in measured.history)


def test_the_records_hold_the_paper_s_terms(unequal):
    mu, iterates = 3.0, []

    class Keep:
        def start(self, plan, before):
            iterates.append(plan.initial.astype(np.float64))

        def record(self, record, run):
            iterates.append(run.state.server.model.astype(np.float64))

        def finish(self): ...

    result = met(unequal, mu, iterations=5, callbacks=[Keep()])
    objective = objective_for(unequal, "logistic")
    points = [objective.landscape(w) for w in iterates]
    for t, record in enumerate(result.history, start=1):
        terms = {name.removeprefix("theory_"): value for name, value in record.metrics.items()}
        assert terms["loss"] == pytest.approx(points[t].loss, rel=1e-12)
        assert terms["gradient_norm"] == pytest.approx(points[t].gradient_norm, rel=1e-12)
        assert terms["dissimilarity"] == pytest.approx(points[t].dissimilarity, rel=1e-12)
        assert ("step" in terms) == (t % 2 == 1)
        if t % 2 == 1:
            step = np.linalg.norm(iterates[t] - iterates[t - 1])
            assert terms["step"] == pytest.approx(step, rel=1e-12)
            assert terms["h1"] == pytest.approx(points[t].gradient_norm * step, rel=1e-12)
            assert terms["h2"] == pytest.approx(step**2, rel=1e-12)
    assert result.history[0].metrics["theory_initial_loss"] == pytest.approx(points[0].loss, rel=1e-12)
    assert "theory_initial_loss" not in result.history[2].metrics
    rows = result.history.rows()
    assert rows[1]["theory_gradient_norm"] == result.history[1].metrics["theory_gradient_norm"]
    collected = result.theory.terms
    assert collected.rounds == 3
    assert collected.coefficient.tolist() == [0.5, 0.5, 0.0]
    assert collected.loss.tolist() == [result.history[t].metrics["theory_loss"] for t in (0, 2, 4)]
    squares = collected.gradient_norm**2
    assert collected.average == pytest.approx([squares[0], squares[:2].mean(), squares.mean()], rel=1e-14)
    assert collected.least.tolist() == [squares[0], squares[:2].min(), squares.min()]


@pytest.mark.parametrize(("sent", "expected"), [([0.0, 0.0], {"residual": 0.0, "inexactness": 0.0}),
                                                ([3.0, 4.0], {"residual": 10.0})])  # fmt: skip
def test_where_the_gradient_is_zero_at_the_start_nothing_is_a_part_of_it(sent, expected):
    # F_i = 0: of mu/2 ||x - w||^2 with mu = 2, at ||x - w|| = 5, a gradient of norm 10 is left; at w none.
    flat = SimpleNamespace(client=lambda client, at: (0.0, np.zeros(2)))
    probe = SimpleNamespace(_objective=flat, _mu=2.0)
    release = SimpleNamespace(clients=np.array([0]), num_samples=np.array([7]), vectors=np.float32([sent]))
    assert BoundProbe._local(probe, np.float32([0.0, 0.0]), release) == expected


def test_the_residual_is_what_is_left_of_the_local_gradients(unequal):
    # One full-batch step from w: w_i = w - lr g_i(w), so grad F_i(w_i) + mu (w_i - w) = g_i(w_i) - mu lr g_i(w).
    mu, lr = 2.0, 0.1
    result = up.train(
        unequal, algorithm=up.FedProx(mu=mu), iterations=1, theory=True,
        local=up.LocalSGD(lr=lr, epochs=1, batch_size=None), **EXACT,
    )  # fmt: skip
    objective = objective_for(unequal, "logistic")
    # The initial weights are a function of the seed: take them from a run's plan.
    from upcycled.runtime.plan import make_plan

    w = make_plan(unequal, up.RunSpec(algorithm=up.FedProx(mu=mu))).initial.astype(np.float64)
    first = [objective.client(i, w)[1] for i in range(6)]
    left = [objective.client(i, w - lr * g)[1] - mu * lr * g for i, g in enumerate(first)]
    shares = unequal.sizes / unequal.sizes.sum()
    residual = math.sqrt(shares @ np.array([g @ g for g in left]))
    start = math.sqrt(shares @ np.array([g @ g for g in first]))
    assert result.history[0].metrics["theory_residual"] == pytest.approx(residual, rel=1e-5)
    assert result.history[0].metrics["theory_inexactness"] == pytest.approx(residual / start, rel=1e-5)


@pytest.mark.parametrize("spread", ["iid", (0.5, 0.5), (1.0, 1.0)])
@pytest.mark.parametrize("lam", [0.0, 1.0, 9.0, None])
def test_the_bound_holds_in_every_run_that_meets_its_assumptions(spread, lam):
    name = ("iid",) if spread == "iid" else spread
    data = up.data.synthetic(*name, clients=5, dim=4, seed=1)
    smoothness = up.theory.estimate_smoothness(data, "logistic")
    mu = 2 * up.theory.smallest_mu(smoothness=smoothness, dissimilarity=6.0, cohort=None, form="repaired")
    upcycle = None if lam is None else up.coefficients.Proximal(mu=mu, lam=lam * mu)
    result = met(data, mu, upcycle=upcycle, iterations=16)
    found = result.theory
    assert all(one.holds for one in found.assumptions), str(found)
    assert found.applies()
    assert found.holds()
    assert (found.terms.average <= found.bounds["repaired"]).all()
    assert found.looseness() >= 1
    # The lemma itself, round by round: all clients take part, so there is nothing random about it.
    assert (found.slack() >= -1e-6).all()


def test_the_inexact_bound_holds_for_clients_that_stop_early(unequal):
    smoothness = up.theory.estimate_smoothness(unequal, "logistic")
    mu = 2 * up.theory.smallest_mu(smoothness=smoothness, dissimilarity=4.0, cohort=None, form="repaired")
    local = up.LocalSGD(lr=0.5 / (smoothness + mu), epochs=3, batch_size=8)
    result = met(unequal, mu, local=local, stragglers=0.5, iterations=30)
    found = result.theory
    assert found.terms.inexactness.max() > 0.1
    exact = next(one for one in found.assumptions if one.name == "exact local minimisers")
    assert exact.holds
    assert "that is in the bound" in exact.words
    assert found.holds()
    assert (found.slack() >= -1e-6).all()
    # The whole right side once more, from the recorded terms: f(w(0)), the h terms, and what each round's clients left.
    t, about = found.terms, found.constants["repaired"]
    assert about.dissimilarity == max(t.initial_dissimilarity, *t.dissimilarity)
    starts = [(t.initial_gradient_norm, 0.0), *zip(t.gradient_norm, t.coefficient * t.step, strict=True)]
    left = [added(about, g, d, r) for (g, d), r in zip(starts, t.residual, strict=False)]
    for m in (1, 2, t.rounds):
        terms = (about.C2 * t.h1 + about.C3 * t.h2)[:m].sum()
        expected = (t.initial_loss + terms + sum(left[:m])) / (m * about.C1)
        assert found.bounds["repaired"][m - 1] == pytest.approx(expected, rel=1e-12)
    change = -about.C1 * t.gradient_norm**2 + about.C2 * t.h1 + about.C3 * t.h2
    slack = (t.loss + change)[:-1] + left[1:] - t.loss[1:]
    assert found.slack() == pytest.approx(slack, rel=1e-9, abs=1e-12)
    # Leaving the residual out would make a smaller bound.
    without = up.theory.rate_bound(
        constants=found.constants["repaired"], initial_loss=found.terms.initial_loss,
        h1=found.terms.h1, h2=found.terms.h2,
    )  # fmt: skip
    assert without < found.bounds["repaired"][-1]


def test_simulated_privacy_noise_counts_as_inexactness_and_is_said(unequal):
    smoothness = up.theory.estimate_smoothness(unequal, "logistic")
    mu = 2 * up.theory.smallest_mu(smoothness=smoothness, dissimilarity=4.0, cohort=None, form="repaired")
    result = up.train(
        unequal, algorithm=up.FedProx(mu=mu), upcycle=0.5, iterations=6, theory=True, progress=False,
        privacy=up.privacy.ErmOutput(norm_bound=1.0, noise_std=0.01),
    )  # fmt: skip
    found = result.theory
    assert any("the noise of erm_output counts as that (simulated)" in one.words for one in found.assumptions)
    # Features were projected: the theorem is about the objective that was trained.
    assert found.facts.smoothness <= 1.0 + 1e-9
    assert (found.slack() >= -1e-6).all()


def test_sampled_clients_of_one_size_meet_the_bound_in_the_mean_over_seeds():
    data = up.data.synthetic("iid", clients=24, dim=4, sizes=40, seed=0)
    results = [met(data, 12.0, participation=0.75, seed=seed, iterations=10) for seed in range(2)]
    for result in results:
        found = result.theory
        assert found.facts.cohort == 18
        assert found.facts.is_unbiased
        assert found.applies("sharp")
        assert found.bounds["sharp"][-1] < found.bounds["repaired"][-1]
    average = np.mean([result.theory.terms.average for result in results], axis=0)
    bound = np.mean([result.theory.bounds["sharp"] for result in results], axis=0)
    assert (average <= bound).all()


def test_the_printed_lemma_is_violated_by_a_recorded_run_and_the_repaired_one_is_not():
    # Labels that the feature does not explain: the minimum is w = 0, where every p = 1/2 and the curvature is L.
    x = np.array([[1.0], [1.0], [-1.0], [-1.0]])
    data = up.FederatedData.from_arrays([x], [[0, 1, 0, 1]])
    module = nn.Linear(1, 2)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[0.1], [-0.1]]))
        module.bias.zero_()
    found = met(data, 10.0, model=module, upcycle=None, iterations=4).theory
    assert found.applies()
    assert found.facts.smoothness == pytest.approx(0.5)
    assert found.slack("paper").max() < -1e-6
    assert found.slack("repaired").min() > 0
    assert "not proven" in found.verdict("paper")


@pytest.mark.parametrize(
    ("more", "name", "words"),
    [
        ({"algorithm": up.FedAvg()}, "FedProx with mu > 0", "fedavg"),
        ({"algorithm": up.FedProx(mu=0)}, "FedProx with mu > 0", "mu = 0"),
        ({"upcycle": 1.5}, "one upcycled iteration a round, coefficient mu/(mu + lambda_m)", "not single numbers"),
        ({"participation": 0.5}, "clients of a round", "is not unbiased"),
        ({"participation": 0.5, "sampling": "poisson"}, "clients of a round", "is not unbiased"),
        (
            {"participation": 0.5, "local": up.LocalSGD(lr=0.001, epochs=1)},
            "exact local minimisers",
            "of the gradient they start with",
        ),
        (
            {"model": nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))},
            "every F_i is L-smooth",
            "no L is known",
        ),
        (
            {"privacy": up.privacy.CentralDPFedAvg(clip_norm=1.0, noise_multiplier=0.1), "local": None},
            "exact local minimisers",
            "was not measured",
        ),
    ],
)
def test_an_assumption_that_a_run_does_not_meet_is_named(unequal, more, name, words):
    arguments = {"algorithm": up.FedProx(mu=300.0), "local": exact_local(unequal, 300.0), "upcycle": 0.5} | more
    found = up.train(unequal, iterations=3, theory=True, **(EXACT | arguments)).theory
    wrong = {one.name: one.words for one in found.assumptions if not one.holds}
    assert words in wrong[name]
    assert not found.applies()
    assert found.holds() is None
    assert found.looseness() is None
    assert f"NO  {name}" in str(found)
    json.dumps(found.as_json(), allow_nan=False)


def test_numbers_of_one_s_own_fill_what_is_not_known(unequal):
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    result = up.train(
        unequal, model=module, algorithm=up.FedProx(mu=500.0), upcycle=0.5, iterations=4, theory=True,
        local=up.LocalSGD(lr=0.0019, epochs=20, batch_size=None), **EXACT,
    )  # fmt: skip
    assert result.theory.constants == {}
    found = up.theory.report(result, smoothness=8.0, curvature=-8.0)
    assert found.constants["repaired"].strong_convexity == 492.0
    assert found.applies()
    assert found.holds()
    lower = up.theory.report(result, smoothness=8.0, curvature=-8.0, floor=0.1)
    assert lower.bounds["repaired"][0] < found.bounds["repaired"][0]
    with pytest.raises(up.InputError, match="smoothness is 0"):
        up.theory.report(result, smoothness=0)
    with pytest.raises(up.InputError, match="theory=True"):
        up.theory.report(up.train(unequal, algorithm=up.FedProx(), iterations=1, **EXACT))


def test_a_real_private_run_is_refused(unequal):
    with pytest.raises(up.InputError) as error:
        up.train(
            unequal, algorithm=up.FedProx(), theory=True, noise="system",
            privacy=up.privacy.ModelClipping(clip_norm=1.0, noise_std=1.0), **EXACT,
        )  # fmt: skip
    assert "theory is True, but it must be False with noise='system'" in str(error.value)


def test_a_resumed_run_has_the_same_report(unequal, tmp_path):
    class Stop(Exception):
        pass

    class StopAt:
        def start(self, plan, before): ...

        def record(self, record, run):
            if record.iteration == 5:
                raise Stop

        def finish(self): ...

    whole = met(unequal, 300.0)
    with pytest.raises(Stop):
        met(unequal, 300.0, checkpoint=tmp_path / "kept", callbacks=[StopAt()])
    resumed = met(unequal, 300.0, checkpoint=tmp_path / "kept")
    assert resumed.theory.as_json() == whole.theory.as_json()


def test_a_batch_of_runs_reports_the_same_as_runs_alone(unequal):
    arguments = {
        "algorithm": up.FedProx(mu=300.0), "upcycle": 0.5, "iterations": 4, "local": exact_local(unequal, 300.0),
        "theory": True,
    }  # fmt: skip
    alone = up.train(unequal, progress=False, **arguments)
    (together,) = up.train_many([{"data": unequal, **arguments}], progress=False)
    assert together.theory.as_json() == alone.theory.as_json()


def test_coefficients_are_single_numbers_or_not_known():
    from types import SimpleNamespace

    from upcycled.theory.terms import terms_of

    names = ("loss", "gradient_norm", "step", "initial_loss", "initial_gradient_norm")
    measured = {f"theory_{name}": 1.0 for name in names}

    def made(*iterations):
        return [SimpleNamespace(kind=kind, coefficient=rho, metrics=measured) for kind, rho in iterations]

    data, zero, half, rule = ("data", None), ("upcycled", 0.0), ("upcycled", 0.5), ("upcycled", None)
    assert terms_of(made(data, half, data, zero, data)).coefficient.tolist() == [0.5, 0.0, 0.0]
    for unclear in (made(data, rule), made(data, half, half), made(data, zero, half)):
        assert math.isnan(terms_of(unclear).coefficient[0])
    assert terms_of(made(data)).largest_dissimilarity == math.inf
