"""The compiled certified solvers against the NumPy ones."""

from __future__ import annotations

import numpy as np
import pytest

import upcycled as up
from tests.conftest import ragged


def run(engine, algorithm, privacy, **changes):
    xs, ys = ragged(sizes=(45, 70, 33, 128), features=6, classes=3)
    data = up.FederatedData.from_arrays(xs, ys, num_classes=3)
    arguments = {"algorithm": algorithm, "privacy": privacy, "iterations": 6, "upcycle": 0.5, "seed": 2}
    return up.train(data, engine=engine, progress=False, **(arguments | changes))


CASES = {
    "gradient descent": (up.FedProx(mu=0.5), up.privacy.ErmOutput(1.0, noise_std=0.01), {}),
    "gradient descent with b": (up.FedDyn(alpha=0.5), up.privacy.ErmOutput(1.0, noise_std=0.01), {}),
    "stragglers": (up.FedProx(mu=0.5), up.privacy.ErmOutput(1.0, noise_std=0.01), {"stragglers": 0.8}),
    "promised gradient norm": (up.FedProx(mu=0.5), up.privacy.ErmOutput(1.0, noise_std=0.01, gamma=1e-6), {}),
    "objective perturbation": (up.FedProx(mu=0.5), up.privacy.ObjectivePerturbation(alpha=20.0, norm_bound=1.0), {}),
    "Scaffold with a prox": (up.Scaffold(), up.privacy.ErmOutput(1.0, noise_std=0.01, prox_mu=0.5), {}),
    "minibatches": (
        up.FedProx(mu=0.5),
        up.privacy.BoltOnSGD(norm_bound=1.0, noise_std=0.01),
        {"local": up.LocalSGD(lr=0.3, epochs=3, batch_size=32)},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_compiled_solver_agrees_with_the_numpy_one(case):
    algorithm, privacy, changes = CASES[case]
    slow, fast = (run(engine, algorithm, privacy, **changes) for engine in ("sequential", "fused"))
    # Both round in float64; the release is rounded to a grid of noise_std 2^-20 and then to float32.
    assert np.abs(fast.params.numpy() - slow.params.numpy()).max() < 1e-6
    assert np.array_equal(fast.privacy.epsilon(1e-5), slow.privacy.epsilon(1e-5))


def test_the_compiled_solver_gives_the_same_bits_for_any_number_of_threads():
    from upcycled.core.engine import Task
    from upcycled.core.layout import flatten, layout_of
    from upcycled.core.mechanism import Ask
    from upcycled.core.sampling import Cohort
    from upcycled.core.solvers import CertifiedGD, Problem
    from upcycled.engines.fused import FUSED

    xs, ys = ragged(sizes=(900, 40, 333, 128, 77), features=6, classes=3)
    data = up.FederatedData.from_arrays(xs, ys, num_classes=3)
    module = up.models.logistic((6,), 3)
    solver = CertifiedGD(smoothness=1.0, a=0.5, steps=60)
    task = Task(module, layout_of(module), 3, data.train, None, solver, seed=1, objective=up.losses.CrossEntropy())
    everyone = Cohort(np.arange(5), np.full(5, 60))
    work = Ask(1, 1, 0, everyone, flatten(module), Problem(a=0.5))
    found = []
    for threads in (1, 2, 3):
        engine = FUSED.open(task, threads)
        found.append(engine.train(work).vectors)
        engine.close()
    assert found[0].dtype == np.float64
    assert all(np.array_equal(found[0], other) for other in found[1:])
