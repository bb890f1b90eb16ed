"""``upcycled privacy account|ledger|evidence``: what clients have spent, and files to check it with.

``upcycled privacy account``: open, show and close a data holder's account.

``upcycled privacy ledger``: what clients spent in several runs together.

``upcycled privacy evidence``: all that somebody needs to check an epsilon.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upcycled._utils.formats import epsilon, general, percent
from upcycled.cli.common import Subparsers, add_command, add_json
from upcycled.cli.output import note, print_json, print_rows, print_table
from upcycled.core.errors import InputError

if TYPE_CHECKING:
    from upcycled.privacy.accounts.account import Account


ACCOUNT_EXAMPLES = """\
examples:
  upcycled privacy account open ACCOUNT --epsilon 4 --delta 1e-5
  upcycled privacy account open ACCOUNT --epsilon 4 --delta 1e-5 --kind gaussian
  upcycled privacy account open ACCOUNT --pot gaussian:3:1e-6 --pot pure:1:0
  upcycled privacy account show ACCOUNT
  upcycled privacy account show ACCOUNT --head kept-elsewhere.json
  upcycled privacy account close ACCOUNT
  upcycled run experiment.toml privacy.noise=system privacy.account=ACCOUNT
"""
MOST_CLIENTS_SHOWN = 20


def add_account(subparsers: Subparsers) -> None:
    """Declare the command."""
    text = "a data holder's account: what clients have spent over all studies, and the most they ever may"
    parser = add_command(subparsers, "account", help=text, description=text, examples=ACCOUNT_EXAMPLES)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    text = "open an account: what no client may ever exceed is fixed from then on"
    command = add_command(commands, "open", help=text, description=text, examples=ACCOUNT_EXAMPLES)
    command.add_argument("account", metavar="DIR", help="its folder, which becomes its owner's alone")
    command.add_argument("--epsilon", type=float, metavar="X", help="the most that a client may spend over all studies")
    command.add_argument("--delta", type=float, metavar="X", help="the delta that goes with it")
    command.add_argument("--kind", metavar="NAME", help="mixed (default: every mechanism), gaussian or pure")
    command.add_argument(
        "--order", type=float, metavar="X", help="mixed: the Renyi order (default: best for Gaussian releases)"
    )
    command.add_argument(
        "--draws", type=int, metavar="N", help="the most numbers of real noise a client may be charged for"
    )
    command.add_argument(
        "--pot",
        action="append",
        default=[],
        metavar="KIND:EPSILON:DELTA",
        help="a budget for one kind of releases, in the place of --epsilon and --delta; may be given several times: "
        "epsilons and deltas add up",
    )
    command.add_argument("--unit", default="record", metavar="NAME", help="record (default) or client")
    add_json(command)
    command.set_defaults(run=_open)
    for name, text, run in (
        ("show", "what is committed, and what every client has spent", _show),
        ("close", "close an account: nothing is charged to it any more", _close),
    ):
        command = add_command(commands, name, help=text, description=text, examples=ACCOUNT_EXAMPLES)
        command.add_argument("account", metavar="DIR", help="its folder")
        if name == "show":
            command.add_argument("--clients", action="store_true", help="a line for every client")
            text = (
                "a file with a head that was kept, as `show --json` prints it: an account that lost charges is refused"
            )
            command.add_argument("--head", metavar="FILE", help=text)
        add_json(command)
        command.set_defaults(run=run)


def _open(args: argparse.Namespace) -> int:
    from upcycled.privacy.accounts.account import Account

    given: dict[str, Any] = {name: getattr(args, name) for name in ("epsilon", "delta", "order", "draws")}
    if args.pot:
        given["pots"] = [_pot(text) for text in args.pot]
        if args.kind is not None:
            raise InputError("is given beside --pot, but each pot has its own", field="--kind")
    account = Account.open(args.account, unit=args.unit, kind=args.kind or "mixed", **given)
    return _say(account, args.json)


def _pot(text: str) -> dict[str, Any]:
    kind, *numbers = text.split(":")
    try:
        epsilon, delta = map(float, numbers)
    except ValueError:
        must = "KIND:EPSILON:DELTA, such as gaussian:3:1e-6"
        raise InputError(field="--pot", value=text, must=must) from None
    return {"kind": kind, "epsilon": epsilon, "delta": delta}


def _close(args: argparse.Namespace) -> int:
    from upcycled.privacy.accounts.account import Account

    account = Account(args.account)
    account.close()
    return _say(account, args.json)


def _show(args: argparse.Namespace) -> int:
    from upcycled.privacy.accounts.account import Account

    head = None if args.head is None else _head(args.head)
    return _say(Account.read(args.account, head=head), args.json, every_client=args.clients)


def _head(path: str) -> Any:
    """Return a kept head: by itself, or within what ``show --json`` printed."""
    from upcycled._utils.files import read_json

    found = read_json(Path(path), "a head, as `upcycled privacy account show --json` prints it")
    return found.get("head", found)


def _say(account: Account, as_json: bool, every_client: bool = False) -> int:
    clients = sorted(account.clients, key=lambda client: -account.share(client))
    rows = [(client, account.rounds(client), account.share(client), account.epsilon(client)) for client in clients]
    if as_json:
        names = ("client", "rounds", "share", "epsilon_so_far")
        print_json(
            {
                **account.terms.to_json(),
                "epsilon": account.terms.epsilon,
                "delta": account.terms.delta,
                "claim": account.claim,
                "closed": account.is_closed,
                "studies": [study.to_json() for study in account.studies],
                "charges": len(account.charges),
                "clients": [dict(zip(names, row, strict=True)) for row in rows],
                "data_changed": account.times_changed,
                "head": account.head.as_json(),
            }
        )
        return 0
    print_rows(f"Account {account.folder}", account.statement_items())
    if rows:
        shown = rows if every_client else rows[:MOST_CLIENTS_SHOWN]
        cells = [[client, str(rounds), percent(share), percent(1 - share), epsilon(so_far)]
                 for client, rounds, share, so_far in shown]  # fmt: skip
        print_table("Clients", ("client", "data rounds", "spent", "left", "epsilon so far"), cells)
        if len(shown) < len(rows):
            print(f"{len(rows) - len(shown)} more clients have spent less: --clients shows them.")
        print("Epsilon so far is no claim by itself: the claim is the account's, whatever studies depended on.")
    if account.times_changed:
        print(f"The data changed {account.times_changed} times between studies; that is the holder's own to know.")
    head = account.head
    print(f"Head, to be kept elsewhere: {head.lines} lines, tip {head.tip}, HMAC {head.mac}")
    return 0


LEDGER_EXAMPLES = """\
examples:
  upcycled privacy ledger results/NAME/seed-*/ledger.jsonl
  upcycled privacy ledger first/ledger.jsonl second/ledger.jsonl --delta 1e-6 --clients
"""
MOST_ROWS = 20


def add_ledger(subparsers: Subparsers) -> None:
    """Declare the command."""
    text = "compose the ledgers of several runs on the same data, client by client"
    parser = add_command(subparsers, "ledger", help=text, description=text, examples=LEDGER_EXAMPLES)
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
    parser.set_defaults(run=_show_ledgers)


def _show_ledgers(args: argparse.Namespace) -> int:
    from upcycled.privacy.ledger.joint import FIXED_ONLY, joint_epsilon, read_beside
    from upcycled.privacy.mechanisms import PROVEN, claim_word

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


EVIDENCE_EXAMPLES = """\
examples:
  upcycled privacy evidence results/NAME/seed-0 -o evidence
  upcycled privacy evidence ACCOUNT -o evidence --audit audit.json
"""


def add_evidence(subparsers: Subparsers) -> None:
    """Declare the command."""
    text = "write a folder that anybody can check an epsilon with: ledger, statement, events, script, what it means"
    parser = add_command(subparsers, "evidence", help=text, description=text, examples=EVIDENCE_EXAMPLES)
    parser.add_argument("source", metavar="RESULT|ACCOUNT", help="a seed's folder, or an account's")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="where; a folder of its own")
    parser.add_argument("--audit", metavar="FILE", help="what `upcycled audit --json` printed, to be put beside it")
    add_json(parser)
    parser.set_defaults(run=_write_evidence)


def _write_evidence(args: argparse.Namespace) -> int:
    from upcycled._utils.messages import collected_warnings
    from upcycled.audit.evidence.folder import write_evidence
    from upcycled.privacy.mechanisms import epsilon_called

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
