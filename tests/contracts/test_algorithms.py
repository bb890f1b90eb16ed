"""What must hold for every algorithm in the table, found there by itself."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import upcycled as up
from tests.conftest import ragged
from upcycled.algorithms import ALGORITHMS
from upcycled.core.algorithm import RoundResult, Server
from upcycled.core.mechanism import NO_PRIVACY, Ask, Release, Trained
from upcycled.core.vectors import Shards, weighted_mean

NAMES = list(ALGORITHMS)


def settings(name, **changes):
    momentum = 0.0 if name == "pfedme" else 0.5
    base = {
        "algorithm": ALGORITHMS[name](),
        "local": up.LocalSGD(lr=0.1, momentum=momentum, epochs=3, batch_size=8),
        "participation": 0.5,
        "stragglers": 0.5,
        "engine": "sequential",
        "progress": False,
        "seed": 4,
    }
    return base | changes


@pytest.mark.parametrize("name", NAMES)
def test_zero_coefficient_equals_vanilla_bit_for_bit(federation, name):
    vanilla = up.train(federation, iterations=5, **settings(name))
    upcycled = up.train(federation, iterations=10, upcycle=0.0, **settings(name))
    assert upcycled.params.numpy().tobytes() == vanilla.params.numpy().tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_the_same_call_gives_the_same_bits(federation, name):
    one, two = (up.train(federation, iterations=6, upcycle=0.6, **settings(name)) for _ in range(2))
    assert one.params.numpy().tobytes() == two.params.numpy().tobytes()
    other = up.train(federation, iterations=6, upcycle=0.6, **settings(name, seed=5))
    assert one.params.numpy().tobytes() != other.params.numpy().tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_data_round_m_has_the_same_clients_stragglers_and_steps_in_every_algorithm(federation, name):
    base = up.train(federation, iterations=6, **settings("fedavg"))
    run = up.train(federation, iterations=12, upcycle=0.3, **settings(name))
    rounds = [r for r in run.history if r.kind == "data"]
    assert len(rounds) == len(base.history) == 6
    for mine, theirs in zip(rounds, base.history, strict=True):
        assert np.array_equal(mine.clients, theirs.clients)
        assert np.array_equal(mine.client_steps, theirs.client_steps)


@pytest.mark.parametrize("name", NAMES)
def test_an_upcycled_iteration_moves_no_bytes_and_takes_no_gradient(federation, name):
    run = up.train(federation, iterations=6, upcycle=0.5, **settings(name))
    vector = 4 * run.params.numel()
    for record in run.history:
        if record.iteration % 2 == 0:
            assert record.kind == "upcycled"
            assert record.coefficient == 0.5
            assert (record.bytes_up, record.bytes_down, record.messages, record.gradient_steps) == (0, 0, 0, 0)
        else:
            down = 2 if name == "scaffold" else 1
            inner = 5 if name == "pfedme" else 1
            assert record.kind == "data"
            assert (record.bytes_up, record.bytes_down, record.messages) == (2 * vector, 2 * down * vector, 4)
            assert record.gradient_steps == inner * record.client_steps.sum()


@pytest.mark.parametrize("name", NAMES)
def test_an_upcycled_iteration_cannot_reach_training_data(federation, name, monkeypatch):
    """Every door to training data raises while an upcycled iteration is made."""
    from upcycled.training import round as loop

    touched = []

    def guarded_upcycle(strategy, state, horizon):
        def refuse(*args, **kwargs):
            touched.append(args)
            raise AssertionError("an upcycled iteration touched data")

        with monkeypatch.context() as patch:
            for method in ("client", "sizes_of"):
                patch.setattr(Shards, method, refuse)
            for function in ("ask", "answer", "take"):
                patch.setattr(loop, function, refuse)
            patch.setattr(Ask, "__init__", refuse)
            return original(strategy, state, horizon)

    from upcycled.core.upcycling import Strategy

    original = Strategy.upcycle
    monkeypatch.setattr(Strategy, "upcycle", guarded_upcycle)
    guarded = up.train(federation, iterations=8, upcycle=0.5, **settings(name))
    monkeypatch.setattr(Strategy, "upcycle", original)
    free = up.train(federation, iterations=8, upcycle=0.5, **settings(name))
    assert not touched
    assert guarded.params.numpy().tobytes() == free.params.numpy().tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_an_even_iteration_is_the_same_when_the_training_data_raise_on_every_read(name):
    """The last iteration is an even one: replacing the data by a booby trap before it changes nothing."""
    from upcycled.training.loop import iterate
    from upcycled.training.plan import make_plan
    from upcycled.training.state import start_run

    class Trap:
        def __getattr__(self, what):
            raise AssertionError(f"training data were read: {what}")

    xs, ys = ragged()
    arguments = settings(name, iterations=2, upcycle=0.5, model="logistic", model_options=None, sampling="fixed")
    arguments |= {"privacy": None, "noise": "seeded", "eval_every": 1, "device": "cpu"}
    del arguments["progress"]
    plan = make_plan(up.FederatedData.from_arrays(xs, ys, num_classes=3), up.RunSpec(**arguments))
    steps = iterate(plan, plan.engine.open(plan.task, None), start_run(plan))
    after_data, _ = next(steps)
    trapped = dataclasses.replace(plan, on_data=(dataclasses.replace(plan.task, train=Trap()), plan.engine))
    after_trap, _ = next(iterate(trapped, Trap(), after_data))
    free, _ = next(steps)
    assert after_trap.state.server.model.tobytes() == free.state.server.model.tobytes()
    assert after_trap.state.iteration == 2


@pytest.mark.parametrize("name", NAMES)
def test_one_vector_and_two_public_integers_leave_a_client(federation, name, monkeypatch):
    """Server code is handed nothing but the release and vectors computed from it."""
    seen = []
    kind = ALGORITHMS[name]
    original = kind.server_step

    def spy(self, server, memory, arrived):
        seen.append(arrived)
        return original(self, server, memory, arrived)

    monkeypatch.setattr(kind, "server_step", spy)
    up.train(federation, iterations=2, **settings(name))
    columns = ["clients", "vectors", "num_samples", "num_steps", "statistics"]
    assert [f.name for f in dataclasses.fields(Release)] == columns
    public = {"step_sums", "num_clients", "all_samples"}
    for arrived in seen:
        assert {f.name for f in dataclasses.fields(arrived)} == {"release", "mean", "average"} | public
        assert arrived.release.statistics is None  # batch norm's, without privacy
        assert arrived.average is None  # an aggregator's way with vectors, where there is one
        assert arrived.all_samples == federation.train.num_rows
        assert arrived.release.vectors.shape == (2, 18)
        assert arrived.release.num_steps.dtype.kind == arrived.release.num_samples.dtype.kind == "i"
        assert not any(isinstance(value, Trained) for value in vars(arrived).values())


@pytest.mark.parametrize("name", NAMES)
def test_the_server_sees_only_what_the_mechanism_released(federation, name):
    """With a mechanism that releases zeros the run cannot depend on the data at all."""

    class Zeros:
        name = "zeros"

        def release(self, trained, sent, cohort, num_samples, noise):
            return Release(cohort.clients, np.zeros_like(trained.vectors), num_samples, trained.num_steps)

        def fit(self, setting):
            return dataclasses.replace(NO_PRIVACY, name=self.name, release=self.release)

    xs, ys = ragged(seed=8)
    other = up.FederatedData.from_arrays(xs, ys, num_classes=3)
    one = up.train(federation, iterations=6, upcycle=0.5, privacy=Zeros(), **settings(name))
    two = up.train(other, iterations=6, upcycle=0.5, privacy=Zeros(), **settings(name))
    assert one.params.numpy().tobytes() == two.params.numpy().tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_the_callers_generators_and_module_are_left_alone(federation, name):
    import torch

    module = torch.nn.Linear(5, 3)
    before = [p.detach().clone() for p in module.parameters()]
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    up.train(federation, iterations=2, model=module, **settings(name))
    assert torch.equal(state, torch.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])  # noqa: NPY002
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


@pytest.mark.parametrize(
    ("make", "server_lr", "exact"),
    [
        (lambda s: up.FedAvg(server_lr=s), 1.0, "fedavg"),
        (lambda s: up.FedYogi(server_lr=s), 0.1, "fedyogi"),
        (lambda s: up.PFedMe(lam=2.0, beta=s), 0.5, "pfedme"),
        (lambda s: up.FedAvgM(server_momentum=0.4, server_lr=s), 1.0, "fedavgm"),
        (lambda s: up.FedAvgM(server_momentum=0.4, server_lr=s, nesterov=False), 0.5, "fedavgm"),
    ],
)
def test_upcycling_equals_a_server_step_longer_by_one_plus_rho(federation, make, server_lr, exact):
    # w(2m) = w(2m-1) + rho (w(2m-1) - w(2m-2)) is w(2m-2) + (1 + rho) step, and server moments do not move.
    common = {key: value for key, value in settings(exact).items() if key != "algorithm"}
    upcycled = up.train(federation, iterations=12, upcycle=0.6, algorithm=make(server_lr), **common)
    longer = up.train(federation, iterations=6, algorithm=make(1.6 * server_lr), **common)
    assert np.allclose(upcycled.params, longer.params, rtol=2e-4, atol=1e-6)


STEPPING = [name for name in NAMES if name != "pfedme"]


def one_server_step(algorithm, rng):
    """One server step of a cohort of 3 of 5 clients, with state and memory of some rounds ago."""
    before = algorithm.start(rng.normal(size=4).astype(np.float32))
    kept = {key: value + np.float32(0.5) for key, value in before.vectors.items()}
    memory = {name: rng.normal(size=(3, 4)).astype(np.float32) for name in algorithm.remembers}
    vectors, samples = rng.normal(size=(3, 4)).astype(np.float32), np.array([1, 3, 4])
    release = Release(np.arange(3), vectors, samples, np.array([1, 2, 3]))
    mean = weighted_mean(samples.astype(float), vectors)
    arrived = RoundResult(release, mean, np.array([0.1, 0.2, 0.3]), num_clients=5, all_samples=20)
    after, memory = algorithm.server_step(Server(before.model, kept), memory, arrived)
    return before.model, after, memory


@pytest.mark.parametrize("name", STEPPING)
@given(seed=st.integers(0, 2**32 - 1), server_lr=st.floats(0.01, 4.0))
def test_the_server_learning_rate_scales_the_step_of_the_model_alone(name, seed, server_lr):
    kind = ALGORITHMS[name]
    (before, whole, memory), (_, scaled, scaled_memory), (_, default, _) = (
        one_server_step(algorithm, np.random.default_rng(seed))
        for algorithm in (kind(server_lr=1.0), kind(server_lr=server_lr), kind())
    )
    if kind().server_lr == 1.0:
        assert default.model.tobytes() == whole.model.tobytes()
    expected = before + server_lr * (whole.model.astype(float) - before)
    reach = np.abs(before) + (1 + server_lr) * np.abs(whole.model)
    assert (np.abs(scaled.model - expected) <= 1e-5 * (1 + reach)).all()
    assert scaled.model.dtype == np.float32
    for kept, same in ((whole.vectors, scaled.vectors), (memory, scaled_memory)):
        assert {key: value.tobytes() for key, value in kept.items()} == {k: v.tobytes() for k, v in same.items()}


@pytest.mark.parametrize("name", STEPPING)
def test_a_server_learning_rate_of_one_is_the_default_bit_for_bit(federation, name):
    algorithm = ALGORITHMS[name]()
    if algorithm.server_lr != 1.0:
        pytest.skip("its default is another")
    runs = [
        up.train(federation, iterations=4, upcycle=0.5, **settings(name, algorithm=one))
        for one in (algorithm, ALGORITHMS[name](server_lr=1.0))
    ]
    assert runs[0].params.numpy().tobytes() == runs[1].params.numpy().tobytes()


@pytest.mark.parametrize("name", STEPPING)
def test_every_algorithm_checks_its_server_learning_rate(name):
    for wrong in (0.0, -1.0, float("nan"), "fast"):
        with pytest.raises(up.InputError, match="server_lr"):
            ALGORITHMS[name](server_lr=wrong)
