"""``upcycled federation``: the same experiment on machines of its data holders, over Flower.

``upcycled federation`` and its commands.
"""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upcycled.cli.common import Subparsers, add_command, add_json
from upcycled.cli.output import note, print_json, print_rows, tip_words
from upcycled.core.errors import InputError

if TYPE_CHECKING:
    from upcycled.federation.certificates import Invitation
    from upcycled.federation.site.policy import Policy


EXAMPLES = """\
examples:
  upcycled federation init experiment.toml study          a folder for the federation, with certificates
  upcycled federation up study                            all of it on this machine, to try it out
  upcycled federation up study --server                   the server alone; sites join from elsewhere
  upcycled federation invite study hospital-a             a file for one site, without any secret
  upcycled federation invite study hospital-a --key KEY   let that site in
  upcycled federation run study local.lr=0.1              run the experiment
  upcycled federation status study                        who is missing, and why
  upcycled federation down study                          end what `up` started
and at a site:
  upcycled federation check hospital-a.toml --policy policy.toml --data site.csv
  upcycled federation join hospital-a.toml --policy policy.toml --data site.csv
"""
PORT = 18100


def add_parser(subparsers: Subparsers) -> None:
    """Register ``federation`` and its sub-commands."""
    text = "run an experiment on the machines of its data holders, over Flower"
    parser = add_command(subparsers, "federation", help=text, description=text, examples=EXAMPLES)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    command = _command(commands, "init", "write a federation's folder for an experiment file", _init)
    command.add_argument("config", metavar="CONFIG.toml", help="the experiment file")
    command.add_argument("folder", metavar="FOLDER", help="where; it must not have a federation yet")
    command.add_argument("--sites", metavar="A,B,C", help="their names (default: the clients of the file's data)")
    command.add_argument("--host", default="127.0.0.1", metavar="NAME", help="what sites reach the server by")
    command.add_argument("--port", type=int, default=PORT, metavar="N", help=f"the one port (default: {PORT})")
    command.add_argument("--listen", metavar="ADDRESS", help="where the server listens (default: 127.0.0.1)")

    command = _command(commands, "up", "start the server, and the sites too unless --server is given", _up)
    command.add_argument("folder", metavar="FOLDER", help="the federation's folder")
    command.add_argument("--server", action="store_true", help="the server alone: sites join from elsewhere")

    command = _command(commands, "invite", "write a site's invitation, or let its key in", _invite)
    command.add_argument("folder", metavar="FOLDER", help="the federation's folder")
    command.add_argument("site", metavar="SITE", help="which of its sites")
    command.add_argument("--key", metavar="KEY", help="the public key that `join` printed, or a file with it")

    for name, text, run in (
        ("join", "take part as a site, until Ctrl-C", _join),
        ("check", "try everything that joining needs, one sentence each", _check),
    ):
        command = _command(commands, name, text, run)
        command.add_argument("invitation", metavar="INVITATION", help="the file that the server's operator sent")
        command.add_argument("--policy", required=True, metavar="POLICY.toml", help="this site's own file")
        command.add_argument("--data", metavar="FILE", help="the site's table, in the place of the policy's data.path")
        if name == "join":
            command.add_argument("--threads", type=int, default=1, metavar="N", help="of local work (default: 1)")

    command = _command(commands, "run", "run the experiment, all its seeds; the same command goes on", _run)
    command.add_argument("folder", metavar="FOLDER", help="the federation's folder")
    command.add_argument("overrides", metavar="key=value", nargs="*", help="values that replace those of the file")
    command.add_argument("--quiet", action="store_true", help="no progress, only the result")
    add_json(command)

    command = _command(commands, "status", "say who is connected, and who is missing and why", _status)
    command.add_argument("folder", metavar="FOLDER", help="the federation's folder")
    add_json(command)

    command = _command(commands, "down", "end what `up` started on this machine", _down)
    command.add_argument("folder", metavar="FOLDER", help="the federation's folder")


def _command(commands: Subparsers, name: str, text: str, run: Any) -> argparse.ArgumentParser:
    command = add_command(commands, name, help=text, description=text, examples=EXAMPLES)
    command.set_defaults(run=run)
    return command


def _init(args: argparse.Namespace) -> int:
    from upcycled.config.experiment import load_config
    from upcycled.federation.folder import make_folder

    experiment = load_config(args.config)
    if args.sites is not None:
        sites = [name.strip() for name in args.sites.split(",") if name.strip()]
    else:
        data = experiment.build_data()
        sites = [data.name_of(i) for i in range(data.num_clients)]
        sites = [f"site-{name}" if name.isdigit() else name for name in sites]
    listen = args.listen or "127.0.0.1"
    folder = make_folder(experiment, Path(args.folder), sites, args.host, args.port, listen)
    print(f"{folder.path}: a federation of {len(sites)} sites ({', '.join(sites[:8])}{', ...' * (len(sites) > 8)})")
    return 0


def _up(args: argparse.Namespace) -> int:
    from upcycled.federation.folder import open_folder
    from upcycled.federation.local import up

    up(open_folder(args.folder), note, args.server)
    return 0


def _invite(args: argparse.Namespace) -> int:
    from upcycled.federation.folder import invite, let_in, open_folder
    from upcycled.federation.local import register

    folder = open_folder(args.folder)
    if args.key is None:
        print(invite(folder, args.site))
        return 0
    path = Path(args.key)
    let_in(folder, args.site, path.read_text() if len(args.key) < 200 and path.is_file() else args.key)
    is_told = register(folder, args.site)
    print(f"site '{args.site}' is let in{'' if is_told else ' when the server is up'}")
    return 0


def _join(args: argparse.Namespace) -> int:
    from upcycled.federation.site.node import stay
    from upcycled.federation.transport import check_flower

    check_flower()
    invitation, policy = _site(args)
    # A kill that asks is an end like Ctrl-C: the worker goes, and the server hears it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    stay(invitation, policy, Path(args.policy).parent, note, args.threads)
    return 0


def _check(args: argparse.Namespace) -> int:
    from upcycled.federation.site.join_checks import check_joining
    from upcycled.federation.transport import check_flower

    check_flower()
    invitation, policy = _site(args)
    is_right = True
    for found in check_joining(invitation, policy, Path(args.policy).parent):
        print(f"{'ok' if found.is_right else 'WRONG':6} {found.what}: {found.said}", flush=True)
        is_right &= found.is_right
    return 0 if is_right else 1


def _site(args: argparse.Namespace) -> tuple[Invitation, Policy]:
    from upcycled.federation.certificates import read_invitation
    from upcycled.federation.site.policy import read_policy

    invitation, policy = read_invitation(args.invitation), read_policy(args.policy, args.data)
    if policy.name != invitation.site and args.run is not _check:
        raise InputError(f"the policy is that of '{policy.name}', but '{invitation.site}' is invited")
    return invitation, policy


def _run(args: argparse.Namespace) -> int:
    from upcycled.federation.folder import open_folder
    from upcycled.federation.server_run import run_federation

    folder = open_folder(args.folder)
    experiment = folder.experiment(args.overrides)
    done = []
    for seed in experiment.seeds:
        summary = run_federation(folder, experiment, seed, is_shown=not args.quiet)
        done.append(summary)
        if not args.json:
            words = f"stopped: {summary.error}" if summary.error else f"{summary.data_rounds} data rounds"
            print(f"seed {seed}: {words}, {summary.messages} messages")
            if tip := tip_words(summary):
                print(f"seed {seed}: {tip}")
    if args.json:
        print_json({"name": experiment.name, "seeds": [summary.as_json() for summary in done]})
    else:
        print(f"Results: {Path(experiment.results) / experiment.name}")
    return 0 if all(summary.error is None for summary in done) else 1


def _status(args: argparse.Namespace) -> int:
    from upcycled.federation.folder import open_folder
    from upcycled.federation.local import status

    found = status(open_folder(args.folder))
    if args.json:
        print_json(dict(found))
    else:
        print_rows(str(args.folder), found)
    return 0 if all("missing" not in words and "not there" not in words for _, words in found) else 1


def _down(args: argparse.Namespace) -> int:
    from upcycled.federation.folder import open_folder
    from upcycled.federation.local import down

    ended = down(open_folder(args.folder))
    print(f"ended {len(ended)} processes" if ended else "nothing was up")
    return 0


__all__ = ["add_parser"]
