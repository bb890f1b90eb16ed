"""``upcycled audit``: attack the releases of a config file, and set what was found beside what is claimed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from upcycled.cli.batches import Subparsers, add_command, add_config, add_json, experiment_of
from upcycled.cli.show import note, print_json, print_table
from upcycled.support.formats import NONE, fixed

if TYPE_CHECKING:
    from upcycled.auditing.outcome import Audit

EXAMPLES = """\
examples:
  upcycled audit experiment.toml                     two neighbouring data sets, thousands of real releases
  upcycled audit experiment.toml --one-run           one run with a canary record in every client
  upcycled audit experiment.toml --claim paper       test the paper's number in place of the proven one
  upcycled audit experiment.toml --replays 20000 --json
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "audit",
        help="attack the releases of a config file; exit code 1 when a claim is broken",
        description=(
            "Replay a data round of a config file under two neighbouring data sets (or once, with canaries) through "
            "the real code, and certify how much epsilon an attack finds, with 95% confidence. An audit can refute a "
            "claim and never prove one. Exit code 1 when the claim is broken."
        ),
        examples=EXAMPLES,
    )
    add_config(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--two-world", dest="test", action="store_const", const="two-world", help="the default")
    which.add_argument("--one-run", dest="test", action="store_const", const="one-run", help="canaries in one run")
    parser.add_argument(
        "--replays",
        metavar="N",
        help="of each world, half of them to certify (default: 6000, or 500 where each must train)",
    )
    parser.add_argument("--claim", metavar="NAME", default="proven", help="proven (default) or paper: what is tested")
    parser.add_argument("--delta", metavar="X", help="the claim's delta (default: the file's, or 1e-5)")
    add_json(parser)
    parser.set_defaults(run=_run, test="two-world")


def _run(args: argparse.Namespace) -> int:
    from upcycled.auditing.attack import audit
    from upcycled.cli.privacy import number_of

    found = audit(
        experiment_of(args),
        args.config,
        test=args.test,
        replays=number_of("replays", args.replays, int),
        claim=args.claim,
        delta=number_of("delta", args.delta),
    )
    for words in found.warnings:
        note(f"warning: {words}")
    if args.json:
        print_json(found.as_json())
    else:
        _show(found)
    return 1 if found.is_broken else 0


def _show(found: Audit) -> None:
    claim = found.claim
    rows = [["epsilon", fixed(found.epsilon_lower, 4), fixed(claim.epsilon, 4), fixed(claim.paper_epsilon, 4)]]
    if found.mu_lower is not None:
        rows.append(["mu (Gaussian)", fixed(found.mu_lower, 4), fixed(claim.mu, 4), NONE])
    print_table(found.title, ("", "found, at least", "claimed (proven)", "paper's number"), rows)
    for line in found.sentences:
        print(line)
