"""What of a run everybody may see, decided in one place.

A run is restricted when its noise is real and its data are not declared public. Everybody may then see functions of
releases, public facts and charged numbers. The rest is the holder's own: scores, which are computed from records that
no epsilon covers; seconds, which follow from records too; personal models; a hash of the records, against which guesses
can be held; and, where epsilon relies on secret draws, who took part and everything that counts them.

When something passes to a callback, a tracker, a file or a result, it passes through here. An unrestricted run is
published as it is.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from upcycled.core.mechanism import Release
from upcycled.core.memory import ClientMemory
from upcycled.core.vectors import Shards
from upcycled.data import FederatedData
from upcycled.metrics import GLOBAL
from upcycled.training.callbacks import Step
from upcycled.training.checkpoint.fingerprint import hash_of_data
from upcycled.training.history import Record
from upcycled.training.plan import Plan
from upcycled.training.state import Run

SCORES = ("accuracy", "loss", "global_accuracy", "global_loss")
SECONDS = ("seconds", "eval_seconds")
COHORT = ("clients", "client_steps", "bytes_up", "bytes_down", "messages", "gradient_steps")
"""What tells who took part in an iteration, or how many."""


@dataclass(frozen=True)
class Publication:
    """What may be seen of one run."""

    is_restricted: bool = False
    hides_cohorts: bool = False
    """Whether epsilon relies on nobody learning who took part."""
    metrics: frozenset[str] = frozenset()
    """The names in ``Record.metrics`` that a restricted run publishes: numbers that are charged, or follow from
    releases."""

    def record(self, record: Record) -> Record:
        """Return an iteration as everybody may see it."""
        if not self.is_restricted:
            return record
        hidden: dict[str, Any] = dict.fromkeys((*SCORES, *SECONDS, *(COHORT if self.hides_cohorts else ())))
        metrics = {name: value for name, value in record.metrics.items() if name in self.metrics}
        return replace(record, **hidden, metrics=metrics)

    def run(self, run: Run) -> Run:
        """Return a run as callbacks may see it: without what clients keep to themselves."""
        return replace(run, private=ClientMemory((), 0, 0)) if self.is_restricted else run

    def plan(self, plan: Plan) -> Plan:
        """Return a plan as callbacks may see it: without a single sample, and what was noticed about any."""
        if not self.is_restricted or plan.on_data is None:
            return plan
        task, engine = plan.on_data
        nothing = replace(task, train=_without_rows(task.train), test=None)
        return replace(plan, on_data=(nothing, engine), validation=None, notes=(), warned=(), records_hash=None)

    def step(self, step: Step) -> Step:
        """Return an iteration as measurements may see it.

        Where noise is central the round itself has put the aggregate in the place of each vector. Where draws are
        secret, nobody is in the release.
        """
        if not self.hides_cohorts or step.release is None:
            return step
        nobody = np.zeros(0, dtype=np.int64)
        return replace(step, release=Release(nobody, step.release.vectors[:0], nobody, nobody))

    def about(self, data: FederatedData) -> dict[str, Any]:
        """Return what a summary says about the data: sizes, and a hash of all samples or, restricted, a random name."""
        known: dict[str, Any] = {
            "clients": data.num_clients,
            # Classes, or numbers or labels of a target.
            data.targets: data.num_classes,
            "train_samples": data.train.num_rows,
        }
        if self.is_restricted:
            return {**known, "id": secrets.token_hex(8)}
        parts = {"test_samples": data.test, "validation_samples": data.validation}
        held_out = {title: 0 if shards is None else shards.num_rows for title, shards in parts.items()}
        return {**known, "inferred": sorted(data.inferred), **held_out, "sha256": hash_of_data(data)}


def publication_of(plan: Plan) -> Publication:
    """Return what may be seen of a plan's run.

    >>> import upcycled as up
    >>> from upcycled.training.plan import make_plan
    >>> data = up.data.synthetic("iid", clients=4, seed=0)
    >>> private = up.RunSpec(algorithm=up.FedAvg(), privacy=up.privacy.ModelClipping(1.0, 1.0), noise="system")
    >>> publication_of(make_plan(data, private)).is_restricted
    True
    >>> publication_of(make_plan(data, private.replace(noise="seeded"))).is_restricted
    False
    """
    spec, mechanism = plan.spec, plan.mechanism
    if spec.privacy is None or spec.noise != "system" or plan.is_public:
        return Publication()
    is_secret = mechanism.draws_secretly or mechanism.promise.sampling_is_secret
    named = [name for one in spec.callbacks for name in getattr(one, "publishes", ())]
    charged = frozenset() if plan.scores is None else plan.scores.names
    # A callback's word is for its own numbers: the run's metrics are exact, and of no record that epsilon covers.
    exact = {name for metric in plan.metrics for name in (metric.name, f"{GLOBAL}{metric.name}")}
    return Publication(True, is_secret, charged.union(set(named) - exact))


def _without_rows(shards: Shards) -> Shards:
    return Shards(shards.x[:0], shards.y[:0], np.zeros_like(shards.offsets))
