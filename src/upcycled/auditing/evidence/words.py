"""The evidence's texts: the statement, how to verify, and the script that does."""

from __future__ import annotations

from collections.abc import Sequence

from upcycled.auditing.evidence.claims import Claim
from upcycled.privacy.mechanisms.table import PROVEN

SCRIPT = '''\
"""Recomputes the epsilon of events.json with dp_accounting alone: pip install dp-accounting; python verify.py

It checks the chain of the charges against head.json, and claims against the events. That the events are those of the
charges, and the head one that somebody else kept, is for you to see: VERIFY.md says how.
"""
import hashlib, json, pathlib
import dp_accounting as dp
from dp_accounting.pld import PLDAccountant
here = pathlib.Path(__file__).parent
document, head = (json.loads((here / name).read_text()) for name in ("events.json", "head.json"))
tip, claim = 64 * "0", document["claimed_epsilon"]
charges = (here / ("account.jsonl" if document["is_account"] else "ledger.jsonl")).read_text().splitlines()
for line in charges if head else []:
    text, _, value = line.rpartition(',"chain":"')
    tip = hashlib.sha256((tip + text + "}").encode()).hexdigest()
    assert value == tip + '"}', "a charge was changed: its chain is broken"
assert not head or (head["lines"], head["tip"]) == (len(charges), tip), "charges and head are not of each other"
for one in document["clients"]:
    accountant = PLDAccountant(dp.NeighboringRelation.REPLACE_ONE)
    for e in one["events"] or []:
        if e["event"] == "GaussianDpEvent":
            accountant.compose(dp.GaussianDpEvent(e["noise_multiplier"]), e["count"])
        elif e["event"] == "PoissonSampledDpEvent":
            step = dp.PoissonSampledDpEvent(e["sampling_probability"], dp.GaussianDpEvent(e["noise_multiplier"]))
            accountant.compose(step, e["count"])
        else:  # its count is ignored by the library: one event a round
            [accountant.compose(dp.RandomizedResponseDpEvent(e["noise_parameter"], 2)) for _ in range(e["count"])]
    if one["stated_epsilon"] is None:
        print(one["clients"], "no epsilon is stated")
        continue
    found = accountant.get_epsilon(one["delta_for_events"])
    print(one["clients"], "recomputed", found, "stated", one["stated_epsilon"])
    # The library rounds its privacy losses upwards: half a percent of room.
    assert found <= one["stated_epsilon"] * 1.005 + 1e-3, "the stated epsilon is too small"
    assert claim is None or one["stated_epsilon"] <= claim * (1 + 1e-9), "more is stated than is claimed"
print("recomputed, within the claim of", claim, "at delta", document["delta"], "and of a whole chain")
'''


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
    texts = {
        "account.jsonl": "every charge of every study, before its release existed; chained",
        "ledger.jsonl": "every charge of the run, before its release existed; chained",
        "head.json": "lines, the chain's value after the last, and its HMAC under the holder's key",
        "config.toml": "what was asked for",
        "versions.json": "versions, and the SHA-256 of the package's source",
        "STATEMENT.md": "what is claimed, against whom, under which assumptions",
        "BOARD.md": "what that means for people",
        "events.json": "the charges as events of Google's dp_accounting",
        "verify.py": "recomputes epsilon from events.json with that library alone, and checks the chain",
        "curve.csv": "delta(epsilon) of the worst client's charges",
        "curve.png": "the same as a picture",
        "audit.json": "what an attack on the real code found",
        "VERIFY.md": "this page",
    }
    lines = [
        f"# How to verify: {claim.title}",
        "",
        "| file | what it is |",
        "|---|---|",
        *(f"| `{name}` | {texts[name]} |" for name in files),
        "",
        "1. **The number and the chain**, without this package:",
        "",
        "   ```",
        "   python3 -m venv check && check/bin/pip install dp-accounting && check/bin/python verify.py",
        "   ```",
        "",
        "   A plain Gaussian in that library's REPLACE_ONE moves by two sensitivities, so its noise multiplier is "
        "doubled; a pure round is a randomised response with the same epsilon. `delta_for_events` is delta less what "
        "drawing integers in the place of real numbers costs, (1 + e^epsilon) 2^-43 sqrt(draws).",
        f"2. **The chain** of `{chain}`: each line ends in the SHA-256 of the value before it (64 zeros before the "
        'first) and its own text without `,"chain":"..."`. The value after line `lines` must be `tip` of `head.json`. '
        "Ask the holder, or whoever kept a head on the way, for a head of their own: last lines may be missing "
        "otherwise.",
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
