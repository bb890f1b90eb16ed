"""What a report must say about a private run, in words.

What a private run protects, in the words of those whose records it is about.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from upcycled._utils.formats import epsilon as epsilon_in_words
from upcycled._utils.formats import fixed, general
from upcycled.core.mechanism import Promise
from upcycled.core.vectors import Real
from upcycled.privacy.charge_kinds import kind_named
from upcycled.privacy.mechanisms import PROVEN

if TYPE_CHECKING:
    from upcycled.privacy.ledger.ledger import Ledger


UNITS = {
    "record": "each single record of a client's training data, such as one patient's row in a hospital's table; a "
    "person with k records is protected less, by k times epsilon or more at the same delta",
    "client": "all records of one client taken together, such as everything that one hospital holds",
}
KNOWN = {"record": "every other record of the hospital", "client": "all records of every other hospital"}
FROM_WHOM = {
    "releases": "whoever sees all that clients send in all rounds, and all models made of it: the server, the other "
    "clients, and those who get the model",
    "aggregates": "whoever sees the models of all rounds, such as those who get the model; not from the server, which "
    "sees what each client sends and is trusted",
}
NOT_PROTECTED = (
    "that a client takes part, and how many records it has; what follows from all records together, which is what a "
    "model learns; test scores and personal models that are shown to others; choices that were made by looking at the "
    "data; other runs on the same data, whose costs add up; when messages are sent"
)
HARDLY = 0.95
"""The chance of a right guess from which on the limit is called what it is."""


def best_guess(epsilon: float, delta: float) -> float:
    """Return how often somebody can be right at most who must tell which of two records is in the data.

    Both are as likely, and everything else is known to them. With errors of both kinds at least e and e', differential
    privacy says 1 - e <= exp(epsilon) e' + delta and the same with both exchanged; their mean is least where they are
    equal, at (1 - delta)/(1 + exp(epsilon)).

    >>> best_guess(0.0, 0.0), best_guess(math.log(3), 0.0), best_guess(math.inf, 0.0)
    (0.5, 0.75, 1.0)
    """
    return 1.0 - (1.0 - delta) / (1.0 + math.exp(epsilon)) if epsilon < 700 else 1.0


def guesses_of_100(epsilon: float, delta: float) -> str:
    """Return :func:`best_guess` in cases of 100, rounded upwards: a limit must not look lower than it is.

    >>> guesses_of_100(1.0, 1e-5), guesses_of_100(math.inf, 0.0)
    ('73.2', '100.0')
    """
    return fixed(math.ceil(min(best_guess(epsilon, delta), 1.0) * 1000 - 1e-9) / 10, 1)


def plain_words(
    promise: Promise, claim: str, is_simulation: bool, worst: float, delta: float
) -> tuple[tuple[str, str], ...]:
    """Return what is protected, from whom, how far, and what is not: a topic and a sentence each.

    Args:
        promise: of the mechanism.
        claim: what epsilon is: proven, or whose claim.
        is_simulation: whether the noise follows from the seed.
        worst: the worst client's epsilon.
        delta: it is stated at.
    """
    if not promise.is_claimed:
        return (("protected", "nothing: no limit is claimed for this mechanism"),)
    protected = UNITS[promise.unit]
    if is_simulation:
        protected = f"nothing, for this is a simulation (its noise follows from the seed); with real noise: {protected}"
    return (
        ("protected", protected),
        ("from whom", FROM_WHOM[promise.sees]),
        ("how far", _how_far(promise, claim, worst, delta)),
        ("not protected", NOT_PROTECTED),
    )


def _how_far(promise: Promise, claim: str, worst: float, delta: float) -> str:
    if not math.isfinite(worst):
        return "no limit is proven"
    chance = best_guess(worst, delta)
    whose = f"two candidates for one {promise.unit}, as likely as each other"
    whose_claim = "" if claim == PROVEN else f", {claim}"
    words = (
        f"somebody who knows {KNOWN[promise.unit]} and has {whose}, guesses which of them is in the data right at most "
        f"{guesses_of_100(worst, delta)} times in 100, where 50 is chance (epsilon {epsilon_in_words(worst)}, delta "
        f"{general(delta)}, the worst client's{whose_claim})"
    )
    return f"{words}: that is next to no limit" if chance >= HARDLY else words


NOT_COVERED = (
    "choices made by looking at private data (tuning), other runs on the same data, the clients' sizes n_i, timing, "
    "and test metrics or personal models computed on clients"
)


def statement_items(ledger: Ledger, delta: float) -> tuple[tuple[str, str], ...]:
    """Return the statement of a ledger, a topic and what is said of it at a time."""
    promise, rounds = ledger.promise, ledger.rounds
    return (
        _noise(ledger),
        ("mechanism", f"{ledger.mechanism}; released: {promise.released}"),
        ("unit", f"one {promise.unit}, replaced by another (replace-one); the clients' sizes are public"),
        ("adversary", promise.adversary),
        ("delta", general(delta)),
        ("data rounds charged", f"{rounds.min()} to {rounds.max()} a client; upcycled iterations cost nothing"),
        *_scores(ledger),
        _epsilons(ledger, delta),
        *_repeats(ledger, delta),
        ("checked", "; ".join(promise.checked) or "nothing"),
        ("the user's word", "; ".join(promise.trusted) or "public constants do not come from private data"),
        ("sampling of clients", _sampling(ledger)),
        ("schedule", _schedule(ledger)),
        *_account(ledger),
        ("not covered", f"{NOT_COVERED}; this is the cost of this run only" if ledger.account is None else NOT_COVERED),
        *(() if ledger.chain is None else (("ledger", evidence(ledger)),)),
    )


def contradiction(privacy: Mapping[str, Any], found: float) -> str | None:
    """Say how the worst epsilon of a ledger's file contradicts what its run stated when it ended; None if it does not.

    Args:
        privacy: what ``summary.json`` says of privacy.
        found: what the file gives, at the same delta.
    """
    epsilon = privacy.get("epsilon")
    stated = epsilon.get("max") if isinstance(epsilon, Mapping) else None
    # An accountant of another version may round in another place.
    if not isinstance(stated, int | float) or not math.isfinite(stated) or math.isclose(stated, found, rel_tol=1e-3):
        return None
    return (
        f"gives epsilon {general(found)}, but the run's summary states {general(stated)}: one of them is not what the "
        "run wrote"
    )


def _account(ledger: Ledger) -> tuple[tuple[str, str], ...]:
    account = ledger.account
    if account is None:
        return ()
    most, delta = general(account.epsilon), general(account.delta)
    words = (
        f"{account.id}; a filter holds every client within epsilon {most} at delta {delta} over all studies that are "
        f"charged to it, per {account.unit}: that is the claim, and the epsilon above is a part of it"
    )
    return (("account", words),)


def scope_of(account_id: str | None) -> str:
    """Return what an epsilon is about, to stand beside it."""
    return "this run only" if account_id is None else f"this run's part of account {account_id}"


def _scores(ledger: Ledger) -> tuple[tuple[str, str], ...]:
    times = sum(entry.kind == "scores" for entry in ledger)
    if not times:
        return ()
    return (("scores charged", f"{times} times, on held-out records; added to the rounds' cost, an upper bound"),)


def _noise(ledger: Ledger) -> tuple[str, str]:
    if ledger.is_simulation:
        return "simulation", "not private (the noise follows from the seed)"
    words = "a cryptographic stream keyed by the operating system's entropy"
    if any(entry.charge is not None and entry.charge.draws is not None for entry in ledger):
        words += "; integers on a grid, sampled up to a proven error whose cost is part of delta"
    return "noise", words


def evidence(ledger: Ledger) -> str:
    """Return, in words, what shows that the ledger's file is what the run wrote."""
    if ledger.chain == "unanchored":
        return (
            "unanchored; no line was changed alone, but last lines may be missing, and whoever can write the file "
            "could have written all of it anew"
        )
    if not ledger.is_held:
        return "anchored; the run wrote every line itself"
    whose = "which the holder's key made" if ledger.is_sealed else "which no key was asked about"
    after = f"; {ledger.ahead} lines after the head are charged too" if ledger.ahead else ""
    return f"anchored; it holds all that its head says, {whose}{after}"


def epsilon_words(every: Real) -> str:
    """Return the epsilons of all clients in short."""
    worst, middle, best = general(every.max()), general(np.median(every)), general(every.min())
    return f"{worst} for the worst client, {middle} median, {best} best"


def _epsilons(ledger: Ledger, delta: float) -> tuple[str, str]:
    if not ledger.promise.is_claimed:
        return "epsilon", "none is claimed, this is not private"
    every = ledger.epsilon(delta)
    words = f"{epsilon_words(every)}; {scope_of(_id_of(ledger))}"
    if kind_named(ledger.kind).is_pure and delta > 0:
        words += f"; the plain sum, at delta = 0, is {general(ledger.max_epsilon(0.0))} for the worst client"
    if ledger.states_paper_epsilon:
        paper = general(ledger.paper_epsilon(delta).max())
        words += f"; the paper's formula would print {paper} at most, which rests on an assumption that is not proven "
        words += "for this model"
    return f"epsilon ({ledger.claim})", words


def _id_of(ledger: Ledger) -> str | None:
    return None if ledger.account is None else ledger.account.id


def _sampling(ledger: Ledger) -> str:
    part = ledger.header.participation
    if ledger.promise.sampling_is_secret:
        return f"secret Poisson draws at rate {general(part)}, which the epsilon relies on"
    if part >= 1:
        return "all clients in every data round"
    return f"public ({ledger.header.sampling}, {general(part)} of the clients); no amplification is claimed"


def repeats_words(charges: int, epsilon: float | None, without: float | None) -> str:
    """Say that charges were made again after a run had stopped, and what they made of its epsilon.

    >>> repeats_words(2, 2.018, 2.0)
    '2 charges are repeats, made with new noise after the run had stopped, which is why epsilon is 2.018 and not 2'
    """
    are = "1 charge is a repeat" if charges == 1 else f"{charges} charges are repeats"
    said = f"{are}, made with new noise after the run had stopped"
    if epsilon is None or without is None or not math.isfinite(epsilon):  # summaries have null for infinity
        return said
    return f"{said}, which is why epsilon is {general(epsilon)} and not {general(without)}"


def _repeats(ledger: Ledger, delta: float) -> tuple[tuple[str, str], ...]:
    if ledger.repeated == 0:
        return ()
    words = repeats_words(ledger.repeated, ledger.max_epsilon(delta), ledger.epsilon_without_repeats(delta))
    if ledger.budget is None:
        words += "; it holds if stopping did not depend on what was released"
    return (("paid again", words),)


def stopped_words(ledger: Ledger) -> str:
    """Say that a run did not end as planned, and what its epsilon is stated for."""
    planned = ledger.header.data_rounds
    return f"stopped after {ledger.last_round} of {planned} data rounds; stated for the planned {planned}"


def _schedule(ledger: Ledger) -> str:
    stopped = "" if ledger.is_as_planned else f"{stopped_words(ledger)}; "
    if ledger.budget is None:
        whole = "the whole schedule was " if stopped else ""
        return f"{stopped}{whole}fixed before the first round, as are noise and participation"
    out, most, delta = int((ledger.left_out > 0).sum()), general(ledger.budget.epsilon), general(ledger.budget.delta)
    return (
        f"{stopped}a filter holds every client within epsilon {most} at delta {delta}, which is the claim whatever the "
        f"rounds depended on; {out} clients were left out of rounds they could not pay"
    )
