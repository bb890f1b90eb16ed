"""The per-client ledger: what was released, what it cost, and the epsilon that follows.

Append-only. A charge is written before the release leaves, and a written charge stays: a ledger opened on a file goes
on from all that is in it. With seeded noise the key (run, round, attempt) names the same releases: charging it again
costs nothing more. With real noise a round that is repeated is charged again. Upcycled iterations appear with cost
zero. No data are ever stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from upcycled._utils.formats import Overview, count, general
from upcycled._utils.formats import epsilon as epsilon_in_words
from upcycled.core.errors import InputError, check_number
from upcycled.core.mechanism import Charge, Fitted, Promise, Setting
from upcycled.core.vectors import Ints, Real
from upcycled.privacy.accounts.filters import Commitment
from upcycled.privacy.ledger.budget import DATA, SCORES, Budget, Outstanding
from upcycled.privacy.ledger.chain import Head, as_head, check_key, check_mac, head_of
from upcycled.privacy.ledger.composition import Spent
from upcycled.privacy.ledger.entries import CHARGED, ENDED, Entry, check_entry
from upcycled.privacy.ledger.header import Header, header_of
from upcycled.privacy.ledger.ledger_file import LedgerFile, read_file
from upcycled.privacy.ledger.statement import statement_items, stopped_words
from upcycled.privacy.mechanisms import PROVEN, claim_word
from upcycled.privacy.mechanisms.requirements import check_delta_for, default_delta

if TYPE_CHECKING:
    from upcycled.privacy.accounts.account import AccountedRun


@dataclass(frozen=True)
class EpsilonOverRounds:
    """The worst client's epsilon as a run went on, at a fixed delta."""

    delta: float
    iterations: tuple[int, ...]
    """After which iterations it is stated."""
    rounds: tuple[int, ...]
    """Data rounds up to then."""
    worst: tuple[float, ...]
    """Epsilon; infinite where none is provable."""
    is_complete: bool
    """Whether it is stated after every charge."""


class Ledger:
    """What every client has spent in a run: ``result.privacy`` of a private run, or read from its file.

    >>> import tempfile, upcycled as up
    >>> folder = tempfile.TemporaryDirectory()
    >>> data = up.data.synthetic(0.5, 0.5, clients=3, seed=0)
    >>> clipping = up.privacy.ModelClipping(clip_norm=1.0, noise_std=4.0)
    >>> asked = {"algorithm": up.FedAvg(), "privacy": clipping, "upcycle": 0.5, "iterations": 6, "progress": False}
    >>> result = up.train(data, **asked, ledger=f"{folder.name}/ledger.jsonl")

    The file alone gives the same numbers, later and on another machine:

    >>> ledger = up.privacy.Ledger.read(f"{folder.name}/ledger.jsonl")
    >>> ledger.rounds.tolist(), ledger.kind, ledger.is_simulation
    ([3, 3, 3], 'gaussian', True)
    >>> round(ledger.max_epsilon(1e-5), 4) == round(result.privacy.max_epsilon(1e-5), 4)
    True
    >>> [round(epsilon, 2) for epsilon in ledger.epsilon_over_rounds(1e-5).worst]
    [1.99, 2.94, 3.71]

    With a head that was kept elsewhere it is also shown to be whole:

    >>> ledger.chain, up.privacy.Ledger.read(f"{folder.name}/ledger.jsonl", head=result.privacy.head).chain
    ('unanchored', 'anchored')
    >>> folder.cleanup()
    """

    def __init__(
        self,
        mechanism: Fitted,
        noise: str,
        setting: Setting,
        budget: Budget | None = None,
        path: Path | None = None,
        run: str = "",
        key: bytes | None = None,
        account: AccountedRun | None = None,
    ) -> None:
        """Open a run's ledger, and go on from what its file holds.

        Args:
            mechanism: what charges.
            noise: ``"seeded"`` or ``"system"``.
            setting: the run's public facts.
            budget: the most a client may spend.
            path: the file; None keeps it in memory.
            run: what names the run.
            key: the holder's own, 32 bytes, which heads are made with.
            account: the holder's, which pays for every charge before it is written here.
        """
        self._account: AccountedRun | None
        if key is not None:
            check_key(key)
        header = header_of(mechanism, noise, setting, budget, run, None if account is None else account.account.terms)
        file = None if path is None else LedgerFile(path, header)
        if file is None:
            self._begin(header, key, [], None)
            self._account = account
            return
        self._begin(file.header, key, file.tips, "anchored" if file.is_new else "unanchored", file)
        self._account, self._planned_draws = account, header.planned_draws
        for entry in file.found:
            self._add(entry)

    @classmethod
    def read(cls, path: str | Path, head: Head | Mapping[str, Any] | None = None, key: bytes | None = None) -> Ledger:
        """Open a run's file, from the file alone; nothing is ever written to it.

        A last line without its end belongs to a release that never left, and does not count.

        Args:
            path: the file, such as ``results/NAME/seed-0/ledger.jsonl``.
            head: what the ledger's head was (:attr:`head`), as ``privacy.head`` in ``summary.json`` has it: a file that
                does not hold all that it held then is refused. Without one, nobody can tell whether last lines are
                missing, or all of it was written anew (see :attr:`chain`).
            key: the holder's 32 bytes, to show that the head is the holder's own.

        Returns:
            The ledger, with every charge of the file.

        Raises:
            InputError: if the file is no ledger, or not what the head says, in one sentence.

        >>> import tempfile, upcycled as up
        >>> data = up.data.synthetic("iid", clients=3, sizes=40, seed=0)
        >>> clipping = up.privacy.ModelClipping(clip_norm=1.0, noise_std=4.0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = f"{folder}/ledger.jsonl"
        ...     asked = {"algorithm": up.FedAvg(), "privacy": clipping, "iterations": 2}
        ...     _ = up.train(data, **asked, ledger=file, progress=False)
        ...     up.privacy.Ledger.read(file).rounds.tolist()
        [2, 2, 2]
        """
        if key is not None and head is None:
            raise InputError("is given without a head, but it is only a head that it can check", field="key")
        content = read_file(Path(path))
        ledger = cls.__new__(cls)
        ledger._begin(content.header, key, content.tips, "unanchored", is_read=True)
        with np.errstate(over="ignore"):  # what a file says may be beyond all numbers
            for number, entry in enumerate(content.entries, start=2):
                try:
                    ledger._add(entry)
                except InputError as error:
                    raise InputError(f"ledger '{path}' is damaged in line {number} ({error})") from None
        if head is not None:
            ledger.hold_against(head, str(path))
        return ledger

    def _begin(
        self,
        header: Header,
        key: bytes | None,
        tips: list[str],
        chain: str | None,
        file: LedgerFile | None = None,
        is_read: bool = False,
    ) -> None:
        self._header = header
        self._file, self._is_read = file, is_read
        self._tips, self._chain = tips, chain  # the tips are the file's own list, which grows with it
        self._key, self._is_keyed = key, key is not None
        self._account = None
        self._anchor: Head | None = None
        self._last_head: Head | None = None
        self._entries: list[Entry] = []
        self._known: dict[tuple[Any, ...], Entry] = {}
        self._spent = Spent(header.num_clients)
        self._is_ended = False
        self._planned_draws = header.planned_draws
        self._outstanding: tuple[int, tuple[Outstanding, ...]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # What is sent to another process, or stored, is a record: it writes nothing, and the holder's key stays here.
        away: dict[str, Any] = {"_file": None, "_is_read": True, "_key": None, "_account": None}
        return vars(self) | away | {"_last_head": self.head}

    @property
    def header(self) -> Header:
        """The public facts that open its file."""
        return self._header

    @property
    def run(self) -> str:
        """What names the run."""
        return self._header.run

    @property
    def mechanism(self) -> str:
        """The name in the table of mechanisms."""
        return self._header.mechanism

    @property
    def claim(self) -> str:
        """What its epsilon is: ``"proven"``, or whose claim, where the mechanism is not the package's."""
        return claim_word(self.mechanism)

    @property
    def promise(self) -> Promise:
        """What epsilon means here."""
        return self._header.promise

    @property
    def budget(self) -> Budget | None:
        """The most a client may spend, where a filter holds it to that."""
        return self._header.budget

    @property
    def account(self) -> Commitment | None:
        """The terms of the account that the run is charged to; None where its epsilon is that of this run only."""
        return self._header.account

    @property
    def is_limited(self) -> bool:
        """Whether a client may be unable to pay: for its budget in this run, or in an account."""
        return self.budget is not None or self._account is not None

    @property
    def noise(self) -> str:
        """``"seeded"`` or ``"system"``."""
        return self._header.noise

    @property
    def sizes(self) -> Ints:
        """n_i of every client, which are public.

        A file has those of the clients that were charged: of others that is 0 where it was read.
        """
        return self._header.sizes

    @property
    def chain(self) -> str | None:
        """How far its file shows that nothing was changed or taken away; None for a ledger that has none.

        ``"anchored"``: the run wrote every line itself, or the file was held against a head. ``"unanchored"``: lines
        follow from one another, but the last may be missing, and whoever can write the file could have written all of
        it.
        """
        return self._chain

    @property
    def head(self) -> Head | None:
        """What the file holds by now, to be kept elsewhere; None without a file."""
        if self._last_head is not None:
            return self._last_head
        return head_of(self._tips, self._key) if self._tips else None

    @property
    def ahead(self) -> int:
        """Lines after those of the head that the file was held against; they are charged too."""
        return 0 if self._anchor is None else len(self._tips) - self._anchor.lines

    @property
    def is_held(self) -> bool:
        """Whether the file was held against a head."""
        return self._anchor is not None

    @property
    def is_sealed(self) -> bool:
        """Whether the head that the file was held against was shown to be the holder's own, by the key."""
        return self.is_held and self._is_keyed

    def hold_against(self, head: Head | Mapping[str, Any], name: str) -> None:
        """Refuse the file, called ``name``, if it does not hold what it held when ``head`` was made.

        Raises:
            InputError: in one sentence.
        """
        head = as_head(head)
        if self._key is not None:
            check_mac(head, self._key)
        if len(self._tips) < head.lines:
            raise InputError(f"ledger '{name}' has {len(self._tips)} whole lines, but it had {head.lines} by its head")
        if self._tips[head.lines - 1] != head.tip:
            raise InputError(f"ledger '{name}' is not the file that its head was made of: line {head.lines} is another")
        self._anchor, self._chain = head, "anchored"

    @property
    def kind(self) -> str | None:
        """How charges compose: ``"gaussian"``, ``"pure"``, ``"sampled"`` or ``"none"``; None before any."""
        return self._spent.kind

    @property
    def rounds(self) -> Ints:
        """Data rounds each client was charged for."""
        return self._spent.rounds.copy()

    @property
    def is_simulation(self) -> bool:
        """True with seeded noise: whoever knows the seed can take the noise off again."""
        return self.noise == "seeded"

    @property
    def default_delta(self) -> float:
        """The delta to state epsilon at: the mechanism's own, the budget's, or a usual one that nobody warns about."""
        own = self.promise.delta
        return default_delta(self.budget.delta if own is None and self.budget is not None else own, self._header.count)

    @property
    def left_out(self) -> Ints:
        """Rounds that each client was left out of because it could not pay."""
        counts = np.zeros(self._spent.rounds.size, dtype=np.int64)
        for entry in self._entries:
            if entry.kind == "left out":
                counts[entry.clients] += 1
        return counts

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def last_round(self) -> int:
        """The last data round that was charged."""
        return max((entry.round for entry in self._entries if entry.kind == DATA), default=0)

    @property
    def is_as_planned(self) -> bool:
        """Whether the run ended as planned, so that epsilon is that of its charges.

        It did if all planned charges were made, or if nobody of a round could pay for it within the run's own budget,
        which follows from public charges. A run that stopped for another reason (a callback, Ctrl-C, divergence, a
        kill) may have stopped because of its data: epsilon is then that of the complete plan.
        """
        return self._is_ended or not self.outstanding

    @property
    def outstanding(self) -> tuple[Outstanding, ...]:
        """The planned charges that were not made.

        Nothing where the run ended as planned, or released nothing at all.
        """
        if self._is_ended:
            return ()
        known = self._outstanding
        if known is None or known[0] != len(self._entries):
            known = self._outstanding = len(self._entries), tuple(self._not_charged())
        return known[1]

    def _not_charged(self) -> Iterator[Outstanding]:
        planned = self._header.planned
        for kind, plan in planned.items() if self.kind is not None else ():
            charge, times = plan.of_clients(self._header.num_clients)
            left = np.maximum(times - self._times_charged(kind), 0)
            if kind == DATA:
                # Who could not pay is left out of rounds that took place; what an account has left is others' doing.
                missed = 0 if self.account is None else self.left_out
                left = np.minimum(left, self._header.data_rounds - self.last_round + missed)
            if left.any():
                yield Outstanding(kind, charge, left)

    def _times_charged(self, kind: str) -> Ints:
        """Return in how many different rounds, or for how many scores, each client was charged as planned.

        Attempts after the first draw others than the plan, which counts only what is certain to be a part of it.
        """
        clients: dict[tuple[Any, ...], list[Ints]] = {}
        for entry in self._entries:
            if entry.kind == kind and entry.attempt == 0:
                clients.setdefault(entry.key, []).append(entry.clients)
        found = np.zeros(self._header.num_clients, dtype=np.int64)
        for charged in clients.values():
            found[np.concatenate(charged)] += 1
        return found

    def _stated(self) -> Spent:
        """Return all charges that epsilon is stated for: those made, and those that are outstanding."""
        return self._with_outstanding(self._spent)

    def _limit(self, delta: float) -> float:
        """Return what no plan exceeds: the budget, which a filter holds every client to however the run ends."""
        if self.budget is None or self.is_as_planned or delta < self.budget.delta:
            return np.inf
        return self.budget.epsilon

    def _with_outstanding(self, spent: Spent) -> Spent:
        if not self.outstanding:
            return spent
        found = spent.copied()
        for more in self.outstanding:
            for charge, rounds in more.composed():
                found.add(charge, rounds)
        return found

    def end(self) -> None:
        """Write down that the run ended as planned, if it did: see :attr:`is_as_planned`.

        A run that stopped for another reason gets no such line, and its account keeps all that the run planned.
        """
        if not self._is_ended and self._entries and self._is_over():
            last = self._entries[-1]
            self._write(Entry(last.iteration, ENDED, last.round, 0, _NOBODY, None))
        if self._account is not None and self.is_as_planned:
            self._account.end()

    def _is_over(self) -> bool:
        """Whether every planned charge was made, or none could be made within the run's own budget."""
        planned = self._header.planned
        if self.account is not None and self.left_out.any():
            return False
        rounds = {entry.round for entry in self._entries if entry.kind == DATA}
        if DATA not in planned or len(rounds) == self._header.data_rounds:
            scores = {entry.iteration for entry in self._entries if entry.kind == SCORES}
            is_limited = self.budget is not None or self.account is not None
            return SCORES not in planned or is_limited or len(scores) == planned[SCORES].times.max()
        last = self._entries[-1]
        if self.budget is None or last.kind != "left out" or rounds != set(range(1, last.round)):
            return False
        charge, _ = planned[DATA].of_clients(self._header.num_clients)
        return not self._spent.fits(charge[last.clients], self.budget, self._planned_draws).any()

    @property
    def repeated(self) -> int:
        """Charges that were made again because the run had stopped and went on; none in a simulation."""
        charges = [entry.key for entry in self._entries if entry.charge is not None]
        return len(charges) - len(set(charges))

    @property
    def worst_in_words(self) -> str:
        """The worst client's epsilon at the default delta, for a reader."""
        if not self.promise.is_claimed:
            return "none is claimed"
        delta = self.default_delta
        words = f"{epsilon_in_words(self.max_epsilon(delta))} at delta {general(delta)}"
        words = words if self.claim == PROVEN else f"{words}, {self.claim}"
        return words if self.is_as_planned else f"{words}; {stopped_words(self)}"

    @property
    def overview(self) -> Overview:
        """What it says in a few rows; :meth:`statement` says all of it."""
        rounds = self.rounds
        rows = [
            ("noise", "simulation: not private" if self.is_simulation else "real (system)"),
            ("unit", f"one {self.promise.unit}, replaced by another"),
            ("clients", count(rounds.size)),
            ("data rounds charged", f"{count(int(rounds.min()))} to {count(int(rounds.max()))} a client"),
            ("worst client's epsilon", self.worst_in_words),
        ]
        if self.budget is not None:
            rows.append(("budget", f"{epsilon_in_words(self.budget.epsilon)} at delta {general(self.budget.delta)}"))
        if self.account is not None:
            rows.append(("account", self.account.id))
        if self.chain is not None:
            rows.append(("file", self.chain))
        return Overview(f"Ledger of {self.mechanism}", tuple(rows))

    def __repr__(self) -> str:
        # Without an epsilon: of sampled releases it takes seconds, and debuggers ask for this at every step.
        simulated = ", simulation: not private" if self.is_simulation else ""
        rounds = count(int(self.rounds.max(initial=0)))
        return f"<Ledger of {self.mechanism}: {count(self.rounds.size)} clients, {rounds} data rounds{simulated}>"

    def __str__(self) -> str:
        return self.overview.text

    def _repr_html_(self) -> str:
        return self.overview.html

    def can_pay(self, charge: Charge | None, round: int | None = None, attempt: int = 0) -> Any:
        """Return which of the charge's clients stay within the budget if they are charged; a mask over them.

        A simulated round that is charged already (see ``round`` and ``attempt``) is paid for by who paid it.
        """
        return self._can_pay(charge, ("data", round, attempt))

    def can_pay_scores(self, iteration: int, round: int, charge: Charge) -> Any:
        """Return the same of the charge for an iteration's scores."""
        return self._can_pay(charge, Entry(iteration, "scores", round, 0, charge.clients, charge).key)

    def _can_pay(self, charge: Charge | None, key: tuple[Any, ...]) -> Any:
        if not self.is_limited or charge is None:
            return np.ones(0 if charge is None else charge.clients.size, dtype=bool)
        if self._account is not None:
            can_pay = self._account.fits(charge)
            return can_pay if self.budget is None else can_pay & self._within(charge, self.budget, key)
        assert self.budget is not None
        return self._within(charge, self.budget, key)

    def _within(self, charge: Charge, budget: Budget, key: tuple[Any, ...]) -> Any:
        paid = self._known.get(key) if self.is_simulation else None
        if paid is not None:
            return np.isin(charge.clients, paid.clients)
        return self._spent.fits(charge, budget, self._planned_draws)

    def charge(self, iteration: int, round: int, attempt: int, charge: Charge) -> None:
        """Write a round's charge, before its releases leave."""
        self._check_kind(DATA, charge)
        self._write(Entry(iteration, DATA, round, attempt, charge.clients, charge))

    def charge_scores(self, iteration: int, round: int, charge: Charge) -> None:
        """Write the charge for an iteration's scores, before they are counted."""
        self._check_kind(SCORES, charge)
        self._write(Entry(iteration, SCORES, round, 0, charge.clients, charge))

    def leave_out(self, iteration: int, round: int, attempt: int, clients: Ints) -> None:
        """Write down who cannot pay for a round and takes no part in it."""
        self._write(Entry(iteration, "left out", round, attempt, clients, None))

    def upcycled(self, iteration: int, round: int) -> None:
        """Write an upcycled iteration: post-processing of releases already charged."""
        self._write(Entry(iteration, "upcycled", round, 0, _NOBODY, None))

    def flush(self) -> None:
        """Have every line on the disk; charges are there already."""
        if self._file is not None:
            self._file.flush()

    def epsilon(self, delta: float) -> Real:
        """Return the epsilon of every client, proven or as :attr:`claim` says: replace-one.

        Of a record, or of a client where the mechanism promises that. Infinite where no finite epsilon is provable. It
        is that of the charges made if the run ended as planned (:attr:`is_as_planned`), and that of the complete plan
        otherwise: a guarantee when schedule, noise and participation were fixed before the first round, as in ``train``
        without a budget; with one, the claim is the budget, which no plan exceeds. delta >= 1/n is refused.
        """
        self._check_delta(delta)
        return np.minimum(self._stated().epsilon(delta), self._limit(delta))

    def max_epsilon(self, delta: float) -> float:
        """Return the worst client's epsilon.

        Sampled releases take a tenth of a second a number, so it is computed for clients only that no other exceeds in
        steps, rate and lack of noise: the largest of :meth:`epsilon`, up to what the accountant leaves open.
        """
        self._check_delta(delta)
        return min(self._stated().worst(delta), self._limit(delta))

    def spent_epsilon(self, delta: float) -> float:
        """Return the worst client's epsilon of the charges so far, for displays of a run that goes on.

        A guarantee only if stopping here does not depend on data, releases or scores; :meth:`max_epsilon` is what a run
        states.
        """
        self._check_delta(delta)
        return self._spent.worst(delta)

    def epsilon_without_repeats(self, delta: float) -> float:
        """Return what :meth:`max_epsilon` would be had nothing been charged again after the run had stopped."""
        self._check_delta(delta)
        once = Spent(self._header.num_clients)
        for entry in {entry.key: entry for entry in self._entries if entry.charge is not None}.values():
            assert entry.charge is not None
            once.add(entry.charge, entry.rounds)
        return min(self._with_outstanding(once).worst(delta), self._limit(delta))

    def epsilon_over_rounds(self, delta: float) -> EpsilonOverRounds:
        """Return the worst client's epsilon after each charge (rounds, scores); the last is :meth:`spent_epsilon`.

        Where it takes long to compute it is stated after some of them, evenly spread.
        """
        self._check_delta(delta)
        charged = [(entry, entry.charge) for entry in self._entries if entry.charge is not None]
        last, so_far, points = len(charged) - 1, Spent(self._header.num_clients), []
        kind = self._spent.made_of
        most = kind.most_computed(len(self._spent.worst_points())) if kind.is_slow else None
        number = last + 1 if most is None else min(last + 1, most)
        kept = sorted({int(np.rint(k)) for k in np.linspace(0, last, number)}) if charged else []
        before_last = set(kept[:-1])
        for place, (entry, charge) in enumerate(charged):
            so_far.add(charge, entry.rounds)
            if place in before_last:
                points.append(so_far.worst_points())
        stated = [charged[place][0] for place in kept]
        end = self._spent.worst(delta) if kept else 0.0
        worst = kind.curve(points, end, delta)
        return EpsilonOverRounds(
            delta,
            tuple(entry.iteration for entry in stated),
            tuple(entry.round for entry in stated),
            (*worst, *((end,) if kept else ())),
            len(kept) == len(charged),
        )

    @property
    def states_paper_epsilon(self) -> bool:
        """Whether the paper states a number for this mechanism."""
        return self._header.paper is not None

    def paper_epsilon(self, delta: float) -> Real:
        """Return the number the paper's theorem prints for each client: labelled as such, not a guarantee."""
        paper = self._header.paper
        if paper is None:
            raise InputError(f"the paper states no epsilon for '{self.mechanism}'")
        return paper.epsilon(self._stated().rounds, self.sizes, delta)

    def statement(self, delta: float) -> str:
        """Return, in words, what is protected, against whom, under which assumptions, and at what epsilon."""
        return "\n".join(f"{topic}: {text}" for topic, text in self.statement_items(delta))

    def statement_items(self, delta: float) -> tuple[tuple[str, str], ...]:
        """Return the statement's lines as pairs: a topic, and what is said of it."""
        return statement_items(self, delta)

    def _check_delta(self, delta: float) -> None:
        kind = self._spent.made_of
        if self.kind is not None and kind.is_claimed and not kind.is_pure:
            check_number("delta", delta, above=0, below=1)
        check_number("delta", delta, at_least=0, below=1)
        check_delta_for(delta, self._header.count, self.promise.unit)

    def _check_kind(self, kind: str, charge: Charge) -> None:
        """Refuse a charge that does not compose with those before it, or with those that are planned."""
        self._spent.check(charge)
        plan = self._header.planned.get(kind)
        if plan is not None and plan.times.any() and plan.charge.kind != charge.kind:
            raise InputError(f"a charge is '{charge.kind}', but it must be '{plan.charge.kind}' as the run planned")

    def _write(self, entry: Entry) -> None:
        if self._is_read:
            raise InputError("a ledger that was read from its file takes no lines: only its run writes them")
        if self.is_simulation and entry.key in self._known:
            return
        try:
            check_entry(entry, self._header.num_clients, self._header.data_rounds)
        except ValueError as error:
            raise InputError(f"a charge of '{self.mechanism}' cannot stand in a ledger ({error})") from None
        if self._account is not None and entry.charge is not None:
            self._account.pay(entry)
        if self._file is not None:
            self._file.append(entry, durable=entry.kind in (*CHARGED, ENDED))
        self._add(entry)

    def _add(self, entry: Entry) -> None:
        if self.is_simulation and entry.key in self._known:
            return
        self._known.setdefault(entry.key, entry)
        if entry.kind == ENDED:
            if not self._entries or not self._is_over():
                raise InputError("it says that the run ended as planned, and planned charges are missing")
            self._is_ended = True
            return
        if entry.charge is not None:
            self._check_kind(entry.kind, entry.charge)
            self._spent.add(entry.charge, entry.rounds)
        self._is_ended = self._is_ended and entry.charge is None
        self._entries.append(entry)


_NOBODY = np.zeros(0, dtype=np.int64)
