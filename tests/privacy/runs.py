"""Small federations, public settings and spies shared by the tests of mechanisms."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json

import numpy as np

import upcycled as up
from upcycled.algorithms import ALGORITHMS
from upcycled.core.facts import Facts
from upcycled.core.mechanism import Setting
from upcycled.core.objective import softmax_loss
from upcycled.core.sampling import Cohort, Participation
from upcycled.core.solvers import LocalSGD

QUIET = {"progress": False, "engine": "sequential"}


def setting(**changes):
    """Public facts of a run: FedProx(0.5) on 20 features, 2 classes, everybody in each of 40 rounds."""
    sizes = np.asarray(changes.pop("sizes", [224, 45, 400]))
    of_data = {name: changes.pop(name) for name in ("ids", "shared") if name in changes}
    num_clients = changes.pop("num_clients", sizes.size)
    who = (changes.pop("participation", 1.0), changes.pop("sampling", "fixed"), changes.pop("stragglers", 0.0))
    facts = {
        "facts": Facts((20,), np.dtype(np.float32), 2, sizes, num_clients, **of_data),
        "participation": Participation(*who),
        "algorithm": "fedprox",
        "penalty": 0.5,
        "is_personal": False,
        "remembers": (),
        "local": LocalSGD(),
        "is_plain_sgd": True,
        "is_local_given": False,
        "gradients_per_step": 1,
        "num_parameters": 42,
        "convex": softmax_loss(2),
        "has_bias": True,
        "has_batch_norm": False,
        "rounds": np.full(sizes.size, 40),
        "data_rounds": 40,
    }
    return Setting(**(facts | changes))


def unplanned(facts):
    """The same facts of a run that plans no charges: its ledger states those that a test makes."""
    return dataclasses.replace(facts, rounds=0 * facts.rounds)


def chained(lines):
    """A ledger's lines as text, each with the SHA-256 of all before it: what a forger without a key can write too."""
    tip, found = "0" * 64, []
    for line in lines:
        text = json.dumps({name: value for name, value in line.items() if name != "chain"}, separators=(",", ":"))
        tip = hashlib.sha256((tip + text).encode()).hexdigest()
        found.append(f'{text[:-1]},"chain":"{tip}"}}\n')
    return "".join(found)


def cohort(clients):
    """These clients in a round, one epoch each."""
    clients = np.asarray(clients, dtype=np.int64)
    return Cohort(clients, np.ones_like(clients))


def wide(sizes=(23, 17, 31, 12), features=40, classes=10, seed=0):
    """A federation whose model has 410 parameters: four releases hold enough numbers to judge a distribution."""
    rng = np.random.default_rng(seed)
    xs = [rng.normal(0.2 * i, 1.0, (n, features)).astype(np.float32) for i, n in enumerate(sizes)]
    ys = [rng.integers(0, classes, n) for n in sizes]
    return up.FederatedData.from_arrays(xs, ys, num_classes=classes)


def make(name):
    """An algorithm with a local quadratic term where it has one."""
    made = {"pfedme": up.PFedMe(lam=2.0, inner_steps=1, inner_lr=0.5)}
    return made.get(name) or ALGORITHMS[name]()


@contextlib.contextmanager
def server_sees(name, monkeypatch):
    """Collect what the server step of an algorithm is handed."""
    seen, kind = [], ALGORITHMS[name]
    original = kind.server_step

    def spy(self, server, memory, arrived):
        seen.append(arrived)
        return original(self, server, memory, arrived)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "server_step", spy)
        yield seen


def first_arrival(monkeypatch, data, name, privacy, **changes):
    """Return what the server is handed in the first data round."""
    arguments = {"iterations": 1, "algorithm": make(name), "seed": 3} | QUIET | changes
    with server_sees(name, monkeypatch) as seen:
        up.train(data, privacy=privacy, **arguments)
    return seen[0]
