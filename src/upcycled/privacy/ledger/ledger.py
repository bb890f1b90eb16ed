"""The per-client ledger: what was released, what it cost, and the epsilon that follows.

Append-only. A charge is written before the release leaves, and a written charge stays: a ledger opened on a file goes
on from all that is in it. With seeded noise the key (run, round, attempt) names the same releases: charging it again
costs nothing more. With real noise a round that is repeated is charged again. Upcycled iterations appear with cost
zero. No data are ever stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from upcycled.core.errors import InputError, check_number
from upcycled.core.mechanism import Charge, Fitted, Promise, Setting
from upcycled.core.vectors import Ints, Real
from upcycled.privacy.accounting import gdp_mu
from upcycled.privacy.ledger.budget import Budget
from upcycled.privacy.ledger.composition import Spent
from upcycled.privacy.ledger.entries import Entry, to_line
from upcycled.privacy.ledger.header import Header, header_of
from upcycled.privacy.ledger.ledger_file import LedgerFile, read_file
from upcycled.privacy.ledger.statement import statement_items
from upcycled.privacy.mechanisms.requirements import check_delta_for, default_delta

MOST_COMPUTED = {"pure": 60, "sampled": 8}
"""Where an epsilon takes long to compute, a run's history has it after so many charges, evenly spread."""


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
    ) -> None:
        header = header_of(mechanism, noise, setting, budget, run)
        self._begin(header, None if path is None else LedgerFile(path, header))

    @classmethod
    def read(cls, path: str | Path, head: None = None) -> Ledger:
        """Open a run's file, from the file alone; nothing is ever written to it.

        Files of format 1 hold no sizes n_i: delta is then not held against 1/n of a record-level claim, and the paper's
        number is not known. A last line without its end belongs to a release that never left, and does not count.

        Args:
            path: the file, such as ``results/NAME/seed-0/ledger.jsonl``.
            head: where an anchor will go that shows the file to be complete; this version has none.

        Returns:
            The ledger, with every charge of the file.

        Raises:
            InputError: if the file is no ledger, in one sentence that names the line.

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
        if head is not None:
            raise InputError(f"head is {head!r}, but it must be None: ledgers of this version have no chain to anchor")
        header, entries = read_file(Path(path))
        ledger = cls.__new__(cls)
        ledger._begin(header, None, is_read=True)
        for number, entry in enumerate(entries, start=2):
            try:
                ledger._add(entry)
            except InputError as error:
                raise InputError(f"ledger '{path}' is damaged in line {number} ({error})") from None
        return ledger

    def _begin(self, header: Header, file: LedgerFile | None, is_read: bool = False) -> None:
        self._header = header if file is None else replace(header, format=file.format)
        self._file, self._is_read = file, is_read
        self._entries: list[Entry] = []
        self._known: dict[tuple[Any, ...], Entry] = {}
        self._spent = Spent(header.num_clients)
        budget = header.budget
        self._most_squares = (
            gdp_mu(epsilon=budget.epsilon, delta=budget.delta) ** 2 if budget is not None and budget.delta > 0 else 0.0
        )
        for entry in () if file is None else file.found:
            self._add(entry)

    @property
    def run(self) -> str:
        """What names the run."""
        return self._header.run

    @property
    def mechanism(self) -> str:
        """The name in the table of mechanisms."""
        return self._header.mechanism

    @property
    def promise(self) -> Promise:
        """What epsilon means here."""
        return self._header.promise

    @property
    def budget(self) -> Budget | None:
        """The most a client may spend, where a filter holds it to that."""
        return self._header.budget

    @property
    def noise(self) -> str:
        """``"seeded"`` or ``"system"``."""
        return self._header.noise

    @property
    def sizes(self) -> Ints | None:
        """n_i of every client, which are public; None in files of format 1."""
        return self._header.sizes

    @property
    def sampling(self) -> str | None:
        """How cohorts are drawn; None in files of format 1."""
        return self._header.sampling

    @property
    def participation(self) -> float | None:
        """Which part of the clients is drawn; None in files of format 1."""
        return self._header.participation

    @property
    def format(self) -> int:
        """Of its file, or of the one it would be written to."""
        return self._header.format

    @property
    def chain(self) -> str:
        """``"unchained"``: nothing in the file shows that lines were changed or taken away."""
        return self._header.chain

    @property
    def kind(self) -> str | None:
        """How its charges compose: ``"gaussian"``, ``"pure"``, ``"sampled"``, ``"none"``; None before the first."""
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
    def schedule(self) -> str:
        """``"fixed"``: epsilon is that of the schedule. ``"filtered"``: the claim is the budget, whatever happens."""
        return "fixed" if self.budget is None else "filtered"

    @property
    def default_delta(self) -> float:
        """The delta to state epsilon at: the mechanism's own, or a usual one that nobody warns about."""
        return default_delta(self.promise.delta, self._header.count)

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
    def repeated(self) -> int:
        """Rounds that were charged again because the run was stopped and went on; none in a simulation."""
        charges = [entry.key for entry in self._entries if entry.kind == "data"]
        return len(charges) - len(set(charges))

    def can_pay(self, charge: Charge | None, round: int | None = None, attempt: int = 0) -> Any:
        """Return which of the charge's clients stay within the budget if they are charged; a mask over them.

        A simulated round that is charged already (see ``round`` and ``attempt``) is paid for by who paid it.
        """
        if self.budget is None or charge is None:
            return np.ones(0 if charge is None else charge.clients.size, dtype=bool)
        paid = self._known.get(("data", round, attempt)) if self.is_simulation else None
        if paid is not None:
            return np.isin(charge.clients, paid.clients)
        limit = self.budget.epsilon if charge.kind == "pure" else self._most_squares
        return self._spent.with_charge(charge) <= limit * (1 + 1e-12)

    def charge(self, iteration: int, round: int, attempt: int, charge: Charge) -> None:
        """Write a round's charge, before its releases leave."""
        self._spent.check(charge)
        self._write(Entry(iteration, "data", round, attempt, charge.clients, charge))

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
        """Return the proven epsilon of every client for its releases so far: replace-one.

        Of a record, or of a client where the mechanism promises that. Infinite where no finite epsilon is provable. It
        is a guarantee for the whole run when schedule, noise and participation were fixed before the first round, as in
        ``train`` without a budget; with one, the claim is the budget. delta >= 1/n is refused.
        """
        self._check_delta(delta)
        return self._spent.epsilon(delta)

    def max_epsilon(self, delta: float) -> float:
        """Return the worst client's proven epsilon.

        Sampled releases take a tenth of a second a number, so it is computed for clients only that no other exceeds in
        steps, rate and lack of noise: the largest of :meth:`epsilon`, up to what the accountant leaves open.
        """
        self._check_delta(delta)
        return self._spent.worst(delta)

    def epsilon_over_rounds(self, delta: float) -> EpsilonOverRounds:
        """Return the worst client's epsilon after each charged data round; the last is :meth:`max_epsilon`.

        Where it takes long to compute it is stated after some of them, evenly spread.
        """
        self._check_delta(delta)
        charged = [(entry, entry.charge) for entry in self._entries if entry.charge is not None]
        last, so_far, points = len(charged) - 1, Spent(self._header.num_clients), []
        most = MOST_COMPUTED.get(self.kind or "", last + 1)
        kept = sorted({int(np.rint(k)) for k in np.linspace(0, last, min(last + 1, most))}) if charged else []
        before_last = set(kept[:-1])
        for place, (_, charge) in enumerate(charged):
            so_far.add(charge)
            if place in before_last:
                points.append(so_far.worst_points())
        stated = [charged[place][0] for place in kept]
        flat = so_far.values([point for each in points for point in each], delta) if points else []
        ends = np.cumsum([len(each) for each in points], dtype=np.int64).tolist()
        worst = [max(flat[end - len(each) : end], default=0.0) for each, end in zip(points, ends, strict=True)]
        return EpsilonOverRounds(
            delta,
            tuple(entry.iteration for entry in stated),
            tuple(entry.round for entry in stated),
            (*worst, *((self._spent.worst(delta),) if kept else ())),
            len(kept) == len(charged),
        )

    @property
    def states_paper_epsilon(self) -> bool:
        """Whether the paper states a number for this mechanism, and the sizes it needs are known."""
        return self._header.paper is not None and self.sizes is not None

    def paper_epsilon(self, delta: float) -> Real:
        """Return the number the paper's theorem prints for each client: labelled as such, not a guarantee."""
        paper, sizes = self._header.paper, self.sizes
        if paper is None or sizes is None:
            raise InputError(f"the paper states no epsilon for '{self.mechanism}'")
        return paper.epsilon(self._spent.rounds, sizes, delta)

    def statement(self, delta: float) -> str:
        """Return, in words, what is protected, against whom, under which assumptions, and at what epsilon."""
        return "\n".join(f"{topic}: {text}" for topic, text in self.statement_items(delta))

    def statement_items(self, delta: float) -> tuple[tuple[str, str], ...]:
        """Return the statement's lines as pairs: a topic, and what is said of it."""
        return statement_items(self, delta)

    def _check_delta(self, delta: float) -> None:
        if self.kind in ("gaussian", "sampled"):
            check_number("delta", delta, above=0, below=1)
        check_number("delta", delta, at_least=0, below=1)
        check_delta_for(delta, self._header.count, self.promise.unit)

    def _write(self, entry: Entry) -> None:
        if self._is_read:
            raise InputError("a ledger that was read from its file takes no lines: only its run writes them")
        if self.is_simulation and entry.key in self._known:
            return
        if self._file is not None:
            self._file.append(to_line(entry), durable=entry.charge is not None)
        self._add(entry)

    def _add(self, entry: Entry) -> None:
        if self.is_simulation and entry.key in self._known:
            return
        if entry.charge is not None:
            self._spent.add(entry.charge)
        self._known.setdefault(entry.key, entry)
        self._entries.append(entry)


_NOBODY = np.zeros(0, dtype=np.int64)
