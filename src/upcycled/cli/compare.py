"""``upcycled compare``: vanilla against upcycled, with a test of the difference."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from upcycled._utils.formats import NONE, count, epsilon, general, interval, mean_sd, megabytes, score_digits, signed
from upcycled.cli.common import (
    Subparsers,
    add_batch_options,
    add_command,
    add_metric,
    experiment_of,
    names_of,
    options_of,
    resumable,
)
from upcycled.cli.output import note, note_left_out, print_json, print_table
from upcycled.core.errors import InputError

if TYPE_CHECKING:
    from upcycled.experiments.compare import Compared, Row


EXAMPLES = """\
examples:
  upcycled compare experiment.toml
  upcycled compare experiment.toml --algorithms fedavg,fedprox,scaffold,feddyn
  upcycled compare experiment.toml --equal-epsilon          a private file, noise calibrated for both
  upcycled compare results/a results/b --metric auroc       what is there already, b against a
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "compare",
        help="vanilla against upcycled at equal work or equal epsilon, tested over seeds",
        description="Run vanilla and upcycled over the file's seeds and test the difference. A constant coefficient is "
        "also tested against vanilla with server_lr = 1 + coefficient. Finished runs are reused. "
        "Two results folders in the place of a file: test the difference of what they hold, and train nothing.",
        examples=EXAMPLES,
    )
    add_batch_options(parser)
    parser.add_argument(
        "--equal-epsilon",
        action="store_true",
        help="as many iterations each, at the same epsilon (else: as many data rounds each)",
    )
    parser.add_argument(
        "--algorithms", metavar="A,B", help="several; others than the file's have their default parameters"
    )
    parser.add_argument("--confidence", type=float, default=0.95, metavar="C", help="of the intervals (default: 0.95)")
    parser.add_argument(
        "--no-longer-step",
        action="store_true",
        help="leave out vanilla with server_lr = 1 + coefficient, which runs for a constant coefficient",
    )
    add_metric(parser, "tested")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from upcycled.experiments.batch import tell_failures
    from upcycled.experiments.compare import compare_experiment

    if Path(args.config).is_dir():
        return _run_kept(args)
    experiment = experiment_of(args)
    if experiment.sweep and not args.quiet:
        note("note: compare ignores the table [sweep] and runs the file's own values")
    with resumable(args):
        found = compare_experiment(
            experiment,
            args.config,
            equal="epsilon" if args.equal_epsilon else "work",
            algorithms=None if args.algorithms is None else names_of(args.algorithms),
            confidence=args.confidence,
            metric=args.metric,
            longer_step=not args.no_longer_step,
            repeat=args.repeat,
            options=options_of(args, tell_failures),
        )
    note_left_out({} if found.report else {"page": "jinja2"})
    if args.json:
        page = None if found.report is None else str(found.report)
        print_json({**found.as_json(), "folder": str(found.folder), "report": page})
    else:
        _show(found)
    return 0 if found.is_complete else 1


def _run_kept(args: argparse.Namespace) -> int:
    """Compare two results folders."""
    from upcycled._utils.statistics import mean_and_sd
    from upcycled.experiments.compare import compare_kept

    if len(args.overrides) != 1:
        raise InputError(f"{args.config} is a folder, but one folder is nothing to compare: two results folders are")
    found = compare_kept(args.config, args.overrides[0], metric=args.metric, confidence=args.confidence)
    if args.json:
        print_json(found.as_json())
        return 0
    how, test = score_digits(found.judged.name), found.paired
    unit = " %" if found.judged.name == "accuracy" else ""
    sides = (found.first, found.second)
    print_table(
        f"{found.second.folder} against {found.first.folder}, {len(found.seeds)} seeds in both",
        ["folder", f"{found.judged.name}{unit}", "worst epsilon"],
        [
            [str(side.folder), mean_sd(mean_and_sd([side.scores[s] for s in found.seeds]), *how), epsilon(side.epsilon)]
            for side in sides
        ],
        words=["folder"],
    )
    if test is not None:
        shown = f"{signed(test.mean, *how)} ({interval(*test.interval, *how)})"
        print(f"Difference, {general(100 * args.confidence)} % interval, paired by seed: {shown}: {found.verdict}.")
    else:
        print(f"{found.verdict[0].upper()}{found.verdict[1:]}: an interval needs two.")
    return 0


def _show(found: Compared) -> None:
    from upcycled.experiments.compare import EQUAL_WORDS

    if found.is_restricted:
        _show_costs(found)
        return
    several = len(found.table) > 1
    verdicts = ["verdict", *(["after Holm's correction"] if several else [])]
    unit = " %" if found.judged.name == "accuracy" else f"\n{found.judged.name}"
    difference = f"difference, {general(100 * found.confidence)} % interval"
    print_table(
        f"{found.experiment.name}: vanilla against upcycled {EQUAL_WORDS[found.equal]}",
        ["algorithm", f"vanilla{unit}", f"upcycled{unit}", difference, *verdicts],
        [_cells(row, several) for row in found.table],
        words=verdicts,
    )
    _show_rest(found)


def _show_costs(found: Compared) -> None:
    """Print what runs cost, where nobody but the holder may compare what they gave."""
    from upcycled.experiments.compare import EQUAL_WORDS

    rows = []
    for row in found.rows:  # private runs have no arm with a longer server step
        for name, outcome in (("vanilla", row.vanilla), ("upcycled", row.upcycled)):
            means = {key: value["mean"] for key, value in outcome.summary().items()}
            numbers = [count(means["data_rounds"]), count(means["messages"]), megabytes(means["bytes"])]
            rows.append([f"{row.algorithm}, {name}", *numbers, epsilon(outcome.worst_epsilon)])
    print_table(
        f"{found.experiment.name}: vanilla against upcycled {EQUAL_WORDS[found.equal]}",
        ["runs", "data rounds", "messages", "MB", "worst epsilon"],
        rows,
    )
    _show_rest(found)


def _show_rest(found: Compared) -> None:
    for line in found.notes:
        print(line)
    print(f"Results: {found.folder}")
    if found.report is not None:
        print(f"Report:  {found.report}")


def _cells(row: Row, several: bool) -> list[str]:
    from upcycled._utils.statistics import mean_and_sd

    how = score_digits(row.judged.name)
    sides = [mean_sd(mean_and_sd(outcome.scores(row.judged)), *how) for outcome in (row.vanilla, row.upcycled)]
    test = row.paired
    difference = NONE if test is None else f"{signed(test.mean, *how)} ({interval(*test.interval, *how)})"
    return [row.title, *sides, difference, row.verdict, *([row.holm_verdict or NONE] if several else [])]
