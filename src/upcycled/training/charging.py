"""What a plan is going to cost, and the data holder's account that pays for it.

Clients that an account meets for the first time: a new site, or an old one under another name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from upcycled.core.errors import InputError
from upcycled.core.mechanism import Setting
from upcycled.core.sampling import everybody
from upcycled.core.vectors import Ints
from upcycled.data.lint import Likeness
from upcycled.privacy.accounts.account import Account, AccountedRun, Cost
from upcycled.privacy.ledger.budget import planned_charges
from upcycled.training.checkpoint.files import has_checkpoints
from upcycled.training.plan import Plan, plan_of
from upcycled.training.spec import RunSpec

_LISTED = 5


def new_to_account(account: Account, clients: Iterable[str]) -> tuple[str, ...]:
    """Say which clients an account that was charged before does not know: names are all it can tell records apart by.

    Args:
        account: the data holder's.
        clients: what the holder calls those of the runs to come.

    Returns:
        One sentence, or none where there is nobody new.
    """
    if not account.charges:
        return ()
    known = dict.fromkeys(name for study in account.studies for name in study.clients)
    unknown = [name for name in dict.fromkeys(clients) if name not in known]
    if not unknown:
        return ()
    alike = Likeness(known)
    nearest = {name: alike.nearest(name) for name in unknown}
    # Those that may have another name already are listed first.
    ordered = sorted(unknown, key=lambda name: nearest[name] is None)
    words = [
        repr(name) if nearest[name] is None else f"{name!r} (nearly {nearest[name]!r}, which it knows)"
        for name in ordered[:_LISTED]
    ]
    more = f" and {len(ordered) - _LISTED} more" if len(ordered) > _LISTED else ""
    return (
        f"new to account {account.id}: {', '.join(words)}{more}; a client that was renamed starts at zero there, and "
        "its records may be charged twice over",
    )


def costs_of(plan: Plan, rounds: int = 0, iterations: int = 0) -> tuple[Cost, ...]:
    """Return what is still to be charged after so many data rounds and iterations: it follows from public facts."""
    if plan.setting is None:
        return ()
    cohort, ids = everybody(plan.facts.sizes.size), plan.facts.ids
    charge = plan.mechanism.charge(cohort if ids is None else replace(cohort, clients=ids, rows=cohort.clients))
    names, found = client_names(plan), []
    if charge is not None:
        found.append(Cost(names, charge, _rounds_left(plan, rounds)[charge.clients]))
    if plan.scores is not None and plan.task.test is not None:
        clients = np.flatnonzero(plan.task.test.sizes)
        due = sum(plan.scores.is_due(i) for i in range(iterations + 1, plan.iterations + 1))
        found.append(Cost(names, plan.scores.charge(clients), np.full(clients.size, due)))
    return tuple(found)


def replan(plan: Plan, spec: RunSpec) -> Plan:
    """Return another run on the same data, as far as its costs go: from public facts, without touching samples."""
    return replace(plan_of(plan.facts, spec), on_data=plan.on_data, names=plan.names)


def client_names(plan: Plan) -> tuple[str, ...]:
    """Return what the holder calls the clients: an account knows them by that.

    A client that plans for itself knows its own name, and of the others that they are there: it never charges them.
    """
    numbers, own, names = range(plan.facts.num_clients), plan.facts.ids, plan.names
    if own is None:
        return tuple(str(i) if names is None else names.called(i) for i in numbers)
    found = [f"another client, number {i}" for i in numbers]
    for row, number in enumerate(own.tolist()):
        is_named = names is not None and (names.clients is not None or names.ids is not None)
        found[number] = names.called(row) if names is not None and is_named else str(number)
    return tuple(found)


def check_account(plan: Plan, rounds: int = 0, iterations: int = 0, run: str | None = None) -> None:
    """Refuse a run that its account cannot pay to the end; without an account there is nothing to check.

    After so many data rounds and iterations, ``run`` names the run that goes on.
    """
    if plan.spec.account_path is not None:
        Account(plan.spec.account_path).check(costs_of(plan, rounds, iterations), run=run)


def refused_together(plans: Sequence[Plan]) -> dict[int, InputError]:
    """Return which of several runs their accounts cannot pay for together, by place, and why; nothing is charged.

    A run that goes on from a checkpoint is checked when it does: only then is it known what is still to be paid.
    """
    sharing: dict[Path, list[int]] = {}
    for place, plan in enumerate(plans):
        goes_on = plan.checkpoint is not None and has_checkpoints(plan.checkpoint)
        if plan.spec.account_path is not None and not goes_on:
            sharing.setdefault(plan.spec.account_path, []).append(place)
    refused: dict[int, InputError] = {}
    for folder, places in sharing.items():
        try:
            costs = [cost for place in places for cost in costs_of(plans[place])]
            Account(folder).check(costs, "this run" if len(places) == 1 else f"these {len(places)} runs together")
        except InputError as error:
            refused |= dict.fromkeys(places, error)
    return refused


def begin_in_account(plan: Plan, setting: Setting, run: str) -> AccountedRun | None:
    """Return the run as its account knows it; None without an account."""
    if plan.spec.account_path is None:
        return None
    account, mechanism = Account(plan.spec.account_path), plan.mechanism
    planned = planned_charges(mechanism, setting, is_brief=False) if plan.facts.ids is None else None
    begun = account.begin(run, mechanism.name, mechanism.promise, client_names(plan), setting.facts.sizes, planned)
    if plan.records_hash is not None:
        account.note_data(begun.study, plan.records_hash)
    return begun


def _rounds_left(plan: Plan, done: int) -> Ints:
    """Return the data rounds of each client that are still to come, by the public schedule."""
    clients, who, seed = plan.facts.num_clients, plan.participation, plan.spec.seed
    if plan.mechanism.draws_secretly:
        return np.full(clients, plan.data_rounds - done)
    return who.rounds_of_clients(seed, clients, plan.data_rounds) - who.rounds_of_clients(seed, clients, done)
