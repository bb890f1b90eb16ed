"""``upcycled privacy ledger``: what clients spent in several runs together."""

from __future__ import annotations

import argparse
from pathlib import Path

from upcycled.cli.batches import Subparsers, add_command, add_json
from upcycled.cli.show import note, print_json, print_table
from upcycled.core.errors import InputError
from upcycled.support.formats import epsilon, general

EXAMPLES = """\
examples:
  upcycled privacy ledger results/NAME/seed-*/ledger.jsonl
  upcycled privacy ledger first/ledger.jsonl second/ledger.jsonl --delta 1e-6 --clients
"""
MOST_ROWS = 20


def add_ledger(subparsers: Subparsers) -> None:
    """Declare the command."""
    text = "compose the ledgers of several runs on the same data, client by client"
    parser = add_command(subparsers, "ledger", help=text, description=text, examples=EXAMPLES)
    parser.add_argument(
        "ledgers",
        metavar="LEDGER",
        nargs="+",
        help="a run's ledger.jsonl, or the folder it lies in; the summary beside it is held against it",
    )
    text = "the delta to state epsilon at (default: the ledgers' least)"
    parser.add_argument("--delta", type=float, metavar="X", help=text)
    parser.add_argument("--clients", action="store_true", help="a line for every client")
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from upcycled.privacy.ledger.joint import FIXED_ONLY, joint_epsilon
    from upcycled.privacy.ledger.run_folder import read_beside
    from upcycled.privacy.mechanisms.table import PROVEN, claim_word

    paths = [_file(text) for text in args.ledgers]
    ledgers = [read_beside(path) for path in paths]
    delta = min(ledger.default_delta for ledger in ledgers) if args.delta is None else args.delta
    together = joint_epsilon(ledgers, delta)
    rounds = [int(sum(each)) for each in zip(*(ledger.rounds for ledger in ledgers), strict=True)]
    claim = claim_word(*(ledger.mechanism for ledger in ledgers))
    simulated = [str(path) for path, ledger in zip(paths, ledgers, strict=True) if ledger.is_simulation]
    order = sorted(range(together.size), key=lambda client: -together[client])
    if args.json:
        clients = [
            {
                "client": i,
                "rounds": rounds[i],
                "epsilon": float(together[i]) if together[i] < float("inf") else None,
            }
            for i in range(together.size)
        ]
        one_by_one = [
            {"ledger": str(path), "run": ledger.run, "mechanism": ledger.mechanism, "chain": ledger.chain}
            for path, ledger in zip(paths, ledgers, strict=True)
        ]
        document = {"delta": delta, "ledgers": one_by_one, "clients": clients, "simulated": simulated}
        print_json({**document, "claim": claim, "holds": FIXED_ONLY})
        return 0
    each = [ledger.epsilon(delta) for ledger in ledgers]
    shown = order if args.clients else order[:MOST_ROWS]
    titles = [f"{ledger.mechanism}\n{ledger.run[:8]}" for ledger in ledgers]
    rows = [[str(i), str(rounds[i]), *(epsilon(one[i]) for one in each), epsilon(together[i])] for i in shown]
    print_table(
        f"{len(ledgers)} ledgers together, epsilon at delta {general(delta)}",
        ("client", "data rounds", *titles, "together"),
        rows,
    )
    if len(shown) < len(order):
        print(f"{len(order) - len(shown)} more clients have spent less: --clients shows them.")
    print(f"Together: {FIXED_ONLY}; a budget over studies that follow one another is an account's.")
    for path, ledger in zip(paths, ledgers, strict=True):
        if ledger.chain != "anchored":
            print(f"{path} is {ledger.chain}: lines at the end may be missing, and epsilon too small.")
    if claim != PROVEN:
        print(f"Epsilon is {claim}.")
    if simulated:
        note(f"note: simulations, which protect nobody: {', '.join(simulated)}")
    return 0


def _file(text: str) -> Path:
    path = Path(text)
    if path.is_dir():
        path = path / "ledger.jsonl"
    if not path.is_file():
        raise InputError(f"{path} does not exist, but it must be a run's ledger")
    return path
