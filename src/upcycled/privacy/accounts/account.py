"""A data holder's account: what every client has spent over all studies, and the most that it ever may."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from upcycled._utils.files import make_private, read_json_lines, write_whole
from upcycled._utils.formats import general, percent
from upcycled._utils.lock import locked
from upcycled.core.errors import BudgetSpentError, InputError
from upcycled.core.mechanism import Charge, Promise
from upcycled.core.vectors import Ints
from upcycled.privacy.accounting.gaussian import ROOM
from upcycled.privacy.accounts.account_file import (
    FILE,
    AccountFile,
    ChargedLine,
    Closed,
    Committed,
    Ended,
    Line,
    Prepared,
    Study,
)
from upcycled.privacy.accounts.filters import Commitment, Pot, make_pot
from upcycled.privacy.charge_kinds import kind_named
from upcycled.privacy.ledger.budget import PlannedCharges
from upcycled.privacy.ledger.chain import Head, as_head, check_mac, head_of, key_at
from upcycled.privacy.ledger.entries import Entry
from upcycled.privacy.mechanisms import PROVEN, claim_word
from upcycled.privacy.mechanisms.requirements import check_delta_for

KEY, DATA = "account.key", "data.jsonl"
NOBODY = "no client yet"


@dataclass(frozen=True, eq=False)
class Cost:
    """What a run is going to charge: one charge, so many times for each of its clients."""

    clients: tuple[str, ...]
    """What the holder calls the run's clients, by their numbers."""
    charge: Charge
    times: Ints
    """One number for each of the charge's clients."""


class Account:
    """What the clients of a data holder have spent over all studies: ``train(..., account=DIR)`` charges it.

    An account is a folder of the holder's own (0700). It is opened once, with the most that a client may ever spend,
    and a *filter* holds every client to that: the claim is (epsilon, delta) over all studies together, whatever later
    ones depended on. Seeds, retries, sweeps and later studies with real noise are charged to it, each data round before
    its release exists; simulations are not. What is charged stays, whatever becomes of the run. A run that does not fit
    as a whole is refused before it trains; with its first charge the account keeps all that the run plans, and gives
    the rest back only if the run ends as planned.

    It belongs to the holder, not to the data: clients are known by name, and a changed record resets nothing (a keyed
    hash notes for the holder that data changed). Everybody else sees a random id.

    >>> import tempfile, upcycled as up
    >>> folder = tempfile.TemporaryDirectory()
    >>> account = up.privacy.Account.open(f"{folder.name}/account", epsilon=4.0, delta=1e-5, kind="gaussian")
    >>> data = up.data.synthetic("iid", clients=3, sizes=40, seed=0)
    >>> clipping = up.privacy.ModelClipping(clip_norm=1.0, noise_std=10.0)
    >>> study = {"algorithm": up.FedAvg(), "privacy": clipping, "noise": "system", "progress": False}
    >>> _ = up.train(data, **study, iterations=10, account=account.folder)
    >>> account = up.privacy.Account.read(account.folder)
    >>> account.clients, round(account.share("0"), 3)
    (('0', '1', '2'), 0.468)
    >>> up.train(data, **study, iterations=12, account=account.folder)
    Traceback (most recent call last):
    ...
    upcycled.core.errors.InputError: account '...' cannot pay for this run: client '0' has 53 % of its budget left, \
which buys 11 of its 12 data rounds: plan fewer rounds, or more noise
    >>> folder.cleanup()
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Read the account of a folder: see :meth:`read`."""
        self.folder = Path(folder)
        """Where it lies."""
        self._file = AccountFile(self.folder)
        self._sums: list[dict[str, tuple[float, int]]] = []
        self._charges: list[ChargedLine] = []
        self._reserves: dict[int, _Reserve] = {}
        self._is_closed = False
        if not (self.folder / FILE).exists():
            self._file.new_lines()  # says what is missing, and makes no folder
        with self._held():
            pass

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        kind: str = "mixed",
        order: float | None = None,
        draws: int | None = None,
        pots: Sequence[Mapping[str, Any]] | None = None,
        unit: str = "record",
    ) -> Account:
        """Open an account, with what no client may ever exceed; all of this is fixed from now on.

        Args:
            folder: where; it must not have an account yet, and becomes its owner's alone.
            epsilon: the most that a client may spend over all studies.
            delta: the delta that goes with it; 0 with ``kind="pure"``.
            kind: ``"mixed"`` takes every mechanism, and costs some percent of what ``"gaussian"`` lets through, which
                takes Gaussian releases only; ``"pure"`` takes pure ones only.
            order: the Renyi order of a mixed account; the best for Gaussian releases if left out.
            draws: the most numbers of real noise that a client may be charged for; of a Gaussian account ten millions
                or more, what a small part of delta pays for, if left out.
            pots: in the place of epsilon, delta, kind, order and draws: a list of such tables, one a kind, whose
                epsilons and deltas add up, such as ``[{"kind": "gaussian", "epsilon": 2.0, "delta": 1e-6}, ...]``.
            unit: ``"record"``, or ``"client"``, which refuses mechanisms that protect records only.

        Returns:
            The account.

        Raises:
            InputError: in one sentence, if there is an account already, or a number is out of its range.

        >>> import tempfile, upcycled as up
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     account = up.privacy.Account.open(f"{folder}/account", epsilon=2.0, delta=1e-5)
        ...     account.terms.pots[0].kind, round(account.terms.pots[0].order, 1), account.clients
        ('mixed', 10.2, ())
        """
        given = {"epsilon": epsilon, "delta": delta, "order": order, "draws": draws}
        if pots is None:
            pots = [{"kind": kind} | {name: value for name, value in given.items() if value is not None}]
        elif any(value is not None for value in given.values()):
            raise InputError("are given beside epsilon, delta, order or draws, but they have their own", field="pots")
        terms = Commitment(secrets.token_hex(8), unit, tuple(_pot(pot) for pot in pots))
        place = Path(folder)
        make_private(place)
        with locked(place, is_private=True, waits=True):
            if (place / FILE).exists():
                raise InputError(f"{place} has an account already: what is committed is never changed; choose another")
            key_at(place / KEY)
            AccountFile(place).begin(terms)
        return cls(place)

    @classmethod
    def read(cls, folder: str | os.PathLike[str], head: Head | Mapping[str, Any] | None = None) -> Account:
        """Return the account of a folder.

        Args:
            folder: where it lies.
            head: what its head was (:attr:`head`), kept elsewhere: an account that lost charges since is refused.

        Returns:
            The account, with every charge up to now.

        Raises:
            InputError: in one sentence, if there is none, or it is not what the head says.

        >>> import tempfile, upcycled as up
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     head = up.privacy.Account.open(f"{folder}/account", epsilon=2.0, delta=1e-5).head
        ...     up.privacy.Account.read(f"{folder}/account", head=head).is_closed
        False
        """
        found = cls(folder)
        if head is not None:
            found._hold_against(as_head(head))
        return found

    # What it says

    @property
    def terms(self) -> Commitment:
        """What was committed at opening."""
        assert self._file.terms is not None  # read by now
        return self._file.terms

    @property
    def id(self) -> str:
        """What everybody may call it: random."""
        return self.terms.id

    @property
    def is_closed(self) -> bool:
        """Whether nothing may be charged any more."""
        return self._is_closed

    @property
    def studies(self) -> tuple[Study, ...]:
        """The runs that were charged, in order."""
        return tuple(self._file.studies)

    @property
    def claim(self) -> str:
        """What its epsilon is: ``"proven"``, or whose claim, where a study's mechanism is not the package's."""
        return claim_word(*(study.mechanism for study in self.studies))

    @property
    def charges(self) -> tuple[ChargedLine, ...]:
        """Every charge, in order."""
        return tuple(self._charges)

    @property
    def clients(self) -> tuple[str, ...]:
        """Who has spent anything."""
        return tuple(dict.fromkeys(name for sums in self._sums for name in sums))

    @property
    def head(self) -> Head:
        """What the account holds by now, under the holder's key, to be kept elsewhere."""
        return head_of(self._file.tips, key_at(self.folder / KEY))

    @property
    def content(self) -> bytes:
        """The file, as evidence: nothing in it follows from records."""
        return self._file.path.read_bytes()

    @property
    def times_changed(self) -> int:
        """How often a study found other data than the one before it; the holder's own."""
        seen = [line.get("hmac") for line in self._data_lines()]
        return sum(one != other for one, other in itertools.pairwise(seen))

    def share(self, client: str) -> float:
        """Return which part of a client's budget is spent or kept for runs that have not ended: of its fullest pot."""
        return max(spent / pot.limit for pot, spent in self._spent(client))

    def epsilon(self, client: str) -> float:
        """Return the epsilon of what a client has spent so far, at the account's delta, by the filter's own rule.

        Of a run that has not ended as planned, all that it planned counts. A guarantee by itself only if all studies
        were fixed before the first release; the claim is the budget.
        """
        return math.fsum(pot.epsilon_of(spent) for pot, spent in self._spent(client))

    def rounds(self, client: str) -> int:
        """Return the data rounds that a client was charged for."""
        found = 0
        for one in self._charges:
            names = self._file.studies[one.study - 1].clients
            found += one.entry.rounds * sum(names[number] == client for number in one.entry.clients.tolist())
        return found

    def charges_of(self, client: str) -> list[tuple[Charge, int]]:
        """Return a client's charges in order, then those that are kept, each with its place in the charge's columns."""
        found = []
        for one in self._charges:
            names = self._file.studies[one.study - 1].clients
            places = [i for i, number in enumerate(one.entry.clients.tolist()) if names[number] == client]
            found += [(one.charge, place) for place in places]
        for reserve in self._reserves.values():
            found += reserve.charges_of(client)
        return found

    def statement_items(self) -> tuple[tuple[str, str], ...]:
        """Return what is to be said of the account: topics, and what is said of each."""
        terms, worst = self.terms, max(self.clients, key=self.share, default=None)
        aggregates = sum(study.sees == "aggregates" for study in self.studies)
        against = "whoever sees every release of every client, in all studies together"
        if aggregates:
            against += f"; of {aggregates} studies aggregates only, whose servers are trusted"
        claim = f"epsilon {general(terms.epsilon)} at delta {general(terms.delta)}, over all studies together"
        spent = NOBODY if worst is None else f"{percent(self.share(worst))} of the budget, client {worst!r}"
        return (
            ("account", f"{self.id}{', closed' if self.is_closed else ''}"),
            ("claim", claim if self.claim == PROVEN else f"{claim}; {self.claim}"),
            ("how", "; ".join(pot_words(pot) for pot in terms.pots)),
            ("unit", f"one {terms.unit}, replaced by another (replace-one); the clients' sizes are public"),
            ("adversary", against),
            ("studies", f"{len(self.studies)}, {len(self._charges)} charges"),
            *self._not_ended(),
            ("spent by the worst client", spent),
            ("not covered", NOT_COVERED),
        )

    def _not_ended(self) -> tuple[tuple[str, str], ...]:
        if not self._reserves:
            return ()
        runs = ", ".join(self._file.studies[study - 1].run for study in self._reserves)
        return (("not ended as planned", f"{runs}; all that these studies planned counts as spent"),)

    # What it does

    def check(self, costs: Sequence[Cost], what: str = "this run", run: str | None = None) -> None:
        """Refuse what does not fit as a whole; what is kept for ``run``, which goes on, is its own.

        Raises:
            InputError: in one sentence, with what is left and how many rounds that buys.
        """
        with self._held():
            needed = self._needed(costs)
            if not needed:
                return
            if self._is_closed:
                raise InputError(f"account '{self.folder}' is closed, but {what} would be charged to it")
            own = next((i for i, study in enumerate(self._file.studies, start=1) if study.run == run), None)
            full = {key: self._over(*key, *cost, own) for key, cost in needed.items()}
            place, client = max(full, key=lambda key: full[key])
            if full[place, client] > 1 + ROOM:
                raise InputError(self._refusal(place, client, costs, what, own))

    def share_of(self, costs: Sequence[Cost]) -> float:
        """Return which part of the worst client's budget costs would take."""
        pots = self.terms.pots
        parts = [more / pots[place].limit for (place, _), (more, _) in self._needed(costs).items()]
        return max(parts, default=0.0)

    def begin(
        self,
        run: str,
        mechanism: str,
        promise: Promise,
        clients: tuple[str, ...],
        sizes: Ints,
        planned: Mapping[str, PlannedCharges] | None = None,
    ) -> AccountedRun:
        """Return a run of this account, which goes on where it was begun before.

        With its first charge, all that it has ``planned`` is kept for it; None where others decide how it goes on, as
        for a site, whose claim is the account's budget.

        Raises:
            InputError: in one sentence, for a mechanism that the account cannot vouch for.
        """
        study = Study(run, mechanism, promise.unit, promise.sees, clients)
        if len(set(clients)) < len(clients):
            raise InputError(f"account '{self.folder}' knows clients by name, but two of this run have the same")
        if self.terms.unit == "client" and promise.unit != "client":
            raise InputError(f"account '{self.folder}' is about clients, but '{mechanism}' protects records only")
        try:
            check_delta_for(
                self.terms.delta, int(sizes.max()) if self.terms.unit == "record" else len(clients), self.terms.unit
            )
        except InputError as error:
            raise error.renamed(f"account '{self.folder}': its delta") from None
        with self._held():
            if study not in self._file.studies:
                if self._is_closed:
                    raise InputError(f"account '{self.folder}' is closed, but a run would be charged to it")
                self._write(study)
            return AccountedRun(self, self._file.studies.index(study) + 1, planned)

    def note_data(self, study: int, digest: str) -> None:
        """Note, for the holder, which data a study was on: by a keyed hash, so that nobody can try guesses."""
        mac = hmac.new(key_at(self.folder / KEY), f"data {digest}".encode(), hashlib.sha256).hexdigest()
        with self._held():
            lines = [*self._data_lines(), {"study": study, "hmac": mac}]
            content = "".join(json.dumps(line) + "\n" for line in lines)
            write_whole(self.folder / DATA, content.encode(), private=True)

    def close(self) -> None:
        """Close it: nothing is charged any more."""
        with self._held():
            if not self._is_closed:
                self._write(Closed())

    def fits(self, study: int, charge: Charge) -> NDArray[np.bool_]:
        """Return which of a charge's clients can pay for it by now."""
        with self._held():
            return self._fits(study, charge)

    def end(self, study: int) -> None:
        """Give back what is kept for a study: it ended as planned."""
        with self._held():
            if study in self._reserves:
                self._write(Ended(study))

    def pay(
        self,
        study: int,
        entry: Entry,
        planned: Mapping[str, PlannedCharges] | None = None,
        question: str | None = None,
    ) -> None:
        """Charge; it is on the disk when this returns. Check and line are one step, whoever else charges.

        The filter checks the charge as readers of the file get it, and nothing is written that they would reject.

        Raises:
            BudgetSpentError: if somebody cannot pay; nobody is charged then.
            InputError: if the entry could not be read back, or no budget here takes its kind; nobody is charged then.
        """
        with self._held():
            charged = ChargedLine(study, entry, question)
            prepared = self._file.prepare(charged)
            assert isinstance(prepared.line, ChargedLine)
            charge = prepared.line.charge
            paying = self._fits(study, charge)
            if not paying.all():
                client = self._file.studies[study - 1].clients[int(charge.clients[~paying][0])]
                raise BudgetSpentError(
                    f"account '{self.folder}' cannot pay for data round {entry.round}: "
                    f"{percent(1 - self.share(client))} of the budget of client {client!r} is left, "
                    f"{'and the account is closed' if self._is_closed else 'which is less than the round costs'}"
                )
            if planned is not None and self._commit(Committed(study, planned)):
                prepared = self._file.prepare(charged)
            self._append(prepared)

    def _commit(self, committed: Committed) -> bool:
        """Keep what a study plans, unless that is kept already; say whether a line was written."""
        before = self._reserves.get(committed.study)
        if before is not None and before.committed.to_json() == committed.to_json():
            return False
        self._write(committed)
        return True

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Keep everybody else out, and know all that they have written."""
        with locked(self.folder, is_private=True, waits=True):
            lines = self._file.new_lines()
            if not self._sums:
                self._sums = [{} for _ in self.terms.pots]
            for line in lines:
                try:
                    self._add(line)
                except InputError as error:
                    raise InputError(f"account '{self._file.path}' is damaged ({error})") from None
            yield

    def _write(self, line: Line) -> None:
        self._append(self._file.prepare(line))

    def _append(self, prepared: Prepared) -> None:
        self._file.append(prepared)
        self._add(prepared.line)

    def _add(self, line: Line) -> None:
        if isinstance(line, Closed):
            self._is_closed = True
        if isinstance(line, Committed):
            made = [one.entry for one in self._charges if one.study == line.study]
            self._reserves[line.study] = _Reserve(line, self._file.studies[line.study - 1], self, made)
        if isinstance(line, Ended):
            self._reserves.pop(line.study, None)
        if not isinstance(line, ChargedLine):
            return
        charge, names = line.charge, self._file.studies[line.study - 1].clients
        place = self._place(charge)
        sums = self._sums[place]
        for number, more, drawn in _rows(charge, self.terms.pots[place]):
            spent, draws = sums.get(names[number], (0.0, 0))
            sums[names[number]] = spent + more, draws + drawn
        self._charges.append(line)
        if line.study in self._reserves:
            self._reserves[line.study].charge(line.entry)

    def _place(self, charge: Charge) -> int:
        """Return which pot pays."""
        place = self.terms.place_of(charge.kind)
        if place is not None:
            return place
        if not kind_named(charge.kind).is_claimed:
            raise InputError(f"account '{self.folder}' holds to an epsilon, but this mechanism claims none")
        kinds = " and ".join(f"'{pot.kind}'" for pot in self.terms.pots)
        raise InputError(
            f"account '{self.folder}' has {kinds} budgets, but this mechanism's releases are '{charge.kind}'"
            f"{': open a mixed account for them' if 'mixed' in kind_named(charge.kind).pots else ''}"
        )

    def _fits(self, study: int, charge: Charge) -> NDArray[np.bool_]:
        if self._is_closed:
            return np.zeros(charge.clients.size, dtype=bool)
        place, names = self._place(charge), self._file.studies[study - 1].clients
        pot = self.terms.pots[place]
        full = [self._over(place, names[number], more, drawn, study) for number, more, drawn in _rows(charge, pot)]
        # Twice the room of a whole run's check: sums of many charges are rounded.
        within: NDArray[np.bool_] = np.array(full, dtype=np.float64) <= 1 + 2 * ROOM
        return within

    def _needed(self, costs: Sequence[Cost]) -> dict[tuple[int, str], tuple[float, int]]:
        """Return what costs add to each pot of each client."""
        found: dict[tuple[int, str], tuple[float, int]] = {}
        for cost in costs:
            if not cost.times.any():
                continue
            place = self._place(cost.charge)
            rows = zip(_rows(cost.charge, self.terms.pots[place]), cost.times.tolist(), strict=True)
            for (number, each, drawn), times in rows:
                key = place, cost.clients[number]
                more, draws = found.get(key, (0.0, 0))
                if times:
                    found[key] = more + times * each, draws + times * drawn
        return found

    def _over(self, place: int, client: str, more: float, drawn: int, own: int | None) -> float:
        """Return how full a pot would be: above one, the client cannot pay. What is kept for study ``own`` is free."""
        pot = self.terms.pots[place]
        spent, draws = self._counted(place, client, own)
        is_too_many = drawn > 0 and draws + drawn > pot.draws
        return math.inf if is_too_many else (spent + more) / pot.limit

    def _counted(self, place: int, client: str, own: int | None = None) -> tuple[float, int]:
        """Return what a client has spent of a pot, and what is kept for studies other than ``own``; and draws."""
        spent, draws = self._sums[place].get(client, (0.0, 0))
        kept = [reserve.of(place, client) for study, reserve in self._reserves.items() if study != own]
        return spent + math.fsum(cost for cost, _ in kept), draws + sum(drawn for _, drawn in kept)

    def _refusal(self, place: int, client: str, costs: Sequence[Cost], what: str, own: int | None) -> str:
        pot = self.terms.pots[place]
        spent, draws = self._counted(place, client, own)
        more, drawn = self._needed(costs)[place, client]
        times = sum(
            count
            for cost in costs
            for number, count in zip(cost.charge.clients.tolist(), cost.times.tolist(), strict=True)
            if cost.clients[number] == client
        )
        shares = [(pot.limit - spent) / more if more else 1.0, (pot.draws - draws) / drawn if drawn else 1.0]
        buys = int(times * max(0.0, min(shares)) + 1e-9)
        left = f"{percent(max(0.0, 1 - spent / pot.limit))} of its budget left"
        kept = spent - self._sums[place].get(client, (0.0, 0))[0]
        if kept > 0:
            left += f" ({percent(kept / pot.limit)} is kept for runs that have not ended: go on with them)"
        if draws + drawn > pot.draws:
            left += f" and {pot.draws - draws} of its numbers of real noise"
        return (
            f"account '{self.folder}' cannot pay for {what}: client {client!r} has {left}, which buys {buys} of its "
            f"{times} data rounds: plan fewer rounds, or more noise"
        )

    def _spent(self, client: str) -> list[tuple[Pot, float]]:
        # No charge exceeds the limit, whatever is kept.
        return [(pot, min(self._counted(i, client)[0], pot.limit)) for i, pot in enumerate(self.terms.pots)]

    def _data_lines(self) -> list[dict[str, Any]]:
        path = self.folder / DATA
        return read_json_lines(path, "the hashes of the account's studies") if path.exists() else []

    def _hold_against(self, head: Head) -> None:
        check_mac(head, key_at(self.folder / KEY))
        tips = self._file.tips
        if len(tips) < head.lines or tips[head.lines - 1] != head.tip:
            raise InputError(f"account '{self._file.path}' does not hold all that its head says: put the file back")


@dataclass(frozen=True, eq=False)
class AccountedRun:
    """A run and the account that pays for it."""

    account: Account
    study: int
    """Its number there."""
    planned: Mapping[str, PlannedCharges] | None = None
    """The planned charges, which the account reserves; None for a site, whose server decides how a run goes on."""

    def fits(self, charge: Charge) -> NDArray[np.bool_]:
        """Return which of a charge's clients can pay by now."""
        return self.account.fits(self.study, charge)

    def pay(self, entry: Entry, question: str | None = None) -> None:
        """Charge, durably; ``question`` is the hash of what a server asked."""
        self.account.pay(self.study, entry, self.planned, question)

    def has_paid(self, question: str) -> bool:
        """Return whether the run was charged for a release that answers this question."""
        return any((one.study, one.question) == (self.study, question) for one in self.account.charges)

    def end(self) -> None:
        """Give back what was planned and not charged: the run ended as planned."""
        self.account.end(self.study)


class _Reserve:
    """The planned charges of a study that were not made yet; the account reserves them."""

    def __init__(self, committed: Committed, study: Study, account: Account, made: Sequence[Entry]) -> None:
        self.committed = committed
        self._numbers = {name: number for number, name in enumerate(study.clients)}
        self._parts: dict[str, tuple[Charge, Ints, int, NDArray[np.float64]]] = {}
        for kind, plan in committed.planned.items():
            charge, times = plan.of_clients(len(study.clients))
            place = account._place(charge)
            self._parts[kind] = charge, times.copy(), place, account.terms.pots[place].costs(charge)
        for entry in made:
            self.charge(entry)

    def charge(self, entry: Entry) -> None:
        """Take off what was charged."""
        if entry.kind in self._parts:
            left = self._parts[entry.kind][1]
            left[entry.clients] = np.maximum(left[entry.clients] - 1, 0)

    def of(self, place: int, client: str) -> tuple[float, int]:
        """Return what is kept of a pot for a client, and how many numbers of real noise."""
        cost, drawn, number = 0.0, 0, self._numbers.get(client)
        for charge, left, pot, each in self._parts.values() if number is not None else ():
            if pot == place and left[number]:
                cost += float(each[number]) * int(left[number])
                drawn += 0 if charge.draws is None else int(charge.draws[number]) * int(left[number])
        return cost, drawn

    def charges_of(self, client: str) -> list[tuple[Charge, int]]:
        """Return the charges that are kept for a client, each with its place in the charge's columns."""
        number = self._numbers.get(client)
        if number is None:
            return []
        return [(charge, number) for charge, left, _, _ in self._parts.values() for _ in range(int(left[number]))]


NOT_COVERED = (
    "runs that were not charged to this account, choices made by looking at private data, the clients' sizes n_i, "
    "timing, and that a refusal tells how much was spent before"
)


def pot_words(pot: Pot) -> str:
    """Return a pot in words."""
    budget = f"epsilon {general(pot.epsilon)} at delta {general(pot.delta)}"
    if pot.order is not None:
        return f"a Renyi filter at order {general(pot.order)}: divergences add up to {general(pot.limit)}, {budget}"
    what = "squares of sensitivity / noise std" if pot.kind == "gaussian" else "pure epsilons"
    return f"a filter: {what} add up to {general(pot.limit)}, {budget}"


def _pot(given: Mapping[str, Any]) -> Pot:
    for name in ("kind", "epsilon", "delta"):
        if name not in given:
            raise InputError(field=name, must="given: an account commits itself to it")
    wrong = set(given) - {"kind", "epsilon", "delta", "order", "draws"}
    if wrong:
        raise InputError(f"has {sorted(wrong)[0]!r}, but it takes kind, epsilon, delta, order and draws", field="pots")
    return make_pot(**given)


def _rows(charge: Charge, pot: Pot) -> list[tuple[int, float, int]]:
    """Return (client, what is added, draws) of a charge."""
    draws = np.zeros(charge.clients.size, dtype=np.int64) if charge.draws is None else charge.draws
    return list(zip(charge.clients.tolist(), pot.costs(charge).tolist(), draws.tolist(), strict=True))
