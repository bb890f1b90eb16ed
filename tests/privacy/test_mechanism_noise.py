"""The noise in what the server receives: its scale, its grid, and that no two real runs share it."""

from __future__ import annotations

import copy
import os
import pickle
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

import upcycled as up
from tests.privacy.runs import QUIET, cohort, first_arrival, make, setting, wide
from tests.reference import softmax_gradient
from upcycled.algorithms import ALGORITHMS
from upcycled.core.mechanism import Trained
from upcycled.core.randomness import Purpose
from upcycled.core.vectors import grid_step
from upcycled.privacy.mechanisms.gaussian_noise import GaussianNoise
from upcycled.privacy.mechanisms.requirements import project
from upcycled.privacy.noise.sources import SeededNoise, SystemNoise, fresh_words

NAMES = list(ALGORITHMS)
CONVEX = [name for name in NAMES if name != "pfedme"]
STATELESS = ["fedavg", "fedavgm", "fedprox", "fedyogi"]


def assert_scale(numbers, std):
    """The stated normal passes; two thirds, three halves and the square of its std fail."""
    numbers = np.asarray(numbers, dtype=np.float64).ravel()
    assert stats.kstest(numbers / std, "norm").pvalue > 1e-4
    for wrong in (2 / 3 * std, 3 / 2 * std, std**2):
        assert stats.kstest(numbers / wrong, "norm").pvalue < 1e-6


@pytest.mark.usefixtures("known_entropy")
@pytest.mark.parametrize("source", [SeededNoise(1, 2), SystemNoise()], ids=["seeded", "system"])
def test_both_sources_give_noise_in_grid_steps_and_uniforms(source):
    clients, scale = np.arange(20), np.full(20, 1.4 * 2**20)
    gaussian, uniforms = source.gaussian_steps(clients, 501, scale), source.uniforms(clients, 500)
    laplace = source.laplace_steps(clients, 501, scale)
    for steps in (gaussian, laplace):
        assert steps.shape == (20, 501)
        assert np.array_equal(steps, np.rint(steps))
        assert np.unique(steps).size > 0.98 * steps.size  # two may meet by chance
        # Neighbouring numbers of Box-Muller share a radius but are independent, and so are clients.
        assert abs(np.corrcoef(steps[:, 0::2][:, :250].ravel(), steps[:, 1::2].ravel())[0, 1]) < 0.05
    assert_scale(gaussian / scale[0] * 0.7, 0.7)
    assert stats.kstest(laplace.ravel() / scale[0], "laplace").pvalue > 1e-4
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(laplace.ravel() / scale[0] * wrong, "laplace").pvalue < 1e-6
    assert stats.kstest(uniforms.ravel(), "uniform").pvalue > 1e-4
    assert 0 < uniforms.min() < uniforms.max() < 1


@pytest.mark.usefixtures("known_entropy")
@pytest.mark.parametrize("source", [SeededNoise(1, 2), SystemNoise()], ids=["seeded", "system"])
@pytest.mark.parametrize("purpose", [Purpose.COHORT, Purpose.POISSON])
def test_coins_are_uniform_whatever_they_decide(source, purpose):
    coins = source.uniforms(np.arange(20), 500, purpose)
    assert stats.kstest(coins.ravel(), "uniform").pvalue > 1e-4


@pytest.mark.usefixtures("known_entropy")
@pytest.mark.parametrize("source", [SeededNoise(1, 2), SystemNoise()], ids=["seeded", "system"])
def test_releases_have_the_charged_std_to_a_hundredth(source):
    """Of 200,000 numbers the std is known to 1/sqrt(400,000), 0.16 %: noise that is 2 % less than charged is seen."""
    noise = GaussianNoise(np.ones(3), np.array([0.3, 1.0, 5.7]))
    added = noise.add(np.zeros((3, 200_000)), cohort(range(3)), source)
    charged = noise.charge(cohort(range(3))).noise_std
    assert added.std(axis=1) / charged == pytest.approx(1.0, abs=0.01)
    assert np.abs(added.mean(axis=1) / charged).max() < 0.01


def test_few_seeded_normals_have_the_bits_of_many(monkeypatch):
    """Few are NumPy's and many are compiled: who draws has no say in what is drawn."""
    clients, noise = np.array([5, 9, 2**40]), SeededNoise(1, 2, 3)
    compiled = noise.normals(clients, 501, Purpose.CENTRAL, start=12)  # Numba is there: conftest has warmed kernels
    assert "numba" in sys.modules
    monkeypatch.delitem(sys.modules, "numba")
    monkeypatch.setitem(sys.modules, "upcycled.privacy.noise.kernels", None)  # importing it would fail
    assert np.array_equal(noise.normals(clients, 501, Purpose.CENTRAL, start=12), compiled)


def test_a_seeded_stream_goes_on_where_it_was_left():
    clients = np.array([5, 9])
    noise = SeededNoise(1, 2)
    whole = noise.uniforms(clients, 30, Purpose.POISSON)
    parts = [noise.uniforms(clients, 10, Purpose.POISSON, start=10 * i) for i in range(3)]
    assert np.array_equal(np.hstack(parts), whole)


@pytest.mark.usefixtures("known_entropy")
@pytest.mark.parametrize(
    ("name", "noise"), [*((name, "seeded") for name in NAMES), ("fedavg", "system"), ("scaffold", "system")]
)
@pytest.mark.parametrize("kind", [up.privacy.ModelClipping, up.privacy.UpdateClipping])
def test_clipped_releases_arrive_with_noise_of_the_stated_std(monkeypatch, kind, name, noise):
    data = wide()
    noisy, plain = (
        first_arrival(monkeypatch, data, name, kind(clip_norm=0.5, noise_std=std), noise=noise).release.vectors
        for std in (0.3, 0)
    )
    assert_scale(noisy - plain, 0.3)


@pytest.mark.parametrize("name", CONVEX)
@pytest.mark.parametrize(
    "made",
    [
        lambda std: up.privacy.ErmOutput(1.0, std, prox_mu=0.5, steps=5),
        lambda std: up.privacy.ErmOutput(1.0, std, prox_mu=0.5, gamma=1e-6),
        lambda std: up.privacy.BoltOnSGD(1.0, std),
    ],
    ids=["gradient descent", "minimiser", "bolt-on"],
)
def test_solutions_arrive_with_noise_of_the_stated_std(monkeypatch, made, name):
    data = wide()
    noisy, plain = (first_arrival(monkeypatch, data, name, made(std)).release.vectors for std in (0.3, 0))
    assert_scale(noisy - plain, 0.3)


@pytest.mark.usefixtures("known_entropy")
@pytest.mark.parametrize("noise", ["seeded", "system"])
@pytest.mark.parametrize("name", CONVEX)
def test_the_noise_of_objective_perturbation_is_found_again_in_the_minimiser(monkeypatch, name, noise):
    """At the minimiser n = -(gradient + a (x - w)); b is zero in the first round of every algorithm."""
    data, alpha, prox = wide(), 8.0, 0.5
    privacy = up.privacy.ObjectivePerturbation(alpha, norm_bound=1.0, prox_mu=prox)
    module = up.models.logistic((40,), 10, seed=3)
    start = np.concatenate([p.detach().numpy().ravel() for p in module.parameters()]).astype(np.float64)
    released = first_arrival(monkeypatch, data, name, privacy, noise=noise).release.vectors.astype(np.float64)
    a = prox + {"fedprox": 0.5, "feddyn": 0.01}.get(name, 0.0)
    train = project(data.train, 1.0)
    found = []
    for client in range(4):
        x, y = train.client(client)
        found.append(-softmax_gradient(released[client], x.astype(np.float64), y, 10) - a * (released[client] - start))
    norms = np.linalg.norm(found, axis=1)
    # Gamma(410, 8): mean 51.25, sd 2.53; two thirds and three halves are ten sds away.
    assert (np.abs(norms * alpha - 410) < 5 * np.sqrt(410)).all()
    assert_scale(np.concatenate([np.sqrt(410) * n / length for n, length in zip(found, norms, strict=True)]) * 0.3, 0.3)


@pytest.mark.usefixtures("known_entropy")
@pytest.mark.parametrize(
    ("name", "noise"), [*((name, "seeded") for name in NAMES), ("fedavg", "system"), ("pfedme", "system")]
)
def test_dpsgd_steps_by_gradient_sums_with_noise_of_the_stated_std(monkeypatch, name, noise):
    data, lr = wide(), 0.5
    local = up.LocalSGD(lr=lr, batch_size=None)
    noisy, plain = (
        first_arrival(monkeypatch, data, name, up.privacy.DPSGD(2.0, z), local=local, noise=noise).release.vectors
        for z in (0.3, 0)
    )
    # One full-batch step: x = w - lr (sum + noise) / n. pFedMe moves by lr lam inner_lr of it.
    scale = lr * make(name).lam * 0.5 if name == "pfedme" else lr
    assert_scale((noisy - plain) * data.train.sizes[:, None] / scale, 0.6)


@pytest.mark.parametrize("name", STATELESS)
@pytest.mark.parametrize("secret", [False, True])
def test_the_central_aggregate_arrives_with_noise_of_the_stated_std(monkeypatch, name, secret):
    data = wide(sizes=(9,) * 12)
    sampling = {"participation": 0.5, "sampling": "poisson"} if secret else {}
    noisy, plain = (
        first_arrival(
            monkeypatch, data, name, up.privacy.CentralDPFedAvg(2.0, z, secret_sampling=secret), **sampling
        ).mean
        for z in (0.35, 0)
    )
    denominator = 6 if secret else 12
    difference = (noisy.astype(np.float64) - plain) * denominator / 0.7
    assert stats.kstest(difference, "norm").pvalue > 1e-4
    assert 0.85 < difference.std() < 1.15  # 410 numbers: the std of the std is 0.035
    for wrong in (2 / 3, 3 / 2):
        assert not 0.85 < difference.std() / wrong < 1.15


@pytest.mark.usefixtures("known_entropy")
@pytest.mark.parametrize("source", [SeededNoise(3, 1), SystemNoise()], ids=["seeded", "system"])
@pytest.mark.parametrize("q", [0.5, 1.0])
def test_dpsgd_adds_fresh_noise_of_the_stated_std_in_every_step_of_a_sampled_batch(source, q):
    """Gradients of zero, so that a step's sum is its noise alone: (noise / (q n)), whatever batch came."""
    from torch import zeros

    from upcycled.core.solvers import NoisySGD
    from upcycled.engines.dpsgd.noisy import NoisyGradient
    from upcycled.engines.dpsgd.per_sample import PerSample

    size, samples, std = 301, 8, 0.6
    solver = NoisySGD(up.LocalSGD(batch_size=int(q * samples)), 2.0, np.array([std]))
    x, y = np.zeros((samples, 2), dtype=np.float32), np.zeros(samples, dtype=np.int64)
    nothing = PerSample(samples, lambda at, x, y, keys: zeros(len(y), size), "none")
    step = NoisyGradient(solver, nothing, x, y, 0, std, source, np.uint64(0))
    steps = [step(zeros(size)).numpy().astype(np.float64) * q * samples for _ in range(12)]
    assert_scale(steps, std)
    assert abs(np.corrcoef(steps)[np.triu_indices(12, 1)]).max() < 0.3  # 301 numbers: sd 0.058


@pytest.mark.usefixtures("known_entropy")
@pytest.mark.parametrize("source", [SeededNoise(3, 1), SystemNoise()], ids=["seeded", "system"])
@pytest.mark.parametrize("secret", [False, True])
def test_central_noise_joins_the_sum_once_with_the_stated_std(source, secret):
    facts = {"sizes": [5] * 20, "algorithm": "fedavg", "num_parameters": 4001}
    facts |= {"sampling": "poisson", "participation": 0.5} if secret else {}
    sent, rng = np.zeros(4001, dtype=np.float32), np.random.default_rng(4)
    vectors = rng.normal(0, 0.001, (6, 4001))
    arrived = up.Release(np.arange(6), vectors, np.full(6, 5), np.ones(6, dtype=np.int64))
    noisy, plain = (
        up.privacy.CentralDPFedAvg(2.0, z, secret_sampling=secret)
        .fit(setting(**facts))
        .aggregate(arrived, sent, source)
        for z in (0.35, 0)
    )
    denominator = 10 if secret else 20
    assert_scale((noisy.astype(np.float64) - plain) * denominator, 0.7)


def neighbours():
    """Two data sets that differ in one record."""
    rng = np.random.default_rng(2)
    xs = [rng.normal(0, 1, (n, 5)).astype(np.float32) for n in (20, 9, 14)]
    ys = [rng.integers(0, 3, len(x)) for x in xs]
    one = up.FederatedData.from_arrays([x.copy() for x in xs], [y.copy() for y in ys], num_classes=3)
    xs[1][4], ys[1][4] = 100.0, (ys[1][4] + 1) % 3
    return one, up.FederatedData.from_arrays(xs, ys, num_classes=3)


@pytest.mark.parametrize("noise", ["seeded", "system"])
@pytest.mark.parametrize(
    "privacy",
    [
        up.privacy.ModelClipping(1.0, 0.3),
        up.privacy.UpdateClipping(1.0, 0.3),
        up.privacy.ErmOutput(1.0, 0.3, prox_mu=0.5),
        up.privacy.BoltOnSGD(1.0, 0.3),
        up.privacy.ErmOutput(1.0, epsilon=1.0, delta=1e-5, prox_mu=0.5),
    ],
    ids=["model", "update", "erm", "bolt-on", "calibrated"],
)
def test_every_release_lies_on_its_grid_under_both_neighbours(monkeypatch, privacy, noise):
    for data in neighbours():
        facts = {"num_parameters": 18, "penalty": 0.0, "rounds": np.ones(3), "algorithm": "fedavg"}
        std = privacy.fit(setting(sizes=data.train.sizes, **facts)).charge(cohort(range(3))).noise_std
        arrived = first_arrival(monkeypatch, data, "fedavg", privacy, noise=noise)
        multiples = arrived.release.vectors.astype(np.float64) / grid_step(std)[:, None]
        assert np.array_equal(multiples, np.rint(multiples))
        assert np.unique(multiples % 4).size > 1  # and on no coarser one


def test_objective_perturbation_and_dpsgd_lie_on_their_grids_under_both_neighbours(monkeypatch):
    for data in neighbours():
        privacy = up.privacy.ObjectivePerturbation(5.0, norm_bound=1.0, prox_mu=0.5, gamma=1e-9, cover_alpha=1e4)
        vectors = first_arrival(monkeypatch, data, "fedavg", privacy).release.vectors.astype(np.float64)
        multiples = vectors / grid_step(np.array([1e-4]))
        assert np.array_equal(multiples, np.rint(multiples))
        from upcycled.engines.dpsgd import noisy

        sums = []
        original = noisy.NoisyGradient.__call__

        def spy(self, at, sums=sums, original=original):
            out = original(self, at)
            sums.append((out.numpy().astype(np.float64) * self.rate * len(self.y), self.step))
            return out

        with monkeypatch.context() as patch:
            patch.setattr(noisy.NoisyGradient, "__call__", spy)
            first_arrival(monkeypatch, data, "fedavg", up.privacy.DPSGD(1.0, 1.0), local=up.LocalSGD(batch_size=4))
        for total, step in sums:  # float32 after the division keeps 24 bits
            assert np.abs(total / step - np.rint(total / step)).max() <= np.abs(total / step).max() * 2.0**-22


def test_two_runs_with_real_noise_never_share_it_and_two_seeded_ones_do():
    data = wide(sizes=(9, 8), features=5, classes=3)
    privacy = up.privacy.ModelClipping(1.0, 0.3)
    real = [up.train(data, algorithm=up.FedAvg(), privacy=privacy, noise="system", iterations=2, **QUIET) for _ in "ab"]
    seeded = [up.train(data, algorithm=up.FedAvg(), privacy=privacy, iterations=2, **QUIET) for _ in "ab"]
    # Shared noise would make all 18 equal; on a grid one may be by chance (1e-5), two are not.
    assert np.isin(real[0].params.numpy(), real[1].params.numpy()).sum() <= 1
    assert seeded[0].params.numpy().tobytes() == seeded[1].params.numpy().tobytes()


def test_real_words_are_aes_in_counter_mode_under_a_fresh_key_each_time(monkeypatch):
    """Block 0 of AES-256 under the key 000102...1f and a counter of zero, from the cipher itself in another mode."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    keys = [bytes(range(32)), bytes(range(1, 33))]
    asked = iter(keys)
    monkeypatch.setattr("upcycled.privacy.noise.sources.os", SimpleNamespace(urandom=lambda size: next(asked)))
    for key in keys:
        cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
        blocks = cipher.update(bytes(16) + bytes(15) + b"\x01")
        assert fresh_words(4).tolist() == np.frombuffer(blocks, dtype="<u8").tolist()


def test_a_source_with_words_of_ones_own_repeats_its_noise():
    def source():
        rng = np.random.default_rng(0)
        return SystemNoise(words=lambda count: rng.integers(0, 2**64, count, dtype=np.uint64))

    scale, clients = np.full(2, 2.0**20), np.arange(2)
    assert np.array_equal(source().gaussian_steps(clients, 50, scale), source().gaussian_steps(clients, 50, scale))
    assert not np.array_equal(
        source().gaussian_steps(clients, 50, scale), SystemNoise().gaussian_steps(clients, 50, scale)
    )


def test_copies_of_a_real_source_share_nothing_with_it_and_hold_no_key():
    source, clients = SystemNoise(), np.arange(3)
    for twin in (pickle.loads(pickle.dumps(source)), copy.deepcopy(source), source):
        one, two = source.uniforms(clients, 100), twin.uniforms(clients, 100)
        assert not np.isin(one, two).any()
    assert vars(source) == {"name": "system", "words": fresh_words}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_draws_other_noise_than_its_parent():
    import subprocess
    import sys

    code = (
        "import os, numpy as np\n"
        "from upcycled.privacy.noise.sources import SystemNoise\n"
        "source = SystemNoise(); source.uniforms(np.arange(1), 1); child = os.fork()\n"
        "os.write(1, (repr(source.uniforms(np.arange(1), 1)[0, 0]) + '\\n').encode())\n"
        "os.waitpid(child, 0) if child else os._exit(0)\n"
    )
    lines = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert len(lines) == 2
    assert lines[0] != lines[1]


def test_noise_of_one_client_does_not_depend_on_who_else_is_in_the_cohort():
    fitted = up.privacy.ModelClipping(1.0, 0.3).fit(setting(sizes=[5, 5, 5, 5]))
    rng = np.random.default_rng(0)
    vectors, sent = rng.normal(size=(4, 42)).astype(np.float32), np.zeros(42, dtype=np.float32)
    steps, sizes = np.ones(4, dtype=np.int64), np.full(4, 5)
    everybody = fitted.release(Trained(vectors, steps), sent, cohort(range(4)), sizes, SeededNoise(0, 1))
    some = fitted.release(Trained(vectors[[1, 3]], steps[:2]), sent, cohort([1, 3]), sizes[:2], SeededNoise(0, 1))
    assert np.array_equal(everybody.vectors[[1, 3]], some.vectors)
