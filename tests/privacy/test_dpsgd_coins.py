"""In DP-SGD one record's secret coin must change its own part of a step and no other's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import upcycled as up
from tests.privacy.runs import QUIET
from upcycled.core.mechanism import Ask
from upcycled.core.randomness import Purpose
from upcycled.core.sampling import everybody
from upcycled.core.solvers import Problem
from upcycled.privacy.accounting import sampled_gaussian_epsilon
from upcycled.privacy.audit import two_world
from upcycled.privacy.noise.sources import SeededNoise
from upcycled.training.plan import make_plan
from upcycled.training.spec import RunSpec

DELTA = 1e-3


class OneStep(up.LocalSGD):
    """One local step a round."""

    def num_steps(self, samples, epochs):
        return np.ones_like(samples)


class Drawn:
    """Seeded noise, but the records that are drawn are these."""

    def __init__(self, *rows):
        self._rows, self._noise = rows, SeededNoise(0, 1)

    def __getattr__(self, name):
        return getattr(self._noise, name)

    def uniforms(self, clients, count, purpose=Purpose.NOISE, start=0):
        if purpose is not Purpose.POISSON:
            return self._noise.uniforms(clients, count, purpose, start)
        coins = np.ones((clients.size, count))
        coins[:, list(self._rows)] = 0.0
        return coins


def world(model, labels, x):
    """Return what one noisy step of DP-SGD gives for a source of noise, as (gradient + noise) n q, and its plan."""
    data = up.FederatedData.from_arrays([x], [labels], num_classes=2)
    spec = RunSpec(algorithm=up.FedAvg(), model=model, privacy=up.privacy.DPSGD(1.0, 1.0), iterations=1, seed=3,
                   local=OneStep(lr=1.0, batch_size=6), **QUIET)  # fmt: skip
    plan = make_plan(data, spec)
    task, kind = plan.on_data
    engine = kind.open(task, 1)
    start = plan.initial

    def step(noise):
        work = Ask(1, 1, 0, everybody(1), start, Problem())
        return 6 * (start.astype(np.float64) - engine.train(work, noise).vectors[0])

    return step, plan


class Functional(nn.Module):
    """Dropout that is no layer: nobody sees it from outside."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 2)

    def forward(self, x):
        return self.linear(nn.functional.dropout(x, 0.5, self.training))


class Recurrent(nn.Module):
    """Dropout between the layers of torch's own LSTM."""

    def __init__(self):
        super().__init__()
        self.lstm, self.linear = nn.LSTM(2, 3, num_layers=2, dropout=0.5, batch_first=True), nn.Linear(3, 2)

    def forward(self, x):
        return self.linear(self.lstm(x.unflatten(1, (4, 2)))[0][:, -1])


DROPPING = {
    "dropout": lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 2)),
    "dropout twice": lambda: nn.Sequential(
        nn.Dropout(0.3), nn.Linear(8, 5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 2)
    ),
    "alpha dropout": lambda: nn.Sequential(nn.AlphaDropout(0.5), nn.Linear(8, 2)),
    "dropout of features": lambda: nn.Sequential(
        nn.Unflatten(1, (4, 2)), nn.Dropout1d(0.5), nn.Flatten(), nn.Linear(8, 2)
    ),
    "a function": Functional,
    "torch's lstm": Recurrent,
}


@pytest.mark.parametrize("name", DROPPING)
def test_what_a_record_adds_to_a_step_does_not_change_with_the_coin_of_another(name):
    rng = np.random.default_rng(0)
    step, _ = world(DROPPING[name](), rng.integers(0, 2, 40), rng.normal(size=(40, 8)).astype(np.float32))
    nobody, first, second, both = (step(Drawn(*rows)) for rows in ((), (3,), (17,), (3, 17)))
    assert np.abs(second - nobody).max() > 0.05  # it does add something
    # The sums are exact; a float32 model of this size is known to 1e-6.
    np.testing.assert_allclose(both - first, second - nobody, rtol=0, atol=5e-6)
    crowd = [row for row in range(40) if row != 17]
    np.testing.assert_allclose(step(Drawn(*crowd, 17)) - step(Drawn(*crowd)), second - nobody, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", DROPPING)
def test_equal_records_have_masks_of_their_own_whatever_the_callers_generator(name):
    step, _ = world(DROPPING[name](), np.zeros(40, np.int64), np.ones((40, 8), np.float32))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        nobody, *each = (step(Drawn(*rows)) for rows in ((), (0,), (1,), (2,), (3,)))
        torch.manual_seed(2)
        assert np.array_equal(step(Drawn(1)), each[1])
    assert len({tuple(np.round(one - nobody, 4)) for one in each}) > 1


@pytest.mark.slow
def test_two_worlds_with_dropout_are_not_told_apart_better_than_claimed():
    """Forty equal records, or one of another label; q = 0.15, noise 1, one step, masks known to the attacker.

    Masks by place let the attacker do this: the first row drawn always has the mask of the first place, so that place
    says +1 in one world, and -1 with probability 0.15 in the other, two apart: 1.90 is certified. With masks of their
    own, a row that is not drawn says 0.
    """
    x, replays = np.ones((40, 200), np.float32), 6000
    flipped = np.zeros(40, np.int64)
    flipped[0] = 1
    steps, plan = [], None
    for labels in (np.zeros(40, np.int64), flipped):
        step, plan = world(nn.Sequential(nn.Dropout(0.9), nn.Linear(200, 2, bias=False)), labels, x)
        steps.append(step)
    direction = steps[1](Drawn(0)) - steps[1](Drawn())
    scores = [
        [float(step(SeededNoise(7, 1, attempt=2 * i + which)) @ direction) for i in range(replays)]
        for which, step in enumerate(steps)
    ]
    charge = plan.mechanism.charge(everybody(1))
    claimed = sampled_gaussian_epsilon(
        q=0.15, noise_multiplier=float(charge.noise_std[0] / charge.sensitivity[0]), steps=1, delta=DELTA
    )
    assert claimed == pytest.approx(1.129, abs=2e-3)
    found = two_world(scores0=scores[0], scores1=scores[1], delta=DELTA)
    assert 0 < found.epsilon_lower <= claimed
