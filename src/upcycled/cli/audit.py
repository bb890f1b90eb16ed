"""``upcycled audit``: attack the releases of a config file, and set what was found beside what is claimed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from upcycled._utils.formats import NONE, fixed, significant
from upcycled.cli.common import Subparsers, add_command, add_config, add_json, experiment_of
from upcycled.cli.output import note, print_json, print_table
from upcycled.core.errors import InputError

if TYPE_CHECKING:
    from upcycled.audit.findings import Audit
    from upcycled.config.experiment import Experiment


EXAMPLES = """\
examples:
  upcycled audit experiment.toml                     what it can find, said first; then every probe, at every client
  upcycled audit experiment.toml --power             only what it can find
  upcycled audit experiment.toml --two-world         two neighbouring data sets of one client, thousands of releases
  upcycled audit experiment.toml --claim paper       test the paper's number in place of the proven one (two worlds)
  upcycled audit experiment.toml --replays 20000 --json
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "audit",
        help="attack the releases of a config file; exit code 1 when a claim is broken",
        description=(
            "Run rounds of a config file through the real code, all clients in rotation, and hold the noise, what "
            "neighbours move, the charges, the server's memories and secret coins against what is claimed. It says "
            "first which faults it can find. An audit can refute a claim and never prove one. Exit code 1 when the "
            "claim is broken. --two-world is a single attack: it certifies how much epsilon it finds."
        ),
        examples=EXAMPLES,
    )
    add_config(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--power", dest="test", action="store_const", const="power", help="say what can be found")
    which.add_argument("--two-world", dest="test", action="store_const", const="two-world", help="one client's record")
    parser.add_argument(
        "--replays",
        type=int,
        metavar="N",
        help="of each of two worlds, half of them to certify (default: 6000, or 500 where each must train)",
    )
    parser.add_argument("--claim", metavar="NAME", help="proven (default) or paper: what two worlds test")
    parser.add_argument("--delta", type=float, metavar="X", help="the claim's delta (default: the file's, or 1e-5)")
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    asked = experiment_of(args)
    of_two_worlds = {"--replays": args.replays, "--claim": args.claim, "--delta": args.delta}
    if args.test == "power" or (args.test is None and all(given is None for given in of_two_worlds.values())):
        for flag, given in of_two_worlds.items():
            if given is not None:
                raise InputError(field=flag, value=given, must="left out with --power")
        return _whole(args, asked)
    from upcycled.audit.attacks import audit

    found = audit(asked, args.config, replays=args.replays, claim=args.claim or "proven", delta=args.delta)
    for words in found.warnings:
        note(f"warning: {words}")
    if args.json:
        print_json(found.as_json())
    else:
        _show(found)
    return 1 if found.is_broken else 0


def _whole(args: argparse.Namespace, asked: Experiment) -> int:
    """Say what can be found, and then look for it."""
    from upcycled.audit.full_audit import LEVEL, carry_out, survey

    scope = survey(asked, args.config)
    for words in scope.warnings:
        note(f"warning: {words}")
    if not args.json:
        rows = [[one.probe, one.fault, one.words] for one in scope.power]
        titles = ("probe", "fault", "found with probability 0.95 from")
        print_table(f"{scope.title}: what it can find", titles, rows, words=titles)
        print(f"all together raise a false alarm with probability {LEVEL:g} at most")
    if args.test == "power":
        if args.json:
            print_json({"test": "power", "level": LEVEL, "power": [one.as_json() for one in scope.power]})
        return 0
    found = carry_out(scope)
    if args.json:
        print_json(found.as_json())
    else:
        columns = ("probe", "looked at", "p-value", "verdict")
        rows = [
            [one.probe, one.looked_at, significant(one.p_value, 2), "BROKEN" if one.wrong else "ok"]
            for one in found.findings
        ]
        print_table("what it found", columns, rows, words=("looked at",))
        for line in found.sentences:
            print(line)
    return 1 if found.is_broken else 0


def _show(found: Audit) -> None:
    claim = found.claim
    rows = [["epsilon", fixed(found.epsilon_lower, 4), fixed(claim.epsilon, 4), fixed(claim.paper_epsilon, 4)]]
    if found.mu_lower is not None:
        rows.append(["mu (Gaussian)", fixed(found.mu_lower, 4), fixed(claim.mu, 4), NONE])
    print_table(found.title, ("", "found, at least", claim.title, "paper's number"), rows)
    for line in found.sentences:
        print(line)
