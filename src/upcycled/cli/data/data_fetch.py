"""``upcycled data fetch``: bring a real set to this machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from upcycled.cli.batches import add_command, add_json
from upcycled.cli.show import note, print_json
from upcycled.support.formats import megabytes

if TYPE_CHECKING:
    from upcycled.data.sets.download import Progress

_EPILOG = """\
femnist downloads EMNIST (562 MB), sent140 the original tweets (81 MB), glove the word vectors for them.
A stopped download goes on when the command is given again. Data goes to $UPCYCLED_DATA, else to the cache folder.

examples:
  upcycled data fetch femnist
  upcycled data fetch sent140 --to DIR
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
    with _shown() as progress:
        found = fetch(args.set, args.to, args.url, progress)
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


@contextmanager
def _shown() -> Iterator[Progress]:
    """Give a function that shows how far a download is: a bar in a terminal, a line per tenth in a pipe."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    if not sys.stderr.isatty():
        said = [-1]

        def say(done: int, total: int | None) -> None:
            tenth = done // (100 << 20) if total is None else 10 * done // max(1, total)
            if tenth > said[0]:
                said[0] = tenth
                note(f"{megabytes(done)} MB" + ("" if total is None else f" of {megabytes(total)} MB"))

        yield say
        return
    columns = (BarColumn(bar_width=30), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task("", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
