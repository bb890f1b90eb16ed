"""One small experiment for every mechanism of the table, for tests that must cover all of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from upcycled.privacy.mechanisms import MECHANISMS

SGD = {"lr": 0.05, "epochs": 1, "batch_size": 8}
PROX = {"name": "fedprox", "mu": 0.5}
CASES = {
    "model_clipping": {"privacy": {"clip_norm": 1.0, "noise_std": 4.0}, "local": SGD},
    "update_clipping": {"privacy": {"clip_norm": 1.0, "epsilon": 2.0, "delta": 1e-3}, "local": SGD},
    "erm_output": {"privacy": {"norm_bound": 1.0, "epsilon": 2.0, "delta": 1e-3}, "algorithm": PROX, "local": None},
    "bolt_on_sgd": {
        "privacy": {"norm_bound": 1.0, "epsilon": 2.0, "delta": 1e-3},
        "local": SGD | {"batch_size": "full"},
    },
    "objective_perturbation": {"privacy": {"norm_bound": 1.0, "epsilon": 6.0}, "algorithm": PROX, "local": None},
    "dpsgd": {"privacy": {"clip_norm": 1.0, "noise_multiplier": 1.0}, "local": SGD},
    "central_dp_fedavg": {"privacy": {"clip_norm": 1.0, "noise_multiplier": 5.0}, "local": SGD},
}
"""Changes of an experiment's tables by mechanism, without the mechanism's name and the noise."""
EVERY_MECHANISM = pytest.mark.parametrize("mechanism", MECHANISMS)
LIMITS = {"mechanisms": ["none", *MECHANISMS], "least_noise": 1e-3, "most_epsilon": 100.0, "trusts_server": True}
"""The privacy table of a site that accepts every mechanism."""
DEAR = {"epsilon": 15.0, "noise_std": 0.05, "noise_multiplier": 0.05}
"""Settings with which one data round of any mechanism costs more than epsilon 1."""


def tables_of(mechanism, noise="system"):
    """Return the tables of an experiment with this mechanism."""
    if mechanism not in CASES:
        pytest.fail(
            f"mechanism '{mechanism}' has no case in tests/mechanism_cases.py; add one, so that the tests of ledgers, "
            "accounts and sites cover it"
        )
    case = CASES[mechanism]
    return case | {"privacy": case["privacy"] | {"mechanism": mechanism, "noise": noise}}


def dear_tables_of(mechanism):
    """Return the tables of an experiment with this mechanism and far too little noise."""
    tables = tables_of(mechanism)
    return tables | {"privacy": {name: DEAR.get(name, value) for name, value in tables["privacy"].items()}}


def charges_of(ledger, client):
    """Return a client's charges in a ledger, each with its place in the columns."""
    lines = [entry for entry in ledger if entry.charge is not None and client in entry.clients]
    return [(line.charge, line.clients.tolist().index(client)) for line in lines]


def charges_in_bytes(charges):
    """Return charges of one client, each with its place, as (kind, bytes of every column): equal if bits are."""
    alone = [replace(charge[np.array([place])], clients=np.zeros(1, dtype=np.int64)) for charge, place in charges]
    return [(one.kind, {name: (v.dtype.str, v.tobytes()) for name, v in one.columns.items()}) for one in alone]
