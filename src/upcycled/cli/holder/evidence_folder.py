"""``upcycled privacy evidence``: all that somebody needs to check an epsilon."""

from __future__ import annotations

import argparse

from upcycled.cli.batches import Subparsers, add_command, add_json
from upcycled.cli.show import note, print_json
from upcycled.support.formats import epsilon, general

EXAMPLES = """\
examples:
  upcycled privacy evidence results/NAME/seed-0 -o evidence
  upcycled privacy evidence ACCOUNT -o evidence --audit audit.json
"""


def add_evidence(subparsers: Subparsers) -> None:
    """Declare the command."""
    text = "write a folder that anybody can check an epsilon with: ledger, statement, events, script, what it means"
    parser = add_command(subparsers, "evidence", help=text, description=text, examples=EXAMPLES)
    parser.add_argument("source", metavar="RESULT|ACCOUNT", help="a seed's folder, or an account's")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="where; a folder of its own")
    parser.add_argument("--audit", metavar="FILE", help="what `upcycled audit --json` printed, to be put beside it")
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from upcycled.auditing.evidence.folder import write_evidence
    from upcycled.privacy.mechanisms.table import epsilon_called
    from upcycled.support.warned import collected_warnings

    with collected_warnings() as warned:
        written = write_evidence(args.source, args.output, args.audit)
    claim = written.claim
    for words in warned:
        note(f"warning: {words}")
    if args.json:
        stated = claim.epsilon if claim.epsilon < float("inf") else None
        document = {"folder": args.output, "files": written.files, "epsilon": stated, "delta": claim.delta}
        print_json({**document, "claim": claim.word, "tip": written.tip})
        return 0
    print(f"{claim.title}: {epsilon_called(claim.word)} {epsilon(claim.epsilon)} at delta {general(claim.delta)}")
    print(f"{args.output}: {', '.join(written.files)}")
    print(f"Check it with `python {args.output}/verify.py --head {written.tip}`; give that tip by another way.")
    return 0
