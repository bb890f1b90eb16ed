"""Precision weights and the signal step: their formulas by hand and again by loops, and what they mean in runs."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

import upcycled as up
from tests.wording import has_all
from upcycled.aggregators.precision import inverse_variances, precision_weights, squared_spread
from upcycled.algorithms import ALGORITHMS
from upcycled.core.aggregator import Received
from upcycled.core.algorithm import RoundResult, Server
from upcycled.core.layout import EffectiveDirections, Layout
from upcycled.core.upcycling import LocalGeometry, Observed
from upcycled.training.plan import make_plan, plan_of
from upcycled.training.round import answer, ask, take
from upcycled.training.state import start_run

PLAIN = Layout(("w",), ((3,),), (0, 3))
ERM = {"norm_bound": 1.0, "epsilon": 4.0, "delta": 1e-3}
MECHANISMS = {
    "erm_output": up.privacy.ErmOutput(**ERM, prox_mu=0.5),
    "bolt_on_sgd": up.privacy.BoltOnSGD(**ERM),
    "update_clipping": up.privacy.UpdateClipping(clip_norm=1.0, epsilon=4.0, delta=1e-3),
    "model_clipping": up.privacy.ModelClipping(clip_norm=1.0, epsilon=4.0, delta=1e-3),
    "objective_perturbation": up.privacy.ObjectivePerturbation(norm_bound=1.0, epsilon=20.0, prox_mu=0.5),
}
LOCAL = {"bolt_on_sgd": up.LocalSGD(lr=0.1, epochs=1, batch_size=None)}


@pytest.fixture(scope="module")
def federation():
    return up.data.synthetic(0.5, 0.5, clients=6, dim=3, num_classes=3, sizes=[60, 24, 82, 40, 50, 34], seed=1)


def spec_for(mechanism="erm_output", algorithm=None, **more):
    algorithm = up.FedProx(mu=0.5) if algorithm is None else algorithm
    privacy = MECHANISMS[mechanism]
    if isinstance(algorithm, up.FedProx | up.FedDyn) and hasattr(privacy, "prox_mu"):
        privacy = dataclasses.replace(privacy, prox_mu=0.0)
    base = {"privacy": privacy, "aggregation": "precision", "local": LOCAL.get(mechanism), "iterations": 4}
    return up.RunSpec(algorithm=algorithm, progress=False, **base | more)


def received(vectors, samples, std, sent=(0.0, 0.0, 0.0), offsets=None, horizon=4, layout=PLAIN, is_softmax=False):
    vectors, samples = np.array(vectors, dtype=np.float32), np.array(samples)
    release = up.Release(np.arange(len(samples)), vectors, samples, np.ones(len(samples), dtype=np.int64))
    return Received(
        release=release,
        sent=np.array(sent, dtype=np.float32),
        shares=samples / samples.sum(),
        noise_std=None if std is None else np.array(std, dtype=float),
        offsets=None if offsets is None else np.array(offsets, dtype=np.float32),
        horizon=horizon,
        directions=EffectiveDirections(layout, is_softmax),
    )


def weights_by_loops(pulls, shares, std, tau2_of_rounds, dimension, horizon):
    """The same from the page: sums in loops, lambda by bisection."""
    n = len(std)
    v = [std[i] ** -2 / sum(s**-2 for s in std) for i in range(n)]
    size = len(pulls[0])
    mean = [sum(v[i] * pulls[i][d] for i in range(n)) for d in range(size)]
    apart = sum(v[i] * sum((pulls[i][d] - mean[d]) ** 2 for d in range(size)) for i in range(n))
    noise = dimension * sum(v[i] * (1 - v[i]) * std[i] ** 2 for i in range(n))
    rounds = [*tau2_of_rounds, (apart - noise) / (1 - sum(x**2 for x in v))]
    tau2 = max(0.0, sum(rounds) / len(rounds))

    def weights(lam):
        return [(tau2 * shares[i] + lam) / (tau2 + dimension * std[i] ** 2 / horizon) for i in range(n)]

    low, high = -1e6, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(weights(middle)) < 1 else (low, middle)
    return weights(low), rounds


def test_two_clients_by_hand():
    # sigma = (1, 2): v = (0.8, 0.2), sum v (1 - v) = 0.32. Pulls 0 and 10 in one direction: mean 2, squares 0.8 * 4 +
    # 0.2 * 64 = 16. Noise with D = 3: 3 (0.16 + 0.16 * 4) = 2.4. tau^2 = 13.6 / 0.32 = 42.5.
    own = up.aggregators.Precision().start()
    found, own = up.aggregators.Precision().combine(own, received([[0, 0, 0], [10, 0, 0]], [1, 3], [1.0, 2.0]))
    assert float(own["total"]) == pytest.approx(42.5)
    assert int(own["rounds"]) == 1
    # M = 4: below = 42.5 + 0.75 = 43.25 and 42.5 + 3 = 45.5. tau^2 p = 10.625 and 31.875: sum 0.245665 + 0.700549 =
    # 0.946214, lambda = 0.053786 / (1/43.25 + 1/45.5) = 1.192586.
    expected = [(10.625 + 1.192586) / 43.25, (31.875 + 1.192586) / 45.5]
    assert found.weights == pytest.approx(expected, abs=1e-5)
    assert found.mean_of(np.float32([[0], [1]])) == pytest.approx([expected[1]], abs=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_three_rounds_agree_with_the_page_in_loops(seed):
    rng = np.random.default_rng(seed)
    rule, own, before = up.aggregators.Precision(), None, []
    own = rule.start()
    for _ in range(3):
        vectors, offsets = rng.normal(size=(2, 5, 3)).astype(np.float32) * (0.1 if seed % 2 else 2)
        samples, std = rng.integers(5, 50, 5), rng.uniform(0.1, 1.5, 5)
        sent = rng.normal(size=3).astype(np.float32)
        given = received(vectors, samples, std, sent, offsets if seed % 3 else None, horizon=7)
        found, own = rule.combine(own, given)
        pulls = vectors.astype(float) - sent + (offsets if seed % 3 else 0)
        expected, before = weights_by_loops(pulls.tolist(), given.shares, std.tolist(), before, 3, 7)
        assert found.weights == pytest.approx(expected, rel=1e-6)
        assert found.weights.sum() == pytest.approx(1)
        assert (found.weights > 0).all()


def test_class_means_do_not_count():
    """Moving all classes of one client alike says nothing about how it differs."""
    layout, rng = Layout(("w", "b"), ((3, 2), (3,)), (0, 6, 9)), np.random.default_rng(0)
    vectors = rng.normal(size=(4, 9))
    shifted = vectors.copy()
    shifted[2] += np.concatenate([np.tile([5.0, -7.0], 3), [3.0] * 3])
    zeros = np.zeros(9)
    both = [
        up.aggregators.Precision()
        .combine(
            up.aggregators.Precision().start(),
            received(rows, [1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4], zeros, layout=layout, is_softmax=is_softmax),
        )[0]
        .weights
        for is_softmax in (True, False)
        for rows in (vectors, shifted)
    ]
    assert both[0] == pytest.approx(both[1], rel=1e-4)
    assert both[2] != pytest.approx(both[3], rel=1e-2)


def test_clients_that_agree_get_the_inverse_of_their_variance():
    std = np.array([0.5, 1.0, 2.0])
    given = received(np.ones((3, 3)), [1, 5, 100], std)
    found, own = up.aggregators.Precision().combine(up.aggregators.Precision().start(), given)
    assert float(own["total"]) < 0
    assert found.weights == pytest.approx(std**-2 / (std**-2).sum())


def test_the_more_clients_differ_the_nearer_weights_are_to_p():
    shares, std = np.array([0.1, 0.3, 0.6]), np.array([1.0, 0.3, 0.2])
    far = [np.abs(precision_weights(tau2, shares, std, 3.0) - shares).max() for tau2 in (0.0, 0.1, 1.0, 10.0, 1e9)]
    assert far == sorted(far, reverse=True)
    assert far[-1] < 1e-8


def test_one_client_has_all_weight_and_says_nothing_about_tau():
    rule = up.aggregators.Precision()
    found, own = rule.combine(rule.start(), received([[1, 2, 3]], [5], [0.3]))
    assert found.weights.tolist() == [1.0]
    assert int(own["rounds"]) == 0


def test_noise_free_clients_among_others_keep_everything_finite():
    assert squared_spread(np.zeros((3, 3)), np.array([0.0, 1.0, 0.0]), EffectiveDirections(PLAIN)) == 0.0
    assert precision_weights(0.0, np.full(3, 1 / 3), np.array([0.0, 1.0, 0.0]), 2.0).tolist() == [0.5, 0.0, 0.5]
    assert inverse_variances(np.array([1e-200, 1.0])).tolist() == [1.0, 0.0]


def test_tau_is_a_mean_of_estimates_whose_noise_cancels():
    """Releases = one model and noise alone: over many rounds tau^2 is nothing, and with a spread of 0.5 it is that."""
    rng, std = np.random.default_rng(0), np.array([0.2, 0.5, 1.0, 0.3, 0.4])
    for spread in (0.0, 0.5):
        rule = up.aggregators.Precision()
        own = rule.start()
        for _ in range(1000):
            own_models = spread / math.sqrt(3) * rng.normal(size=(5, 3))
            noisy = own_models + std[:, None] * rng.normal(size=(5, 3))
            _, own = rule.combine(own, received(noisy, [1] * 5, std))
        assert float(own["total"]) / int(own["rounds"]) == pytest.approx(spread**2, abs=0.02)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_without_noise_a_run_has_the_usual_bits(federation, name):
    runs = [
        up.train(
            federation,
            algorithm=ALGORITHMS[name](),
            local=up.LocalSGD(lr=0.1, epochs=2, batch_size=None),
            iterations=4,
            participation=0.5,
            stragglers=0.3,
            upcycle=0.5,
            progress=False,
            engine="sequential",
            **more,
        ).params
        for more in (
            {"aggregation": "precision"},
            {},
            {"aggregation": "precision", "privacy": clipping(0.0)},
            {"privacy": clipping(0.0)},
        )
    ]
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(runs[2], runs[3])


def clipping(noise_std):
    return up.privacy.UpdateClipping(clip_norm=1.0, noise_std=noise_std)


EVERY = [(mechanism, name) for mechanism in MECHANISMS for name in ALGORITHMS]
COARSE: tuple[str, ...] = ()
"""Algorithms whose step may be the same for other weights, such as one that takes signs only."""
SOLVES = ("erm_output", "bolt_on_sgd", "objective_perturbation")


@pytest.mark.parametrize(
    ("mechanism", "name"),
    [
        # Every algorithm and every mechanism at once, and the other pairs where there is time.
        pytest.param(*one, marks=() if one[0] == "update_clipping" or one[1] == "fedprox" else pytest.mark.slow)
        for one in EVERY
        if one[0] not in SOLVES or one[1] != "pfedme"
    ],
)
def test_every_local_mechanism_with_every_algorithm(federation, mechanism, name):
    given = {"iterations": 2, "participation": 0.7}
    if mechanism not in SOLVES:
        given["local"] = up.LocalSGD(lr=0.1, epochs=1, batch_size=None)
    spec = spec_for(mechanism, ALGORITHMS[name](), **given)
    weighed, usual = up.train(federation, spec), up.train(federation, spec.replace(aggregation="samples"))
    assert weighed.privacy.max_epsilon(1e-3) == usual.privacy.max_epsilon(1e-3)
    assert torch.isfinite(weighed.params).all()
    assert name in COARSE or not torch.equal(weighed.params, usual.params), (
        f"'{name}' gives one model whatever the weights: its server_step must use arrived.mean or arrived.average; "
        "if its step takes signs only, put it into COARSE"
    )


def released(federation, spec):
    """One data round: what was asked, what came back, and the run before and after."""
    plan = make_plan(federation, spec)
    begun = start_run(plan)
    asked, noise = ask(plan, begun), begun.noise_for(plan, 1, 0)
    answered = answer(plan, plan.engine.open(plan.task, 1), asked, noise)
    after, release = take(plan, begun, asked, answered, noise)
    return plan, asked, release, after


def test_a_round_of_feddyn_by_hand(federation):
    """w from releases, sizes and stds alone; then h = sum w_i h_i and y = sum w_i r_i - h / alpha."""
    plan, asked, release, after = released(federation, spec_for(algorithm=up.FedDyn(alpha=0.5, weights="samples")))
    std = plan.mechanism.release_noise_std(release)
    blocks = [(0, 9), (9, 12)]
    pulls = release.vectors.astype(float) - asked.model  # h_i = 0 in the first round
    for first, last in blocks:
        part = pulls[:, first:last].reshape(6, 3, -1)
        pulls[:, first:last] = (part - part.mean(axis=1, keepdims=True)).reshape(6, -1)
    p = release.num_samples / release.num_samples.sum()
    w, _ = weights_by_loops(pulls.tolist(), p, std.tolist(), [], 8.0, 4)
    h_i = -0.5 * (release.vectors.astype(float) - asked.model)
    h = sum(w[i] * h_i[i] for i in range(6))
    y = sum(w[i] * release.vectors[i].astype(float) for i in range(6)) - h / 0.5
    assert after.state.server.vectors["h"] == pytest.approx(h, rel=1e-4, abs=1e-6)
    assert after.state.server.model == pytest.approx(y, rel=1e-4, abs=1e-6)


def test_scaffolds_c_takes_the_weights(federation):
    plan, asked, release, after = released(federation, spec_for(algorithm=up.Scaffold()))
    given = received(release.vectors, release.num_samples, plan.mechanism.release_noise_std(release),
                     asked.model, layout=plan.layout, is_softmax=True)  # fmt: skip
    w = up.aggregators.Precision().combine(up.aggregators.Precision().start(), given)[0].weights
    # c_i' = (y - r_i) a with a = 0.5, the mechanism's own.
    expected = np.einsum("c,cd->d", w, (asked.model - release.vectors.astype(float)) * 0.5)
    assert after.state.server.vectors["c"] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_the_known_noise_of_releases():
    data = up.data.synthetic("iid", clients=4, dim=3, num_classes=2, sizes=[20, 40, 60, 80], seed=0)
    stds = {}
    for name in MECHANISMS:
        plan = plan_of(data.facts(), spec_for(name))
        nobody = up.Release(np.array([2, 0]), np.zeros((2, 8), np.float32), np.array([54, 18]), np.array([1, 1]))
        stds[name] = plan, plan.mechanism.release_noise_std(nobody)
        assert stds[name][1].shape == (2,)
        assert (stds[name][1] > 0).all()
    plan, std = stds["objective_perturbation"]
    assert std == pytest.approx(np.sqrt(9) / (plan.mechanism.alpha[[2, 0]] * 0.5))
    assert stds["erm_output"][1][0] < stds["erm_output"][1][1]  # more samples, less noise
    assert stds["update_clipping"][1][0] == stds["update_clipping"][1][1]


def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(federation, tmp_path):
    spec = spec_for(algorithm=up.FedDyn(alpha=0.5), iterations=8, upcycle=up.coefficients.Signal(), participation=0.7)
    told = []

    def stop(record):
        told.append(record)
        return up.STOP if len(told) == 5 else None

    kept = spec.replace(checkpoint=tmp_path / "run", checkpoint_every=1)
    up.train(federation, kept.replace(callbacks=[stop]))
    resumed, whole = up.train(federation, kept), up.train(federation, spec)
    assert len(resumed.history) == 8
    assert torch.equal(resumed.params, whole.params)


@pytest.mark.parametrize("aggregation", ["samples", "precision"])
def test_the_same_releases_give_the_same_run_whoever_holds_the_data(federation, aggregation):
    """Another federation with the same public facts answers with recorded releases: every bit is the same."""
    spec = spec_for(algorithm=up.FedDyn(alpha=0.5), iterations=6, upcycle=up.coefficients.Signal(),
                    aggregation=aggregation)  # fmt: skip
    other = dataclasses.replace(
        federation, train=dataclasses.replace(federation.train, x=federation.train.x[::-1].copy())
    )
    tape, ends = [], []
    for data in (federation, other):
        plan = make_plan(data, spec)
        run, engine, at = start_run(plan), plan.engine.open(plan.task, 1), 0
        while run.state.iteration < plan.iterations:
            if plan.strategy.kind(run.state) != "data":
                run = dataclasses.replace(run, state=plan.strategy.upcycle(run.state, plan.data_rounds))
                continue
            asked = ask(plan, run)
            noise = run.noise_for(plan, asked.round, 0)
            answered = answer(plan, engine, asked, noise)
            if data is federation:
                tape.append(answered.release)
            else:
                assert not np.array_equal(answered.release.vectors, tape[at].vectors)
                answered, at = dataclasses.replace(answered, release=tape[at]), at + 1
            run, _ = take(plan, run, asked, answered, noise)
        ends.append(run.state)
    assert ends[0].server.model.tobytes() == ends[1].server.model.tobytes()
    assert ends[0].coefficient == ends[1].coefficient


def test_weights_and_signal_step_read_no_training_data(federation):
    """Once the releases are there, data and engine are booby traps: weights, server step and rho keep their bits."""

    class Trap:
        def __getattr__(self, what):
            raise AssertionError(f"training data were read: {what}")

    spec = spec_for(algorithm=up.FedProx(mu=0.5), iterations=8, upcycle=up.coefficients.Signal(),
                    privacy=up.privacy.ErmOutput(norm_bound=1.0, epsilon=50.0, delta=1e-3))  # fmt: skip
    plan = make_plan(federation, spec)
    trapped = dataclasses.replace(plan, on_data=(dataclasses.replace(plan.task, train=Trap(), test=Trap()), Trap()))
    engine, coefficients, ends = plan.engine.open(plan.task, 1), [], []
    for server in (plan, trapped):
        run = start_run(plan)
        while run.state.iteration < plan.iterations:
            if plan.strategy.kind(run.state) != "data":
                run = dataclasses.replace(run, state=server.strategy.upcycle(run.state, server.data_rounds))
                coefficients.append(run.state.coefficient)
                continue
            asked = ask(server, run)
            noise = run.noise_for(server, asked.round, 0)
            answered = answer(plan, engine, asked, noise)  # the clients, who have their data
            run, _ = take(server, run, asked, answered, noise)
        ends.append(run.state.server.model.tobytes())
    assert ends[0] == ends[1]
    assert coefficients[:4] == coefficients[4:]
    assert max(coefficients) > 0


REFUSED = {
    "dpsgd": ({"privacy": up.privacy.DPSGD(1.0, 1.0), "algorithm": up.FedAvg()}, "nobody knows how much noise"),
    "central": ({"privacy": up.privacy.CentralDPFedAvg(1.0, 1.0), "algorithm": up.FedAvg()}, "an aggregate of its own"),
    "paper mode": (
        {"privacy": up.privacy.ObjectivePerturbation(alpha=1.0, paper_mode=True), "algorithm": up.FedAvg()},
        "nobody knows how much noise",
    ),
    "secret": (
        {
            "privacy": up.privacy.CentralDPFedAvg(1.0, 1.0, secret_sampling=True),
            "algorithm": up.FedAvg(),
            "sampling": "poisson",
            "participation": 0.5,
        },
        "an aggregate of its own",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_noise_that_nobody_knows_is_refused_in_one_sentence(federation, case):
    changes, words = REFUSED[case]
    with pytest.raises(up.InputError, match=words):
        make_plan(federation, up.RunSpec(aggregation="precision", **changes))


# The signal step.


def iterate(value):
    return Server(np.array(value, dtype=np.float32))


def test_two_signal_steps_by_hand():
    # a/S = 0.5: rho_max = 1.9 * 1.5 - 1 = 1.85. Way 3 - 1 = 2 in one of three directions: 4; V = 1: 1 - 1/4, rho =
    # 1.3875. Then A = 2.3875^2 = 5.70016; way 5 - 1 = 4, V = 2: 1 - 7.70016/16 = 0.51874, rho = 0.959669.
    rule, geometry = up.coefficients.Signal(), LocalGeometry(0.5, EffectiveDirections(PLAIN))
    seen = Observed((iterate([1, 0, 0]), iterate([3, 0, 0])), 1, 9, 0.0, noise_energy=1.0, geometry=geometry)
    move, own = rule.move(rule.start(), seen, ())
    assert move.coefficient == pytest.approx(1.3875)
    assert move.server.model == pytest.approx([3 + 1.3875 * 2, 0, 0])
    later = dataclasses.replace(seen, iterates=(move.server, iterate([5, 0, 0])), data_round=2, noise_energy=2.0)
    assert rule.move(own, later, ())[0].coefficient == pytest.approx(0.959669, abs=1e-5)
    # A way that is no longer than its noise: no move, the very same iterate.
    still, _ = rule.move(own, dataclasses.replace(later, noise_energy=50.0), ())
    assert still.coefficient == 0.0
    assert still.server is later.iterates[-1]
    # Where a quarter of the first round's energy stays, A is 1.42504: 1 - 3.42504/16 = 0.785935, rho = 1.453980.
    quarter = dataclasses.replace(geometry, kept=0.25)
    _, own = rule.move(rule.start(), dataclasses.replace(seen, geometry=quarter), ())
    assert rule.move(own, dataclasses.replace(later, geometry=quarter), ())[0].coefficient == pytest.approx(
        1.453980, abs=1e-5
    )


@pytest.mark.parametrize("aggregation", ["samples", "precision"])
@pytest.mark.parametrize(
    ("algorithm", "gain"),
    [
        (up.FedProx(mu=0.5), 1),
        (up.FedAvg(), 1),
        (up.FedDyn(alpha=0.5), 4),
        (up.FedDyn(alpha=0.5, weights="samples"), 4),
    ],
)
def test_the_noise_of_a_round_is_that_of_its_weights(federation, algorithm, gain, aggregation):
    spec = spec_for(algorithm=algorithm, aggregation=aggregation, upcycle=up.coefficients.Signal(), participation=0.7)
    plan, asked, release, after = released(federation, spec)
    std, n = plan.mechanism.release_noise_std(release), release.num_samples
    shares = np.full(n.size, 1 / n.size) if algorithm == up.FedDyn(alpha=0.5) else n / n.sum()
    weights = shares
    if aggregation == "precision":
        given = received(release.vectors, n, std, asked.model, horizon=2, layout=plan.layout, is_softmax=True)
        given = dataclasses.replace(given, shares=shares)
        weights = up.aggregators.Precision().combine(up.aggregators.Precision().start(), given)[0].weights
    expected = gain * 12 * 2 / 3 * (weights**2 * std**2).sum()
    assert after.state.noise_energy == pytest.approx(expected, rel=1e-6)
    assert plan.strategy.geometry.ratio == pytest.approx(0.5 / plan.solver.smoothness)
    assert plan.strategy.geometry.kept == 1 / gain


def test_the_signal_steps_of_a_run_are_recomputed_from_its_iterates(federation):
    """All rho of a run from w(0), the iterates and V alone."""
    seen = []

    def watch(record, state):
        seen.append((record.coefficient, state.state.server.model.astype(float), state.state.noise_energy))

    spec = spec_for(upcycle=up.coefficients.Signal(), iterations=8, callbacks=[watch])
    plan = make_plan(federation, spec)
    up.train(federation, spec)
    a = 0.0
    most = 1.9 * (1 + 0.5 / plan.solver.smoothness) - 1
    for (_, data_model, v), (rho, _, _) in zip(seen[::2], seen[1::2], strict=True):
        way = plan.directions.of(data_model - plan.initial)
        expected = most * min(1.0, max(0.0, 1 - (a + v) / (way**2).sum()))
        assert rho == pytest.approx(expected, rel=1e-4, abs=1e-6)
        a += (1 + expected) ** 2 * v
    assert any(rho > 0 for rho, _, _ in seen[1::2])


@pytest.mark.parametrize("rho", [0.0, 1.5])
@pytest.mark.parametrize("algorithm", [up.FedProx(mu=0.5), up.FedAvg(), up.FedDyn(alpha=0.5, weights="samples")])
def test_of_a_rounds_noise_stays_what_the_algorithm_says(algorithm, rho):
    """Clients whose objective is flat release y - b/a and noise: all that moves the model is noise, round by round."""
    rng, p = np.random.default_rng(0), np.array([0.2, 0.3, 0.5])
    server, memory = algorithm.start(np.zeros(4, dtype=np.float32)), {"h_i": np.zeros((3, 4), dtype=np.float32)}
    earlier = np.zeros(4)
    for _ in range(5):
        y, noise = server.model, rng.normal(size=(3, 4)).astype(np.float32)
        problem = algorithm.problem(server, memory)
        vectors = y + noise if problem.b is None else y - problem.b / problem.a + noise
        release = up.Release(np.arange(3), vectors, np.array([2, 3, 5]), np.ones(3, dtype=np.int64))
        arrived = RoundResult(release, (p @ vectors).astype(np.float32), np.ones(3), 3, 10)
        server, memory = algorithm.server_step(server, memory, arrived)
        server = Server(server.model + np.float32(rho) * (server.model - y), server.vectors)
        expected = algorithm.noise_kept * earlier + algorithm.noise_gain * (p @ noise)
        assert server.model == pytest.approx((1 + rho) * expected, abs=1e-4)
        earlier = earlier + p @ noise


NO_SIGNAL = {
    "no certified solver": ({"privacy": MECHANISMS["bolt_on_sgd"], "local": LOCAL["bolt_on_sgd"]}, "certified solver"),
    "no privacy": ({"privacy": None, "aggregation": "samples"}, "certified solver"),
    "clipping": ({"privacy": clipping(1.0)}, "certified solver"),
    "dpsgd": ({"privacy": up.privacy.DPSGD(1.0, 1.0), "aggregation": "samples"}, "nobody knows"),
    "central": ({"privacy": up.privacy.CentralDPFedAvg(1.0, 1.0), "aggregation": "samples"}, "nobody knows"),
    "a median": ({"aggregation": "median"}, "needs an aggregation with weights"),
    "momentum": ({"algorithm": up.FedAvgM(), "privacy": MECHANISMS["erm_output"]}, "is no mean of the releases"),
    "a longer step": ({"algorithm": up.FedAvg(1.5), "privacy": MECHANISMS["erm_output"]}, "is no mean of the releases"),
    "a longer step of FedProx": (
        {"algorithm": up.FedProx(0.5, server_lr=1.5), "privacy": MECHANISMS["erm_output"]},
        r"is no mean of the releases.*server_lr = 1",
    ),
    "scaffold": ({"algorithm": up.Scaffold(), "privacy": MECHANISMS["erm_output"]}, "is no mean of the releases"),
}


@pytest.mark.parametrize("case", NO_SIGNAL)
def test_a_signal_step_without_meaning_is_refused_in_one_sentence(federation, case):
    changes, words = NO_SIGNAL[case]
    with pytest.raises(up.InputError, match=words) as error:
        make_plan(federation, spec_for().replace(upcycle=up.coefficients.Signal(), **changes))
    assert has_all(str(error.value), "upcycle", "Signal(relaxation=1.9)")
