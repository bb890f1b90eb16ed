"""What a server takes of a reply: whatever is not the answer to its question, whole and finite, is left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from upcycled.core.mechanism import Release
from upcycled.core.sampler import Cohort
from upcycled.core.vectors import Vector
from upcycled.flower.exchange import SaidNoError, UnfitReplyError
from upcycled.flower.messages import Fields, MalformedError, Message, Refusal, Reply, unpacked
from upcycled.runtime.plan import Plan
from upcycled.runtime.round import Answer, Ask
from upcycled.support.formats import general

LARGEST_NORM = 1e6
"""Of an update: what is longer is no step of training."""


def opened(fields: Fields) -> Message:
    """Return what a site sent.

    Raises:
        UnfitReplyError: if it cannot be read.
        SaidNoError: if it is the site's refusal.
    """
    try:
        reply = unpacked(fields)
    except MalformedError as error:
        raise UnfitReplyError(f"the reply cannot be read: {error}") from error
    if isinstance(reply, Refusal):
        raise SaidNoError(reply.reason[:500])
    return reply


@dataclass(frozen=True)
class Expectation:
    """What an answer to one round's questions must be."""

    plan: Plan
    run: str
    asked: Ask

    def answer(self, client: int, fields: Fields) -> Answer:
        """Return a client's answer as the round takes it.

        Raises:
            UnfitReplyError: with what is wrong with it.
            SaidNoError: if it is the site's refusal.
        """
        reply = opened(fields)
        if not isinstance(reply, Reply):
            raise UnfitReplyError("the reply is no answer")
        asked, plan = self.asked.of(client), self.plan
        if (reply.run, reply.client) != (self.run, client):
            raise UnfitReplyError("the reply is another client's, or of another run")
        if (reply.round, reply.attempt) != (asked.round, asked.attempt):
            raise UnfitReplyError(f"the reply is of data round {reply.round}, attempt {reply.attempt}: stale")
        (samples,) = plan.facts.sizes[asked.cohort.rows].tolist()
        (steps,) = plan.solver.local.num_steps(plan.facts.sizes[asked.cohort.rows], asked.cohort.epochs).tolist()
        if (reply.samples, reply.steps) != (samples, steps):
            raise UnfitReplyError(
                f"the reply says {reply.samples} samples and {reply.steps} steps, not {samples} and {steps}"
            )
        dtype: np.dtype[Any] = np.dtype(np.float64 if plan.mechanism.is_central else np.float32)
        self._check("vector", reply.vector, plan.layout.size, dtype)
        self._check_length(reply.vector, asked.model)
        statistics = None
        if plan.statistics is not None:
            if reply.statistics is None:
                raise UnfitReplyError("the reply lacks running statistics")
            self._check("statistics", reply.statistics, plan.statistics.size, np.dtype(np.float32))
            self._check_length(reply.statistics, np.zeros_like(reply.statistics))
            statistics = reply.statistics[None, :]
        elif reply.statistics is not None:
            raise UnfitReplyError("the reply has running statistics, which the model has not")
        numbers = [np.array([value], dtype=np.int64) for value in (client, samples, steps)]
        release = Release(numbers[0], reply.vector[None, :], numbers[1], numbers[2], statistics)
        return Answer(release, plan.mechanism.charge(asked.cohort))

    def _check(self, name: str, vector: Vector, size: int, dtype: np.dtype[Any]) -> None:
        if vector.dtype != dtype:
            raise UnfitReplyError(f"the {name} is of type {vector.dtype}, not {dtype}")
        if vector.shape != (size,):
            raise UnfitReplyError(f"the {name} has {vector.size} numbers, not {size}")
        if not np.isfinite(vector).all():
            raise UnfitReplyError(f"the {name} is not finite")

    def _check_length(self, vector: Vector, sent: Vector) -> None:
        moved = float(np.linalg.norm(vector.astype(np.float64) - sent.astype(np.float64)))
        if not moved <= LARGEST_NORM:
            raise UnfitReplyError(f"the update has norm {general(moved)}, above {general(LARGEST_NORM)}")


def cohort_of_answers(asked: Ask, clients: list[int]) -> Cohort:
    """Return some clients of a cohort, in the order in which they were asked."""
    return asked.cohort[np.flatnonzero(np.isin(asked.cohort.clients, clients))]
