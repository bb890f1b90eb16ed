"""``upcycled privacy account``: open, show and close a data holder's account."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upcycled.cli.batches import Subparsers, add_command, add_json
from upcycled.cli.show import print_json, print_rows, print_table
from upcycled.core.errors import InputError
from upcycled.support.formats import epsilon, percent

if TYPE_CHECKING:
    from upcycled.privacy.accounts.account import Account

EXAMPLES = """\
examples:
  upcycled privacy account open ACCOUNT --epsilon 4 --delta 1e-5
  upcycled privacy account open ACCOUNT --epsilon 4 --delta 1e-5 --kind gaussian
  upcycled privacy account open ACCOUNT --pot gaussian:3:1e-6 --pot pure:1:0
  upcycled privacy account show ACCOUNT
  upcycled privacy account show ACCOUNT --head kept-elsewhere.json
  upcycled privacy account close ACCOUNT
  upcycled run experiment.toml privacy.noise=system privacy.account=ACCOUNT
"""
MOST_ROWS = 20


def add_account(subparsers: Subparsers) -> None:
    """Declare the command."""
    text = "a data holder's account: what clients have spent over all studies, and the most they ever may"
    parser = add_command(subparsers, "account", help=text, description=text, examples=EXAMPLES)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    text = "open an account: what no client may ever exceed is fixed from then on"
    command = add_command(commands, "open", help=text, description=text, examples=EXAMPLES)
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
        command = add_command(commands, name, help=text, description=text, examples=EXAMPLES)
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
    from upcycled.support.files import read_json

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
        shown = rows if every_client else rows[:MOST_ROWS]
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
