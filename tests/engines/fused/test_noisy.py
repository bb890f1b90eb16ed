"""DP-SGD's kernel against its definition in float64, and what one record may change in it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from torch import nn

import upcycled as up
from tests.engines.fused.exact import distance, federation, gradient, open_fused, stack, task_for
from upcycled.core.mechanism import Ask
from upcycled.core.randomness import Purpose
from upcycled.core.sampling import Cohort
from upcycled.core.solvers import LocalSGD, MoreauSGD, NoisySGD, Problem
from upcycled.core.vectors import grid_scale, grid_step
from upcycled.engines.fused import FUSED
from upcycled.engines.fused.blocks import DEPTH
from upcycled.engines.fused.dpsgd_kernel import FACTORS
from upcycled.engines.fused.workspace import INPUTS, OUTPUTS, PITCH
from upcycled.losses import BinaryCrossEntropy, Huber, SquaredError
from upcycled.privacy.noise.sources import SeededNoise, SystemNoise

SIZES = (23, 7, 150, 41)
MODULES = {
    "linear 20-2": (lambda: nn.Linear(20, 2), (20,), 2),
    "linear 5-3 without bias": (lambda: nn.Linear(5, 3, bias=False), (5,), 3),
    "stack 12-9-4": (lambda: stack(12, 9, 4), (12,), 4),
    "stack 3x6-40-17-5": (lambda: stack(18, 40, 17, 5, flattens=True), (3, 6), 5),
}


def noisy_task(name, plain, clip=0.7, std=0.3, **changes):
    make, shape, classes = MODULES[name]
    stds = std * np.linspace(1.0, 2.0, len(SIZES))
    return replace(task_for(make(), federation(SIZES, shape, classes), NoisySGD(plain, clip, stds), classes), **changes)


def work_for(task, noise, clients=(2, 0, 3, 1), epochs=(1, 2, 2, 1), problem=None):
    """What an engine is asked, and the noise."""
    model = np.random.default_rng(1).normal(0, 0.4, task.layout.size).astype(np.float32)
    return Ask(1, 1, 0, Cohort(np.array(clients), np.array(epochs)), model, problem or Problem()), noise


@dataclass(frozen=True)
class Asked:
    """The numbers of a source that has no key: they must be asked for."""

    source: object

    def round_key(self, purpose):
        return None

    def __getattr__(self, name):
        return getattr(self.source, name)


@dataclass(frozen=True)
class Drawn:
    """No noise, and these records in every batch."""

    rows: tuple[int, ...]

    def round_key(self, purpose):
        return None

    def uniforms(self, clients, count, purpose=Purpose.NOISE, start=0):
        coins = np.full((clients.size, count), 2.0)
        coins[:, list(self.rows)] = 0.0
        return coins

    def gaussian_steps(self, clients, count, scale, purpose=Purpose.NOISE, start=0):
        return np.zeros((clients.size, count))


def noisy_gradient(task, work, noise, lane, at, taken):
    """Clip each drawn sample's gradient, sum, add the noise, divide by q n, add the correction: in float64."""
    solver, who = task.solver, work.cohort.clients[[lane]]
    features, labels = task.train.client(int(who[0]))
    n, size, std = len(labels), task.layout.size, solver.noise_std[who]
    rate, total = min(1.0, (solver.local.batch_size or n) / n), np.zeros(size)
    coins = noise.uniforms(who, n, Purpose.POISSON, start=taken * n)[0]
    for i in np.flatnonzero(coins < rate):
        g = gradient(task.module, at, features[i : i + 1], labels[i : i + 1])
        total += g / max(1.0, np.linalg.norm(g) / solver.clip_norm)
    drawn = noise.gaussian_steps(who, size, grid_scale(std), start=taken * (size + size % 2))[0]
    b = 0.0 if work.problem.b is None else work.problem.b[lane].astype(np.float64)
    return (total + grid_step(std)[0] * drawn) / (rate * n) + work.problem.a * (at - work.model) + b


def by_definition(task, work, noise):
    """One step after the other: what DP-SGD ends with, and the Moreau envelope's thetas."""
    plain, found, thetas = task.solver.plain, [], []
    for lane, client in enumerate(work.cohort.clients.tolist()):
        n = np.array([len(task.train.client(client)[1])])
        x = work.model.astype(np.float64)
        theta, v, taken = x, 0.0, 0
        for _ in range(int(task.solver.local.num_steps(n, work.cohort.epochs[[lane]])[0])):
            if isinstance(plain, MoreauSGD):
                for _ in range(plain.inner_steps):
                    g = noisy_gradient(task, work, noise, lane, theta, taken)
                    theta, taken = theta - plain.inner_rate * (g + plain.lam * (theta - x)), taken + 1
                x = x - plain.local.rate * plain.lam * (x - theta)
            else:
                v = plain.momentum * v + noisy_gradient(task, work, noise, lane, x, taken)
                x, taken = x - plain.rate * v, taken + 1
        found.append(x)
        thetas.append(theta)
    return np.array(found), np.array(thetas)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("batch", [8, 100, None])
def test_noisy_sgd_equals_its_definition(name, batch):
    # 100 of 150 need two products; the gradient's norm is above the bound for most samples and below it for some.
    task = noisy_task(name, LocalSGD(0.1, 0.5, 2, batch))
    problem = Problem(0.3, np.random.default_rng(2).normal(0, 0.1, (4, task.layout.size)).astype(np.float32))
    work, noise = work_for(task, SeededNoise(5, 1, 2), problem=problem)
    engine = open_fused(task, 1)
    found = engine.train(work, noise)
    assert found.private is None
    assert distance(found.vectors, by_definition(task, work, noise)[0]) < 1e-5
    asked = engine.train(work, Asked(noise))
    assert distance(asked.vectors, found.vectors) < 1e-6
    assert asked.num_steps.tolist() == found.num_steps.tolist()


@pytest.mark.parametrize("source", [SeededNoise(5, 1), Asked(SeededNoise(5, 1))])
def test_the_moreau_envelope_takes_a_noisy_gradient_an_inner_step(source, monkeypatch):
    monkeypatch.setattr("upcycled.engines.fused.engine._NUMBERS", 100)  # some gradients at a time
    task = noisy_task("stack 12-9-4", MoreauSGD(LocalSGD(0.1, 0.0, 1, 16), 1.5, 3, 0.05))
    work = work_for(task, source)
    found, (vectors, thetas) = open_fused(task, 1).train(*work), by_definition(task, *work)
    assert distance(found.vectors, vectors) < 1e-5
    assert distance(found.private, thetas) < 1e-5


@pytest.mark.parametrize("objective", [BinaryCrossEntropy(), SquaredError(), Huber(threshold=0.5)])
def test_other_losses_are_clipped_alike(objective):
    """One output: the gradient of a sample is a number d times (x, 1)."""
    data = federation(SIZES, (6,), 2)
    if objective.targets != "classes":
        data = replace(data, y=data.y.astype(np.float32))
    plain = LocalSGD(1.0, 0.0, 1, None)
    task = replace(task_for(nn.Linear(6, 1), data, NoisySGD(plain, 0.4, np.zeros(4)), 2), objective=objective)
    work, noise = work_for(task, SeededNoise(0, 1), clients=(3,), epochs=(1,))
    x, y = task.train.client(3)
    x = np.hstack([x, np.ones((len(x), 1))]).astype(np.float64)
    z = x @ work.model.astype(np.float64)
    d = {"binary_cross_entropy": 1 / (1 + np.exp(-z)) - y, "mse": 2 * (z - y), "huber": np.clip(z - y, -0.5, 0.5)}
    each = d[objective.name][:, None] * x
    each /= np.maximum(1, np.linalg.norm(each, axis=1) / 0.4)[:, None]
    expected = work.model - each.mean(axis=0)
    assert distance(open_fused(task, 1).train(work, noise).vectors[0], expected) < 1e-5


def parts_of(engine, place):
    """What stands in the product for the sample at a place of the last batch: factor, inputs and scaled deltas."""
    wide, listed, slots, counts, _ = engine._noisy[0]
    found = [wide[FACTORS + place : FACTORS + place + 1]]
    for layer, (first, inputs, units) in zip(engine._table, engine._room.factors, strict=True):
        at = place * layer[PITCH]
        found.append(wide[inputs + at : inputs + at + layer[INPUTS]])
        for unit in range(layer[OUTPUTS]):
            start = first + unit * (DEPTH + 1)
            here = slice(start, start + counts[units + unit])
            found.append(listed[here][slots[here] == at])
    return np.concatenate(found)


@pytest.mark.parametrize("name", ["linear 20-2", "stack 3x6-40-17-5"])
def test_a_record_has_the_same_bits_at_any_place_beside_any_others(name):
    task = noisy_task(name, LocalSGD(0.1, 0.0, 1, None), std=1.0)
    engine, rng = open_fused(task, 1), np.random.default_rng(0)

    def bits(rows, row):
        rows = sorted(rows)
        engine.train(*work_for(task, Drawn(tuple(rows)), clients=(2,), epochs=(1,)))
        return parts_of(engine, rows.index(row)).tobytes()

    for row in (0, 31, 77, 149):
        alone = bits([row], row)
        assert len(alone) > 8 * 20
        for _ in range(12):
            # At most 32: a second tile would write over the factors of the first.
            others = rng.permutation(150)[: rng.integers(1, 32)].tolist()
            assert bits({row, *others}, row) == alone


def test_what_is_not_finite_counts_as_nothing_and_no_record_moves_the_sum_further_than_the_bound():
    task = noisy_task("stack 12-9-4", LocalSGD(1.0, 0.0, 1, None), clip=0.05, std=0.0)
    task.train.x[30 + 3], task.train.x[30 + 40] = np.inf, np.nan  # of client 2
    engine = open_fused(task, 1)

    def step(*rows):
        work, noise = work_for(task, Drawn(rows), clients=(2,), epochs=(1,))
        return 150 * (work.model.astype(np.float64) - engine.train(work, noise).vectors[0])

    crowd = tuple(row for row in range(150) if row not in (3, 40, 17))
    # A float32 model of this size is known to 6e-8, times 150.
    np.testing.assert_allclose(step(3), 0.0, atol=1e-12)
    np.testing.assert_allclose(step(3, 40, 17), step(17), atol=1e-12)
    np.testing.assert_allclose(step(*crowd, 3, 17, 40), step(*crowd, 17), atol=1e-12)
    np.testing.assert_allclose(step(*crowd, 17) - step(*crowd), step(17), atol=4e-5)
    assert np.linalg.norm(step(17)) == pytest.approx(0.05, rel=1e-3)
    np.testing.assert_array_equal(step(), 0.0)


@pytest.mark.parametrize("noise", [SeededNoise(3, 1), Asked(SeededNoise(3, 1))])
def test_the_number_of_threads_does_not_change_a_bit_of_noisy_work(noise, monkeypatch):
    monkeypatch.setattr("upcycled.engines.fused.engine._SMALL", 0)
    task = noisy_task("stack 12-9-4", LocalSGD(0.1, 0.5, 1, 8))
    vectors = [open_fused(task, threads).train(*work_for(task, noise)).vectors.tobytes() for threads in (1, 3)]
    assert vectors[0] == vectors[1]


def test_real_noise_has_the_stated_std_and_is_never_the_same():
    # lr 1, one step of a full batch of 150: the model moves by the mean, and by noise of std / 150.
    task = noisy_task("stack 12-9-4", LocalSGD(1.0, 0.0, 1, None), std=600.0)
    engine = open_fused(task, 1)
    moved = [
        150 * (engine.train(*work_for(task, SystemNoise(), clients=(2,), epochs=(1,))).vectors[0]) / 600 / (5 / 3)
        for _ in range(12)
    ]
    drawn = np.array(moved)
    # 12 x 157 numbers: the std of the estimate is 1.6 %; 2/3 and 3/2 of the right scale are 20 of it away.
    assert (drawn - drawn.mean(axis=0)).std() * np.sqrt(12 / 11) == pytest.approx(1.0, abs=0.08)
    assert len({one.tobytes() for one in drawn}) == 12


def test_a_run_with_test_data_is_scored_and_agrees_with_the_reference():
    xs = [np.random.default_rng(i).normal(size=(n, 5)).astype(np.float32) for i, n in enumerate((9, 30, 14))]
    ys = [(x[:, 0] > 0).astype(np.int64) for x in xs]
    data = up.FederatedData.from_arrays(xs, ys, test=(xs, ys), num_classes=2)
    local = up.LocalSGD(lr=0.2, momentum=0.5, epochs=2, batch_size=8)
    runs = [
        up.train(data, algorithm=up.Scaffold(), privacy=up.privacy.DPSGD(1.0, 0.5), local=local, upcycle=0.5,
                 iterations=4, engine=engine, progress=False, seed=1)
        for engine in ("auto", "sequential")
    ]  # fmt: skip
    assert [run.settings["engine"] for run in runs] == ["fused", "sequential"]
    assert distance(runs[0].params.numpy(), runs[1].params.numpy()) < 1e-5
    assert runs[0].loss == pytest.approx(runs[1].loss, rel=1e-5)
    assert runs[0].privacy.max_epsilon(1e-3) == runs[1].privacy.max_epsilon(1e-3)


def test_other_local_work_than_plain_steps_is_left_to_the_reference():
    class Own(LocalSGD):
        pass

    assert FUSED.refuses(noisy_task("linear 20-2", LocalSGD())) is None
    assert "Own" in FUSED.refuses(noisy_task("linear 20-2", Own()))
