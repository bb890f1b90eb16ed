"""``upcycled demo``: one model trained vanilla, upcycled, and each with a proven epsilon."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from upcycled._utils.formats import count, epsilon, fixed, mean_sd, megabytes
from upcycled.cli.common import Subparsers, add_command, add_json
from upcycled.cli.output import note_left_out, print_json, print_table

if TYPE_CHECKING:
    from upcycled.experiments.demo import Demo


EXAMPLES = """\
examples:
  upcycled demo
  upcycled demo --rounds 10 --seeds 4 --output demo
"""
COLUMNS = ("run", "accuracy %", "data\nrounds", "messages", "MB", "worst\nepsilon", "seconds")
DEFAULT_OUTPUT = str(Path("results") / "demo")


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "demo",
        help="one model vanilla, upcycled, and with a proven epsilon: a table, a plot, a page",
        description="Train one model vanilla and upcycled, without and with a proven epsilon, on generated data: what "
        "each costs in messages, bytes and epsilon, beside its accuracy.",
        examples=EXAMPLES,
    )
    parser.add_argument(
        "--rounds", type=int, metavar="M", help="iterations of every run; half of an upcycled one's are data rounds"
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="runs of every kind, at least 2")
    parser.add_argument("--output", default=DEFAULT_OUTPUT, metavar="DIR", help=f"folder (default: {DEFAULT_OUTPUT})")
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from upcycled.experiments import demo
    from upcycled.experiments.batch import Options, tell_scores

    rounds = demo.ROUNDS if args.rounds is None else args.rounds
    seeds = demo.SEEDS if args.seeds is None else args.seeds
    runs = demo.contestants(rounds, seeds, args.output)
    repeat = shlex.join(
        ["upcycled", "demo", "--rounds", str(rounds), "--seeds", str(seeds), "--output", str(args.output)]
    )
    found = demo.run_demo(runs, repeat, Options(progress=True, tell=tell_scores()))
    written = {"plot": ("matplotlib", found.plot), "page": ("jinja2", found.report)}
    note_left_out({what: package for what, (package, path) in written.items() if path is None})
    if args.json:
        print_json(found.as_json())
    else:
        _show(found)
    return 0


def _show(found: Demo) -> None:
    from upcycled.experiments.demo import TITLE

    rows = []
    for contestant, outcome in found.rows:
        s = outcome.summary()
        rows.append(
            [
                contestant.title,
                mean_sd(s["accuracy"], 2, 100),
                count(s["data_rounds"]["mean"]),
                count(s["messages"]["mean"]),
                megabytes(s["bytes"]["mean"]),
                epsilon(outcome.worst_epsilon),
                fixed(s["seconds"]["mean"], 2),
            ]
        )
    seeds = len(found.rows[0][1].seeds)
    print_table(f"{TITLE} (mean ± sd of {seeds} seeds)", COLUMNS, rows)
    if found.plot is not None:
        print(f"Plot:   {found.plot}")
    if found.report is not None:
        print(f"Report: {found.report}")
    print(f"Repeat: {found.repeat}")
    print(found.note)
