"""Every algorithm against an independent float64 implementation, vanilla and upcycled, with its options."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import upcycled as up
from tests.conftest import ragged
from tests.reference import Reference

CASES = [
    (up.FedAvg(), {}),
    (up.FedAvg(server_lr=0.7), {"server_lr": 0.7}),
    (up.FedAvgM(server_momentum=0.4), {"server_momentum": 0.4, "server_lr": 1.0, "nesterov": True}),
    (
        up.FedAvgM(server_momentum=0.6, server_lr=0.8, nesterov=False),
        {"server_momentum": 0.6, "server_lr": 0.8, "nesterov": False},
    ),
    (up.FedProx(mu=0.7), {"mu": 0.7}),
    (up.FedProx(mu=0.7, server_lr=1.4), {"mu": 0.7, "server_lr": 1.4}),
    (up.Scaffold(), {}),
    (up.Scaffold(server_lr=1.3), {"server_lr": 1.3}),
    (up.FedDyn(alpha=0.3), {"alpha": 0.3}),
    (up.FedDyn(alpha=0.3, server_lr=0.8), {"alpha": 0.3, "server_lr": 0.8}),
    (up.PFedMe(lam=2.0, inner_steps=3), {"lam": 2.0, "inner_steps": 3, "inner_lr": 0.2, "beta": 1.0}),
    (
        up.PFedMe(lam=5.0, inner_steps=4, inner_lr=0.05, beta=0.6),
        {"lam": 5.0, "inner_steps": 4, "inner_lr": 0.05, "beta": 0.6},
    ),
    (up.FedYogi(), {"server_lr": 0.1, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3}),
    (
        up.FedYogi(server_lr=0.05, beta1=0.8, beta2=0.9, tau=1e-2),
        {"server_lr": 0.05, "beta1": 0.8, "beta2": 0.9, "tau": 1e-2},
    ),
    (
        up.FedAdam(server_lr=0.05, beta1=0.8, beta2=0.9, tau=1e-2),
        {"server_lr": 0.05, "beta1": 0.8, "beta2": 0.9, "tau": 1e-2},
    ),
    (up.FedNova(), {}),
    (up.FedNova(server_lr=0.6), {"server_lr": 0.6}),
]
RULES = {
    "vanilla": (None, None),
    "constant": (0.7, lambda m: 0.7),
    "proximal": (up.coefficients.Proximal(mu=0.7, lam=[0.5, 1.0, 1.5]), lambda m: 0.7 / (0.7 + min(m, 3) / 2)),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("algorithm", "options"), CASES, ids=lambda v: str(v)[:40])
def test_algorithm_agrees_with_the_float64_reference_after_12_iterations(algorithm, options, rule):
    xs, ys = ragged()
    upcycle, rho = RULES[rule]
    momentum = 0.0 if algorithm.name == "pfedme" else 0.5
    torch.manual_seed(3)
    model = nn.Linear(5, 3)
    start = np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])
    result = up.train(
        up.FederatedData.from_arrays(xs, ys, num_classes=3),
        model=model,
        algorithm=algorithm,
        upcycle=upcycle,
        iterations=12,
        local=up.LocalSGD(lr=0.2, momentum=momentum, epochs=3, batch_size=None),
        engine="sequential",
        progress=False,
    )
    reference = Reference(algorithm.name, options, xs, ys, 3, start, lr=0.2, momentum=momentum, epochs=3)
    expected = reference.run(12, rho)
    assert np.abs(result.params.numpy() - expected).max() <= 1e-4 * np.abs(expected).max()
    if algorithm.name == "pfedme":
        for client, theta in enumerate(reference.theta):
            got = result.personal_models.params(client).numpy()
            assert np.abs(got - theta).max() <= 1e-4 * np.abs(theta).max()
