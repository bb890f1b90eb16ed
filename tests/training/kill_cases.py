"""Runs that are killed and resumed: every algorithm, engine and strategy, and private ones, all of them small."""

from __future__ import annotations

import hashlib
import json

import upcycled as up
from tests.conftest import ragged
from upcycled.algorithms import ALGORITHMS
from upcycled.privacy.ledger.budget import Budget
from upcycled.privacy.ledger.entries import to_line
from upcycled.training.plan import make_plan

DELTA = 1e-5
SAMPLED = ("dpsgd", "central_dp_fedavg")
"""Their epsilon takes seconds; it is a function of the ledger's lines."""
ENGINES = ("sequential", "fused", "vectorised")
# The fused engine is so fast that a kill at a random moment needs a longer run to hit.
ITERATIONS = {"sequential": 12, "fused": 60, "vectorised": 12}


def _private():
    clipped = up.privacy.ModelClipping(clip_norm=10.0, noise_std=0.8)
    louder = up.privacy.ModelClipping(10.0, 80.0)
    objective = up.privacy.ObjectivePerturbation(20.0, norm_bound=1.0)
    # Sensitivities differ by n_i, so the small clients run out of budget on the way.
    filtered = {"privacy": up.privacy.ErmOutput(1.0, noise_std=0.9), "budget": Budget(4.0, DELTA)}
    return {
        "erm": {"algorithm": up.FedProx(), "privacy": up.privacy.ErmOutput(1.0, noise_std=0.5), "engine": "fused"},
        "erm-budget": {"algorithm": up.FedProx(), "engine": "sequential", "iterations": 14, **filtered},
        "clipping": {"algorithm": up.Scaffold(), "privacy": clipped, "engine": "fused", "participation": 0.5},
        "clipping-personal": {"algorithm": up.PFedMe(lam=2.0), "privacy": clipped, "engine": "vectorised"},
        "objective": {"algorithm": up.FedDyn(alpha=0.5), "privacy": objective, "engine": "sequential"},
        "dpsgd": {"algorithm": up.FedYogi(), "privacy": up.privacy.DPSGD(1.0, 1.5), "engine": "sequential"},
        "central": {
            "algorithm": up.FedAvgM(),
            "privacy": up.privacy.CentralDPFedAvg(1.0, 1.0, secret_sampling=True),
            "engine": "fused",
            "sampling": "poisson",
            "participation": 0.5,
        },
        "system": {"algorithm": up.Scaffold(), "privacy": louder, "engine": "fused", "noise": "system"},
    }


PRIVATE = ("erm", "erm-budget", "clipping", "clipping-personal", "objective", "dpsgd", "central")
PLAIN = tuple(
    f"{algorithm}-{engine}-{'upcycled' if i % 2 else 'vanilla'}"
    for i, (algorithm, engine) in enumerate((a, e) for a in ALGORITHMS for e in ENGINES)
)
"""7 x 3, and both strategies with each algorithm and each engine."""


def plan_of(name, checkpoint=None, every=1):
    """Return the plan of a case by its name."""
    sizes = (23, 7, 41, 12)
    data = up.FederatedData.from_arrays(*ragged(sizes), test=ragged((9, 4, 6, 5), seed=1), num_classes=3)
    if name in PRIVATE or name == "system":
        arguments = {"upcycle": 0.5} | _private()[name]
    else:
        algorithm, engine, strategy = name.split("-")
        arguments = {
            "algorithm": ALGORITHMS[algorithm](),
            "engine": engine,
            "upcycle": 0.5 if strategy == "upcycled" else None,
            "participation": 0.5,
            "stragglers": 0.5,
        }
    arguments = {"iterations": ITERATIONS[arguments["engine"]], "seed": 3} | arguments
    if name not in ("erm", "erm-budget", "objective"):
        arguments["local"] = up.LocalSGD(lr=0.05, epochs=2, batch_size=10)
    return make_plan(data, up.RunSpec(checkpoint=checkpoint, checkpoint_every=every, **arguments))


def summary_of(result):
    """Return all that must be the same after any number of kills; floats exactly."""
    personal, ledger = result.personal_models, result.privacy
    rows = [
        {name: value for name, value in row.items() if name not in ("seconds", "eval_seconds")}
        | {"clients": record.clients.tolist(), "client_steps": record.client_steps.tolist()}
        for row, record in zip(result.history.rows(), result.history, strict=True)
    ]
    return {
        "params": _digest(result.params),
        "model": [_digest(value) for value in result.model.state_dict().values()],
        "personal": None if personal is None else {client: _digest(personal.params(client)) for client in personal},
        "history": rows,
        "settings": [(name, repr(value)) for name, value in result.settings.items()],
        "ledger": None if ledger is None else [to_line(entry) for entry in ledger],
        "epsilon": None if ledger is None or ledger.mechanism in SAMPLED else ledger.epsilon(DELTA).tolist(),
        "rounds": None if ledger is None else ledger.rounds.tolist(),
    }


def _digest(tensor):
    return hashlib.sha256(tensor.numpy().tobytes()).hexdigest()


def as_json(summary):
    """Return it as text; Python writes each float so that it reads back as the same."""
    return json.dumps(summary)
