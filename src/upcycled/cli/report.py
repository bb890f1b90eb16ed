"""``upcycled report``: one HTML page from a results folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from upcycled.cli.common import Subparsers, add_command, add_json
from upcycled.cli.output import note, print_json

EXAMPLES = """\
examples:
  upcycled report results/synthetic                     writes results/synthetic/report.html
  upcycled report results/demo --output demo.html --title "Vanilla against upcycled"
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "report",
        help="one self-contained HTML page from a results folder",
        description="Write one HTML page that opens from disk and needs no network. DIR is the folder of a seed, of an "
        "experiment, or of several (a demo, a comparison, a sweep).",
        examples=EXAMPLES,
    )
    parser.add_argument("folder", metavar="DIR", help="the results folder")
    parser.add_argument("--output", metavar="FILE", help="where the page goes (default: DIR/report.html)")
    parser.add_argument("--title", metavar="T", help="the page's title")
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from upcycled.report import collect, write_page

    results = collect(Path(args.folder))
    path = write_page(results, Path(args.folder), None if args.output is None else Path(args.output), args.title)
    unfinished = [place for part in results.parts for place in part.unfinished]
    stopped = [sentence for part in results.parts for sentence in part.stopped]
    for line in (*results.problems, *stopped):
        note(f"note: {line}")
    if unfinished:
        note(f"note: not finished, and left out: {', '.join(unfinished)}")
    if args.json:
        about = {"experiments": len(results.parts), "runs": results.num_seeds}
        print_json(
            {
                "report": str(path),
                **about,
                "unfinished": unfinished,
                "stopped": stopped,
                "problems": list(results.problems),
            }
        )
    else:
        print(f"Report: {path}")
    return 0
