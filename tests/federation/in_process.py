"""A federation in one process: sites that never see each other, and a post that tests can tamper with."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.mechanism_cases import LIMITS
from upcycled.config.experiment import parse
from upcycled.core.vectors import Shards
from upcycled.federation.coordinator import Federation, plan_at_server, terms_of
from upcycled.federation.exchange import ConnectedNode, Delivery, Exchange, Patience
from upcycled.federation.site.policy import policy_of
from upcycled.federation.site.site import Site
from upcycled.training.train import run_plan

NAMES = ("ann", "bob", "cem", "dia")
ACCOUNT = {"epsilon": 50.0, "delta": 1e-3}


def own_data(data, client):
    """What one site has: its rows alone."""
    x, y = data.train.client(client)
    mine = Shards(x.copy(), y.copy(), np.array([0, len(y)]))
    return replace(data, train=mine, test=None, client_names=None, client_ids=None, inferred=frozenset())


def make_site(data, client, folder, **changes):
    raw = {
        "name": NAMES[client],
        "simulation": True,
        "data": {"path": "unused.csv"},
        "privacy": LIMITS,
        "account": ACCOUNT,
        **changes,
    }
    folder = Path(folder) / NAMES[client]
    return Site(policy_of(raw, folder), own_data(data, client), folder)


def changed(request, **changes):
    """A request with other fields, wherever in it they lie; ``client`` asks another one."""
    asked = request.ask
    if "client" in changes:
        changes["clients"] = changes["rows"] = np.array([changes.pop("client")])

    def part(of):
        return replace(of, **{name: changes.pop(name) for name in list(changes) if name in vars(of)})

    asked = replace(asked, cohort=part(asked.cohort), problem=part(asked.problem))
    found = part(replace(request, ask=part(asked)))
    assert not changes
    return found


class Clock:
    """Time that passes only when somebody waits."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Mail:
    """Carries messages to sites at once; ``tamper`` may change, double, delay or lose what comes back."""

    def __init__(self, sites, tamper=None):
        self.sites, self.tamper = sites, tamper
        self.numbers = {name: 100 + i for i, name in enumerate(sites)}
        self.offline, self.since = set(), {}
        self.waiting = []
        self.sent = []
        self._count = itertools.count()

    def nodes(self):
        return {
            name: ConnectedNode(number, self.since.get(name, ""))
            for name, number in self.numbers.items()
            if name not in self.offline
        }

    def push(self, letters, seconds):
        names = []
        for number, fields in letters:
            name = f"message-{next(self._count)}"
            site = next(one for one, its in self.numbers.items() if its == number)
            self.sent.append((site, fields))
            reply = self.sites[site].reply(fields)
            delivery = Delivery(name, reply)
            self.waiting += [delivery] if self.tamper is None else self.tamper(site, fields, delivery)
            names.append(name)
        return names

    def pull(self, messages):
        found = [one for one in self.waiting if one.replies_to in messages]
        self.waiting = [one for one in self.waiting if one.replies_to not in messages]
        return found


def experiment_of(**changes):
    raw = {
        "name": "test",
        "iterations": 5,
        "seeds": [3],
        "engine": "sequential",
        "data": {"source": "synthetic", "alpha": "iid"},
        "algorithm": {"name": "fedavg"},
        "upcycle": {"kind": "constant", "coefficient": 0.5},
        "local": {"lr": 0.05, "epochs": 2, "batch_size": 8},
    }
    raw |= changes
    return parse({key: value for key, value in raw.items() if value is not None})


def federation_of(mail, events=None, **patience):
    clock = Clock()
    wait = Patience(**{"deadline": 10.0, "grace": 2.0, "hello": 5.0, "poll": 0.5} | patience)
    exchange = Exchange(mail, wait, clock, clock.sleep)
    tell = (lambda event: None) if events is None else events.append
    return Federation(tuple(mail.sites), mail, exchange, wait, tell=tell)


def run_over(mail, experiment, events=None, run="the-run", **patience):
    """Carry out an experiment over the mail; return the result."""
    federation = federation_of(mail, events, **patience)
    (seed,) = experiment.seeds
    terms = terms_of(experiment, seed, len(federation.sites), run)
    plan, _ = plan_at_server(experiment.spec(seed), federation.introduced(terms, {}), None)
    return run_plan(plan.kept(progress=False), [], None, federation.data_round(terms))
