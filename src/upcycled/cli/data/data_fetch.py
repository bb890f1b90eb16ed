"""``upcycled data fetch``: bring a real set to this machine."""

from __future__ import annotations

import argparse

from upcycled.cli.batches import add_command, add_json
from upcycled.cli.show import note, print_json
from upcycled.support.said import is_terminal

_EPILOG = """\
femnist downloads EMNIST (562 MB), sent140 the original tweets (81 MB), glove the word vectors for them.
The download needs the extra [data]. Data goes to $UPCYCLED_DATA, else to the cache folder.

examples:
  upcycled data fetch femnist
  upcycled data fetch sent140 --to DIR
"""


def add_fetch(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "download a real set from its publisher, and check it"
    parser = add_command(commands, "fetch", help=text, description=text, examples=_EPILOG)
    parser.add_argument("set", metavar="SET", help="femnist, sent140 or glove")
    parser.add_argument("--to", metavar="DIR", help="the data folder to put it in")
    parser.add_argument("--url", help="another address of the same archive")
    add_json(parser)
    parser.set_defaults(run=_fetch)


def _fetch(args: argparse.Namespace) -> int:
    from upcycled.data.sets.fetch import fetch, package_of

    package = package_of(args.set)
    note(f"{package.title}: {args.url or package.url}")
    found = fetch(args.set, args.to, args.url, shows_progress=is_terminal())
    if args.json:
        print_json(
            {
                "set": found.name,
                "files": [str(file) for file in found.files],
                "was_there": found.was_there,
                "checked": found.checked,
            }
        )
        return 0
    print(f"{'already there' if found.was_there else 'fetched'}: {args.set} ({found.checked})")
    for file in found.files:
        print(f"  {file}")
    return 0
