"""What a private run protects, in the words of those whose records it is about."""

from __future__ import annotations

import math

from upcycled.core.mechanism import Promise
from upcycled.privacy.mechanisms.table import PROVEN
from upcycled.support.formats import epsilon as epsilon_in_words
from upcycled.support.formats import fixed, general

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
