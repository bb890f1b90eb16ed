"""A federation's server: it asks sites in the place of an engine, and takes what is fit of their replies.

What a server takes of a reply: whatever is not the answer to its question, whole and finite, is left out.

A federation's server: it asks sites in the place of an engine, and leaves everything else to the runtime.

Checkpoints, ledger, live table and results folder are those of a run on one machine. No message is sent for an upcycled
iteration.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from upcycled._utils.files import json_table, reading
from upcycled._utils.formats import general
from upcycled.config.experiment import NOT_OF_CLIENTS, PLAN_KEYS, Experiment
from upcycled.config.tables import in_keys
from upcycled.core.engine import Engine, EngineKind
from upcycled.core.errors import InputError, UpcycledError, shown
from upcycled.core.mechanism import Ask, Release
from upcycled.core.sampling import Cohort
from upcycled.core.vectors import Shards, Vector
from upcycled.data import FederatedData
from upcycled.data.schema.schema import Schema, as_schema
from upcycled.federation.exchange import ConnectedNode, Exchange, Gathered, Patience, Post, SaidNoError, UnfitReplyError
from upcycled.federation.messages import (
    Fields,
    Hello,
    MalformedError,
    Message,
    Refusal,
    Reply,
    Request,
    RunTerms,
    SiteFacts,
    packed,
    unpacked,
)
from upcycled.training.plan import Plan, plan_of, task_of
from upcycled.training.round import Answer, Traffic, ask, joined, repeat, take
from upcycled.training.spec import RunSpec
from upcycled.training.state import Run

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


NOT_SENT = ("data", "name", "results", "seeds", "sweep", *NOT_OF_CLIENTS)
"""What of an experiment's file is the server's own business."""
NO_SAMPLES = "left out: a federation's server has no samples"
NOT_OFFERED = {
    "keep_best": NO_SAMPLES,
    "metrics": NO_SAMPLES,
    "charged_scores": "left out: charged scores are not offered over a federation, whose sites pay for rounds alone",
    "account": "left out: every site has its own",
}
"""What a run of a federation must do without, and why."""


class NotEnoughError(UpcycledError):
    """A data round had too few answers too often; the run can be gone on with (exit code 1 on the command line)."""


@dataclass(frozen=True)
class Event:
    """What happened to a site in an attempt at a data round: for the server's log."""

    round: int
    attempt: int
    site: str
    """None in particular where it is empty."""
    reason: str


Tell = Callable[[Event], None]


@dataclass(frozen=True, eq=False)
class Federation:
    """The sites of a run, by their numbers, and what reaches them."""

    sites: tuple[str, ...]
    post: Post
    exchange: Exchange
    patience: Patience
    tell: Tell = lambda event: None

    def introduced(self, terms: RunTerms, known: Mapping[str, SiteFacts]) -> dict[str, SiteFacts]:
        """Return the facts of all sites; those that are ``known`` from the run's beginning need not be there now.

        Raises:
            InputError: in one sentence that names the sites that are missing, and why.
        """
        found, why = dict(known), dict.fromkeys(self.sites, "not connected")
        over = self.exchange.clock() + self.patience.hello
        asked = list(self.sites)
        while asked:
            wanted = [site for site in asked if site not in found]
            left = over - self.exchange.clock()
            self.exchange.wait_for_change(left, lambda free, wanted=wanted: all(site in free for site in wanted))  # type: ignore[misc]
            left = over - self.exchange.clock()
            nodes = self.post.nodes()
            questions = {
                client: (nodes[site], packed(Hello(terms, client)))
                for client, site in enumerate(self.sites)
                if site in asked and site in nodes
            }
            gathered = self.exchange.gather(questions, _facts, seconds=left if left > 0 else self.patience.hello)
            why |= {self.sites[client]: reason for client, reason in gathered.reasons.items()}
            for client, facts in gathered.answers.items():
                self._introduce(self.sites[client], facts, found, why)
            # One that was connected and fell silent may be on its way back: a process that was started anew.
            silent = {self.sites[client] for client in gathered.silent}
            asked = [site for site in wanted if site not in found and (site not in nodes or site in silent)]
            if over <= self.exchange.clock():
                break
            if asked:
                self.exchange.pause()
        missing = [site for site in self.sites if site not in found]
        if missing:
            words = "; ".join(f"'{site}': {why[site]}" for site in missing)
            raise InputError(f"{len(missing)} of {len(self.sites)} sites cannot take part: {words}")
        return {site: found[site] for site in self.sites}

    def _introduce(self, site: str, facts: SiteFacts, found: dict[str, SiteFacts], why: dict[str, str]) -> None:
        """Note what a site said of itself."""
        if facts.site != site:
            why[site] = f"it calls itself {facts.site!r}"
        elif site in found and vars(found[site]) != vars(facts):
            raise InputError(f"site '{site}' had {found[site].samples} samples when this run began, and now others")
        else:
            found[site] = facts

    def data_round(self, terms: RunTerms) -> Callable[[Plan, Engine, Run], tuple[Run, Release, Traffic]]:
        """Return how a data round of a run is carried out: by its sites."""
        return lambda plan, engine, run: self._data_round(terms, plan, run)

    def _data_round(self, terms: RunTerms, plan: Plan, run: Run) -> tuple[Run, Release, Traffic]:
        sent, refusals = Traffic(0, 0, 0), 0
        for _ in range(self.patience.attempts):
            asked = ask(plan, run)
            gathered = self._gather(terms, plan, asked)
            sent = Traffic(
                sent.messages + gathered.messages,
                sent.bytes_up + gathered.bytes_up,
                sent.bytes_down + gathered.bytes_down,
            )
            for client, reason in gathered.reasons.items():
                self.tell(Event(asked.round, asked.attempt, self.sites[client], reason))
            answered = list(gathered.answers)
            self._charge(plan, run, asked, [*answered, *gathered.lost])
            if len(answered) >= self.patience.needed(asked.cohort.clients.size):
                words = f"taken: {len(answered)} of {asked.cohort.clients.size} answered"
                self.tell(Event(asked.round, asked.attempt, "", words))
                whole = joined(asked, list(gathered.answers.values()))
                whole = replace(whole, charge=plan.mechanism.charge(cohort_of_answers(asked, answered)))
                noise = run.noise_for(plan, asked.round, asked.attempt)
                return *take(plan, run, asked, whole, noise), sent
            # A site that says no says it again: other draws are tried once.
            refusals = refusals + 1 if len(gathered.refused) > len(gathered.reasons) - len(gathered.refused) else 0
            if refusals > 1:
                client = gathered.refused[0]
                raise NotEnoughError(
                    f"{len(gathered.refused)} sites refused data round {asked.round}; '{self.sites[client]}' says: "
                    f"{gathered.reasons[client]}"
                )
            # The attempt's number may have moved on from the state's: empty draws are passed over.
            run = repeat(replace(run, state=replace(run.state, attempt=asked.attempt)))
        raise NotEnoughError(
            f"data round {run.state.data_rounds + 1} had too few answers {self.patience.attempts} times: "
            "`upcycled federation status` says who is missing; the same command goes on"
        )

    def _gather(self, terms: RunTerms, plan: Plan, asked: Ask) -> Gathered[Answer]:
        clients = asked.cohort.clients.tolist()
        needed = self.patience.needed(len(clients))
        cohort = {self.sites[client]: client for client in clients}

        def is_worth(free: Mapping[str, ConnectedNode]) -> bool:
            return sum(site in cohort for site in free) >= needed

        # Whoever answers pays: nobody is asked for a round that cannot have enough answers.
        if not self.exchange.wait_for_change(self.patience.deadline, is_worth):
            found: Gathered[Answer] = Gathered()
            found.reasons = dict.fromkeys(clients, "not enough sites are connected and free")
            return found
        nodes = self.post.nodes()
        questions = {
            client: (nodes[site], packed(request_of(terms, plan, asked, client)))
            for site, client in cohort.items()
            if site in nodes
        }
        accept = Expectation(plan, terms.run, asked).answer
        gathered = self.exchange.gather(questions, accept, needed)
        gathered.reasons |= {client: "not connected" for site, client in cohort.items() if site not in nodes}
        return gathered

    def _charge(self, plan: Plan, run: Run, asked: Ask, clients: list[int]) -> None:
        """Write down what sites were charged, as far as a server can know: their own accounts are what counts.

        A site pays once for a question that it is asked again, so nobody is written down twice.
        """
        if run.ledger is None:
            return
        key = ("data", asked.round, asked.attempt)
        paid = {client for entry in run.ledger if entry.key == key for client in entry.clients.tolist()}
        cohort = cohort_of_answers(asked, [client for client in clients if client not in paid])
        charge = plan.mechanism.charge(cohort) if cohort.clients.size else None
        if charge is not None:
            run.ledger.charge(asked.iteration, asked.round, asked.attempt, charge)


def request_of(terms: RunTerms, plan: Plan, asked: Ask, client: int) -> Request:
    """Return what one client is sent of a round."""
    return Request(terms, asked.of(client), dict(plan.mechanism.shared))


def terms_of(experiment: Experiment, seed: int, sites: int, run: str) -> RunTerms:
    """Return what sites are told of a seed's run."""
    asked = {key: value for key, value in experiment.for_seed(seed).resolved().items() if key not in NOT_SENT}
    return RunTerms(run, json.dumps(asked, sort_keys=True), seed, sites)


def check_spec(spec: RunSpec) -> None:
    """Refuse what a federation does not offer.

    Raises:
        InputError: in one sentence.
    """
    with in_keys(PLAN_KEYS):
        for name, why in NOT_OFFERED.items():
            value = getattr(spec, name)
            if value not in (None, False, ()):
                raise InputError(field=name, value=str(value) if isinstance(value, Path) else value, must=why)


def plan_at_server(spec: RunSpec, facts: Mapping[str, SiteFacts], schema: Schema | None) -> tuple[Plan, FederatedData]:
    """Return the plan of a server that knows facts only, and what it can say of the data.

    Raises:
        InputError: in one sentence, if sites disagree, or the run does not fit them.
    """
    check_spec(spec)
    data = _face(facts, schema)
    plan = plan_of(data.facts(), spec)
    elsewhere: Any = _Elsewhere()
    kind = EngineKind("flower", lambda task: None, lambda task, threads: elsewhere)
    return replace(plan, on_data=(task_of(plan, data.train, None), kind), is_public=data.public, names=data.names), data


def kept_run(path: Path) -> str:
    """Return what names the run of a folder: found there, or new."""
    if path.exists():
        with reading(path, "the name of the folder's run"):
            return str(json_table(path.read_bytes())["run"])
    return secrets.token_hex(16)


def _face(facts: Mapping[str, SiteFacts], schema: Schema | None) -> FederatedData:
    """Return the federation as far as everybody may know it: sizes and shapes, and not one sample."""
    first = next(iter(facts))
    for site, told in facts.items():
        for key, value in told.facts.items():
            if value != facts[first].facts.get(key):
                raise InputError(
                    f"sites must agree, but {key} is {shown(value)} at '{site}' and "
                    f"{shown(facts[first].facts.get(key))} at '{first}'"
                )
    same = facts[first].facts
    if schema is not None and same.get("schema") != schema.fingerprint:
        raise InputError("the sites' schema is not that of the experiment's file: their fingerprints differ")
    try:
        x = np.zeros((0, *map(int, same["shape"])), dtype=np.dtype(str(same["dtype"])))
        width = (int(same["classes"]),) if same["has_vectors"] else ()
        is_class = same["targets"] == "classes"
        y = np.zeros((0, *(() if is_class else width)), dtype=np.int64 if is_class else np.float32)
        names = same["feature_names"]
        return FederatedData(
            Shards(x, y, np.concatenate([[0], np.cumsum([told.samples for told in facts.values()])]).astype(np.int64)),
            None,
            int(same["classes"]),
            client_names=tuple(facts),
            feature_names=None if names is None else tuple(names),
            other_columns=tuple(same["other_columns"]),
            label_names=None if same["label_names"] is None else tuple(same["label_names"]),
            public=bool(same["public"]),
            vocabulary=same["vocabulary"],
            targets=same["targets"],
            schema=schema,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the facts of site '{first}' cannot be read: {error}") from error


def schema_of(experiment: Experiment) -> Schema | None:
    """Return what columns mean, where the experiment's file says so."""
    said: Any = getattr(experiment.data, "schema_", None)
    return None if said is None else as_schema(said)


def _facts(client: int, fields: Fields) -> SiteFacts:
    reply = opened(fields)
    if not isinstance(reply, SiteFacts) or reply.samples < 1:
        raise UnfitReplyError("the reply has no facts")
    return reply


class _Elsewhere:
    """Stands where an engine is: all its work is done by others."""

    name, way = "flower", "sites"

    def close(self) -> None:
        """There is nothing to close."""
