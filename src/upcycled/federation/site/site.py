"""A data holder at work: it answers what its file allows, with its own code, and pays from its own account.

Stores the questions that a site accepted in a run, and its latest replies.

Runs with real noise are remembered beside the account that pays for them, so that policies with one account remember
the same. A question is noted once it is paid for, and a reply is on the disk before it is sent. So a question that
comes again gets the same bytes and costs nothing more, and another question under the same (run, round, attempt) is
refused.

The order within an answer is what makes it safe: the request is checked, the charge is on the disk with the hash of
the question, the question is noted as paid for, then local work, then the reply is on the disk, then it is sent. A site
that dies on the way stays charged. Asked again, it sends the same bytes or makes the one release that it paid for; if
it cannot know that nothing left, it pays again.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from upcycled._utils.files import json_table, make_private, reading, write_whole
from upcycled._utils.lock import locked
from upcycled.core.engine import Engine
from upcycled.core.errors import BudgetSpentError, InputError, UpcycledError
from upcycled.core.mechanism import Ask
from upcycled.data import FederatedData
from upcycled.data.schema.schema import Schema
from upcycled.federation.messages import (
    Fields,
    Hello,
    MalformedError,
    Refusal,
    Reply,
    Request,
    RunTerms,
    ScoreRequest,
    SiteFacts,
    SiteScores,
    digest_of,
    packed,
    unpacked,
)
from upcycled.federation.site.policy import Policy, account_of, site_data
from upcycled.federation.site.request_checks import (
    Refused,
    charge_of,
    check_message,
    check_plan,
    check_request,
    check_scored,
    check_size,
    client_of,
    own_part,
    spec_of,
)
from upcycled.privacy.accounts.account import Account, AccountedRun
from upcycled.privacy.ledger.entries import Entry
from upcycled.privacy.noise.sources import SeededNoise, SystemNoise
from upcycled.training.checkpoint.fingerprint import hash_of_shards
from upcycled.training.plan import Plan, plan_for_client
from upcycled.training.round import answer

MOST_KEPT = 8
"""Replies of a run that are kept, the latest ones: a server cannot fill the disk with attempts."""


@dataclass(frozen=True)
class KeptReplies:
    """The replies of one run; the folder is the site's own."""

    folder: Path

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder, and keep other processes out of it while the block runs."""
        make_private(self.folder.parent)
        with locked(self.folder, is_private=True, waits=True):
            yield

    def found(self, asked: Ask, question: str) -> Fields | None:
        """Return the reply to a question that was answered before; None for one that was not.

        Raises:
            Refused: in one sentence, for another question under the same key, and for a round that is over.
        """
        noted = self._noted(asked)
        if noted is not None and noted["question"] != question:
            raise Refused(f"data round {asked.round}, attempt {asked.attempt}, was asked before with another question")
        path = self._path(asked, "reply")
        if noted is not None and path.exists():
            with reading(path, "a reply of this site"):
                return fields_from(path.read_bytes())
        last = max((round for round, _ in self._keys()), default=0)
        if asked.round < last:
            raise Refused(f"data round {asked.round} is over: this site has answered data round {last}")
        return None

    def is_taken_on(self, asked: Ask) -> bool:
        """Return whether a question was paid for and no reply to it was ever stored or sent."""
        noted = self._noted(asked)
        return noted is not None and not noted["answered"]

    def take_on(self, asked: Ask, question: str) -> None:
        """Note, durably, that a question is paid for."""
        self._path(asked, "reply").unlink(missing_ok=True)
        self._note(asked, question, is_answered=False)

    def keep(self, asked: Ask, question: str, reply: Fields) -> None:
        """Store a reply durably, and let the oldest go.

        The note comes first: a site that dies between the two pays again, and never releases twice for one charge.
        """
        self._note(asked, question, is_answered=True)
        write_whole(self._path(asked, "reply"), fields_to(reply), private=True)
        for key in self._keys()[:-MOST_KEPT]:
            for path in self.folder.glob(f"{_stem(*key)}.*"):
                path.unlink(missing_ok=True)

    def _note(self, asked: Ask, question: str, is_answered: bool) -> None:
        content = json.dumps({"question": question, "answered": is_answered})
        write_whole(self._path(asked, "json"), content.encode(), private=True)

    def _noted(self, asked: Ask) -> dict[str, Any] | None:
        path = self._path(asked, "json")
        if not path.exists():
            return None
        with reading(path, "the note of a question that this site took on"):
            noted = json_table(path.read_bytes())
            return {"question": str(noted["question"]), "answered": bool(noted["answered"])}

    def _path(self, asked: Ask, ending: str) -> Path:
        return self.folder / f"{_stem(asked.round, asked.attempt)}.{ending}"

    def _keys(self) -> list[tuple[int, int]]:
        """Return (round, attempt) of every question that was taken on, in order."""
        stems = [path.stem.split("-") for path in self.folder.glob("round-*.json")]
        return sorted((int(round), int(attempt)) for _, round, attempt in stems)


def _stem(round: int, attempt: int) -> str:
    return f"round-{round:06d}-{attempt:04d}"


def replies_of(place: Path, run: str, site: str) -> KeptReplies:
    """Return a site's replies of a run. Its folder's name is a hash, so a server cannot choose a path."""
    return KeptReplies(place / "runs" / hashlib.sha256(f"{site}\n{run}".encode()).hexdigest()[:16])


def fields_to(fields: Fields) -> bytes:
    """Return fields as bytes: a line of JSON, then the bytes among them.

    >>> fields_from(fields_to({"a": 1, "b": b"xyz"}))
    {'a': 1, 'b': b'xyz'}
    """
    blobs = {name: value for name, value in fields.items() if isinstance(value, bytes)}
    plain = {name: value for name, value in fields.items() if name not in blobs}
    head = json.dumps({"plain": plain, "bytes": {name: len(value) for name, value in blobs.items()}})
    return b"\n".join([head.encode(), b"".join(blobs.values())])


def fields_from(content: bytes) -> Fields:
    """Return the fields that :func:`fields_to` wrote."""
    head, _, rest = content.partition(b"\n")
    about = json_table(head)
    found: Fields = dict(about["plain"])
    for name, length in about["bytes"].items():
        found[name], rest = rest[:length], rest[length:]
    return found


PERSONAL = "personal.npy"
"""A site's own model of a run, where the algorithm has such; it never leaves."""


@dataclass(frozen=True, eq=False)
class _Work:
    """A run as this site does it."""

    key: str
    plan: Plan
    engine: Engine


class Site:
    """Answers messages; one at a time."""

    def __init__(self, policy: Policy, data: FederatedData, folder: Path, threads: int | None = 1) -> None:
        """Take a site's file and its samples.

        Args:
            policy: its file.
            data: its samples, of one client.
            folder: where its own files lie; its owner's alone.
            threads: of local work.
        """
        self._policy, self._data, self._threads = policy, data, threads
        self._folder, self._state = folder, policy.state(folder)
        self._work: _Work | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What was repaired in its samples, labels first: for its holder alone."""
        return self._data.notes

    def reply(self, fields: Fields) -> Fields:
        """Return the reply to a message, whatever it is; what is refused is refused in one sentence."""
        try:
            return self._reply(fields)
        except MalformedError as error:
            return packed(Refusal(f"the message cannot be read: {error}"))
        except (Refused, InputError) as error:
            return packed(Refusal(str(error)))
        except UpcycledError:
            # Its words may follow from records.
            return packed(Refusal("the local work could not be done: the site's own log says why"))

    def close(self) -> None:
        """Give back what local work holds."""
        if self._work is not None:
            self._work.engine.close()
            self._work = None

    def _reply(self, fields: Fields) -> Fields:
        check_message(self._policy, fields)
        message = unpacked(fields)
        if isinstance(message, Hello):
            return packed(self._introduced(message))
        if isinstance(message, Request):
            return self._answered(message, fields)
        if isinstance(message, ScoreRequest):
            return packed(self._scored(message))
        raise Refused("a site is asked, and asks nothing")

    def _introduced(self, hello: Hello) -> SiteFacts:
        spec = spec_of(self._policy, hello.terms)
        if spec.has_real_noise:
            account_of(self._policy, self._folder)
        return SiteFacts(self._policy.name, int(self._data.sizes[0]), plain_facts(self._data))

    def _answered(self, request: Request, fields: Fields) -> Fields:
        asked = request.ask
        work = self._work_for(request.terms, client_of(asked), request.shared)
        plan, question = work.plan, digest_of(fields)
        check_request(plan, request)
        account = account_of(self._policy, self._folder) if plan.spec.has_real_noise else None
        kept = self._kept(self._state if account is None else account.folder, request)
        with kept.held():
            before = kept.found(asked, question)
            run = None if account is None else self._begun(account, plan, request)
            is_paid = run is None or run.has_paid(question)
            if before is not None and is_paid:
                return before
            if run is not None and not (is_paid and kept.is_taken_on(asked)):
                _pay(run, plan, asked, question)
            kept.take_on(asked, question)
            reply = self._worked(work, request)
            kept.keep(asked, question, reply)
        return reply

    def _worked(self, work: _Work, request: Request) -> Fields:
        """Do the local work and return its reply: a new release, with fresh noise where noise is real."""
        plan, asked = work.plan, own_part(work.plan, request.ask)
        is_real = plan.spec.has_real_noise
        noise = SystemNoise() if is_real else SeededNoise(plan.spec.seed, asked.round, asked.attempt)
        answered = answer(plan, work.engine, asked, noise)
        release = answered.release
        if answered.private is not None:
            own = self._kept(self._state, request).folder
            make_private(own.parent)
            make_private(own)
            write_whole(own / PERSONAL, _npy(answered.private[0]), private=True)
        return packed(
            Reply(
                *(request.terms.run, client_of(asked), asked.round, asked.attempt),
                *(int(release.num_samples[0]), int(release.num_steps[0]), release.vectors[0]),
                None if release.statistics is None else release.statistics[0],
            )
        )

    def _kept(self, place: Path, request: Request) -> KeptReplies:
        return replies_of(place, request.terms.run, self._policy.name)

    def _begun(self, account: Account, plan: Plan, request: Request) -> AccountedRun:
        """Return the run in the account that pays for it."""
        mechanism, run = plan.mechanism, request.terms.run
        known = {study.run for study in account.studies}
        begun = account.begin(run, mechanism.name, mechanism.promise, (self._policy.name,), self._data.sizes)
        if run not in known:
            words = hash_of_shards(self._data.train)
            assert words is not None  # there are samples
            account.note_data(begun.study, words)
        return begun

    def _scored(self, request: ScoreRequest) -> SiteScores:
        work = self._work_for(request.terms, request.client, request.shared)
        check_scored(self._policy, work.plan, request)
        scores = work.engine.score(request.model)
        run, client = request.terms.run, request.client
        return SiteScores(run, client, request.iteration, scores.num_samples, scores.accuracy, scores.loss)

    def _work_for(self, terms: RunTerms, client: int, shared: Any) -> _Work:
        """Return the run as it is done here; what belongs to another is closed."""
        if client >= terms.clients:
            raise Refused(f"client {client} is asked, and the run has {terms.clients}")
        key = json.dumps([vars(terms), client, dict(sorted(shared.items()))])
        if self._work is None or self._work.key != key:
            spec = spec_of(self._policy, terms)
            check_size(self._policy, spec, self._data)
            plan = plan_for_client(self._data, spec, client, terms.clients, shared)
            check_plan(self._policy, plan)
            self.close()
            self._work = _Work(key, plan, plan.engine.open(plan.task, self._threads))
        return self._work


def _pay(run: AccountedRun, plan: Plan, asked: Ask, question: str) -> None:
    """Charge a round, durably, for the question that is answered in it."""
    charge, nobody_else = charge_of(plan), np.zeros(1, dtype=np.int64)
    assert charge is not None  # as checked with the plan
    try:
        run.pay(Entry(asked.iteration, "data", asked.round, asked.attempt, nobody_else, charge), question)
    except BudgetSpentError as error:
        raise Refused(f"this site's account cannot pay for data round {asked.round}") from error


def open_site(policy: Policy, folder: Path, schema: Schema | None = None, threads: int | None = 1) -> Site:
    """Read a site's samples and return it, ready to answer."""
    return Site(policy, site_data(policy, schema), folder, threads)


def plain_facts(data: FederatedData) -> dict[str, Any]:
    """Return what everybody may know of a site's data, all but how many samples it has.

    Raises:
        Refused: where that is too much for a message.
    """
    facts = data.facts()
    if facts.vectors is not None:
        raise Refused("word vectors are not sent: a federation's model learns its own")
    return {
        "shape": list(facts.shape),
        "dtype": facts.dtype.str,
        "classes": facts.classes,
        "targets": facts.targets,
        "vocabulary": facts.vocabulary,
        "has_vectors": facts.has_vectors,
        "feature_names": None if facts.feature_names is None else list(facts.feature_names),
        "other_columns": list(facts.other_columns),
        "label_names": None if facts.label_names is None else list(facts.label_names),
        "schema": None if data.schema is None else data.schema.fingerprint,
        "public": data.public,
    }


def _npy(vector: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, vector, allow_pickle=False)
    return stream.getvalue()
