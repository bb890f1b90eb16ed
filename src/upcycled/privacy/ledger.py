"""The per-client ledger: what was released, what it cost, and the epsilon that follows.

Append-only. A charge is written before the release leaves, and a written charge stays: a ledger opened on a file goes
on from all that is in it. With seeded noise the key (run, round, attempt) names the same releases: charging it again
costs nothing more. With real noise a round that is repeated is charged again. Upcycled iterations appear with cost
zero. No data are ever stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from upcycled.core.errors import InputError, check_number
from upcycled.core.release import Charge, Fitted, Promise, Setting
from upcycled.core.vectors import Ints, Real
from upcycled.privacy.accounting import (
    gdp_epsilon,
    gdp_mu,
    pure_composition_epsilon,
    sampled_gaussian_epsilon,
)
from upcycled.privacy.budget import Budget
from upcycled.privacy.checks import check_delta
from upcycled.privacy.entries import Entry, to_line
from upcycled.privacy.ledger_file import LedgerFile
from upcycled.privacy.statement import statement


class Ledger:
    """What every client has spent in this run."""

    def __init__(
        self,
        mechanism: Fitted,
        noise: str,
        setting: Setting,
        budget: Budget | None = None,
        path: Path | None = None,
        run: str = "",
    ) -> None:
        self.mechanism, self.noise, self.setting, self.budget, self.run = mechanism.name, noise, setting, budget, run
        self.promise: Promise = mechanism.promise
        self._fitted = mechanism
        clients = setting.num_clients
        self._entries: list[Entry] = []
        self._known: dict[tuple[Any, ...], Entry] = {}
        self._squares, self._pure = np.zeros(clients), np.zeros(clients)
        self._steps, self._rounds = np.zeros(clients, dtype=np.int64), np.zeros(clients, dtype=np.int64)
        self._rates, self._multipliers = np.zeros(clients), np.full(clients, np.inf)
        self._kind = "none"
        self._most_squares = (
            gdp_mu(epsilon=budget.epsilon, delta=budget.delta) ** 2 if budget is not None and budget.delta > 0 else 0.0
        )
        self._file = None if path is None else LedgerFile(path, self._header())
        for entry in () if self._file is None else self._file.found:
            self._add(entry)

    @property
    def rounds(self) -> Ints:
        """Data rounds each client was charged for."""
        return self._rounds.copy()

    @property
    def is_simulation(self) -> bool:
        """True with seeded noise: whoever knows the seed can take the noise off again."""
        return self.noise == "seeded"

    @property
    def schedule(self) -> str:
        """``"fixed"``: epsilon is that of the schedule. ``"filtered"``: the claim is the budget, whatever happens."""
        return "fixed" if self.budget is None else "filtered"

    @property
    def left_out(self) -> Ints:
        """Rounds that each client was left out of because it could not pay."""
        counts = np.zeros(self._rounds.size, dtype=np.int64)
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
        if charge.kind == "pure" and charge.epsilon is not None:
            return self._pure[charge.clients] + charge.epsilon <= self.budget.epsilon * (1 + 1e-12)
        return self._squares[charge.clients] + _squared_ratio(charge) <= self._most_squares * (1 + 1e-12)

    def charge(self, iteration: int, round: int, attempt: int, charge: Charge) -> None:
        """Write a round's charge, before its releases leave."""
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
        check_number("delta", delta, at_least=0, below=1)
        check_delta(delta, self.setting.sizes, self.promise.unit)
        if self._kind == "pure":
            return self._pure_epsilon(delta)
        took_part = self._rounds > 0
        found: Real = np.where(took_part, np.inf, 0.0)
        if self._kind == "gaussian":
            check_number("delta", delta, above=0, below=1)
            paying = took_part & np.isfinite(self._squares)
            found[paying] = gdp_epsilon(mu=np.sqrt(self._squares[paying]), delta=delta)
        if self._kind == "sampled":
            check_number("delta", delta, above=0, below=1)
            return self._sampled_epsilon(delta)
        return found

    def max_epsilon(self, delta: float) -> float:
        """Return the worst client's proven epsilon."""
        return float(self.epsilon(delta).max())

    def paper_epsilon(self, delta: float) -> Real:
        """Return the number the paper's theorem prints for each client: labelled as such, not a guarantee."""
        of = getattr(self._fitted, "paper_epsilon", None)
        if of is None:
            raise InputError(f"the paper states no epsilon for '{self.mechanism}'")
        found: Real = of(self._rounds, self.setting.sizes, delta)
        return found

    def statement(self, delta: float) -> str:
        """Return, in words, what is protected, against whom, under which assumptions, and at what epsilon."""
        return statement(self, delta)

    def _pure_epsilon(self, delta: float) -> Real:
        """Clients with the same charges share one computation."""
        spent: dict[int, list[float]] = {}
        for entry in self._entries:
            if entry.charge is not None and entry.charge.epsilon is not None:
                for client, epsilon in zip(entry.clients.tolist(), entry.charge.epsilon.tolist(), strict=True):
                    spent.setdefault(client, []).append(epsilon)
        found, cache = np.zeros(self._rounds.size), dict[tuple[float, ...], float]()
        for client, each in spent.items():
            key = tuple(sorted(each))
            if key not in cache:
                cache[key] = float(pure_composition_epsilon(epsilons=np.array(key), delta=delta))
            found[client] = cache[key]
        return found

    def _sampled_epsilon(self, delta: float) -> Real:
        """Clients with the same rate, multiplier and steps share one computation: it takes a tenth of a second."""
        found, cache = np.zeros(self._rounds.size), dict[tuple[float, float, int], float]()
        for client in np.flatnonzero(self._rounds).tolist():
            key = (float(self._rates[client]), float(self._multipliers[client]), int(self._steps[client]))
            if key not in cache:
                q, multiplier, steps = key
                cache[key] = (
                    sampled_gaussian_epsilon(q=q, noise_multiplier=multiplier, steps=steps, delta=delta)
                    if multiplier > 0
                    else np.inf
                )
            found[client] = cache[key]
        return found

    def _write(self, entry: Entry) -> None:
        if self.is_simulation and entry.key in self._known:
            return
        if self._file is not None:
            self._file.append(to_line(entry), durable=entry.charge is not None)
        self._add(entry)

    def _add(self, entry: Entry) -> None:
        self._known.setdefault(entry.key, entry)
        self._entries.append(entry)
        charge, clients = entry.charge, entry.clients
        if charge is None:
            return
        self._kind = charge.kind
        self._rounds[clients] += 1
        if charge.kind == "gaussian":
            self._squares[clients] += _squared_ratio(charge)
        elif charge.epsilon is not None:
            self._pure[clients] += charge.epsilon
        elif charge.sampling_rate is not None and charge.steps is not None:
            # Should rates or noise ever differ between rounds, the worst of them counts for all: an upper bound.
            self._steps[clients] += charge.steps
            self._rates[clients] = np.maximum(self._rates[clients], charge.sampling_rate)
            multipliers = charge.noise_std / charge.sensitivity
            self._multipliers[clients] = np.minimum(self._multipliers[clients], multipliers)

    def _header(self) -> dict[str, Any]:
        budget = None if self.budget is None else {"epsilon": self.budget.epsilon, "delta": self.budget.delta}
        return {
            "kind": "run",
            "run": self.run,
            "mechanism": self.mechanism,
            "noise": "simulation: not private" if self.is_simulation else self.noise,
            "unit": self.promise.unit,
            "adjacency": "replace-one",
            "adversary": self.promise.adversary,
            "released": self.promise.released,
            "assumptions_checked": list(self.promise.checked),
            "assumptions_trusted": list(self.promise.trusted),
            "schedule": self.schedule,
            "budget": budget,
            "num_clients": int(self.setting.sizes.size),
            "data_rounds_planned": self.setting.data_rounds,
        }


_NOBODY = np.zeros(0, dtype=np.int64)


def _squared_ratio(charge: Charge) -> Real:
    with np.errstate(divide="ignore"):
        ratio: Real = (charge.sensitivity / charge.noise_std) ** 2
    return ratio
