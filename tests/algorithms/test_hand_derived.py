"""Numbers small enough to derive by hand."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

import upcycled as up
from tests.reference import softmax_gradient
from upcycled.core.algorithm import RoundResult, Server
from upcycled.core.mechanism import Release
from upcycled.core.sampling import Participation
from upcycled.core.vectors import weighted_mean


def arrived(vectors, samples, steps=None, step_sums=None, num_clients=None, all_samples=0, average=None):
    vectors, samples = np.float32(vectors), np.array(samples)
    steps = np.ones(len(samples), dtype=np.int64) if steps is None else np.array(steps)
    release = Release(np.arange(len(samples)), vectors, samples, steps)
    mean = weighted_mean(samples.astype(float), vectors)
    return RoundResult(
        release,
        mean,
        np.ones(len(samples)) if step_sums is None else np.array(step_sums),
        num_clients or 2,
        all_samples or int(samples.sum()),
        average,
    )


def test_fedavg_weighs_by_samples():
    # p = (1/4, 3/4): 0.25 * 4 + 0.75 * 8 = 7.
    server, _ = up.FedAvg().server_step(Server(np.float32([1])), {}, arrived([[4], [8]], [1, 3]))
    assert server.model.tolist() == [7.0]


def test_fedavgm_steps_with_and_without_nesterov():
    # d = w - mean = 1 - 7 = -6; v = 0.5 * 2 - 6 = -5. Nesterov: 1 - 2 (-6 + 0.5 * -5) = 18; plain: 1 - 2 * -5 = 11.
    start = Server(np.float32([1]), {"v": np.float32([2])})
    came = arrived([[4], [8]], [1, 3])
    nesterov, _ = up.FedAvgM(server_momentum=0.5, server_lr=2.0).server_step(start, {}, came)
    plain, _ = up.FedAvgM(server_momentum=0.5, server_lr=2.0, nesterov=False).server_step(start, {}, came)
    assert (nesterov.model.tolist(), plain.model.tolist()) == ([18.0], [11.0])
    assert nesterov.vectors["v"].tolist() == [-5.0]


def test_fedyogi_moves_v_by_the_sign_of_its_distance():
    # d = 7 - 1 = 6, d^2 = 36 > v = 4: sign(v - d^2) = -1, v = 4 + 0.25 * 36 = 13; m = 0.5 * 2 + 0.5 * 6 = 4.
    start = Server(np.float32([1]), {"m": np.float32([2]), "v": np.float32([4])})
    server, _ = up.FedYogi(server_lr=0.5, beta1=0.5, beta2=0.75, tau=0.1).server_step(
        start, {}, arrived([[4], [8]], [1, 3])
    )
    assert server.vectors["v"].tolist() == [13.0]
    assert server.vectors["m"].tolist() == [4.0]
    assert server.model[0] == pytest.approx(1 + 0.5 * 4 / (13**0.5 + 0.1), rel=1e-6)


def test_fedyogi_leaves_v_where_it_equals_the_squared_step():
    start = Server(np.float32([1]), {"m": np.float32([0]), "v": np.float32([36])})
    server, _ = up.FedYogi().server_step(start, {}, arrived([[4], [8]], [1, 3]))
    assert server.vectors["v"].tolist() == [36.0]


def test_fedadam_moves_v_by_a_mean_of_squares():
    # d = 7 - 1 = 6; m = 0.5 * 2 + 0.5 * 6 = 4; v = 0.75 * 4 + 0.25 * 36 = 12; no bias correction.
    start = Server(np.float32([1]), {"m": np.float32([2]), "v": np.float32([4])})
    adam = up.FedAdam(server_lr=0.5, beta1=0.5, beta2=0.75, tau=0.1)
    server, _ = adam.server_step(start, {}, arrived([[4], [8]], [1, 3]))
    assert server.vectors["m"].tolist() == [4.0]
    assert server.vectors["v"].tolist() == [12.0]
    assert server.model[0] == pytest.approx(1 + 0.5 * 4 / (12**0.5 + 0.1), rel=1e-6)
    assert adam.start(np.float32([5])).vectors["v"].tolist() == pytest.approx([0.01])


def test_fednova_averages_updates_per_step_and_goes_as_far_as_the_cohort_on_average():
    # p = (1/4, 3/4), |a| = (1, 2): tau_eff = 1/4 + 3/2 = 7/4; sum p_i (r_i - w) / |a_i| = 3/4 + 3/4 * 7/2 = 27/8;
    # w = 1 + 7/4 * 27/8 = 6.90625. lr cancels: D_i = lr |a_i| gives the same for every lr.
    for lr in (1.0, 0.5, 0.125):
        came = arrived([[4], [8]], [1, 3], steps=[1, 2], step_sums=[lr, 2 * lr])
        server, memory = up.FedNova().server_step(Server(np.float32([1])), {}, came)
        assert server.model.tolist() == pytest.approx([6.90625], rel=1e-6)
        assert memory == {}


def test_fednova_lets_an_aggregator_average_the_normalised_updates():
    # The plain mean of 7/4 * (3, 7/2) is 5.6875.
    came = arrived([[4], [8]], [1, 3], steps=[1, 2], step_sums=[1, 2], average=lambda vectors: vectors.mean(axis=-2))
    server, _ = up.FedNova().server_step(Server(np.float32([1])), {}, came)
    assert server.model.tolist() == pytest.approx([1 + 5.6875], rel=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("upcycle", [None, 0.5])
def test_fednova_of_unequal_steps_is_what_the_papers_equations_say(momentum, upcycle):
    """Clients whose samples are all alike have one gradient whatever the batch: 1, 2 and 6 steps an epoch."""
    kinds = [([1.0, 0.5], 0, 3), ([-0.5, 2.0], 1, 8), ([2.0, -1.0], 1, 24)]
    xs = [np.tile(np.float32(x), (n, 1)) for x, _, n in kinds]
    ys = [np.full(n, y) for _, y, n in kinds]
    model = nn.Linear(2, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    found = up.train(
        up.FederatedData.from_arrays(xs, ys, num_classes=2),
        model=model,
        algorithm=up.FedNova(),
        upcycle=upcycle,
        iterations=4,
        local=up.LocalSGD(lr=0.1, momentum=momentum, epochs=2, batch_size=4),
        progress=False,
    )
    assert found.history[0].client_steps.tolist() == [2, 4, 12]
    w, before, p = np.zeros(6), np.zeros(6), np.array([3, 8, 24]) / 35
    for t in range(4):
        if upcycle is not None and t % 2:
            w = w + upcycle * (w - before)
            continue
        before, updates, norms = w, [], []
        for x, y, steps in zip(xs, ys, (2, 4, 12), strict=True):
            local, v, weights = w.copy(), np.zeros(6), np.zeros(steps)
            for k in range(steps):
                v = momentum * v + softmax_gradient(local, x[:1].astype(float), y[:1], 2)
                local = local - 0.1 * v
                weights[: k + 1] += momentum ** np.arange(k, -1, -1)  # how often each gradient was added so far
            updates.append(local - w)
            norms.append(weights.sum())
        w = w + (p @ norms) * sum(p_i * update / norm for p_i, update, norm in zip(p, updates, norms, strict=True))
    np.testing.assert_allclose(found.params.numpy(), w, rtol=2e-5, atol=1e-6)


def test_fednova_refuses_local_work_whose_weights_nobody_knows():
    with pytest.raises(up.InputError, match=r"local.*up\.LocalSGD.*max_grad_norm.*FedNova"):
        up.FedNova().solver(up.LocalAdam())


def test_feddyn_uses_the_plain_mean_and_all_clients_in_h():
    # drift = (4 - 1, 8 - 1) = (3, 7); N = 4, alpha = 0.5: h = 1 - 0.5 * 10 / 4 = -0.25; w = 6 + 0.25 / 0.5 = 6.5.
    start = Server(np.float32([1]), {"h": np.float32([1])})
    came = arrived([[4], [8]], [1, 3], num_clients=4)
    server, memory = up.FedDyn(alpha=0.5).server_step(start, {"h_i": np.float32([[1], [2]])}, came)
    assert server.vectors["h"].tolist() == [-0.25]
    assert server.model.tolist() == [6.5]
    assert memory["h_i"].tolist() == [[1 - 1.5], [2 - 3.5]]


def test_feddyn_by_samples_and_by_an_aggregator():
    # n = (1, 3) of 8: p = (1/4, 3/4), the cohort is half of the samples. h_i' = (1 - 1.5, 2 - 3.5) = (-0.5, -1.5),
    # changes (-1.5, -3.5), their mean -3: h = 1 - 0.5 * 3 = -0.5; w = 7 + 0.5 / 0.5 = 8.
    start, h_i = Server(np.float32([1]), {"h": np.float32([1])}), {"h_i": np.float32([[1], [2]])}
    part = arrived([[4], [8]], [1, 3], num_clients=5, all_samples=8)
    server, memory = up.FedDyn(alpha=0.5, weights="samples").server_step(start, h_i, part)
    assert (server.vectors["h"].tolist(), server.model.tolist()) == ([-0.5], [8.0])
    assert memory["h_i"].tolist() == [[-0.5], [-1.5]]
    # Everybody: h = sum p_i h_i' = -1/8 - 9/8 = -1.25, whatever it was; w = 7 + 2.5.
    server, _ = up.FedDyn(alpha=0.5, weights="samples").server_step(start, h_i, arrived([[4], [8]], [1, 3]))
    assert (server.vectors["h"].tolist(), server.model.tolist()) == ([-1.25], [9.5])
    # An aggregator that takes the first: h = h_1' = -0.5; of a cohort that is 2 of 5 clients 1 + 0.4 * -1.5 = 0.4.
    whole, some = (arrived([[4], [8]], [1, 3], num_clients=n, average=lambda v: v[0]) for n in (2, 5))
    assert up.FedDyn(alpha=0.5).server_step(start, h_i, whole)[0].vectors["h"].tolist() == [-0.5]
    assert up.FedDyn(alpha=0.5).server_step(start, h_i, some)[0].vectors["h"][0] == pytest.approx(0.4)


def test_scaffold_averages_the_changes_of_c_by_the_runs_aggregator():
    # As below the changes are (-9, -6.5); the second of two of five clients: c = 3 + 0.4 * -6.5 = 0.4.
    start = Server(np.float32([1]), {"c": np.float32([3])})
    came = arrived([[4], [8]], [1, 3], step_sums=[0.5, 2.0], num_clients=5, average=lambda v: v[1])
    server, _ = up.Scaffold().server_step(start, {"c_i": np.float32([[1], [2]])}, came)
    assert server.vectors["c"][0] == pytest.approx(0.4, abs=1e-6)


def test_scaffold_refreshes_control_variates_from_the_releases():
    # c_1' = 1 - 3 + (1 - 4)/0.5 = -8; c_2' = 2 - 3 + (1 - 8)/2 = -4.5; c = 3 + ((-8 - 1) + (-4.5 - 2))/5 = -0.1.
    start = Server(np.float32([1]), {"c": np.float32([3])})
    came = arrived([[4], [8]], [1, 3], step_sums=[0.5, 2.0], num_clients=5)
    server, memory = up.Scaffold().server_step(start, {"c_i": np.float32([[1], [2]])}, came)
    assert memory["c_i"].tolist() == [[-8.0], [-4.5]]
    assert server.vectors["c"][0] == pytest.approx(-0.1, abs=1e-6)
    assert server.model.tolist() == [7.0]


def test_two_rounds_of_fedprox_with_a_server_learning_rate():
    # Round 1: mean 7, w = 1 + 1.5 * 6 = 10. Round 2: mean 0.25 * 8 + 0.75 * 4 = 5, w = 10 + 1.5 * -5 = 2.5.
    fedprox, server = up.FedProx(mu=0.5, server_lr=1.5), Server(np.float32([1]))
    for vectors, expected in (([[4], [8]], 10.0), ([[8], [4]], 2.5)):
        server, _ = fedprox.server_step(server, {}, arrived(vectors, [1, 3]))
        assert server.model.tolist() == [expected]


def test_two_rounds_of_scaffold_scale_the_step_of_the_model_alone():
    # Round 1: mean 7, w = 1 + 0.5 * 6 = 4; c_1' = (1 - 4)/0.5 = -6, c_2' = (1 - 8)/2 = -3.5, c = -9.5/5 = -1.9.
    # Round 2: mean 5, w = 4 + 0.5 * 1 = 4.5; c_1'' = -6 + 1.9 + (4 - 8)/0.5 = -12.1,
    # c_2'' = -3.5 + 1.9 + (4 - 4)/2 = -1.6; c = -1.9 + (-6.1 + 1.9)/5 = -2.74.
    scaffold = up.Scaffold(server_lr=0.5)
    server, memory = Server(np.float32([1]), {"c": np.float32([0])}), {"c_i": np.float32([[0], [0]])}
    for vectors, w, c, c_i in (
        ([[4], [8]], 4.0, -1.9, [-6.0, -3.5]),
        ([[8], [4]], 4.5, -2.74, [-12.1, -1.6]),
    ):
        came = arrived(vectors, [1, 3], step_sums=[0.5, 2.0], num_clients=5)
        server, memory = scaffold.server_step(server, memory, came)
        assert server.model.tolist() == [w]
        assert server.vectors["c"][0] == pytest.approx(c, rel=1e-6)
        assert memory["c_i"].ravel().tolist() == pytest.approx(c_i, rel=1e-6)


def test_pfedme_mixes_with_beta():
    server, _ = up.PFedMe(beta=0.5).server_step(Server(np.float32([1])), {}, arrived([[4], [8]], [1, 3]))
    assert server.model.tolist() == [4.0]


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_scaffolds_divisor_makes_c_i_the_momentum_weighted_average_gradient(momentum):
    """With non-zero c and c_i: run corrected SGD by hand, weigh its gradients 1 - b^(K-j+1), and compare."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(11, 3)), rng.integers(0, 2, 11)
    w, c, c_i = rng.normal(size=(3, 8))
    local, k = up.LocalSGD(lr=0.3, momentum=momentum, epochs=4, batch_size=None), 4
    position, v, gradients = w.copy(), np.zeros(8), []
    for _ in range(k):
        g = softmax_gradient(position, x, y, 2)
        gradients.append(g)
        v = momentum * v + g - c_i + c
        position = position - 0.3 * v
    weights = np.array([1 - momentum ** (k - j + 1) for j in range(1, k + 1)]) if momentum else np.ones(k)
    expected = weights @ np.array(gradients) / weights.sum()
    came = RoundResult(
        Release(np.array([0]), position[None], np.array([11]), np.array([k])),
        position,
        local.step_sum(np.array([k])),
        num_clients=1,
        all_samples=1,
    )
    _, memory = up.Scaffold().server_step(Server(w, {"c": c}), {"c_i": c_i[None]}, came)
    assert memory["c_i"][0] == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_partial_participation_and_stragglers_by_hand():
    """Two rounds of FedAvg over the drawn cohorts, each client its own number of full-batch steps."""
    rng = np.random.default_rng(1)
    xs = [rng.normal(size=(n, 2)).astype(np.float32) for n in (5, 9, 4, 7)]
    ys = [rng.integers(0, 2, len(x)) for x in xs]
    module = nn.Linear(2, 2)
    w = np.concatenate([p.detach().numpy().ravel() for p in module.parameters()]).astype(np.float64)
    result = up.train(
        up.FederatedData.from_arrays(xs, ys, num_classes=2),
        model=module,
        algorithm=up.FedAvg(),
        iterations=2,
        local=up.LocalSGD(lr=0.5, epochs=6, batch_size=None),
        participation=0.5,
        stragglers=0.7,
        seed=9,
        engine="sequential",
        progress=False,
    )
    who = Participation(0.5, stragglers=0.7)
    for m in (1, 2):
        cohort = who.draw(seed=9, round=m, num_clients=4, epochs=6)
        assert result.history[m - 1].clients.tolist() == cohort.clients.tolist()
        assert result.history[m - 1].client_steps.tolist() == cohort.epochs.tolist()
        models = []
        for client, epochs in zip(cohort.clients, cohort.epochs, strict=True):
            x = w.copy()
            for _ in range(epochs):
                x = x - 0.5 * softmax_gradient(x, xs[client].astype(np.float64), ys[client], 2)
            models.append(x)
        n = np.array([len(ys[client]) for client in cohort.clients])
        w = sum(ni * mi for ni, mi in zip(n, models, strict=True)) / n.sum()
    assert result.params.numpy() == pytest.approx(w, rel=1e-4, abs=1e-6)


def test_the_last_batch_may_be_short_and_counts_as_a_mean_over_its_own_samples():
    """5 samples in batches of 2: three steps, the last on one sample."""
    from upcycled.core.randomness import Purpose, client_keys, permutations

    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(5, 2)).astype(np.float32), np.array([0, 1, 1, 0, 1])
    module = nn.Linear(2, 2)
    w = np.concatenate([p.detach().numpy().ravel() for p in module.parameters()]).astype(np.float64)
    result = up.train(
        up.FederatedData.from_arrays([x], [y], num_classes=2),
        model=module,
        algorithm=up.FedAvg(),
        iterations=1,
        local=up.LocalSGD(lr=0.5, momentum=0.5, epochs=2, batch_size=2),
        seed=3,
        engine="sequential",
        progress=False,
    )
    v = np.zeros(6)
    for order in permutations(int(client_keys(3, Purpose.BATCHES, 1, [0])[0]), 5, 2):
        for rows in (order[:2], order[2:4], order[4:]):
            v = 0.5 * v + softmax_gradient(w, x[rows].astype(np.float64), y[rows], 2)
            w = w - 0.5 * v
    assert result.history[0].gradient_steps == 6
    assert result.params.numpy() == pytest.approx(w, rel=1e-5, abs=1e-6)


def test_fedprox_without_penalty_is_fedavg(federation):
    common = {"iterations": 4, "engine": "sequential", "progress": False}
    prox = up.train(federation, algorithm=up.FedProx(mu=0.0), **common)
    plain = up.train(federation, algorithm=up.FedAvg(), **common)
    assert np.array_equal(prox.params, plain.params)


def halved(round, rounds):
    return 0.5**round


@pytest.mark.parametrize(("inner_lr", "inner"), [(0.05, [0.05, 0.05]), (None, [0.5, 0.25])])
def test_a_scheduled_rate_reaches_the_steps_of_pfedme(inner_lr, inner):
    solver = up.PFedMe(lam=2.0, inner_steps=3, inner_lr=inner_lr).solver(up.LocalSGD(halved))
    first, second = solver.at(1, 2), solver.at(2, 2)
    # K lr of four steps, at the round's own rate.
    assert [one.step_sum(np.array([4])).tolist() for one in (first, second)] == [[2.0], [1.0]]
    assert [one.inner_rate for one in (first, second)] == inner
