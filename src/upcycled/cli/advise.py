"""``upcycled privacy advise``: how to spend a file's epsilon better, from public facts alone."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from upcycled.cli.batches import Subparsers, add_command, add_config, add_json, experiment_of
from upcycled.cli.show import note, print_json, print_table
from upcycled.core.errors import InputError
from upcycled.support.formats import NONE, fixed, interval, signed, significant

if TYPE_CHECKING:
    from upcycled.auditing.advice.advising import Advice
    from upcycled.auditing.advice.mean_noise import MeanNoise

EXAMPLES = """\
examples:
  upcycled privacy advise experiment.toml --quick
  upcycled privacy advise experiment.toml -o better.toml --picture better.png
  upcycled privacy advise hospital.toml --sizes 120,450,90,2000 --features 12 --classes 2
"""
TEXT = "how to spend a file's epsilon better: noise under each choice, and a search on generated data; opens no data"
SHOWN = 6
"""So many candidates are listed."""


def add_advise(subparsers: Subparsers) -> None:
    """Declare the command."""
    command = add_command(subparsers, "advise", help=TEXT, description=TEXT, examples=EXAMPLES)
    add_config(command)
    command.add_argument("--sizes", metavar="LIST", help="training records of each client: 45,120,300 or 200x30")
    command.add_argument("--features", metavar="K", help="numbers of a record")
    command.add_argument("--classes", metavar="K", help="classes, where the file does not say them")
    command.add_argument("--quick", action="store_true", help="try little: seconds")
    command.add_argument("-o", "--output", metavar="FILE", help="write the improved file")
    command.add_argument("--picture", metavar="FILE", help="write a picture (PNG)")
    add_json(command)
    command.set_defaults(run=_advise)


def _advise(args: argparse.Namespace) -> int:
    from upcycled.auditing.advice.advising import advise
    from upcycled.auditing.advice.candidates import FULL, QUICK
    from upcycled.auditing.advice.public_facts import parsed_sizes, public_facts
    from upcycled.support.extras import needs

    if args.picture is not None:
        needs("--picture", "matplotlib")
    experiment = experiment_of(args)
    sizes = None if args.sizes is None else parsed_sizes(args.sizes)
    facts = public_facts(experiment, sizes, _whole("--features", args.features), _whole("--classes", args.classes))
    found = advise(experiment, args.config, facts, QUICK if args.quick else FULL)
    if args.json:
        print_json(found.as_json())
    else:
        _show(found)
    if args.picture is not None:
        from upcycled.auditing.advice.advice_picture import write_picture

        write_picture(Path(args.picture), found)
        note(f"wrote {args.picture}")
    if args.output is not None:
        _write(args.output, found)
    return 0


def _whole(flag: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise InputError(field=flag, value=text, must="an integer") from None


def _write(path: str, found: Advice) -> None:
    import tomli_w

    from upcycled.support.files import write_whole

    if found.file is None:
        note(f"note: {path} was not written: there is nothing better to put into it")
        return
    write_whole(Path(path), tomli_w.dumps(dict(found.file)).encode())
    note(f"wrote {path}")


def _show(found: Advice) -> None:
    sizes = found.facts.sizes
    print(
        f"{sizes.size} clients of {sizes.min()} to {sizes.max()} records, {found.facts.shape[0]} features, "
        f"{found.facts.classes} classes; epsilon {significant(found.target.epsilon)} at delta {found.target.delta:g}. "
        "No data were opened.\n"
    )
    print_table(
        "Noise of a data round (std per coordinate)",
        ("choice", "data rounds", "of releases", "of the mean", "of the mean, precision at best"),
        [_noise_row(row) for row in found.noise],
    )
    refused = {row.choice: row.refused for row in found.noise if row.refused}
    for choice, words in refused.items():
        print(f"{choice}: {words}")
    if found.tried:
        rows = [
            [
                one.candidate.mechanism,
                f"{one.candidate.a:g}",
                str(one.candidate.rounds),
                NONE if one.candidate.steps is None else str(one.candidate.steps),
                one.candidate.reuse.words,
                f"{fixed(one.mean, 1, 100)} ({len(one.scores)})",
            ]
            for one in found.tried[:SHOWN]
        ]
        columns = ("tried on generated federations", "a", "data rounds", "steps", "reuse", "accuracy % (runs)")
        print_table("Best of what was tried", columns, rows)
    if found.gain is not None:
        low, high = found.gain.interval
        print(
            f"On {len(found.gain.differences)} fresh generated federations: {fixed(found.best_accuracy, 1, 100)} % in "
            f"place of the file's {fixed(found.own_accuracy, 1, 100)} %, a gain of {signed(found.gain.mean, 1, 100)} "
            f"points ({interval(low, high, 1, 100)})."
        )
    for line in found.sentences:
        print(line)


def _noise_row(row: MeanNoise) -> list[str]:
    release = NONE if row.release is None else f"{significant(row.release.min())} to {significant(row.release.max())}"
    return [row.choice, str(row.rounds), release, significant(row.by_samples), significant(row.least)]
