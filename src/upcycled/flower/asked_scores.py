"""Exact scores of the global model, from sites whose files give them: where nothing that leaves has real noise.

A site scores the model on its own test samples; the server takes the mean over all samples that were scored. In a run
with real noise nobody is asked, and no site would answer: scores are functions of records that no epsilon covers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from upcycled.flower.arrivals import opened
from upcycled.flower.coordinator import Federation
from upcycled.flower.exchange import UnfitReplyError
from upcycled.flower.messages import Fields, RunTerms, ScoreRequest, SiteScores, packed
from upcycled.runtime.callbacks import Step
from upcycled.runtime.plan import Plan

ACCURACY, LOSS, SAMPLES = "sites_accuracy", "sites_loss", "sites_samples"
"""What records call the scores, and how many samples they are the mean of."""


@dataclass(eq=False)
class AskedScores:
    """Measures an iteration by asking sites; one that says no is not asked again."""

    federation: Federation
    terms: RunTerms
    plan: Plan
    _refused: set[int] = field(default_factory=set)

    def measure(self, step: Step) -> Mapping[str, float]:
        """Return the scores after an iteration that is to be evaluated; nothing where no site gives any."""
        plan, federation, iteration = self.plan, self.federation, step.iteration
        if iteration % plan.spec.eval_every and iteration != plan.iterations:
            return {}
        nodes, shared = federation.post.nodes(), dict(plan.mechanism.shared)
        questions = {
            client: (nodes[site], packed(ScoreRequest(self.terms, client, iteration, step.after, shared)))
            for client, site in enumerate(federation.sites)
            if site in nodes and client not in self._refused
        }
        if not questions:
            return {}

        def accepted(client: int, fields: Fields) -> SiteScores:
            return _scores(self.terms.run, client, iteration, fields)

        gathered = federation.exchange.gather(questions, accepted, federation.patience.needed(len(questions)))
        self._refused |= set(gathered.refused)
        found = list(gathered.answers.values())
        samples = sum(one.samples for one in found)
        if not samples:
            return {}
        scores = {LOSS: sum(one.samples * one.loss for one in found) / samples, SAMPLES: float(samples)}
        right = [None if one.accuracy is None else round(one.samples * one.accuracy) for one in found]
        known = [count for count in right if count is not None]
        return scores | ({ACCURACY: sum(known) / samples} if len(known) == len(found) else {})


def can_ask(plan: Plan) -> bool:
    """Say whether a run's scores may be asked for: nothing of it has real noise, and the model itself is all there is.

    Running statistics and personal models are not sent beside it.
    """
    return not plan.spec.has_real_noise and plan.statistics is None


def _scores(run: str, client: int, iteration: int, fields: Fields) -> SiteScores:
    reply = opened(fields)
    if not isinstance(reply, SiteScores) or (reply.run, reply.client, reply.iteration) != (run, client, iteration):
        raise UnfitReplyError("the reply has no scores of this iteration")
    accuracy = 0.0 if reply.accuracy is None else reply.accuracy
    if reply.samples < 1 or not 0 <= accuracy <= 1:
        raise UnfitReplyError("the scores are none")
    return reply
