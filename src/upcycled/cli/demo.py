"""``upcycled demo``: vanilla against upcycled on generated data."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from upcycled.cli.batches import Subparsers, add_command, add_json
from upcycled.cli.show import note_left_out, print_json, print_table
from upcycled.support.formats import count, fixed, mean_sd, megabytes

if TYPE_CHECKING:
    from upcycled.experiments.demo import Demo

EXAMPLES = """\
examples:
  upcycled demo
  upcycled demo --rounds 10 --seeds 4 --output demo
"""
COLUMNS = ("run", "accuracy %", "loss", "data\nrounds", "iterations", "messages", "MB", "seconds")
DEFAULT_OUTPUT = str(Path("results") / "demo")


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "demo",
        help="vanilla against upcycled in under a minute: live progress, a table, a plot",
        description="Compare vanilla and upcycled FedAvg and FedProx at equal data rounds, on generated data.",
        examples=EXAMPLES,
    )
    parser.add_argument("--rounds", type=int, metavar="M", help="data rounds of every run")
    parser.add_argument("--seeds", type=int, metavar="N", help="runs of every kind, at least 2")
    parser.add_argument("--output", default=DEFAULT_OUTPUT, metavar="DIR", help=f"folder (default: {DEFAULT_OUTPUT})")
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from upcycled.experiments import demo
    from upcycled.experiments.batch import Options
    from upcycled.experiments.seed_lines import tell_scores

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
    rows = []
    for contestant, outcome in found.rows:
        s = outcome.summary()
        rows.append(
            [
                f"{contestant.group}, {'upcycled' if contestant.is_upcycled else 'vanilla'}",
                mean_sd(s["accuracy"], 2, 100),
                fixed(s["loss"]["mean"], 3),
                count(s["data_rounds"]["mean"]),
                count(s["iterations"]["mean"]),
                count(s["messages"]["mean"]),
                megabytes(s["bytes"]["mean"]),
                fixed(s["seconds"]["mean"], 2),
            ]
        )
    seeds = len(found.rows[0][1].seeds)
    print_table(f"Vanilla against upcycled at equal data rounds (mean ± sd of {seeds} seeds)", COLUMNS, rows)
    if found.plot is not None:
        print(f"Plot:   {found.plot}")
    if found.report is not None:
        print(f"Report: {found.report}")
    print(f"Repeat: {found.repeat}")
    print(found.note)
