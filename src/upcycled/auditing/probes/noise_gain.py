"""How much of each step's noise is left in the model that noisy SGD ends with, where records say nothing.

Without gradients a local solver is a linear map of its noise, the same for every number of the model. Written down here
once more, on its own: the engines are what is tested by it.
"""

from __future__ import annotations

import numpy as np

from upcycled.core.solvers import MoreauSGD, NoisySGD
from upcycled.core.vectors import Ints, Real


def responses(solver: NoisySGD, a: float, steps: int) -> Real:
    """Return what one unit in each noisy gradient of a round does to the model in the end, one number a gradient.

    >>> from upcycled.core.solvers import LocalSGD
    >>> responses(NoisySGD(LocalSGD(lr=0.5), 1.0, np.ones(1)), 0.0, 3).tolist()
    [-0.5, -0.5, -0.5]
    >>> responses(NoisySGD(LocalSGD(lr=0.5), 1.0, np.ones(1)), 1.0, 3).tolist()
    [-0.125, -0.25, -0.5]
    """
    plain = solver.plain
    if isinstance(plain, MoreauSGD):
        many = steps * plain.inner_steps
        x, theta, unit = np.zeros(many), np.zeros(many), np.eye(many)
        for step in range(steps):
            for inner in range(plain.inner_steps):
                pull = a * theta + plain.lam * (theta - x)
                theta = theta - plain.inner_rate * (unit[step * plain.inner_steps + inner] + pull)
            x = x - plain.local.rate * plain.lam * (x - theta)
        return x
    x, velocity = np.zeros(steps), np.zeros(steps)
    for step, unit_of_step in enumerate(np.eye(steps)):
        assert step < steps  # one unit in each
        velocity = plain.momentum * velocity + unit_of_step + a * x
        x = x - plain.rate * velocity
    return x


def noise_gain(solver: NoisySGD, a: float, num_steps: Ints, sizes: Ints) -> Real:
    """Return each client's std in the model over the std of the noise in a sum of gradients."""
    found = {int(steps): float(np.linalg.norm(responses(solver, a, int(steps)))) for steps in np.unique(num_steps)}
    return np.array([found[int(k)] / _divisor(solver, int(n)) for k, n in zip(num_steps, sizes, strict=True)])


def first_gain(solver: NoisySGD, a: float, num_steps: Ints, sizes: Ints) -> Real:
    """Return how far one unit in each client's first sum of gradients moves its model in the end."""
    found = {int(steps): abs(float(responses(solver, a, int(steps))[0])) for steps in np.unique(num_steps)}
    return np.array([found[int(k)] / _divisor(solver, int(n)) for k, n in zip(num_steps, sizes, strict=True)])


def _divisor(solver: NoisySGD, samples: int) -> float:
    """Return q n, which every noisy sum is divided by."""
    return float(min(solver.local.batch_size or samples, samples))
