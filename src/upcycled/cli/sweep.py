"""``upcycled sweep``: many settings as one batch, chosen on validation data."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from upcycled._utils.formats import NONE, fixed, mean_sd, score_digits, score_title, setting
from upcycled.cli.common import (
    Subparsers,
    add_batch_options,
    add_command,
    add_metric,
    experiment_of,
    names_of,
    options_of,
    resumable,
    warn_about_tuning,
)
from upcycled.cli.output import note, print_json, print_table
from upcycled.core.errors import InputError, check_number

if TYPE_CHECKING:
    from upcycled.experiments.sweep import Swept


EXAMPLES = """\
examples:
  upcycled sweep experiment.toml                    all combinations of the lists in [sweep]
  upcycled sweep experiment.toml --random 50        random draws, from lists and ranges
  upcycled sweep experiment.toml --optuna 100       a search that learns from what it has seen
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "sweep",
        help="try many settings as one batch, and choose on validation data",
        description="Try the settings of the table [sweep], choose on validation samples held out of every client "
        "(data.validation_fraction), and score only the chosen ones on test data. Finished runs are reused.",
        examples=EXAMPLES,
    )
    add_batch_options(parser)
    parser.add_argument("--random", type=int, metavar="N", help="N random draws in the place of the grid")
    parser.add_argument("--optuna", type=int, metavar="N", help="N points that Optuna asks for (extra 'sweep')")
    parser.add_argument("--draw-seed", type=int, default=0, metavar="S", help="of the draws (default: 0)")
    parser.add_argument("--seeds", metavar="0,1", help="seeds of the selection runs (default: the file's)")
    parser.add_argument("--top", type=int, default=10, metavar="K", help="rows of the table (default: 10)")
    add_metric(parser, "chosen by")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from upcycled.experiments.batch import tell_failures
    from upcycled.experiments.sweep import How, sweep_experiment

    check_number("--top", args.top, at_least=1, integer=True)
    how = How(args.random, args.optuna, args.draw_seed, _seeds(args.seeds), args.metric)
    experiment = experiment_of(args)
    warn_about_tuning(experiment)
    with resumable(args):
        found = sweep_experiment(
            experiment,
            args.config,
            how,
            repeat=args.repeat,
            options=options_of(args, tell_failures),
            tell=lambda text: None if args.quiet else note(text),
        )
    if args.json:
        print_json({**found.as_json(), "folder": str(found.folder)})
    else:
        _show(found, args.top, args.path)
    return 0 if found.chosen.is_complete else 1


def _seeds(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        found = tuple(int(part) for part in names_of(text))
    except ValueError:
        found = ()
    if not found or min(found) < 0 or max(found) >= 2**63 or len(set(found)) != len(found):
        raise InputError(field="--seeds", value=text, must="a list of different integers >= 0, such as 0,1,2")
    return found


def _show(found: Swept, top: int, code: list[str]) -> None:
    from upcycled._utils.statistics import mean_and_sd

    rows, judged = [], found.judged
    for place, ranked in enumerate(found.ranking[:top], start=1):
        summary = ranked.outcome.summary()
        own = mean_sd(mean_and_sd(ranked.outcome.scores(judged)), *score_digits(judged.name))
        scores = [own, fixed(summary["loss"]["mean"], 4)]
        values = [setting(value) for _, value in ranked.point.values]
        rows.append([str(place), *values, *(scores if ranked.is_complete else ["failed", NONE])])
    seeds, every = len(found.ranking[0].outcome.experiment.seeds), len(found.ranking)
    which = f"the best {len(rows)} of {every} settings" if len(rows) < every else f"all {every} settings"
    print_table(
        f"{found.experiment.name}: {which}, mean ± standard deviation over {seeds} seeds",
        ["rank", *found.experiment.sweep, f"validation\n{score_title(judged.name)}", "validation\nloss"],
        rows,
    )
    for line in found.notes:
        print(line)
    summary = found.chosen.summary()
    reached = mean_sd(mean_and_sd(found.chosen.scores(judged)), *score_digits(judged.name))
    unit = " %" if judged.name == "accuracy" else ""
    print(
        f"Chosen: {found.ranking[0].point.label}; test {judged.name} {reached}{unit}, "
        f"loss {fixed(summary['loss']['mean'], 4)} over {len(found.chosen.seeds)} seeds."
    )
    words = ["upcycled", "run", str(found.chosen_file), *(word for folder in code for word in ("--path", folder))]
    print(f"Run it: {shlex.join(words)}")
