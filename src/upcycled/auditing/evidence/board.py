"""What an ethics board asks: a paragraph in plain words, then how well anybody could tell, for groups of records too.

The paragraph is written here once: ``docs/howto/ethics-board.md`` shows it with numbers in brackets, for who plans a
study, and ``BOARD.md`` has it filled in.
"""

from __future__ import annotations

from upcycled.auditing.evidence.claims import Claim
from upcycled.privacy.ledger.plain_words import guesses_of_100
from upcycled.privacy.mechanisms.table import PROVEN
from upcycled.support.formats import count, epsilon, fixed, general

SENT = {
    "releases": "with random noise in it",
    "aggregates": "to a server that is trusted with it and adds random noise to the sum of all",
}
SEEN = {
    "releases": "against anybody who sees everything that was sent, including the organisers",
    "aggregates": "against anybody who sees the models that the server makes of it, but not against the server",
}
UNITS = {"record": "for each single record of each site", "client": "for all records of a site together"}
KNOWN = {
    "record": "who knows all other records, and has two candidates for this one",
    "client": "who knows the records of all other sites, and has two candidates for this one's",
}
NOT_COVERED = (
    "Not covered: that a site takes part, and how many records it has; several records of one person (a table of "
    "BOARD.md in the evidence says how much less they are protected); attackers inside a site; the time that "
    "computations take; what the model says truthfully about people like those in the data, whether or not they took "
    "part."
)


def paragraph(
    *,
    sites: str,
    rounds: str,
    numbers: str | None,
    epsilon: str,
    delta: str,
    guesses: str,
    account: str | None,
    word: str = PROVEN,
    unit: str = "record",
    sees: str = "releases",
    is_account: bool = False,
    has_scores: bool = False,
) -> str:
    """Return the paragraph.

    Args:
        sites: how many clients there are.
        rounds: data rounds of a client, at most.
        numbers: the length of what a client sends; None where it is not known, or not the same in all studies.
        epsilon: of the claim.
        delta: of the claim.
        guesses: of 100 that are right at most.
        account: the epsilon that all studies are held to; None where nothing holds them.
        word: what epsilon is: proven, or whose claim.
        unit: what is protected, a record or a client.
        sees: what the adversary sees, releases or aggregates.
        is_account: whether the claim is about all studies of an account.
        has_scores: whether noisy counts of right answers were released too.
    """
    vector = "one vector" if numbers is None else f"one vector of {numbers} numbers"
    scores = (
        " but noisy counts of the model's answers on held-out records, whose cost is included" if has_scores else ""
    )
    satisfies = "all studies together satisfy" if is_account else "the study satisfies"
    whose = "" if word == PROVEN else f" ({word})"
    held = (
        "No account holds all studies on these records together to an epsilon: what others spend adds to this."
        if account is None
        else f"All studies on these records together are held to epsilon {account} by an account at the data holder; a "
        "study that would exceed it is refused by the software."
    )
    return (
        f"The records stay at {sites} sites. In each of at most {rounds} data rounds a site sends {vector}, the result "
        f"of training on its own records, {SENT[sees]}; nothing else that is computed from records leaves it{scores}. "
        f"The noise is chosen so that {satisfies} differential privacy with epsilon {epsilon} and delta {delta}{whose} "
        f"{UNITS[unit]}, {SEEN[sees]}. In plain words: somebody {KNOWN[unit]} that are equally likely, guesses right "
        f"in at most {guesses} of 100 cases after seeing all that, where 50 is chance. The number is computed from a "
        f"record of every release, written before the release leaves, and can be checked by others. {held}"
    )


def for_a_board(claim: Claim) -> str:
    """Return BOARD.md: the paragraph, what is not covered, and the tables behind both."""
    unit = f"one {claim.unit}" if claim.unit == "client" else "one record of one client"
    filled = paragraph(
        sites=count(claim.sites),
        rounds=count(claim.rounds),
        numbers=None if claim.numbers is None else count(claim.numbers),
        epsilon=epsilon(claim.epsilon),
        delta=general(claim.delta),
        guesses=guesses_of_100(claim.epsilon, claim.delta),
        account=None if claim.limit is None else general(claim.limit),
        word=claim.word,
        unit=claim.unit,
        sees=claim.sees,
        is_account=claim.is_account,
        has_scores=claim.has_scores,
    )
    so_far = f" By its charges so far it is {epsilon(claim.spent)}." if claim.is_account else ""
    lines = [
        f"# For an ethics board: {claim.title}",
        "",
        *(["**A simulation: none of this protects anybody.**", ""] if claim.is_simulation else []),
        *([f"**The epsilon below is {claim.word}.**", ""] if claim.word != PROVEN else []),
        filled,
        "",
        NOT_COVERED,
        "",
        f"Precisely: suppose that {unit} is exchanged for any other, and somebody who knows all other data, and both "
        f"candidates, tries to tell from all that is seen which of the two was used.{so_far} For the client that spent "
        "most it means, whatever test is used:",
        "",
        "| wrong accusations (false positives) | misses at least (false negatives) |",
        "|---|---|",
        *(f"| {fixed(100 * wrong, 0)} % | {fixed(100 * misses, 1)} % |" for wrong, misses in claim.least_misses()),
        "",
        "Guessing without looking has misses of 100 % less the wrong accusations. If one person has several records in "
        "a client's data, all of them exchanged:",
        "",
        "| records | epsilon | delta |",
        "|---|---|---|",
        *(f"| {k} | {epsilon(value)} | {general(delta)} |" for k, value, delta in claim.groups()),
        "",
        "In the statement's words, not covered: " + dict(claim.items).get("not covered", "what was not released"),
        "",
    ]
    return "\n".join(lines)
