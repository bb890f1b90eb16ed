"""The evidence's texts: the statement, and how to verify it."""

from __future__ import annotations

from collections.abc import Sequence

from upcycled.auditing.evidence.claims import Claim
from upcycled.privacy.mechanisms.table import PROVEN


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
