"""Batch norm without privacy: running statistics travel beside the model, are averaged, and are never extrapolated."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import upcycled as up
from upcycled.algorithms import ALGORITHMS
from upcycled.core.layout import read_statistics, statistics_layout, write_statistics
from upcycled.core.vectors import Shards
from upcycled.training.plan import make_plan, plan_of, with_data
from upcycled.training.round import answer, ask, joined, take
from upcycled.training.state import start_run

FULL = up.LocalSGD(lr=0.1, epochs=1, batch_size=None)
LOCAL = up.LocalSGD(lr=0.1, epochs=2, batch_size=8)
STATISTICS = 4 + 4 + 1


def net(momentum=0.1):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, momentum=momentum), nn.ReLU(), nn.Linear(4, 3))


def federation(*sizes):
    return up.data.synthetic(0.5, 0.5, clients=len(sizes), dim=5, num_classes=3, sizes=list(sizes), seed=1)


def run(data, **changes):
    base = {"algorithm": up.FedAvg(), "model": net(), "local": LOCAL, "iterations": 4, "progress": False}
    return up.train(data, **base | changes)


def buffers(module):
    return {name: buffer.clone() for name, buffer in module.named_buffers()}


def trained_by_torch(module, x, y, steps, lr):
    """Plain torch training on one batch, statistics included."""
    module = copy.deepcopy(module).train()
    optimiser = torch.optim.SGD(module.parameters(), lr=lr)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimiser.step()
    return module


@pytest.mark.parametrize("momentum", [0.1, None], ids=["moving", "cumulative"])
@pytest.mark.parametrize("rounds", [1, 3])
def test_one_client_with_one_step_is_plain_torch_training(momentum, rounds):
    data = federation(30)
    found = run(data, model=net(momentum), local=FULL, iterations=rounds).model
    x, y = data.train.client(0)
    expected = trained_by_torch(net(momentum), x, y, rounds, 0.1)
    for name, value in expected.state_dict().items():
        assert torch.allclose(found.state_dict()[name], value, atol=1e-6), name
    assert int(found[1].num_batches_tracked) == rounds
    assert not torch.equal(found[1].running_mean, net()[1].running_mean)


def test_statistics_are_averaged_by_samples():
    """One full-batch round by hand: each client alone in torch, then p = (18, 54) / 72."""
    data = federation(20, 60)
    found = run(data, local=up.LocalSGD(lr=0.1, epochs=2, batch_size=None), iterations=1).model
    alone = [trained_by_torch(net(), *data.train.client(i), 2, 0.1) for i in (0, 1)]
    for name, value in found.state_dict().items():
        one, two = (module.state_dict()[name].double() for module in alone)
        assert torch.allclose(value.double(), 0.25 * one + 0.75 * two, atol=1e-6), name


def test_counts_are_averaged_and_rounded():
    data = federation(20, 60)
    # In batches of 5: 4 and 11 steps; 0.25 * 4 + 0.75 * 11 = 9.25, sent as 9; after three rounds 27.25.
    assert data.train.sizes.tolist() == [18, 54]
    local = up.LocalSGD(lr=0.1, batch_size=5, epochs=1)
    assert int(run(data, local=local, iterations=1).model[1].num_batches_tracked) == 9
    assert int(run(data, local=local, iterations=3).model[1].num_batches_tracked) == 27


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"pfedme"}))
def test_an_upcycled_iteration_leaves_them_and_server_steps_do_not_touch_them(name):
    data, seen = federation(20, 60, 33), []
    algorithm = ALGORITHMS[name]()
    upcycled = run(
        data,
        algorithm=algorithm,
        upcycle=0.7,
        callbacks=[lambda record, state: seen.append((record.kind, state.state.statistics.copy()))],
    )
    assert [kind for kind, _ in seen] == ["data", "upcycled", "data", "upcycled"]
    assert np.array_equal(seen[0][1], seen[1][1])
    assert np.array_equal(seen[2][1], seen[3][1])
    assert not np.array_equal(seen[1][1], seen[2][1])
    assert np.array_equal(read_statistics(upcycled.model)[:8], seen[3][1][:8])
    # Whatever the server does with models, the first round's statistics are the clients' mean.
    plain = []
    run(data, iterations=1, callbacks=[lambda record, state: plain.append(state.state.statistics.copy())])
    drifts = {"feddyn": 1e-3, "fedprox": 0.1}.get(name, 1e-6)  # their local objectives differ a little
    assert seen[0][1] == pytest.approx(plain[0], abs=drifts, rel=drifts)


def test_scores_and_the_model_use_them():
    data = federation(20, 60)
    result = run(data)
    with torch.no_grad():
        outputs = result.model(torch.from_numpy(data.test.x))
    assert float(nn.functional.cross_entropy(outputs, torch.from_numpy(data.test.y))) == pytest.approx(result.loss)
    forgotten = copy.deepcopy(result.model)
    forgotten[1].reset_running_stats()
    with torch.no_grad():
        assert not torch.allclose(forgotten(torch.from_numpy(data.test.x)), outputs, atol=1e-2)


def test_bytes_count_them():
    record = run(federation(20, 60), iterations=1).history[0]
    size = 4 * (sum(p.numel() for p in net().parameters()) + STATISTICS)
    assert (record.bytes_up, record.bytes_down) == (2 * size, 2 * size)
    scaffold = run(federation(20, 60), algorithm=up.Scaffold(), iterations=1).history[0]
    assert scaffold.bytes_down == 2 * (2 * size - 4 * STATISTICS)


@pytest.mark.parametrize(
    "more", [{}, {"upcycle": 0.5}, {"aggregation": "median"}], ids=["vanilla", "upcycled", "median"]
)
def test_a_resumed_run_has_them_bit_for_bit(tmp_path, more):
    data, told = federation(20, 60, 33), []

    def stop(record):
        told.append(record)
        return up.STOP if len(told) == 3 else None

    kept = {"checkpoint": tmp_path / "run", "checkpoint_every": 1, "iterations": 6, **more}
    run(data, callbacks=[stop], **kept)
    resumed, whole = run(data, **kept), run(data, iterations=6, **more)
    assert len(told) == 3
    assert len(resumed.history) == 6
    for name, value in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value), name
    assert resumed.loss == whole.loss


def test_the_median_is_taken_of_them_too():
    data = federation(20, 60, 33)
    spec = up.RunSpec(algorithm=up.FedAvg(), model=net(), local=LOCAL, aggregation="median", iterations=1)
    plan = make_plan(data, spec)
    begun = start_run(plan)
    asked, noise = ask(plan, begun), begun.noise_for(plan, 1, 0)
    after, release = take(plan, begun, asked, answer(plan, plan.engine.open(plan.task, 1), asked, noise), noise)
    assert release.statistics.shape == (3, STATISTICS)
    assert np.array_equal(after.state.statistics, np.sort(release.statistics, axis=0)[1])


def test_separate_clients_give_the_simulators_bits():
    data = federation(20, 60, 33)
    spec = up.RunSpec(algorithm=up.FedAvg(), model=net(), local=LOCAL, upcycle=0.5, iterations=4, progress=False)
    facts = data.facts()
    server = plan_of(facts, spec)
    begun, clients = start_run(server), {}
    for i in range(3):
        x, y = data.train.client(i)
        own = up.FederatedData(Shards(x.copy(), y.copy(), np.array([0, len(y)])), None, 3)
        plan = with_data(plan_of(facts.of_client(i, {}), spec), own)
        clients[i] = plan, plan.engine.open(plan.task, 1)
    while begun.state.iteration < 4:
        if server.strategy.kind(begun.state) != "data":
            begun = replace(begun, state=server.strategy.upcycle(begun.state, server.data_rounds))
            continue
        asked, noise = ask(server, begun), begun.noise_for(server, 1, 0)
        answers = [answer(*clients[i], asked.of(i), noise) for i in (2, 0, 1)]
        begun, _ = take(server, begun, asked, joined(asked, answers), noise)
    whole = up.train(data, spec)
    assert torch.equal(whole.params, torch.from_numpy(begun.state.server.model))
    expected = copy.deepcopy(whole.model)
    write_statistics(expected, begun.state.statistics)
    assert all(torch.equal(value, buffers(whole.model)[name]) for name, value in buffers(expected).items())


def test_the_users_module_is_left_alone():
    module = net()
    before = copy.deepcopy(module.state_dict())
    run(federation(20, 60), model=module)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_instance_norm_with_statistics_is_taken_too():
    model = nn.Sequential(nn.Unflatten(1, (1, 5)), nn.InstanceNorm1d(1, track_running_stats=True), nn.Flatten(),
                          nn.Linear(5, 3))  # fmt: skip
    assert statistics_layout(model).names[0] == "1.running_mean"
    assert run(federation(20, 60), model=model).model[1].running_mean.abs().sum() > 0


def test_auto_takes_the_sequential_engine_and_others_refuse():
    assert run(federation(20, 60), engine="auto").settings["engine"] == "sequential"
    with pytest.raises(up.InputError, match=r"engine 'vectorised'.*model.*running statistics"):
        run(federation(20, 60), engine="vectorised")
    with pytest.raises(up.InputError, match="engine 'fused'"):
        run(federation(20, 60), engine="fused")


PRIVATE = [
    up.privacy.UpdateClipping(1.0, 1.0),
    up.privacy.ModelClipping(1.0, 1.0),
    up.privacy.DPSGD(1.0, 1.0),
    up.privacy.CentralDPFedAvg(1.0, 1.0),
    up.privacy.ObjectivePerturbation(alpha=1.0, paper_mode=True),
]


@pytest.mark.parametrize("privacy", PRIVATE, ids=lambda one: one.name)
def test_with_privacy_it_is_refused_and_told_what_to_use(privacy):
    with pytest.raises(up.InputError, match=r"privacy.*GroupNorm.*LayerNorm"):
        run(federation(20, 60), privacy=privacy)


def test_without_statistics_dpsgd_refuses_it_all_the_same():
    mixing = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3))
    with pytest.raises(up.InputError, match=r"samples.*GroupNorm.*LayerNorm"):
        run(federation(20, 60), model=mixing, privacy=up.privacy.DPSGD(1.0, 1.0))


def test_personal_models_are_refused():
    with pytest.raises(up.InputError, match=r"personal model's.*GroupNorm"):
        run(federation(20, 60), algorithm=up.PFedMe())


def test_a_batch_of_one_is_refused_before_any_work_where_it_has_no_variance():
    data = federation(20, 19)
    assert data.train.sizes.tolist() == [18, 17]
    with pytest.raises(up.InputError) as error:
        run(data)
    assert str(error.value) == (
        "local.batch_size is 8, but the 17 samples of client 1 would leave a batch of one, of which batch norm can "
        "take no variance: it must be another number"
    )
    images = nn.Sequential(nn.Unflatten(1, (1, 5)), nn.BatchNorm1d(1), nn.Flatten(), nn.Linear(5, 3))
    assert len(run(data, model=images).history) == 4
