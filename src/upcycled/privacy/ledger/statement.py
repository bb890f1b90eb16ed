"""What a report must say about a private run, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from upcycled.privacy.ledger.ledger import Ledger

NOT_COVERED = (
    "choices made by looking at private data (tuning), other runs on the same data, the clients' sizes n_i, timing, "
    "and test metrics or personal models computed on clients"
)


def statement(ledger: Ledger, delta: float) -> str:
    """Return the statement of a ledger, one item a line."""
    promise, rounds = ledger.promise, ledger.rounds
    lines = [
        _noise(ledger),
        f"mechanism: {ledger.mechanism}; released: {promise.released}",
        f"unit: one {promise.unit}, replaced by another (replace-one); the clients' sizes are public",
        f"adversary: {promise.adversary}",
        f"delta: {delta:g}",
        f"data rounds charged: {rounds.min()} to {rounds.max()} a client; upcycled iterations cost nothing",
        _epsilons(ledger, delta),
        f"checked: {'; '.join(promise.checked) or 'nothing'}",
        f"the user's word: {'; '.join(promise.trusted) or 'public constants do not come from private data'}",
        f"sampling of clients: {_sampling(ledger)}",
        f"schedule: {_schedule(ledger)}",
        f"not covered: {NOT_COVERED}; this is the cost of this run only",
        *(() if ledger.chain is None else (f"ledger: {evidence(ledger)}",)),
    ]
    return "\n".join(lines)


def _noise(ledger: Ledger) -> str:
    if ledger.is_simulation:
        return "simulation: not private (the noise follows from the seed)"
    words = "noise: a cryptographic stream keyed by the operating system's entropy"
    if not any(entry.charge is not None and entry.charge.draws is not None for entry in ledger):
        return words
    return f"{words}; integers on a grid, sampled up to a proven error whose cost is part of delta"


def evidence(ledger: Ledger) -> str:
    """Return, in words, what shows that the ledger's file is what the run wrote."""
    if ledger.chain == "unchained":
        return f"unchained (format {ledger.format}); nothing shows that lines were changed or taken away"
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


def _epsilons(ledger: Ledger, delta: float) -> str:
    if not ledger.promise.is_claimed:
        return "epsilon: none is claimed, this is not private"
    proven = ledger.epsilon(delta)
    worst, middle, best = proven.max(), np.median(proven), proven.min()
    words = f"epsilon (proven): {worst:.6g} for the worst client, {middle:.6g} median, {best:.6g} best"
    if ledger.kind == "pure" and delta > 0:
        words += f"; the plain sum, at delta = 0, is {ledger.max_epsilon(0.0):.6g} for the worst client"
    if not ledger.states_paper_epsilon:
        return words
    return (
        f"{words}; the paper's formula would print {ledger.paper_epsilon(delta).max():.6g} at most, which rests on an "
        "assumption that is not proven for this model"
    )


def _sampling(ledger: Ledger) -> str:
    part = ledger.participation
    if ledger.promise.sampling_is_secret:
        rate = "" if part is None else f" at rate {part:g}"
        return f"secret Poisson draws{rate}, which the epsilon relies on"
    if part is None:
        return "not noted in this file; no amplification is claimed"
    if part >= 1:
        return "all clients in every data round"
    return f"public ({ledger.sampling}, {part:g} of the clients); no amplification is claimed"


def _repeats(ledger: Ledger) -> str:
    if ledger.repeated == 0:
        return ""
    return (
        f"; {ledger.repeated} rounds were repeated after the run was stopped, each with new noise and its own charge: "
        "the epsilon holds if stopping did not depend on what was released"
    )


def _schedule(ledger: Ledger) -> str:
    if ledger.budget is None:
        return f"fixed before the first round, as are noise and participation{_repeats(ledger)}"
    out = int((ledger.left_out > 0).sum())
    return (
        f"a filter holds every client within epsilon {ledger.budget.epsilon:g} at delta {ledger.budget.delta:g}, which "
        f"is the claim whatever the rounds depended on; {out} clients were left out of rounds they could not pay"
    )
