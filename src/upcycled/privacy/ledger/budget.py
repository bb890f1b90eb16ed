"""The most that a client may spend, and the charges that a run plans before its first data round.

The charges that a run plans before its first data round: how much a client pays at a time, and how often.

The epsilon of the complete plan holds however the run ends, because a run that stops early releases a part of what the
plan releases. The epsilon of the charges so far holds only if stopping did not depend on data, releases or scores.

The most a client may spend, enforced by a filter that holds for rounds chosen on the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from upcycled.core.errors import FRACTION, POSITIVE, InputError, check_fields, shown
from upcycled.core.mechanism import Charge, Fitted, Setting
from upcycled.core.sampling import everybody
from upcycled.core.vectors import Ints
from upcycled.privacy.accounting.discrete_noise import part_of_delta
from upcycled.privacy.charge_kinds import charge_from_json, kind_of
from upcycled.privacy.mechanisms.requirements import check_delta

DATA, SCORES = "data", "scores"
"""The kinds of entries that are planned."""
MOST_TIMES = 2**53


@dataclass(frozen=True, eq=False)
class PlannedCharges:
    """Planned charges of one kind of entry. Clients with the same plan share a row."""

    charge: Charge
    """The charge of one data round, a row for each different plan; ``clients`` are row numbers."""
    times: Ints
    """The number of planned charges of each row."""
    rows: Ints | None
    """The row of each client; None where the first row is everybody's, or bounds everybody's."""

    def of_clients(self, num_clients: int) -> tuple[Charge, Ints]:
        """Return each client's charge, and how often it is planned."""
        rows = np.zeros(num_clients, dtype=np.int64) if self.rows is None else self.rows
        return replace(self.charge[rows], clients=np.arange(num_clients)), self.times[rows]

    def to_json(self) -> dict[str, Any]:
        rows = None if self.rows is None else self.rows.tolist()
        return {"rows": rows, "times": self.times.tolist(), **kind_of(self.charge).to_json()}


def planned_charges(mechanism: Fitted, setting: Setting, is_brief: bool) -> dict[str, PlannedCharges]:
    """Return what a run plans to charge, by kind of entry; nothing where its mechanism charges nothing.

    Args:
        mechanism: what charges.
        setting: the run's public facts; it knows the sizes of all clients.
        is_brief: return one row that no client's plan exceeds, for files whose size must not grow with the clients.
    """
    clients = setting.facts.num_clients
    charge = mechanism.charge(everybody(clients))
    if charge is None:
        return {}
    rounds = np.full(clients, setting.data_rounds) if mechanism.draws_secretly else setting.rounds
    places, times = np.zeros(clients, dtype=np.int64), np.zeros(clients, dtype=np.int64)
    places[charge.clients], times[charge.clients] = np.arange(charge.clients.size), rounds[charge.clients]
    each = charge[places]
    found = {DATA: _worst(each, times) if is_brief else _distinct(each, times)}
    if setting.score_times:
        # Of all clients, though those without held-out records never pay for scores.
        ratio = np.sqrt([setting.score_squares / setting.score_times])
        draws = None if charge.draws is None else np.array([setting.score_draws // setting.score_times])
        scores = Charge("gaussian", np.zeros(1, dtype=np.int64), ratio, np.ones(1), draws=draws)
        found[SCORES] = PlannedCharges(scores, np.array([setting.score_times]), None)
    return found


@dataclass(frozen=True, eq=False)
class Outstanding:
    """Planned charges that were not made."""

    kind: str
    charge: Charge
    """Of all clients, in the order of their numbers."""
    times: Ints
    """The number of planned charges that each client has not paid."""

    def composed(self) -> Iterator[tuple[Charge, Ints]]:
        """Yield charges that compose to all of it, each with the data rounds that it stands for."""
        paying = np.flatnonzero(self.times)
        charge, times = self.charge[paying], self.times[paying]
        is_data = int(self.kind == DATA)
        if (together := kind_of(charge).repeated(times)) is not None:
            yield together, is_data * times
            return
        for k in range(int(times.max(initial=0))):
            left = np.flatnonzero(times > k)
            yield charge[left], np.full(left.size, is_data)


def planned_from_json(value: object, num_clients: int) -> dict[str, PlannedCharges]:
    """Return the plan of a header; ValueError with a reason if it is invalid."""
    if not isinstance(value, Mapping) or not set(value) <= {DATA, SCORES}:
        raise ValueError(f"its planned charges are {shown(value)}, and must be a table of data and scores")
    return {kind: _from_json(part, num_clients) for kind, part in value.items()}


def _from_json(value: object, num_clients: int) -> PlannedCharges:
    if not isinstance(value, Mapping):
        raise ValueError(f"its planned charges are {shown(value)}, and must be a table")
    times, rows = value["times"], value["rows"]
    if not _are_counts(times, MOST_TIMES) or not times:
        raise ValueError("its planned times must be a list of integers of at least 0")
    if rows is None:
        if len(times) != 1:
            raise ValueError(f"its planned charges have {len(times)} rows, and no client has a row")
    elif not _are_counts(rows, len(times) - 1) or len(rows) != num_clients:
        raise ValueError(f"its planned rows are not those of {num_clients} clients")
    charge = charge_from_json(value, np.arange(len(times)))
    return PlannedCharges(charge, np.array(times), None if rows is None else np.array(rows))


def _are_counts(values: object, most: int) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value <= most for value in values)


def _distinct(charge: Charge, times: Ints) -> PlannedCharges:
    """Return the plan with a row for each different one."""
    columns = [times, *(values for name, values in charge.columns.items() if name != "clients")]
    _, first, rows = np.unique(np.column_stack(columns), axis=0, return_index=True, return_inverse=True)
    distinct = replace(charge[first], clients=np.arange(first.size))
    return PlannedCharges(distinct, times[first], None if first.size == 1 else rows.ravel())


def _worst(charge: Charge, times: Ints) -> PlannedCharges:
    """Return the plan as one row that exceeds every client's in every column."""
    return PlannedCharges(kind_of(charge).worst_row(), times.max(keepdims=True), None)


@dataclass(frozen=True)
class Budget:
    """The most a client may spend over all its data rounds, enforced before it trains: ``train(..., budget=...)``.

    A client that cannot pay for a round is left out of it, and the ledger says so; when no client of a round can pay,
    the run stops with :class:`BudgetSpentError`. The claim is then the budget, whatever the rounds depended on.

    A valid filter for adaptive rounds: Gaussian releases by sum (sensitivity / noise_std)^2, pure ones by their plain
    sum. Real noise takes a part of delta for its sampler's error, set aside beforehand. Sampled releases are refused:
    no accountant gives their Renyi divergence under replace-one, and their epsilon holds for a schedule fixed in
    advance only. That a client is left out discloses what it spent, which depends on its size and the schedule, not on
    its records.

    Args:
        epsilon: the most.
        delta: the delta that goes with it; 0 for pure releases only.

    >>> Budget(epsilon=2.0, delta=1e-5)
    Budget(epsilon=2.0, delta=1e-05)
    """

    epsilon: Annotated[float, POSITIVE]
    delta: Annotated[float, FRACTION]

    def __post_init__(self) -> None:
        check_fields(self)


def check_budget(budget: Budget | None, mechanism: Fitted, setting: Setting) -> None:
    """Refuse a budget that no filter can enforce for this mechanism."""
    charge = mechanism.charge(everybody(setting.facts.sizes.size))
    if budget is None or charge is None:
        return
    try:
        check_delta(budget.delta, setting.facts.sizes, mechanism.promise.unit)
    except InputError as error:
        raise error.renamed("budget.delta") from None
    kind = kind_of(charge)
    if kind.is_filterable and not kind.is_pure and budget.delta == 0:
        raise InputError(
            field="budget.delta",
            value=budget.delta,
            but="Gaussian noise reaches no epsilon at delta = 0: it must be > 0",
        )
    if not kind.is_filterable:
        raise InputError(
            f"a budget cannot be enforced for '{mechanism.name}': its rounds compose by a schedule fixed in advance; "
            "calibrate with epsilon= and delta= instead"
        )
    set_aside(budget, planned_draws(mechanism, setting))


def planned_draws(mechanism: Fitted, setting: Setting) -> int:
    """Return how many numbers of real noise a client may need over all planned rounds and scores."""
    charge = mechanism.charge(everybody(setting.facts.sizes.size))
    if charge is None or charge.draws is None or not charge.draws.size:
        return setting.score_draws
    return int(charge.draws.max()) * max(setting.data_rounds, 1) + setting.score_draws


def set_aside(budget: Budget, planned: int) -> float:
    """Return the part of a budget's delta that so many numbers of real noise take; refuse more than a tenth."""
    if budget.delta == 0:
        return 0.0
    return float(part_of_delta(epsilon=budget.epsilon, delta=budget.delta, draws=planned))
