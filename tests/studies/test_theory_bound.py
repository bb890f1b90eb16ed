"""The study of the convergence bound: its probe, its inequality, and recorded cells that can be computed again."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import upcycled as up
from studies.common.store import Cells
from studies.theory_bound import study
from studies.theory_bound.measure import BoundProbe, change_bound, inexactness, judge
from upcycled.theory import objective_for
from upcycled.training.plan import make_plan

numbers = st.floats(0.01, 1000.0)


@pytest.fixture(scope="module")
def unequal():
    return up.data.synthetic(0.5, 0.5, clients=6, dim=4, sizes=[20, 33, 51, 27, 40, 22], seed=0)


def arguments(data, mu, **more):
    smoothness = up.theory.estimate_smoothness(data, "logistic")
    usual = {
        "algorithm": up.FedProx(mu=mu),
        "upcycle": up.coefficients.Proximal(mu=mu, lam=mu),
        "iterations": 12,
        "local": study.local("exact", smoothness, mu),
        "engine": "sequential",
        "progress": False,
    }
    return usual | more


def measured(data, mu, cohort=None, **more):
    """Train with the probe; return the result and the bound beside it."""
    callbacks = [BoundProbe(data, "logistic", mu), *more.pop("callbacks", ())]
    result = up.train(data, callbacks=callbacks, **arguments(data, mu, **more))
    smoothness = up.theory.estimate_smoothness(data, "logistic")
    return result, judge(result.history, mu=mu, smoothness=smoothness, cohort=cohort)


def added(about, g, d, r):
    """What a residual r adds, written out: u = (B g + L d + r)/rho takes the place of (B g + L d)/rho."""
    L, B, mu, rho, K = about.smoothness, about.dissimilarity, about.mu, about.strong_convexity, about.cohort
    u0, u = (B * g + L * d) / rho, (B * g + L * d + r) / rho
    found = L / mu * g * (u - u0) + g * r / mu + L / 2 * ((u + d) ** 2 - (u0 + d) ** 2)
    if K is None:
        return found
    if about.form == "sharp":
        return found + L / (2 * K) * (u**2 - u0**2)
    root = math.sqrt(2 / K)
    return found + root * (g * (u - u0) + 2 * L * (u * (u + d) - u0 * (u0 + d))) + 2 * L / K * (u**2 - u0**2)


def test_measuring_does_not_change_a_run_s_bits(unequal):
    plain, (probed, _) = up.train(unequal, **arguments(unequal, 0.5)), measured(unequal, 0.5)
    assert torch.equal(plain.params, probed.params)
    assert plain.history.column("accuracy") == probed.history.column("accuracy")


def test_the_records_hold_the_paper_s_terms(unequal):
    mu, iterates = 3.0, []

    class Keep:
        def start(self, plan, before):
            iterates.append(plan.initial.astype(np.float64))

        def record(self, record, run):
            iterates.append(run.state.server.model.astype(np.float64))

    result, found = measured(unequal, mu, iterations=5, callbacks=[Keep()])
    objective = objective_for(unequal, "logistic")
    points = [objective.landscape(w) for w in iterates]
    for t, record in enumerate(result.history, start=1):
        terms = {name.removeprefix("theory_"): value for name, value in record.metrics.items()}
        assert terms["loss"] == pytest.approx(points[t].loss, rel=1e-12)
        assert terms["gradient_norm"] == pytest.approx(points[t].gradient_norm, rel=1e-12)
        assert terms["dissimilarity"] == pytest.approx(points[t].dissimilarity, rel=1e-12)
        assert ("step" in terms) == (t % 2 == 1)
        if t % 2 == 1:
            assert terms["step"] == pytest.approx(np.linalg.norm(iterates[t] - iterates[t - 1]), rel=1e-12)
    collected = found.terms
    assert collected.initial_loss == pytest.approx(points[0].loss, rel=1e-12)
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
    result, _ = measured(unequal, mu, iterations=1, local=up.LocalSGD(lr=lr, epochs=1, batch_size=None))
    objective = objective_for(unequal, "logistic")
    w = make_plan(unequal, up.RunSpec(algorithm=up.FedProx(mu=mu))).initial.astype(np.float64)
    first = [objective.client(i, w)[1] for i in range(6)]
    left = [objective.client(i, w - lr * g)[1] - mu * lr * g for i, g in enumerate(first)]
    shares = unequal.sizes / unequal.sizes.sum()
    residual = math.sqrt(shares @ np.array([g @ g for g in left]))
    start = math.sqrt(shares @ np.array([g @ g for g in first]))
    assert result.history[0].metrics["theory_residual"] == pytest.approx(residual, rel=1e-5)
    assert result.history[0].metrics["theory_inexactness"] == pytest.approx(residual / start, rel=1e-5)


@settings(max_examples=100)
@given(
    numbers, st.floats(1, 20), numbers, numbers, st.none() | st.integers(1, 500), st.floats(0, 1e4),
    st.floats(0, 10), st.floats(0, 10),
)  # fmt: skip
def test_the_inequality_sorted_by_powers_is_the_inequality(s, b, m, r, k, lam, norm, step):
    for form in ("repaired", "sharp"):
        about = up.theory.constants(
            smoothness=s, dissimilarity=b, mu=m, strong_convexity=r, cohort=k, lam=lam, form=form
        )
        sorted_one = -about.C1 * norm**2 + about.C2 * norm * step + about.C3 * step**2
        raw = change_bound(about, np.array(norm), np.array(about.ratio * step), np.array(0.0))
        size = (1 / m + abs(about.C1)) * norm**2 + about.C2 * norm * step + about.C3 * step**2
        assert float(raw) == pytest.approx(sorted_one, abs=1e-10 * size + 1e-300)


def test_inexact_work_adds_nothing_when_exact_and_its_term_covers_an_inexact_quadratic():
    # F = w^2/2 from w = 1, mu = 4; exact: w = 0.8. Stopping at w = 0.8 + t leaves the residual 5 t.
    about = up.theory.constants(
        smoothness=1, dissimilarity=1, mu=4, strong_convexity=5, cohort=None, lam=math.inf, form="repaired"
    )
    for t in (-0.3, -0.05, 0.0, 0.05, 0.3):
        extra = inexactness(about, gradient_norm=1.0, step=0.0, residual=5 * abs(t))
        after, promised = (0.8 + t) ** 2 / 2, 0.5 - about.C1 + float(extra)
        assert after <= promised + 1e-12
        assert (float(extra) == 0) == (t == 0)


@pytest.mark.parametrize("form", ["repaired", "sharp"])
@pytest.mark.parametrize("cohort", [None, 9])
def test_the_inexact_term_is_the_one_written_out(form, cohort):
    about = up.theory.constants(
        smoothness=1.5, dissimilarity=1.3, mu=4, strong_convexity=3, cohort=cohort, lam=[4.0, 12.0], form=form
    )
    found = inexactness(about, gradient_norm=[1.0, 0.7], step=[0.4, 0.2], residual=[0.3, 0.05])
    by_hand = [added(about, 1.0, 0.5 * 0.4, 0.3), added(about, 0.7, 0.25 * 0.2, 0.05)]
    assert found == pytest.approx(by_hand, rel=1e-12)


def test_the_inexact_bound_holds_for_clients_that_stop_early(unequal):
    smoothness = up.theory.estimate_smoothness(unequal, "logistic")
    mu = 2 * up.theory.smallest_mu(smoothness=smoothness, dissimilarity=4.0, cohort=None, form="repaired")
    local = up.LocalSGD(lr=0.5 / (smoothness + mu), epochs=3, batch_size=8)
    _, found = measured(unequal, mu, local=local, stragglers=0.5, iterations=30)
    assert found.terms.inexactness.max() > 0.1
    assert found.unmet == ()
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


def test_inexact_clients_of_a_drawn_cohort_are_outside_the_theorem():
    data = up.data.synthetic("iid", clients=8, dim=4, sizes=40, seed=0)
    _, found = measured(data, 12.0, cohort=6, participation=0.75, iterations=3, local=up.LocalSGD(lr=0.001, epochs=1))
    assert found.unmet == ("exact local minimisers",)
    assert not found.applies("sharp")
    assert found.holds("sharp") is None


def test_the_recorded_counter_example_can_be_computed_again():
    again, kept = study.counter_example(), Cells(study.CELLS)[study.COUNTER_EXAMPLE]
    assert (again["violated"], again["checked"]) == (kept["violated"], kept["checked"])
    assert again["C1"] == pytest.approx(kept["C1"], rel=1e-6)


def test_every_recorded_run_that_meets_the_assumptions_is_within_the_proven_bounds():
    kept = Cells(study.CELLS)
    recorded = {cell.key: kept[cell.key] for cell in study.cells(quick=False)}
    met = [run for run in recorded.values() if run["forms"]["sharp"]["applies"]]
    assert len(met) > 50
    for form in ("repaired", "sharp"):
        assert all(run["forms"][form]["holds"] for run in met if run["forms"][form]["applies"])
        assert all(run["forms"][form]["bound"] >= run["average"] for run in met if run["forms"][form]["applies"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iid", "1,1"])
def test_a_recorded_cell_can_be_computed_again(shared_data, monkeypatch, name):
    monkeypatch.setenv("UPCYCLED_DATA", str(shared_data))
    cell = study.Cell("exact", name, "c = 0.5", 1)
    kept = Cells(study.CELLS)[cell.key]
    result = up.train(**study.arguments(cell, study.load(cell.kind, name), kept["mu"], study.ROUNDS), progress=False)
    again = study.kept_of(result, kept["mu"], kept["smoothness"], cohort=None)
    # Other processors sum float32 in another order.
    assert again["average"] == pytest.approx(kept["average"], rel=1e-4)
    assert again["forms"]["repaired"]["bound"] == pytest.approx(kept["forms"]["repaired"]["bound"], rel=1e-4)
    assert again["dissimilarity"] == pytest.approx(kept["dissimilarity"], rel=1e-4)
