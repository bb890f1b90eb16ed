"""A run of a federation with its results folder, and exact scores that sites give.

Exact scores of the global model, from sites whose files give them: where nothing that leaves has real noise.

A site scores the model on its own test samples; the server takes the mean over all samples that were scored. In a run
with real noise nobody is asked, and no site would answer: scores are functions of records that no epsilon covers.

A run of a federation with its results folder: what ``upcycled run`` writes for a seed, made elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from upcycled._utils.files import DamagedError, json_table, reading, write_whole
from upcycled._utils.lock import locked
from upcycled.config.experiment import PLAN_KEYS, Experiment
from upcycled.config.tables import in_keys
from upcycled.experiments.results import config_of, finished_summary, folder_run, seed_folder
from upcycled.experiments.run_in_folder import drop_checkpoint, run_in_folder
from upcycled.federation.coordinator import (
    Event,
    Federation,
    check_spec,
    kept_run,
    opened,
    plan_at_server,
    schema_of,
    terms_of,
)
from upcycled.federation.exchange import Exchange, UnfitReplyError
from upcycled.federation.folder import FederationFolder
from upcycled.federation.messages import Fields, RunTerms, ScoreRequest, SiteFacts, SiteScores, packed
from upcycled.federation.transport import GridPost, check_flower
from upcycled.run_folder import EVENTS, FEDERATION, RunFolder, Summary
from upcycled.training.callbacks import Step
from upcycled.training.plan import Plan
from upcycled.training.progress import LiveProgress
from upcycled.training.publication import publication_of
from upcycled.training.result import Result
from upcycled.training.train import run_plan

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


def run_seed(
    experiment: Experiment,
    seed: int,
    federation: Callable[[Callable[[Event], None]], Federation],
    callbacks: Sequence[object] = (),
    is_scored: bool = False,
) -> tuple[Summary, Result | None]:
    """Carry out a seed, or what is left of it, and write its results.

    Args:
        experiment: from its file; its ``results`` say where.
        seed: which of its seeds.
        federation: makes the federation, given what is told of each site that did not answer.
        callbacks: told after each iteration.
        is_scored: whether sites are asked for exact scores, where the run has no real noise.

    Returns:
        The summary, and the result; None where the seed was finished before.
    """
    folder = seed_folder(experiment, seed)
    done = _done(experiment, seed, folder)
    if done is None:
        with locked(folder.path):
            done = _done(experiment, seed, folder)  # another command may have finished it meanwhile
            if done is None:
                return _run(experiment, seed, folder, federation, callbacks, is_scored)
    drop_checkpoint(folder, experiment.is_restricted)  # of a kill before it was dropped
    return done, None


def _done(experiment: Experiment, seed: int, folder: RunFolder) -> Summary | None:
    """Return the summary of a finished run, or None where it has to be run; a folder of another run is refused."""
    about: Mapping[str, Any] = {}
    with suppress(DamagedError):
        # A finished run is known by its config: whether sites have other data now is their own affair.
        about = folder.read_summary().data
    return finished_summary(experiment, seed, about)


def run_federation(folder: FederationFolder, experiment: Experiment, seed: int, is_shown: bool = False) -> Summary:
    """Carry out a seed of a federation's experiment over Flower, and return its summary; it may show a live table.

    Raises:
        InputError: in one sentence, if sites are missing or disagree.
        ConnectionLostError: in one sentence, if Flower's server is not there.
        NotEnoughError: in one sentence, if too few sites answer; the same call goes on.
    """
    check_flower()
    check_spec(experiment.spec(seed))
    patience = folder.file.patience
    with folder.link.seat() as grid:
        post = GridPost(grid)

        def federation(tell: Callable[[Event], None]) -> Federation:
            return Federation(folder.file.sites, post, Exchange(post, patience), patience, tell=tell)

        return run_seed(experiment, seed, federation, [LiveProgress()] if is_shown else [], folder.file.scores)[0]


def _run(
    experiment: Experiment,
    seed: int,
    folder: RunFolder,
    federation: Callable[[Callable[[Event], None]], Federation],
    callbacks: Sequence[object],
    is_scored: bool,
) -> tuple[Summary, Result]:
    folder.begin(config_of(experiment, seed), experiment.is_restricted)
    home = folder.own(experiment.is_restricted)

    def tell(event: Event) -> None:
        with (home / EVENTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(vars(event)) + "\n")

    sites, path = federation(tell), home / FEDERATION
    terms = terms_of(experiment, seed, len(sites.sites), kept_run(path))
    known = _kept_facts(path)
    facts = sites.introduced(terms, known)
    with in_keys(PLAN_KEYS):
        plan, data = plan_at_server(experiment.spec(seed), facts, schema_of(experiment))
    document = {"run": terms.run, "sites": [vars(one) for one in facts.values()]}
    write_whole(path, json.dumps(document).encode(), private=experiment.is_restricted)
    scores = [AskedScores(sites, terms, plan)] if is_scored and can_ask(plan) else []
    hooks = [*scores, *plan.spec.callbacks, *callbacks]
    shown = publication_of(plan)
    run = folder_run(experiment, seed, data, shown, shown.about(data))

    def kept(places: Mapping[str, Any]) -> Plan:
        # After every data round: a server that comes back asks the very question that it was waiting for.
        return plan.kept(**places, checkpoint_every=1)

    with in_keys(PLAN_KEYS):
        result, summary = run_in_folder(run, kept, lambda job: run_plan(job, hooks, None, sites.data_round(terms)))
    assert summary is not None  # Ctrl-C is raised
    return summary, result


def _kept_facts(path: Path) -> dict[str, SiteFacts]:
    if not path.exists():
        return {}
    with reading(path, "what the sites told the run about their data"):
        return {one["site"]: SiteFacts(**one) for one in json_table(path.read_bytes())["sites"]}
