"""The evidence's texts: the statement, how to verify it, and what an ethics board asks.

The evidence's texts: the statement, and how to verify it.

What an ethics board asks: a paragraph in plain words, then how well anybody could tell, for groups of records too.

The paragraph is written here once: ``docs/howto/ethics-board.md`` shows it with numbers in brackets, for who plans a
study, and ``BOARD.md`` has it filled in.
"""

from __future__ import annotations

from collections.abc import Sequence

from upcycled._utils.formats import count, epsilon, fixed, general
from upcycled.audit.evidence.claims import Claim
from upcycled.privacy.ledger.statement import guesses_of_100
from upcycled.privacy.mechanisms import PROVEN


def statement(claim: Claim) -> str:
    """Return the statement in plain words."""
    lines = [f"# What is claimed: {claim.title}", ""]
    if claim.word != PROVEN:
        lines += [f"**Epsilon is {claim.word}.**", ""]
    lines += [f"- **{topic}**: {words}" for topic, words in claim.items]
    if claim.is_simulation:
        lines += ["", "**This was a simulation: its noise follows from a seed, and it protects nobody.**"]
    return "\n".join([*lines, ""])


def about_verifying(claim: Claim, files: Sequence[str]) -> str:
    """Return how somebody checks the folder, what that shows, and what it does not."""
    chain = "account.jsonl" if claim.is_account else "ledger.jsonl"
    printed = (
        "the holder's `upcycled privacy account show --json` prints it as `head.tip`"
        if claim.is_account
        else "`upcycled run` printed it when the run ended"
    )
    attempt = "every charge of a later attempt at the run; its first line names the attempt before it"
    texts = {
        "account.jsonl": "every charge of every study, before its release existed; chained",
        "ledger.jsonl": "every charge of the run, before its release existed; chained",
        "head.json": "lines, the chain's value after the last, and its HMAC under the holder's key",
        "config.toml": "what was asked for",
        "versions.json": "versions, and the SHA-256 of the package's source",
        "STATEMENT.md": "what is claimed, against whom, under which assumptions",
        "BOARD.md": "what that means for people",
        "events.json": "what is stated, the charges as events of Google's dp_accounting, and hashes of the other files",
        "verify.py": "derives the events from the charges, recomputes epsilon with that library alone, and compares",
        "curve.csv": "delta(epsilon) of the worst client's charges",
        "curve.png": "the same as a picture",
        "audit.json": "what an attack on the real code found",
        "VERIFY.md": "this page",
    }
    lines = [
        f"# How to verify: {claim.title}",
        "",
        "`python verify.py --head TIP` checks this folder against TIP, the last chain value of the charges. **TIP must "
        f"come from outside this folder**: {printed}; ask whoever kept it. `python verify.py` alone checks that the "
        'folder is consistent and prints "head not compared": somebody could then have written all of it anew. If you '
        "do not trust who gave you the folder, take `verify.py` from the package's source and name the folder.",
        "",
        "| file | what it is |",
        "|---|---|",
        *(f"| `{name}` | {texts.get(name, attempt)} |" for name in files),
        "",
        "1. **The number and the chain**, without this package:",
        "",
        "   ```",
        "   python3 -m venv check && check/bin/pip install dp-accounting && check/bin/python verify.py --head TIP",
        "   ```",
        "",
        "   The script derives each client's events from the charges. If the run did not end as planned, it adds the "
        "charges that were planned and not made, because a run may stop because of its data. A plain Gaussian in that "
        "library's REPLACE_ONE moves by two sensitivities, so its noise multiplier is doubled; a pure round is a "
        "randomised response with the same epsilon. `delta_for_events` is delta less a part of 2^-20, 2^-10, 2^-7 or a "
        "tenth, the least that covers what drawing integers in the place of real numbers costs, (1 + e^epsilon) 2^-43 "
        "sqrt(draws).",
        f"2. **The chain** of `{chain}`: each line ends in the SHA-256 of the value before it (64 zeros before the "
        'first) and its own text without `,"chain":"..."`. The value after line `lines` is `tip` of `head.json`, and '
        "must be TIP.",
        "3. **The events** follow from the chain's lines: noise_std / sensitivity of each charge (twice that for plain "
        "Gaussians), its sampling_rate and steps, or its epsilon.",
        "4. **The source** has the hash in `versions.json`: of each `.py` file's path, length and bytes, in the order "
        "of paths.",
        "",
        "What this does not show: that the run did what its ledger says (read the source, or audit it: `upcycled "
        "audit`), that the data were what is said, that nothing else was released, or that the holder, who has the "
        "key, did not write all of it anew.",
    ]
    if claim.word != PROVEN:
        lines.append(
            f"\nEpsilon is {claim.word}: what `verify.py` recomputes follows from the sensitivities that the charges "
            "state, and nothing here shows that those are right."
        )
    if claim.is_account:
        lines.append(
            "\nThe account's claim is its budget, held by a filter; what `verify.py` recomputes is the spending so far "
            "as if all of it had been fixed beforehand, which the filter's number is never below."
        )
    return "\n".join([*lines, ""])


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
